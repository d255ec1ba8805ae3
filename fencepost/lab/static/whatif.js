// What was changed in a run, what came of it, and the ways back: undo, redo, and a scenario of its own.

import { useState } from "preact/hooks";
import { addressWith } from "lab/address.js";
import { altered, changed } from "lab/asked.js";
import { choice } from "lab/choice.js";
import { html } from "lab/html.js";
import { icon } from "lab/icons.js";

export function WhatIf({ api, asking, shown, beside, setBeside, edit, setProblem }) {
  const { asked, change, undo, redo, reset } = asking;
  const isChanged = changed(asked) > 0;
  if (shown.isTrace) return html`<p class="hint">This trace has an order of messages that no fault of a scenario causes, so nothing can be added to it. Choose a scenario first.</p>`;
  return html`
    <div class="whatif">
      ${!isChanged && asked.faults.length === 0 && html`
        <p class="hint">Click the arrow of a <b>message</b>, or the name of a <b>node</b> or a <b>client</b> above its lane, and choose what goes wrong.
          Or switch something off below. The run starts again from the same seed.</p>`}
      ${shown.own_faults?.length > 0 && html`
        <h2>Faults of the scenario</h2>
        <ol class="faults own">${shown.own_faults.map((fault) => html`<li key=${fault}><code>${fault}</code></li>`)}</ol>`}
      ${asked.faults.length > 0 && html`
        <h2>Faults added</h2>
        <ol class="faults" data-testid="faults">
          ${asked.faults.map((fault, place) => html`<li key=${`${place} ${fault}`}><code>${fault}</code>
            <button aria-label=${`Remove: ${fault}`} title="Remove" onClick=${() => change(altered(asked, { faults: asked.faults.filter((_, each) => each !== place) }))}>✕</button></li>`)}
        </ol>`}
      <div class="row">
        <button data-testid="undo" title="Ctrl+Z" disabled=${!undo} onClick=${undo}>↶ Undo</button>
        <button data-testid="redo" title="Ctrl+Shift+Z" disabled=${!redo} onClick=${redo}>↷ Redo</button>
        <button data-testid="reset" disabled=${!reset} onClick=${reset}>Start over</button>
      </div>
      ${shown.changes && isChanged && html`<${Outcome} shown=${shown} beside=${beside} />`}
      ${shown.runs.length > 1 && html`
        <button class="wide" data-testid="beside" aria-pressed=${beside} onClick=${() => setBeside(!beside)}>
          ${beside ? "Show only the changed run" : "Show both runs side by side"}</button>`}
      <${Switches} asked=${asked} change=${change} shown=${shown} />
      <${Save} api=${api} asked=${asked} edit=${edit} setProblem=${setProblem} />
    </div>`;
}

// --- what came of it ----------------------------------------------------------------------------------------------

function Outcome({ shown, beside }) {
  const { now_broken: broken, no_longer_broken: healed, visible, still_broken: still } = shown.changes;
  const { divergence } = shown;
  const missed = shown.runs.at(-1).document.problems.filter((text) => text.startsWith("fault ")); // as the verdict begins
  const stepOf = (rule) => shown.runs.at(-1).document.broken.find((each) => each.rule === rule)?.step;
  return html`
    <section class="outcome" data-testid="outcome" aria-live="polite">
      <h2>What changed</h2>
      ${missed.map((text) => html`<p key=${text} class="missed">⚠ ${text}</p>`)}
      ${broken.length > 0 && html`
        <ul class="broken-now">${broken.map(({ rule, text }) => html`<li key=${rule}>${icon("violation")} <b>now breaks ${rule}</b>: ${text} ${!beside && link(stepOf(rule))}</li>`)}</ul>`}
      ${healed.length > 0 && html`
        <ul class="healed">${healed.map(({ rule }) => html`<li key=${rule}>${icon("ok")} no longer breaks <b>${rule}</b></li>`)}</ul>`}
      ${still.length > 0 && html`<p>Still breaks ${still.join(", ")}.</p>`}
      ${broken.length + healed.length + still.length === 0 && html`<p class="healed">${icon("ok")} Every rule holds, as before.</p>`}
      ${visible.length > 0 && html`
        <table><caption>read_committed returns, in the end</caption>
          <thead><tr><th scope="col">partition</th><th scope="col">before</th><th scope="col">now</th></tr></thead>
          <tbody>${visible.map(({ partition, before, after }) => html`<tr key=${partition}><th scope="row">${partition}</th><td>${values(before)}</td><td>${values(after)}</td></tr>`)}</tbody>
        </table>`}
      ${visible.length === 0 && html`<p>read_committed returns the same records as before.</p>`}
      ${divergence && html`<p>The runs diverge at ${link(divergence[1], beside ? divergence.join(",") : divergence[1])}.</p>`}
      ${!divergence && html`<p>Both runs are the same, step by step.</p>`}
    </section>`;
}

// A step to go to: the player of the run follows the address.
function link(step, address = step) {
  const go = () => (window.location.hash = addressWith({ step: address }));
  return step == null ? null : html`<button class="link" onClick=${go}>step ${step}</button>`;
}

function values(list) {
  return list.length > 0 ? list.join(", ") : html`<i>nothing</i>`;
}

// --- switches -----------------------------------------------------------------------------------------------------

const PROTECTIONS = {
  dedup: "sequence numbers detect repeated batches",
  fencing: "an older epoch of a producer is refused",
};

const VERSIONS = [
  [0, "0: KIP-98, as it shipped"],
  [1, "1: another log format"],
  [2, "2: KIP-890, Kafka 4"],
];

function Switches({ asked, change, shown }) {
  const { settings } = shown.runs[0].document; // of the scenario as it is
  const { switches } = shown;
  if (!switches) return null;
  const off = { broken: asked.broken ?? settings.broken, without_fixes: asked.without_fixes ?? settings.without_fixes };
  // What is as in the scenario again is no change.
  const set = (key, value) => change(altered(asked, { [key]: same(value, settings[key]) ? null : value }));
  const toggle = (key, name) => set(key, off[key].includes(name) ? off[key].filter((each) => each !== name) : [...off[key], name]);
  const box = (key, name, help) => html`
    <label key=${name} class="switch"><input type="checkbox" data-testid=${`switch-${name}`} checked=${!off[key].includes(name)} onChange=${() => toggle(key, name)} />
      <span>${name.replaceAll("_", " ")}${help && html`<small>${help}</small>`}</span></label>`;
  const version = asked.transaction_version ?? settings.transaction_version;
  return html`
    <section class="switches">
      <h2>Protections</h2>
      ${switches.broken.map((name) => box("broken", name, PROTECTIONS[name]))}
      <label class="switch"><input type="checkbox" data-testid="switch-partition_verification" checked=${asked.partition_verification ?? settings.partition_verification}
        onChange=${(event) => set("partition_verification", event.target.checked)} />
        <span>partition verification<small>leaders ask the coordinator about older clients' batches (KIP-890 part 1)</small></span></label>
      <label class="version">transaction version ${choice({ id: "transaction-version", value: version, options: VERSIONS, choose: (number) => set("transaction_version", number) })}</label>
      <details open=${off.without_fixes.length > 0}><summary>Later fixes of Kafka${off.without_fixes.length > 0 ? ` (${off.without_fixes.length} off)` : ""}</summary>
        ${switches.without_fixes.map(({ name, source, off: without }) => box("without_fixes", name, `${source}. Without it: ${without}`))}
      </details>
    </section>`;
}

function same(one, other) {
  return Array.isArray(one) ? one.length === other.length && one.every((name) => other.includes(name)) : one === other;
}

// --- a scenario of its own ----------------------------------------------------------------------------------------

function Save({ api, asked, edit, setProblem }) {
  const [saved, setSaved] = useState(null);
  const save = () =>
    api.post("save", asked).then(
      (answer) => setSaved({ asked, ...answer }),
      (refused) => setProblem(refused.message),
    );
  const isFresh = saved !== null && saved.asked === asked;
  return html`
    <section class="save">
      <button class="wide" data-testid="save" onClick=${save}>Save as a scenario</button>
      ${isFresh && html`
        <p>Played, and it met its expectations. Download <a data-testid="download" download=${saved.name} href=${`data:application/toml;charset=utf-8,${encodeURIComponent(saved.text)}`}>${saved.name}</a>.
          Run it with <code>fencepost run ${saved.name}</code>, or <button class="link" onClick=${() => edit(saved.text)}>edit it</button>.</p>
        <pre data-testid="saved-text" tabindex="0">${saved.text}</pre>`}
    </section>`;
}
