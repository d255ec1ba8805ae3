// The picture of a run: lanes of clients and nodes with the messages between them, the state of each transaction,
// and the logs as a staircase. A click on a row selects its step.
//
// Rule: only rows near those in sight are drawn (in blocks of BLOCK rows, so that scrolling redraws seldom). What
// has not happened yet lies under a veil, which moves with the step; the marks below it stay as they are. The names
// above the lanes and the times at their left stay in sight when a reader scrolls, so the times are a picture of their own.

import { memo } from "lab/memo.js";
import { html } from "lab/html.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Geometry } from "lab/geometry.js";
import { Heads } from "lab/heads.js";
import { Marks, Times } from "lab/marks.js";
import { useName } from "lab/side_name.js";

const BLOCK = 24;

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
    () => new Geometry(run, rows, { width, unit }),
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
  const drawn = { geometry, ...shown, onStep, onMessage, side };
  return html`
    <section class="panel space-time" data-testid="panel-space-time" aria-label=${useName("Space and time")}>
      <div class="scroller" ref=${scroller} onScroll=${follow} tabindex="0" role="group"
        aria-label="Messages, transactions and logs, one row per step. Arrow keys step.">
        <${Heads} geometry=${geometry} run=${run} step=${step} side=${side} onParticipant=${onParticipant} />
        <div class="sheet" style=${{ width: `${geometry.width}px`, height: `${geometry.height + unit}px` }}>
          <${Current} geometry=${geometry} step=${step} />
          ${parting !== null && html`<${Parting} geometry=${geometry} step=${parting} />`}
          <${Drawn} Content=${Marks} kind="picture" width=${geometry.width} ...${drawn} />
          <div class="times" style=${{ width: `${geometry.time}px` }}>
            <${Current} geometry=${geometry} step=${step} />
            <${Drawn} Content=${Times} kind="" width=${geometry.time} ...${drawn} />
          </div>
          <${Veil} geometry=${geometry} step=${step} />
        </div>
      </div>
    </section>`;
}

const Drawn = memo(({ Content, kind, width, ...drawn }) => {
  const { geometry, first, last, onStep } = drawn;
  const { unit, type } = geometry;
  const height = (last - first + 1) * unit;
  const select = (event) => {
    const row = first + Math.floor(event.offsetY / unit);
    if (geometry.rows[row] !== undefined) onStep(geometry.rows[row]);
  };
  return html`
    <svg class=${kind} width=${width} height=${height} viewBox=${`0 ${first * unit} ${width} ${height}`}
      style=${{ top: `${first * unit}px`, fontSize: `${type}px` }} aria-hidden="true" onClick=${select}>
      <${Content} ...${drawn} />
    </svg>`;
});

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

// The first row of the block that holds this height, one block earlier.
function blockAt(top, unit) {
  return Math.max(0, Math.floor(top / unit / BLOCK) - 1) * BLOCK;
}

// Keeps the step in sight, with more of the past than of the future around it, and the lane where it happens.
function useFollow(scroller, geometry, step, follow) {
  useLayoutEffect(() => {
    const box = scroller.current;
    const heads = box.lastElementChild.offsetTop;
    const [top, room] = [geometry.rowOf(step) * geometry.unit, box.clientHeight - heads - geometry.unit];
    if (top < box.scrollTop + geometry.unit * 2 || top > box.scrollTop + room * 0.86) {
      box.scrollTop = Math.max(0, top - room * 0.62);
    }
    const x = geometry.lanes.get(geometry.run.steps[step]?.lane) - box.scrollLeft;
    if (x < geometry.time || x > box.clientWidth) box.scrollLeft += x - (geometry.time + box.clientWidth) / 2;
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
