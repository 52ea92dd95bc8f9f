"use strict";
// What the page holds: texts, and for each map the positions, neighbours, facets and marked words of all of them.

const KINDS = {
  ...{ positions: Uint16Array, facet: Uint8Array, sampled: Uint8Array }, // across and up, of each point
  ...{ rows: Uint32Array, cosines: Int8Array }, // of the nearest other points, best first
  ...{ starts: Uint32Array, ends: Uint16Array }, // of each text the first of its marked words, and where words start and end
};
let data; // texts, their ids, which points UMAP placed, and how many neighbours each has
let count; // of the texts
let maps;

/** Hold what is written; its lists are still packed. */
function hold(written) {
  data = written;
  count = data.count;
  maps = data.maps.map((map) => ({ ...map, condition: map.condition ?? "", name: map.condition ?? "no condition" }));
}

/** Unpack lists of a map, or of the page: base64 of gzip of numbers, or else of JSON. */
async function unpack(owner, ...names) {
  for (const name of names.filter((each) => owner[each] !== null)) {
    const written = atob(owner[name]);
    const bytes = new Uint8Array(written.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = written.charCodeAt(i);
    const read = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
    owner[name] = KINDS[name] ? new KINDS[name](await read.arrayBuffer()) : await read.json();
  }
}

/** Whether each text has all the words as parts of it; null without words. */
function search(words) {
  const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!parts.length) return null;
  return data.texts.map((text) => ((text = text.toLowerCase()), parts.every((part) => text.includes(part))));
}

/** The starts and ends of a text's words that a map marks. */
function endsOf(map, point) {
  return map.ends ? map.ends.subarray(map.starts[point], map.starts[point + 1]) : [];
}

/** The nearest neighbours of a text on a map, with their cosines. */
function neighbours(map, point) {
  const start = point * data.neighbours;
  return Array.from({ length: data.neighbours }, (_, i) => ({
    point: map.rows[start + i],
    cosine: map.cosines[start + i] / 100,
  }));
}
