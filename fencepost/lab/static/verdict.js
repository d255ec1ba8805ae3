// The head of a run: its title, whether it kept the rules, and its lesson.

import { html } from "lab/html.js";
import { icon } from "lab/icons.js";

export function Verdict({ run, isOwn, onStep, children }) {
  const { title, lesson, broken = [], source } = run.document;
  const rules = [...new Set(broken.map(({ rule }) => rule))];
  const first = broken.find(({ step }) => step != null);
  return html`
    <header class="verdict">
      <h1 tabindex="-1">${title}</h1>
      ${isOwn && html`<span class="badge setting">yours</span>`}
      ${
        rules.length > 0 &&
        html`
        <button class="badge broken" disabled=${!first} title=${broken[0].text} onClick=${() => onStep(first.step)}>${icon("violation")} breaks ${rules.join(", ")}</button>`
      }
      ${broken[0]?.meaning && html`<span class="meaning">${broken[0].meaning.split(/(?<=\.) /)[0]}</span>`}
      ${rules.length === 0 && source !== "broker" && html`<span class="badge kept">${icon("ok")} no rule broken</span>`}
      ${settingsOf(run.document.settings ?? {}).map((words) => html`<span key=${words} class="badge setting">${words}</span>`)}
      ${children}
      ${lesson && html`<details class="lesson"><summary>${lesson}</summary></details>`}
    </header>`;
}

// What sets this run apart from the defaults of Apache Kafka 4.
function settingsOf({
  transaction_version: version,
  partition_verification: verification,
  broken = [],
  without_fixes: fixes = [],
}) {
  return [
    version === undefined ? null : `transaction version ${version}`,
    verification === false ? "no verification" : null,
    ...broken.map((name) => `without protection ${name}`),
    ...fixes.map((name) => `without fix ${name}`),
  ].filter(Boolean);
}
