// The picture of a run: lanes of clients and nodes with the messages between them, the state of each transaction,
// and the logs as a staircase. A click on a row selects its step.
//
// Rule: only rows near those in sight are drawn (in blocks of BLOCK rows, so that scrolling redraws seldom). What
// has not happened yet lies under a veil, which moves with the step; the marks below it stay as they are.

import { memo } from "lab/memo.js";
import { html } from "lab/html.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Geometry } from "lab/geometry.js";
import { briefName, lettersOf } from "lab/letters.js";
import { Marks } from "lab/marks.js";
import { shortName } from "lab/words.js";
import { useName } from "lab/side_name.js";

const BLOCK = 24;
const HEAD = 1.08; // the size of a head's letters, in those of the picture

export function SpaceTime({
  run,
  version,
  rows,
  parting,
  step,
  unit,
  side,
  onStep,
  onMessage,
  onParticipant,
}) {
  const scroller = useRef(null);
  const { width, height } = useSize(scroller);
  const geometry = useMemo(
    () => new Geometry(run, rows, { width: width - 2, unit }),
    [run, version, rows, width, unit],
  );
  const [wanted, setFirst] = useState(0);
  const lines = Math.ceil(height / unit / BLOCK) * BLOCK;
  // A live run drops its oldest rows, and the place of before may be past its end.
  const first = Math.min(wanted, blockAt(rows.length * unit, unit));
  const last = Math.min(first + lines + 2 * BLOCK, rows.length);
  const follow = () => setFirst(blockAt(scroller.current.scrollTop, unit));
  useFollow(scroller, geometry, step, follow);
  const isPrinted = usePrinting();
  const shown = isPrinted ? { first: 0, last: rows.length } : { first, last };
  return html`
    <section class="panel space-time" data-testid="panel-space-time" aria-label=${useName("Space and time")}>
      <div class="scroller" ref=${scroller} onScroll=${follow} tabindex="0" role="group"
        aria-label="Messages, transactions and logs, one row per step. Arrow keys step.">
        <${Heads} geometry=${geometry} run=${run} step=${step} side=${side} onParticipant=${onParticipant} />
        <div class="sheet" style=${{ width: `${geometry.width}px`, height: `${geometry.height + unit}px` }}>
          <${Current} geometry=${geometry} step=${step} />
          ${parting !== null && html`<${Parting} geometry=${geometry} step=${parting} />`}
          <${Drawn} geometry=${geometry} ...${shown} onStep=${onStep} onMessage=${onMessage} side=${side} />
          <${Veil} geometry=${geometry} step=${step} />
        </div>
      </div>
    </section>`;
}

const Drawn = memo(({ geometry, first, last, onStep, onMessage, side }) => {
  const { unit, width } = geometry;
  const select = (event) => {
    const row = first + Math.floor(event.offsetY / unit);
    if (geometry.rows[row] !== undefined) onStep(geometry.rows[row]);
  };
  return html`
    <svg class="picture" width=${width} height=${(last - first + 1) * unit} viewBox=${viewBox(geometry, first, last)}
      style=${{ top: `${first * unit}px`, fontSize: `${geometry.type}px` }} aria-hidden="true" onClick=${select}>
      <${Marks} geometry=${geometry} first=${first} last=${last} side=${side} onStep=${onStep} onMessage=${onMessage} />
    </svg>`;
});

function viewBox(geometry, first, last) {
  return `0 ${first * geometry.unit} ${geometry.width} ${(last - first + 1) * geometry.unit}`;
}

function Current({ geometry, step }) {
  const top = geometry.rowOf(step) * geometry.unit;
  return html`<div class="current" style=${{ top: `${top}px`, height: `${geometry.unit}px` }}></div>`;
}

function Parting({ geometry, step }) {
  const style = { top: `${geometry.rowOf(step) * geometry.unit}px`, fontSize: `${geometry.type}px` };
  return html`<div class="parting-line" style=${style}><b title="the runs diverge here">≠<span class="sr-only"> the runs diverge here</span></b></div>`;
}

function Veil({ geometry, step }) {
  const top = (geometry.rowOf(step) + 1) * geometry.unit;
  return html`<div class="veil" style=${{ top: `${top}px` }}></div>`;
}

function Heads({ geometry, run, step, side, onParticipant }) {
  const state = run.at(step);
  const name = (text, x, width, kind, title) => html`
    <span class=${`head ${kind}`} style=${{ left: `${x}px`, width: `${width}px` }} title=${title}>${text}</span>`;
  return html`
    <div class="heads" style=${{ width: `${geometry.width}px`, fontSize: `${geometry.type * HEAD}px` }}>
      ${name("ms", 0, geometry.time, "time", "Virtual time in milliseconds")}
      ${[...geometry.lanes].map(([lane, x]) => participant({ lane, x, state, geometry, onParticipant, side, step }))}
      ${[...geometry.bars].map(([id, x]) => name(fitting(geometry, `txn ${id}`, id, geometry.bar), x, geometry.bar, "txn", `Transaction ${id} at its coordinator`))}
      ${[...geometry.logs].map(([log, x]) => name(fitting(geometry, `log ${log}`, shortName(log), geometry.log), x, geometry.log, "log", `Log of ${log}`))}
    </div>`;
}

function fitting(geometry, full, short, width) {
  const letters = width / geometry.letter / HEAD - 1;
  return lettersOf(full) <= letters ? full : briefName(short, letters);
}

const SILENT = { down: "crashed", paused: "paused", ended: "finished" };

function participant({ lane, x, state, geometry, onParticipant, side, step }) {
  const now = state[`participant/${lane}`];
  const word = SILENT[now] ?? "";
  // The first lane is near the times: a long name stands right of them instead of around its lane.
  const isTight = lettersOf(lane + word) * geometry.letter * HEAD > 2 * (x - geometry.time);
  const [left, right] = [x - geometry.lane / 2, x + geometry.lane / 2];
  const from = isTight ? Math.max(left, geometry.time) : left;
  const style = { left: `${from}px`, width: `${right - from}px` };
  const name = fitting(geometry, lane, lane, right - from);
  const hasRoom = fitting(geometry, `${lane} ${word}`, "", right - from) !== ""; // the lane itself shows it, too
  const inside = html`${name}${word && html` <b class=${hasRoom ? `silent-word ${now}` : "sr-only"}>${word}</b>`}`;
  if (!onParticipant) return html`<span class="head lane" style=${style} title=${lane}>${inside}</span>`;
  const choose = (event) =>
    onParticipant({ name: lane, step, side, anchor: event.currentTarget.getBoundingClientRect() });
  return html`<button class="head lane" style=${style} title=${lane} onClick=${choose} data-participant=${lane}>${inside}</button>`;
}

// The first row of the block that holds this height, one block earlier.
function blockAt(top, unit) {
  return Math.max(0, Math.floor(top / unit / BLOCK) - 1) * BLOCK;
}

// Keeps the step in sight, with more of the past than of the future around it.
function useFollow(scroller, geometry, step, follow) {
  useLayoutEffect(() => {
    const box = scroller.current;
    const [top, room] = [geometry.rowOf(step) * geometry.unit, box.clientHeight - 3 * geometry.unit];
    if (top < box.scrollTop + geometry.unit * 2 || top > box.scrollTop + room * 0.86) {
      box.scrollTop = Math.max(0, top - room * 0.62);
    }
    follow();
  }, [geometry, step]);
}

function useSize(element) {
  const [size, setSize] = useState({ width: 700, height: 500 });
  useLayoutEffect(() => {
    const measure = () =>
      setSize({ width: element.current.clientWidth, height: element.current.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return size;
}

// Whether the page goes to paper: then every row is drawn, whatever is in sight.
function usePrinting() {
  const [isPrinted, print] = useState(false);
  useEffect(() => {
    const paper = window.matchMedia("print");
    const turn = () => print(paper.matches);
    paper.addEventListener("change", turn);
    return () => paper.removeEventListener("change", turn);
  }, []);
  return isPrinted;
}
