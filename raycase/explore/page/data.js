"use strict";
// What the page holds: texts, and for each map the positions, neighbours, facets and marked words of all of them.

let data; // texts, their ids, and how many neighbours each has
let count; // of the texts
let lowered;
const maps = [];

/** Hold texts, of which there will be maps. */
function hold(written) {
  data = written;
  count = data.texts.length;
  lowered = data.texts.map((text) => text.toLowerCase());
}

/** The numbers of an array that is written as base64. */
function numbers(base64, Kind) {
  return new Kind(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer);
}

/** A map under a condition (null: without one), as it is written. */
function read(written) {
  const steps = numbers(written.positions, Uint16Array);
  const along = (axis) => Float32Array.from({ length: count }, (_, i) => (steps[2 * i + axis] / 65535) * 2 - 1);
  return {
    name: written.condition ?? "no condition",
    condition: written.condition ?? "",
    facets: written.facets,
    words: written.words,
    x: along(0),
    y: along(1),
    facet: numbers(written.facet, Uint8Array),
    rows: numbers(written.rows, count <= 2 ** 16 ? Uint16Array : Uint32Array),
    cosines: numbers(written.cosines, Int8Array),
  };
}

/** Whether each text has all the words as parts of it; null without words. */
function search(words) {
  const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
  return parts.length ? lowered.map((text) => parts.every((part) => text.includes(part))) : null;
}

/** The nearest neighbours of a text on a map, with their cosines. */
function neighbours(map, point) {
  const start = point * data.neighbours;
  return Array.from({ length: data.neighbours }, (_, i) => ({
    point: map.rows[start + i],
    cosine: map.cosines[start + i] / 100,
  }));
}
