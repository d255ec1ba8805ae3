// The names above the columns of the space-time picture, and what silenced a lane. A name that its column has no room
// for takes several lines; a longer one is cut in its middle. Columns too narrow for the words of their names have them
// turned. In the lab, the name of a lane is a button.

import { html } from "lab/html.js";
import { briefName, LETTER, lettersOf, lineCount, nameInLines, partsOf } from "lab/letters.js";
import { breakable, shortName } from "lab/words.js";

const LINES_MOST = 4;
const LINE = 1.2; // em
const TURNED_MOST = 18; // letters
const SILENT = { down: "crashed", paused: "paused", ended: "finished" };

export function Heads({ geometry, run, step, side, onParticipant }) {
  const state = run.at(step);
  const areTurned = haveNoRoom([...geometry.lanes.keys()], geometry.lettersIn(geometry.lane));
  const lanes = [...geometry.lanes].map(([lane, x]) => laneHead(geometry, lane, x, { now: state[`participant/${lane}`], isTurned: areTurned }));
  const kinds = [
    columnHeads(geometry, "txn", geometry.bars, geometry.bar, (id) => `Transaction ${id} at its coordinator`),
    columnHeads(geometry, "log", geometry.logs, geometry.log, (log) => `Log of ${log}`),
  ];
  const heads = [...lanes, ...kinds.flatMap((kind) => kind.heads)];
  const groups = kinds.filter(({ isApart }) => isApart);
  const lines = Math.ceil(Math.max(1, ...heads.map(linesNeeded)));
  const choose = onParticipant && ((name, anchor) => onParticipant({ name, step, side, anchor }));
  return html`
    <div class="heads" style=${{ width: `${geometry.width}px`, fontSize: `${geometry.type}px`, "--lines": lines + (groups.length ? 1 : 0) }}>
      <span class="head time" style=${{ width: `${geometry.time}px` }} title="Virtual time in milliseconds">ms</span>
      ${groups.map(({ kind, heads: [{ left }] }) => html`<span class="head kind" style=${{ left: `${left}px` }}>${kind}</span>`)}
      ${heads.map((head) => element(head, choose))}
    </div>`;
}

function haveNoRoom(names, letters) {
  return names.flatMap(partsOf).some((part) => lettersOf(part.trimEnd()) > letters);
}

// How high a head is, in lines.
function linesNeeded({ name, letters, isTurned }) {
  if (isTurned) return (Math.min(lettersOf(name), TURNED_MOST) * LETTER) / LINE;
  return Math.min(lineCount(name, letters), LINES_MOST);
}

function laneHead(geometry, lane, x, { now, isTurned }) {
  const word = SILENT[now] ?? "";
  const shown = { kind: "lane", name: lane, title: lane, now, word, isTurned };
  if (isTurned) return { ...shown, left: x - (geometry.type * LINE) / 2, width: geometry.type * LINE, letters: 1 };
  // The first lane is near the times: a long name stands right of them instead of around its lane.
  const isTight = lettersOf(lane + word) * geometry.letter > 2 * (x - geometry.time);
  const left = x - geometry.lane / 2;
  const from = isTight ? Math.max(left, geometry.time) : left;
  const width = Math.min(left + geometry.lane, geometry.lanesEnd) - from;
  return { ...shown, left: from, width, letters: geometry.lettersIn(width) };
}

// The heads of transactions or of logs. What they are stands before each name, or apart where that has no room.
function columnHeads(geometry, kind, places, width, titleOf) {
  const letters = geometry.lettersIn(width);
  const names = [...places.keys()].map(shortName);
  const isApart = names.some((name) => lettersOf(`${kind} ${name}`) > letters);
  const isTurned = haveNoRoom(names, letters);
  const heads = [...places].map(([id, left], place) => {
    const name = isApart ? names[place] : `${kind} ${names[place]}`;
    return { kind, name, title: titleOf(id), left, width, letters, isTurned };
  });
  return { kind, heads, isApart };
}

function element({ kind, name, title, now, word, left, width, letters, isTurned }, choose) {
  const isSaid = lettersOf(`${name} ${word}`) <= letters; // the lane itself shows it, too
  const inside = html`${isTurned ? briefName(name, TURNED_MOST) : breakable(nameInLines(name, letters, LINES_MOST))}${word && html` <b class=${isSaid ? `silent-word ${now}` : "sr-only"}>${word}</b>`}`;
  const shown = { class: `head ${kind} ${isTurned ? "turned" : ""}`, style: { left: `${left}px`, width: `${width}px` }, title };
  if (kind !== "lane" || !choose) return html`<span ...${shown}>${inside}</span>`;
  return html`<button ...${shown} data-participant=${name} aria-label=${`${name}${word && ` ${word}`}: what if …`} onClick=${(event) => choose(name, event.currentTarget.getBoundingClientRect())}>${inside}</button>`;
}
