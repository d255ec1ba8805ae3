// The menu of a message, a node or a client: what could go wrong here. Each choice is one fault in the grammar of
// scenarios, at a point that the run itself names, so that the fault can be read, kept and played anywhere.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { choice } from "lab/choice.js";
import { html } from "lab/html.js";
import { shortened } from "lab/letters.js";

const TIMES = ["50 ms", "300 ms", "1 s", "3 s", "10 s"].map((time) => [time, time]);
const POINTS_MAX = 60;
const WIDTH = 330; // px
const HEIGHT = 420;

export function Menu({ chosen, run, add, close }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  const place = {
    left: `${Math.max(8, Math.min(chosen.anchor.left, window.innerWidth - WIDTH - 8))}px`,
    top: `${Math.max(8, Math.min((chosen.anchor.bottom ?? chosen.anchor.top) + 4, window.innerHeight - HEIGHT - 8))}px`,
  };
  const outside = (event) => event.target === box.current && close();
  const Content = chosen.name === undefined ? OfMessage : OfParticipant;
  return html`
    <dialog class="whatif-menu" data-testid="whatif-menu" aria-labelledby="whatif-title" ref=${box} style=${place} onClose=${close} onClick=${outside}>
      <${Content} chosen=${chosen} run=${run} add=${add} />
      <button class="plain" onClick=${close}>Cancel <kbd>Esc</kbd></button>
    </dialog>`;
}

// --- a message ----------------------------------------------------------------------------------------------------

function OfMessage({ chosen, run, add }) {
  const message = run.messages.get(chosen.number);
  const point = run.steps[message?.sent]?.point;
  const [time, setTime] = useState("300 ms");
  const later = useMemo(() => (message ? pointsAfter(run, message.sent) : []), [run, message]);
  const [until, setUntil] = useState(later[0]?.[0] ?? "");
  if (!message) return html`<h2 id="whatif-title">No message</h2><p>Nothing is sent or received at this step: step to a message, or click one.</p>`;
  const isRequest = message.answers == null;
  const title = html`<h2 id="whatif-title">What if this ${isRequest ? "request" : "reply"} …</h2>
    <p class="about"><b>${message.label}</b> (${message.number}), ${message.source} → ${message.target}</p>`;
  if (!point) return html`${title}<p>No fault can strike this message: no point of the protocol names it.</p>`;
  const fault = (id, words, help, action) => html`
    <button data-testid=${`whatif-${id}`} title=${help} onClick=${() => add(`when ${point} do ${action}`)}>${words}<small>${help}</small></button>`;
  return html`
    ${title}
    <div class="choices">
      ${fault("drop", "is dropped", "the connection breaks; what is on it is lost", "drop")}
      ${isRequest && fault("twice", "is delivered twice", "its sender gets the first reply only", "deliver twice")}
      <div class="with-select">
        ${fault("delay", `is late by ${time}`, "it and all later ones on its connection wait", `delay ${time}`)}
        ${choice({ id: "delay-time", label: "late by", value: time, options: TIMES, choose: setTime })}
      </div>
      ${later.length > 0 && html`
        <fieldset><legend>is held until …</legend>
          ${choice({ id: "hold-until", label: "until", value: until, options: later, choose: setUntil })}
          <div class="row">
            <button data-testid="whatif-hold" title="it and all later ones on its connection wait" onClick=${() => add(`when ${point} do hold until ${until}`)}>Hold</button>
            ${isRequest && html`<button data-testid="whatif-delay-retry" title="the sender gives up and retries on a new connection" onClick=${() => add(`when ${point} do delay until ${until}`)}>Hold, and the sender retries</button>`}
          </div>
        </fieldset>`}
    </div>`;
}

// The points after a step as options, each counted from there, as the end of a fault counts.
function pointsAfter(run, step) {
  const seen = new Map();
  const found = [];
  for (let number = step + 1; number < run.steps.length && found.length < POINTS_MAX; number++) {
    const { point } = run.steps[number];
    if (!point) continue;
    const name = point.replace(/ #\d+$/, "");
    seen.set(name, (seen.get(name) ?? 0) + 1);
    const counted = seen.get(name) > 1 ? `${name} #${seen.get(name)}` : name;
    found.push([counted, shortened(`${counted}  (step ${number})`, 60)]);
  }
  return found;
}

// --- a node or a client -------------------------------------------------------------------------------------------

const OF_NODES = [
  ["crash", "crashes", "it stops at once; what it had written survives", (name) => `crash ${name}`],
  ["power", "loses its power", "it stops at once; unsynced writes may be lost", (name) => `cut power of ${name}`],
];
const OF_CLIENTS = [["kill", "is killed", "another process takes the place of a processor, not of a script", (name) => `kill ${name}`]];
const OF_ALL = [
  ["pause", "is paused", "it is suspended, and does not notice", (name) => `pause ${name}`],
  ["isolate", "is isolated", "no message reaches it or leaves it", (name) => `isolate ${name}`],
];

function OfParticipant({ chosen, run, add }) {
  const name = chosen.name.replace(/~\d+$/, ""); // p~2 plays the role of p
  const kind = run.document.participants.find((each) => each.name === chosen.name)?.kind ?? "client";
  const [lasts, setLasts] = useState("300 ms");
  const at = pointBefore(run, chosen.step);
  const actions = [...(kind === "node" ? OF_NODES : OF_CLIENTS), ...OF_ALL];
  return html`
    <h2 id="whatif-title">What if ${chosen.name} …</h2>
    <p class="about">when <b>${at.point}</b>${at.step === null ? "" : ` (step ${at.step})`}</p>
    <div class="choices">
      ${actions.map(([id, words, help, action]) => html`
        <button key=${id} data-testid=${`whatif-${id}`} onClick=${() => add(`when ${at.point} do ${action(name)} until after ${lasts}`)}>${words}<small>${help}</small></button>`)}
      <label>for ${choice({ id: "lasts", value: lasts, options: TIMES, choose: setLasts })}</label>
    </div>`;
}

// The last point of the protocol that was reached at a step; before the first one, the beginning of the run.
function pointBefore(run, step) {
  for (let number = step; number >= 0; number--) {
    if (run.steps[number].point) return { step: number, point: run.steps[number].point };
  }
  return { step: null, point: "at 1 ms" };
}
