// What the selected step is, and the rule that decided it: its sentence, table row, error and source.

import { html } from "lab/html.js";
import { icon } from "lab/icons.js";
import { Way } from "lab/way.js";
import { useName } from "lab/side_name.js";
import { FLAGS, mainFlag, milliseconds } from "lab/words.js";

export function Why({ run, step: number, side, playing, onStep, onMessage }) {
  const step = run.steps[number];
  const name = useName("Why");
  if (!step)
    return html`<section class="panel why" data-testid="why" aria-label=${name}><p class="happened">The run has not begun.</p></section>`;
  const flag = mainFlag(step);
  const broken = (run.document.broken ?? []).filter((rule) => rule.step === number);
  return html`
    <section class=${`panel why ${flag ?? ""}`} data-testid="why" aria-label=${name}>
      <div aria-live=${playing ? "off" : "polite"} aria-atomic="true">
        <p class="happened">
          ${flag && html`<span class=${`flag ${flag}`}>${icon(flag)} ${FLAGS[flag]}</span>`}
          <span class="sr-only">Step ${number}, ${milliseconds(step.at)} ms: </span>${sentence(step)}</p>
        ${broken.map((rule) => html`<p class="breach"><b>Rule broken: ${rule.rule}.</b> ${rule.meaning} Here: ${rule.text}.</p>`)}
        ${step.why && html`<p class="because"><b>Why:</b> ${step.why.text}</p>`}
      </div>
      ${step.why && html`<dl class="rule">${facts(step.why).map(([name, value]) => html`<div class=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
      <${Way} run=${run} step=${step} number=${number} side=${side} onStep=${onStep} onMessage=${onMessage} />
    </section>`;
}

function facts({ error, table, rule, source }) {
  const row = [table, rule].filter(Boolean).join(" · ");
  return [
    ["error", error],
    [table ? "table" : "rule", row],
    ["source", source],
  ].filter(([, value]) => value);
}

// The sentence without the time with which it may begin: the toolbar shows that.
function sentence(step) {
  return step.text.replace(/^[\d.]+ ms: /, "");
}
