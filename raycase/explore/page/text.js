"use strict";
// Texts of the corpus as nodes: never as HTML, with what would be unseen or turn other text round as escapes.

const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;

/** A text as it may be shown. */
function seen(text) {
  return text.replace(UNSEEN, (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));
}

/** An element with properties, and children that are elements or texts. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

/** A text as nodes, with the words marked whose starts and ends these are, by code points. */
function marked(text, ends) {
  if (!ends.length) return [seen(text)];
  const characters = Array.from(text);
  const nodes = [];
  let done = 0;
  for (let i = 0; i < ends.length; i += 2) {
    nodes.push(seen(characters.slice(done, ends[i]).join("")));
    nodes.push(element("mark", {}, seen(characters.slice(ends[i], ends[i + 1]).join(""))));
    done = ends[i + 1];
  }
  nodes.push(seen(characters.slice(done).join("")));
  return nodes;
}
