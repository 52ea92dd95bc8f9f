// Builds raycase/explore/page/regl-scatterplot.js, which `raycase explore` puts into its pages, from package-lock.json:
//     npm ci --prefix bundle && npm run --prefix bundle build
// `npm run --prefix bundle check` exits with 1 where the file is not that build.

import { buildSync } from "esbuild";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const FOLDER = new URL(".", import.meta.url);
const OUTPUT = new URL("../raycase/explore/page/regl-scatterplot.js", FOLDER);

const read = (path) => readFileSync(new URL(path, FOLDER), "utf8");

const [{ text }] = buildSync({
  absWorkingDir: FOLDER.pathname,
  stdin: { contents: 'export { default } from "regl-scatterplot";', resolveDir: FOLDER.pathname },
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "createScatterplot",
  footer: { js: "createScatterplot = createScatterplot.default;" },
  target: "es2020",
  legalComments: "eof",
  write: false,
}).outputFiles;

// The licences of all packages that are in the bundle travel with it into every page.
const packages = Object.entries(JSON.parse(read("package-lock.json")).packages);
const bundled = packages.filter(([folder, { dev, optional }]) => folder && !dev && !optional);
const licences = bundled.map(([folder, { version, license }]) => {
  const file = readdirSync(new URL(folder, FOLDER)).find((name) => /^licen[cs]e/i.test(name));
  return `${folder.replace("node_modules/", "")} ${version} (${license})\n\n${read(`${folder}/${file}`).trim()}\n`;
});
const bundle = `/*\n${licences.join("\n----\n\n")}*/\n${text}`;
if (/<\/script|<!--/i.test(bundle)) throw new Error("expected a bundle that can stand in a <script>");

if (!process.argv.includes("--check")) {
  writeFileSync(OUTPUT, bundle);
} else if (read(OUTPUT) !== bundle) {
  console.error("regl-scatterplot.js is not what bundle/build.mjs builds; run: npm run --prefix bundle build");
  process.exit(1);
}
