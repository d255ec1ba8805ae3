// Where every page begins: what it is stands in its boot element, and the runs of a file in `runs`.
//
// Rule: the modes "lab" and "live" are modules of their own, which a page that is one file does not have.

import { render } from "preact";
import { html } from "lab/html.js";
import { Run } from "lab/run.js";
import { unpacked } from "lab/packed.js";
import { RunView } from "lab/view.js";

const MODES = {
  file: startFile,
  lab: async (boot, root) => (await import("lab/lab.js")).start(boot, root),
  live: async (boot, root) => (await import("lab/live.js")).start(boot, root),
};

async function startFile(boot, root) {
  const { documents, divergence = null } = await unpacked(document.getElementById("runs").textContent);
  render(html`<${RunView} runs=${documents.map((each) => new Run(each))} divergence=${divergence} />`, root);
}

const boot = JSON.parse(document.getElementById("boot").textContent);
const opening = document.getElementById("opening"); // what is there until the page is
try {
  await MODES[boot.mode](boot, document.getElementById("root"));
  opening.remove();
  document.documentElement.dataset.ready = "true";
} catch (problem) {
  opening.replaceChildren();
  const words = `This page cannot be shown: ${problem.message}`;
  const advice = "Load it again. It needs a browser of 2024 or later.";
  render(html`<h1>Fencepost</h1><p role="alert">${words}</p><p>${advice}</p>`, opening);
  throw problem; // for the console
}
