// Makes elements from data. Text never becomes markup, because names of jobs, hosts and exceptions are not trusted.

import { agoText } from "./text.js";

/** @param {string} tag @param {Record<string, any>} props @returns {any} */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

// Changes only a text that differs, so that focus, selection and open details are kept.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Sets the texts of a row's cells.
export function setCells(row, texts) {
  for (const [i, text] of texts.entries()) setText(row.children[i], text);
}

export function setClass(node, text) {
  if (node.className !== text) node.className = text;
}

// Details that `setOpen` opens and closes until the user does.
export function fold(props, title, ...children) {
  const head = h("summary", { onclick: () => { head.parentNode.dataset.chosen = "yes"; } }, title);
  return h("details", props, head, ...children);
}

export function setOpen(folded, open) {
  if (!folded.dataset.chosen) folded.open = open;
}

/** @param {string} id @returns {any} */
export function byId(id) {
  return document.getElementById(id);
}

// Gives a node one child for each item, in order. Children with known keys are kept and updated.
export function keyed(parent, items, keyOf, make, update) {
  parent.keyedChildren ??= new Map();
  const known = parent.keyedChildren;
  const wanted = new Set();
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let node = known.get(key);
    if (!node) {
      node = make(item);
      known.set(key, node);
    }
    if (node !== before) parent.insertBefore(node, before);
    else before = before.nextElementSibling;
    update(node, item);
  }
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
}

export function number(value) {
  return value.toLocaleString("en");
}

// If one of these is missing, the hour of a time with a zone has no leading zero.
/** @type {Intl.DateTimeFormatOptions} */
const TIME = {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
};

// A time in the reader's time zone, and the zone's name: "2026-11-22 14:03:12 UTC".
export function when(text) {
  if (!text) return "";
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? text : time.toLocaleString("sv-SE", TIME);
}

export function secondsSince(text) {
  return (Date.now() - new Date(text).getTime()) / 1000;
}

export function ago(text) {
  return agoText(secondsSince(text));
}

// Only http(s) becomes a link: the templates are the operator's, but the check costs nothing.
export function link(url, text) {
  if (!/^https?:\/\//.test(url)) return h("span", {}, text);
  return h("a", { href: url, rel: "noreferrer noopener", target: "_blank" }, text);
}
