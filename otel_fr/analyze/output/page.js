// Draws the timeline. The data: texts once in operations, groups, details, stacks; rows = {rank, role, calls}; a call =
// [operation, group, sequence id, column, start, end, state, fault, details, stack, took], times in microseconds,
// -1: not known. States: 0 completed, 1 in flight, 2 failed, 3 unknown, 4 the call that a culprit did not make.
(() => {
  const source = document.getElementById("data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const canvas = /** @type {HTMLCanvasElement} */ (document.getElementById("chart"));
  const details = document.getElementById("details");
  const axes = /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[name=axis]"));
  const paper = canvas.getContext("2d");
  const [OP, GROUP, SEQ, COLUMN, START, END, STATE, FAULT, DETAILS, STACK, TOOK] = Array(11).keys();
  const STATES = ["completed", "in flight", "failed", "state not recorded", "NOT MADE"];
  const ROW = 20, LABEL = 118, AXIS = 22;
  let axis = "order", x0 = 0, x1 = 1, top = 0, width = 0, height = 0, chosen = null, colours = {};

  const full = () => (axis === "time" ? [0, data.end] : [0, data.columns + 0.6]);
  const open = (call) => call[STATE] === 1 || (axis === "time" ? call[END] < 0 : false);
  const span = (call) => {
    const last = full()[1];
    if (axis === "order") {
      const start = call[COLUMN] + 0.06;
      return [start, open(call) ? last : call[COLUMN] + 0.94];
    }
    if (call[START] < 0) return null;
    if (call[STATE] === 4) return [call[START], call[START] + last * 0.02];
    return [call[START], call[END] >= 0 ? call[END] : call[STATE] === 3 ? call[START] : last];
  };
  const toX = (value) => LABEL + ((value - x0) / (x1 - x0)) * (width - LABEL);
  const toValue = (x) => x0 + ((x - LABEL) / (width - LABEL)) * (x1 - x0);
  const maxTop = () => Math.max(0, data.rows.length * ROW - (height - AXIS));

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["bg", "fg", "soft", "line", "card", "red", "redbg", "amber", "amberbg", "done", "focus"])
      colours[name] = style.getPropertyValue("--" + name).trim();
    const legend = document.getElementById("legend");
    legend.replaceChildren();
    for (const [name, text] of [["done", "completed"], ["amberbg", "waiting"], ["red", "failed, or not made"]]) {
      const mark = document.createElement("i");
      mark.style.background = colours[name];
      legend.append(mark, text);
    }
  }

  function resize() {
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = Math.min(Math.max(data.rows.length * ROW + AXIS + 4, 120), 0.7 * window.innerHeight) + "px";
    width = canvas.clientWidth;
    height = canvas.clientHeight;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    paper.setTransform(scale, 0, 0, scale, 0, 0);
    draw();
  }

  function draw() {
    top = Math.min(Math.max(top, 0), maxTop());
    paper.fillStyle = colours.bg;
    paper.fillRect(0, 0, width, height);
    paper.font = "12px ui-monospace, monospace";
    paper.textBaseline = "middle";
    const first = Math.floor(top / ROW), last = Math.min(data.rows.length, Math.ceil((top + height - AXIS) / ROW));
    paper.save();
    paper.beginPath();
    paper.rect(LABEL, AXIS, width - LABEL, height - AXIS);
    paper.clip();
    for (let at = first; at < last; at++) drawRow(data.rows[at], AXIS + at * ROW - top, at);
    paper.restore();
    for (let at = first; at < last; at++) drawLabel(data.rows[at], AXIS + at * ROW - top);
    drawAxis();
    document.documentElement.dataset.rows = String(last - first);
  }

  function drawRow(row, y, at) {
    paper.fillStyle = row.role === "culprit" ? colours.redbg : at % 2 ? colours.card : colours.bg;
    paper.fillRect(LABEL, y, width - LABEL, ROW);
    row.calls.forEach((call, number) => {
      const where = span(call);
      if (!where || where[1] < x0 || where[0] > x1) return;
      const left = Math.max(toX(where[0]), LABEL - 2), right = Math.min(toX(where[1]), width + 2);
      const wide = Math.max(right - left, 1.5);
      paper.fillStyle = call[STATE] === 1 ? colours.amberbg : call[STATE] === 2 ? colours.red : colours.done;
      if (call[STATE] === 4) {
        paper.setLineDash([4, 3]);
        paper.lineWidth = 2;
        paper.strokeStyle = colours.red;
        paper.strokeRect(left + 1, y + 3, Math.max(wide - 2, 6), ROW - 6);
        paper.setLineDash([]);
      } else {
        paper.fillRect(left, y + 3, wide, ROW - 6);
        if (call[FAULT]) {
          paper.lineWidth = 1.5;
          paper.strokeStyle = row.role === "culprit" ? colours.red : colours.amber;
          paper.strokeRect(left + 0.75, y + 3.75, Math.max(wide - 1.5, 1), ROW - 7.5);
        }
      }
      if (chosen && chosen.row === at && chosen.call === number) {
        paper.lineWidth = 2;
        paper.strokeStyle = colours.focus;
        paper.strokeRect(left - 1, y + 1, wide + 2, ROW - 2);
      }
      if (wide > 44) {
        paper.fillStyle = call[STATE] === 4 ? colours.red : call[STATE] === 2 ? colours.bg : colours.fg;
        paper.save();
        paper.beginPath();
        paper.rect(left, y, wide - 3, ROW);
        paper.clip();
        paper.fillText((call[STATE] === 4 ? "no " : "") + data.operations[call[OP]] + " " + call[SEQ], left + 4, y + ROW / 2 + 0.5);
        paper.restore();
      }
    });
  }

  function drawLabel(row, y) {
    paper.fillStyle = colours.bg;
    paper.fillRect(0, y, LABEL, ROW);
    paper.fillStyle = row.role === "culprit" ? colours.red : row.role === "waiting" ? colours.amber : colours.soft;
    paper.fillText((row.role === "culprit" ? "▶ " : "  ") + row.rank + (row.role ? " " + row.role : ""), 8, y + ROW / 2 + 0.5);
  }

  function drawAxis() {
    paper.fillStyle = colours.bg;
    paper.fillRect(0, 0, width, AXIS);
    paper.fillStyle = colours.soft;
    paper.fillText("rank", 8, AXIS / 2);
    paper.strokeStyle = colours.line;
    paper.lineWidth = 1;
    paper.beginPath();
    paper.moveTo(0, AXIS - 0.5);
    paper.lineTo(width, AXIS - 0.5);
    paper.moveTo(LABEL - 0.5, 0);
    paper.lineTo(LABEL - 0.5, height);
    paper.stroke();
    if (axis === "order") {
      paper.fillText("earlier  →  later; one column per collective, at the same place for all its ranks", LABEL + 8, AXIS / 2);
      return;
    }
    const rough = (x1 - x0) / Math.max((width - LABEL) / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    for (let tick = Math.ceil(x0 / step) * step; tick <= x1; tick += step) paper.fillText("|" + duration(tick), toX(tick), AXIS / 2);
  }

  function duration(micro) {
    if (micro >= 1e6) return +(micro / 1e6).toPrecision(6) + " s";
    return micro >= 1e3 ? +(micro / 1e3).toPrecision(6) + " ms" : Math.round(micro) + " µs";
  }

  function describe() {
    if (!chosen) {
      const left = data.leftOut ? "; " + data.leftOut + " ranks are not shown (--selected-ranks shows any)" : "";
      details.textContent = data.rows.length + " ranks" + left + ". Point at a call, or choose one with the arrow keys.";
      return;
    }
    const row = data.rows[chosen.row], call = row.calls[chosen.call];
    const lines = ["rank " + row.rank + (row.role ? " (" + row.role + ")" : "")];
    if (call) {
      lines[0] += ": " + data.operations[call[OP]] + " number " + call[SEQ] + " of group " + data.groups[call[GROUP]] + ", " + STATES[call[STATE]];
      if (call[TOOK] >= 0) lines[0] += call[STATE] === 1 ? ", waits for " + duration(call[TOOK]) : ", took " + duration(call[TOOK]);
      if (call[FAULT]) lines[0] += ". The fault shows here.";
      if (call[DETAILS] >= 0 && data.details[call[DETAILS]]) lines.push(data.details[call[DETAILS]]);
      if (call[STACK] >= 0) lines.push(data.stacks[call[STACK]]);
    } else lines[0] += ": no call recorded";
    details.textContent = lines.join("\n");
  }

  function choose(row, call, reveal) {
    chosen = row === null ? null : { row, call };
    if (chosen && reveal) {
      if (row * ROW < top) top = row * ROW;
      if ((row + 1) * ROW > top + height - AXIS) top = (row + 1) * ROW - (height - AXIS);
      const where = data.rows[row].calls[call] && span(data.rows[row].calls[call]);
      if (where && (where[0] < x0 || where[0] > x1)) pan((where[0] - (x0 + x1) / 2) / (x1 - x0));
    }
    describe();
    draw();
  }

  function hit(x, y) {
    const at = Math.floor((y - AXIS + top) / ROW), row = data.rows[at];
    if (!row || y < AXIS) return null;
    for (let number = row.calls.length - 1; number >= 0; number--) {
      const where = span(row.calls[number]);
      if (where && x >= toX(where[0]) - 2 && x <= toX(where[1]) + 2) return { row: at, call: number };
    }
    return null;
  }

  function zoom(factor, around) {
    const [low, high] = full(), size = Math.min(Math.max((x1 - x0) * factor, (high - low) / 1e6), high - low);
    const share = (around - x0) / (x1 - x0);
    x0 = Math.min(Math.max(around - share * size, low), high - size);
    x1 = x0 + size;
    draw();
  }

  function pan(share) {
    const [low, high] = full(), size = x1 - x0;
    x0 = Math.min(Math.max(x0 + share * size, low), high - size);
    x1 = x0 + size;
    draw();
  }

  function fit() {
    [x0, x1] = full();
    if (axis === "order" && x1 > 24) x0 = x1 - 24; // the end is what matters; the wheel shows the rest
    draw();
  }

  function setAxis(name) {
    axis = name === "time" && !data.timed ? "order" : name;
    for (const input of axes) {
      input.checked = input.value === axis;
      input.disabled = input.value === "time" && !data.timed;
    }
    fit();
  }

  function next(role) {
    for (let step = 1; step <= data.rows.length; step++) {
      const at = ((chosen ? chosen.row : -1) + step) % data.rows.length;
      if (data.rows[at].role === role) {
        const calls = data.rows[at].calls, fault = calls.findIndex((call) => call[FAULT]);
        choose(at, fault >= 0 ? fault : calls.length - 1, true);
        return;
      }
    }
  }

  function move(rows, calls) {
    if (!chosen) return choose(0, Math.max(data.rows[0].calls.length - 1, 0), true);
    const row = Math.min(Math.max(chosen.row + rows, 0), data.rows.length - 1), of = data.rows[row].calls;
    let call = chosen.call + calls;
    if (rows && of.length) {
      const before = data.rows[chosen.row].calls[chosen.call], column = before ? before[COLUMN] : 0;
      call = of.reduce((best, one, at) => (Math.abs(one[COLUMN] - column) < Math.abs(of[best][COLUMN] - column) ? at : best), 0);
    }
    choose(row, Math.min(Math.max(call, 0), Math.max(of.length - 1, 0)), true);
  }

  const keys = {
    ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1), ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
    PageUp: () => move(-10, 0), PageDown: () => move(10, 0), Home: () => move(-1e9, 0), End: () => move(1e9, 0),
    "+": () => zoom(0.7, (x0 + x1) / 2), "=": () => zoom(0.7, (x0 + x1) / 2), "-": () => zoom(1 / 0.7, (x0 + x1) / 2),
    "[": () => pan(-0.2), "]": () => pan(0.2), "0": () => { [x0, x1] = full(); draw(); },
    c: () => next("culprit"), w: () => next("waiting"), t: () => setAxis(axis === "time" ? "order" : "time"),
    Escape: () => choose(null),
  };
  canvas.addEventListener("keydown", (event) => {
    const action = keys[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || !data.rows.length) return;
    event.preventDefault();
    action();
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.offsetX < LABEL) { top += event.deltaY; draw(); }
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 800);
    else zoom(Math.exp(event.deltaY / 500), toValue(event.offsetX));
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      top -= event.offsetY - drag.y;
      pan(-(event.offsetX - drag.x) / (width - LABEL));
      drag = { x: event.offsetX, y: event.offsetY };
      return;
    }
    const under = hit(event.offsetX, event.offsetY);
    if (under && !(chosen && chosen.row === under.row && chosen.call === under.call)) choose(under.row, under.call, false);
  });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
  for (const input of axes) input.addEventListener("change", () => setAxis(input.value));
  window.addEventListener("resize", resize);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  readColours();
  setAxis("order");
  describe();
  resize();
})();
