// The overlay with the keys and the signs of the page. The browser's own dialog: Escape closes it, and the focus returns.

import { html } from "lab/html.js";
import { useEffect, useRef } from "preact/hooks";
import { icon } from "lab/icons.js";
import { KEYS } from "lab/keys.js";
import { STATES } from "lab/batches.js";
import { FLAGS } from "lab/words.js";

const WORDS = [
  [
    "LSO",
    "last stable offset: read_committed readers may read below it, because every transaction before it is decided",
  ],
  ["HW", "high watermark: everything below it is durable, and read_uncommitted readers may read it"],
  ["7/2", "producer id 7, epoch 2: a newer epoch fences the older one"],
  ["t-0", "partition 0 of the topic t"],
  ["NONE", "the error of a reply: none, it succeeded; @3 is the offset that its first record got"],
  ["txn app", "the transaction of the producers whose transactional id is app"],
  ["≠", "from this line on, two runs side by side differ"],
  ["marker", "a record that says how a transaction ended in this partition: C commit, A abort"],
  ["guard", "the leader asks the coordinator whether a transaction is open before it takes its first record"],
];

// The lines and bars of the picture, as they are drawn there.
const bar = (state) => html`<rect class=${`txn-bar ${state}`} x="5" y="2" width="12" height="10" />`;
const line = (kind) => html`<g class=${`message ${kind}`}><path class="line" d="M0 7H22" /></g>`;
const DRAWN = [
  [bar("Ongoing"), "transaction: ongoing"],
  [bar("PrepareCommit"), "transaction: decided, markers are missing"],
  [bar("CompleteCommit"), "transaction: committed"],
  [bar("CompleteAbort"), "transaction: aborted"],
  [line("late"), "message: late"],
  [line("again"), "message: sent again"],
  [line("refused"), "message: a reply with an error"],
  [line("lost"), "message: lost"],
  [html`<path class="lso" d="M11 0V14" />`, "last stable offset (LSO) of a log"],
  [html`<path class="hw" d="M11 0V14" />`, "high watermark (HW) of a log"],
  [html`<rect class="held-back" x="5" width="12" height="14" />`, "records that read_committed must not see yet"],
];

export function Help({ isOpen, close }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  return html`
    <dialog ref=${dialog} class="help" data-testid="help-dialog" aria-label="Keys and signs" onClose=${close}>
      <form method="dialog"><button aria-label="Close help">Close</button></form>
      <h2>Keys</h2>
      <dl class="keys">${KEYS.map(({ shown, words }) => html`<div key=${shown}><dt><kbd>${shown}</kbd></dt><dd>${words}</dd></div>`)}</dl>
      <h2>Signs</h2>
      <dl class="signs">
        ${Object.entries(FLAGS).map(([flag, word]) => html`<div key=${flag}><dt class=${`flag ${flag}`}>${icon(flag)}</dt><dd>${word}</dd></div>`)}
        ${Object.entries(STATES)
          .filter(([state]) => state !== "plain")
          .map(
            ([state, { word }]) =>
              html`<div key=${state}><dt><span class=${`sample cell ${state}`}></span></dt><dd>${word}</dd></div>`,
          )}
        ${DRAWN.map(([sign, words]) => html`<div key=${words}><dt><svg class="sample" viewBox="0 0 22 14" aria-hidden="true">${sign}</svg></dt><dd>${words}</dd></div>`)}
      </dl>
      <h2>Words</h2>
      <dl class="words">${WORDS.map(([word, meaning]) => html`<div key=${word}><dt>${word}</dt><dd>${meaning}</dd></div>`)}</dl>
    </dialog>`;
}
