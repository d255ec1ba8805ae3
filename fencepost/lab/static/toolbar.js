// The controls that move through a run: playing, stepping, jumping. Every one has a key; `?` lists them.

import { html } from "lab/html.js";
import { icon } from "lab/icons.js";
import { button } from "lab/button.js";
import { Scrub } from "lab/scrub.js";
import { milliseconds } from "lab/words.js";

const JUMPS = ["fault", "refusal", "marker", "violation"];

export function Toolbar({ timeline, version, player, jump }) {
  const { place, steps, go, move, playing, toggle } = player;
  const [run] = timeline.runs;
  return html`
    <header class="toolbar"><div class="tools" role="group" aria-label="Steps of the run">
      <div class="group">
        ${button({ id: "first", label: "First step (Home)", onClick: () => go(0), picture: "first" })}
        ${button({ id: "back", label: "Step back (left arrow)", onClick: () => move(-1), picture: "back", disabled: place === 0 })}
        ${button({ id: playing ? "pause" : "play", label: playing ? "Pause (space)" : "Play (space)", onClick: toggle, picture: playing ? "pause" : "play", kind: "main" })}
        ${button({ id: "forward", label: "Step forward (right arrow)", onClick: () => move(1), picture: "forward", disabled: place === timeline.last })}
        ${button({ id: "last", label: "Last step (End)", onClick: () => go(timeline.last), picture: "last" })}
      </div>
      <${Scrub} timeline=${timeline} version=${version} place=${place} go=${go} />
      <p class="counter" data-testid="step-counter">${steps.map((step, side) => `step ${step} of ${timeline.runs[side].last}`).join(" | ")}<small>${milliseconds(run.steps[steps[0]]?.at ?? 0)} ms</small></p>
      <div class="group jumps" role="group" aria-label="Next">
        <span class="word">next</span>
        ${JUMPS.map((flag) => jumpButton(timeline, flag, jump))}
      </div>
    </div></header>`;
}

function jumpButton(timeline, flag, jump) {
  return html`
    <button key=${flag} class=${`jump ${flag}`} data-testid=${`next-${flag}`} disabled=${!timeline.runs.some((run) => run.flagged.has(flag))}
      title=${`Next ${flag} (${flag[0].toUpperCase()}); Shift goes back`} onClick=${(event) => jump(flag, event.shiftKey ? -1 : 1)}>
      ${icon(flag)}<span>${flag}</span></button>`;
}
