"use strict";
// What the page holds: texts, and for each map the positions, neighbours, facets and marked words of all of them.

const data = JSON.parse(document.getElementById("data").textContent);
const count = data.texts.length;

/** The numbers of an array that is written as base64. */
function numbers(base64, Kind) {
  return new Kind(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)).buffer);
}

const maps = data.maps.map((map) => {
  const steps = numbers(map.positions, Uint16Array);
  const along = (axis) => Float32Array.from({ length: count }, (_, i) => (steps[2 * i + axis] / 65535) * 2 - 1);
  return {
    name: map.condition ?? "no condition",
    condition: map.condition ?? "",
    facets: map.facets,
    words: map.words,
    x: along(0),
    y: along(1),
    facet: numbers(map.facet, Uint8Array),
    rows: numbers(map.rows, count <= 2 ** 16 ? Uint16Array : Uint32Array),
    cosines: numbers(map.cosines, Int8Array),
  };
});

const lowered = data.texts.map((text) => text.toLowerCase());

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
