// The view of one run, or of two side by side: the root of every page.
//
// Properties: `runs` (one or two Run), `divergence` ([left, right] steps, or null), `version` (rises when a live run
// grows), `following` (stay at the newest step until the reader steps back), and the hooks of the lab: `onMessage`
// ({number, step, side, anchor}), `onParticipant` ({name, step, side, anchor}), `toolbarExtras` (a function
// of the player), `aside` (elements), `isOwn` (a scenario of the reader, which may have the title of a bundled one), `story` (with another value
// the page begins where that run opens).

import { html } from "lab/html.js";
import { useMemo, useState } from "preact/hooks";
import { Coordinator } from "lab/coordinator.js";
import { usualWidth } from "lab/geometry.js";
import { Help } from "lab/help.js";
import { useKeys } from "lab/keys.js";
import { Leader } from "lab/leader.js";
import { Logs } from "lab/logs.js";
import { useLook } from "lab/look.js";
import { Moments } from "lab/moments.js";
import { usePlayer } from "lab/player.js";
import { Readers } from "lab/readers.js";
import { Settings } from "lab/settings.js";
import { SideName } from "lab/side_name.js";
import { SpaceTime } from "lab/space_time.js";
import { Timeline } from "lab/timeline.js";
import { Toolbar } from "lab/toolbar.js";
import { Verdict } from "lab/verdict.js";
import { Why } from "lab/why.js";
import { PRODUCER_COLOURS } from "lab/words.js";

export function RunView({
  runs,
  divergence = null,
  version = 0,
  following = false,
  onMessage,
  onParticipant,
  toolbarExtras,
  aside,
  isOwn = false,
  story = runs[0].document.title,
}) {
  const [wanted, setFilter] = useState(""); // a transaction, or all
  const filter = runs[0].transactions.includes(wanted) ? wanted : ""; // another run may not have it
  const [isHelpOpen, setHelp] = useState(false);
  const isBeside = runs.length > 1;
  const look = useLook();
  const timeline = useMemo(
    () => new Timeline(runs, { divergence, transaction: filter }),
    [...runs, version, divergence, filter],
  );
  const opening = useMemo(
    () => (divergence && isBeside ? divergence : runs.map((run) => run.opening)),
    [...runs],
  );
  const player = usePlayer(timeline, { story, opening, following });
  const jump = (flag, direction) => {
    const found =
      timeline.next(flag, player.place, direction) ??
      timeline.next(flag, direction > 0 ? -1 : timeline.last + 1, direction);
    if (found !== null) player.go(found);
  };
  useKeys({ player, timeline, jump, look, setHelp });
  const hooks = { onMessage, onParticipant };
  const controls = { player, look, filter, setFilter, setHelp, extras: toolbarExtras };
  const settings = html`<${Settings} run=${runs[0]} ...${controls} />`;
  const shared = { version, timeline, player, look, hooks, following, isOwn };
  return html`
    <div class=${`view ${isBeside ? "beside" : "single"} ${aside ? "with-aside" : ""}`}>
      ${aside && html`<button class="skip" onClick=${() => document.querySelector(".verdict h1").focus()}>Skip to the run</button>`}
      <${Definitions} />
      <${Toolbar} timeline=${timeline} version=${version} player=${player} jump=${jump} />
      ${
        isBeside &&
        html`
        <section class="between" aria-label="Two runs">
          <${Divergence} timeline=${timeline} player=${player} />${settings}
        </section>`
      }
      <main>
        ${aside && html`<aside class="aside">${aside}</aside>`}
        ${runs.map((run, side) => html`<${Side} key=${side} run=${run} side=${side} ...${shared}>${isBeside ? null : settings}<//>`)}
      </main>
      <${Help} isOpen=${isHelpOpen} close=${() => setHelp(false)} />
    </div>`;
}

function Side({ run, version, side, timeline, player, look, hooks, following, isOwn, children }) {
  const step = player.steps[side];
  const state = run.at(step);
  const onStep = (number) => player.go(timeline.placeOf(number, side));
  const shown = { run, version, step, state };
  const parting = timeline.divergence?.[side] ?? null;
  const picture = { rows: timeline.rows[side], unit: look.unit, parting };
  const name = timeline.runs.length > 1 ? ["left run", "right run"][side] : "";
  return html`
    <${SideName.Provider} value=${name}><div class="side" style=${{ "--picture": `${usualWidth(run, look.unit)}px` }}>
      <${Verdict} run=${run} isOwn=${isOwn} onStep=${onStep}>${children}<//>
      <${Moments} run=${run} version=${version} step=${step} isNewest=${following} onStep=${onStep} />
      <${SpaceTime} ...${shown} ...${hooks} ...${picture} side=${side} onStep=${onStep} />
      <div class="panels" tabindex="0" role="group" aria-label=${name ? `Panels, ${name}` : "Panels"}>
        <${Why} ...${shown} side=${side} playing=${player.playing} onStep=${onStep} onMessage=${hooks.onMessage} />
        <${Logs} ...${shown} />
        <${Readers} ...${shown} />
        <${Coordinator} ...${shown} />
        <${Leader} ...${shown} />
      </div>
    </div><//>`;
}

function Divergence({ timeline, player }) {
  const { parting } = timeline;
  if (parting === null)
    return html`<p class="divergence" data-testid="divergence" role="status">Both runs are the same.</p>`;
  const words =
    player.place < parting
      ? "Both runs are the same so far."
      : player.place === parting
        ? "Here the runs diverge."
        : "The runs have diverged; both show the same time.";
  return html`
    <p class=${`divergence ${player.place >= parting ? "apart" : ""}`} data-testid="divergence" role="status">
      ${words} <button onClick=${() => player.go(parting)}>Go to the point of divergence (D)</button></p>`;
}

const PRODUCERS = [...Array(PRODUCER_COLOURS).keys(), "none"];

// The hatchings of aborted data, one per producer colour: every picture of the page refers to them.
function Definitions() {
  return html`
    <svg class="definitions" width="0" height="0" aria-hidden="true"><defs>
      ${PRODUCERS.map(
        (place) => html`
        <pattern key=${place} id=${`hatch-${place}`} width="5" height="5"
          patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <line x1="0" y1="0" x2="0" y2="5" stroke-width="3" style=${{ stroke: `var(--producer-${place})` }} />
        </pattern>`,
      )}
    </defs></svg>`;
}
