// The names above the columns of the space-time picture, and what silenced a lane. A name that its column has no room
// for takes several lines; a longer one is cut in its middle. In the lab, the name of a lane is a button.

import { html } from "lab/html.js";
import { briefName, lettersOf } from "lab/letters.js";
import { shortName } from "lab/words.js";

const LINES_MOST = 4;
const SILENT = { down: "crashed", paused: "paused", ended: "finished" };

export function Heads({ geometry, run, step, side, onParticipant }) {
  const state = run.at(step);
  const lanes = [...geometry.lanes].map(([lane, x]) => laneHead(geometry, lane, x, state[`participant/${lane}`]));
  const kinds = [
    columnHeads(geometry, "txn", geometry.bars, geometry.bar, (id) => `Transaction ${id} at its coordinator`),
    columnHeads(geometry, "log", geometry.logs, geometry.log, (log) => `Log of ${log}`),
  ];
  const heads = [...lanes, ...kinds.flatMap((kind) => kind.heads)];
  const groups = kinds.filter(({ isApart }) => isApart);
  const needed = heads.map(({ name, letters }) => Math.ceil(lettersOf(name) / letters));
  const lines = Math.min(Math.max(1, ...needed), LINES_MOST);
  const choose = onParticipant && ((name, anchor) => onParticipant({ name, step, side, anchor }));
  return html`
    <div class="heads" style=${{ width: `${geometry.width}px`, fontSize: `${geometry.type}px`, "--lines": lines + (groups.length ? 1 : 0) }}>
      <span class="head time" style=${{ width: `${geometry.time}px` }} title="Virtual time in milliseconds">ms</span>
      ${groups.map(({ kind, heads: [{ left }] }) => html`<span class="head kind" style=${{ left: `${left}px` }}>${kind}</span>`)}
      ${heads.map((head) => element(head, lines, choose))}
    </div>`;
}

function laneHead(geometry, lane, x, now) {
  const word = SILENT[now] ?? "";
  // The first lane is near the times: a long name stands right of them instead of around its lane.
  const isTight = lettersOf(lane + word) * geometry.letter > 2 * (x - geometry.time);
  const left = x - geometry.lane / 2;
  const from = isTight ? Math.max(left, geometry.time) : left;
  const width = Math.min(left + geometry.lane, geometry.lanesEnd) - from;
  return { kind: "lane", name: lane, title: lane, now, word, left: from, width, letters: geometry.lettersIn(width) };
}

// The heads of transactions or of logs. What they are stands before each name, or apart where that has no room.
function columnHeads(geometry, kind, places, width, titleOf) {
  const letters = geometry.lettersIn(width);
  const names = [...places.keys()].map(shortName);
  const isApart = names.some((name) => lettersOf(`${kind} ${name}`) > letters);
  const heads = [...places].map(([id, left], place) => {
    const name = isApart ? names[place] : `${kind} ${names[place]}`;
    return { kind, name, title: titleOf(id), left, width, letters };
  });
  return { kind, heads, isApart };
}

function element({ kind, name, title, now, word, left, width, letters }, lines, choose) {
  const isSaid = lettersOf(`${name} ${word}`) <= letters; // the lane itself shows it, too
  const inside = html`${briefName(name, letters * lines)}${word && html` <b class=${isSaid ? `silent-word ${now}` : "sr-only"}>${word}</b>`}`;
  const shown = { class: `head ${kind}`, style: { left: `${left}px`, width: `${width}px` }, title };
  if (kind !== "lane" || !choose) return html`<span ...${shown}>${inside}</span>`;
  return html`<button ...${shown} data-participant=${name} aria-label=${`${name}${word && ` ${word}`}: what if …`} onClick=${(event) => choose(name, event.currentTarget.getBoundingClientRect())}>${inside}</button>`;
}
