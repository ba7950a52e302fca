// Where all ranks of a job are. A button asks for their stacks, which are shown merged as the answers arrive.

import { Refused, get } from "./api.js";
import { h, setText, when } from "./dom.js";
import { stackGroups } from "./incident.js";
import { decodeRanks, ranksText } from "./text.js";

const PATIENCE = 10; // s to wait for answers

export function makeStacks(id) {
  const path = `jobs/${encodeURIComponent(id)}/stacks`;
  const button = h("button", { type: "button", id: "ask-stacks", onclick: ask }, "Stacks of all ranks");
  const note = h("span", { class: "quiet", role: "status" });
  const found = h("div", { id: "stacks" });
  const node = h("section", { "aria-label": "Stacks" }, h("div", { class: "tools" }, button, note), found);

  async function ask() {
    button.disabled = true;
    try {
      const { asked } = await get(path, "POST");
      setText(note, asked ? "Asking ..." : "No rank of this job can be asked: their monitors are not connected.");
      for (let second = 0; asked && second < PATIENCE; second++) {
        await new Promise((done) => setTimeout(done, 1000));
        if (show(await get(path))) break;
      }
    } catch (error) {
      setText(note, error instanceof Refused ? error.message : "The collector does not answer.");
    }
    button.disabled = false;
  }

  function show({ asked_at, groups, not_answered }) {
    const silent = decodeRanks(not_answered);
    found.replaceChildren(...stackGroups(groups.map(({ ranks, frames }) => ({ ranks: decodeRanks(ranks), frames }))));
    setText(note, `As of ${when(asked_at)}.${silent.length ? ` No answer from ${ranksText(silent)}.` : ""}`);
    return !silent.length;
  }

  return { node };
}
