// The page of `fencepost lab --bootstrap-server`: a real broker, step by step as it happens.
//
// Rule: the view stays at the newest step until the reader steps back, and then it stays where the reader is. The
// page holds a bounded part of the run: one that gets too long is loaded anew, without its oldest steps.

import { render } from "preact";
import { Api } from "lab/api.js";
import { html } from "lab/html.js";
import { Run } from "lab/run.js";
import { RunView } from "lab/view.js";

const STEPS_MAX = 20000; // more than the server keeps, so that a reader who stepped back has time to look around
const PAUSE = 150; // ms between two questions: each answer is drawn
const RETRY = 1000;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export async function start(boot, root) {
  const page = new LivePage(new Api(boot.token), root);
  page.draw();
  page.follow();
}

class LivePage {
  constructor(api, root) {
    this.api = api;
    this.root = root;
    this.run = null;
    this.mark = "";
    this.status = { stage: "waiting", text: "waiting for the lab" };
    this.isTied = true; // the view is at the newest step
    this.isStopped = false; // until the reader goes there again
  }

  async follow() {
    for (;;) {
      const [run, version, text] = [this.run, this.run?.version, this.status.text];
      try {
        if (!this.isStopped) this.take(await this.api.get(`live?after=${this.mark}`));
      } catch (problem) {
        this.status = { stage: "waiting", text: problem.message };
        this.mark = ""; // another lab counts anew
        await pause(RETRY);
      }
      if (this.isTied) this.isStopped = false;
      if (this.run !== run || this.run?.version !== version || this.status.text !== text) this.draw();
      await pause(PAUSE);
    }
  }

  take({ status, mark, document, growth }) {
    this.status = status;
    const isFull = this.run !== null && this.run.last >= STEPS_MAX;
    if (isFull && this.isTied && document === null) {
      this.mark = ""; // the next answer is what the lab keeps, without the oldest steps
      return;
    }
    // A reader who stepped back keeps what they look at, also when the lab no longer has it or the page is full.
    if (document !== null && (this.run === null || this.isTied)) {
      this.run = document.steps.length ? new Run(document) : null;
      this.mark = this.run ? mark : "";
    } else if (growth === null || isFull) {
      this.status = { stage: "waiting", text: "stopped here, because you look at earlier steps: jump to live to go on" };
      this.isStopped = true;
      this.mark = "";
    } else {
      if (growth.steps.length || growth.messages.length || growth.batches.length) this.run.append(growth);
      this.mark = mark;
    }
  }

  draw() {
    const { run, status } = this;
    if (run === null) {
      render(html`<main class="live-empty"><h1>Live</h1><${Status} status=${status} /></main>`, this.root);
      return;
    }
    const extras = (player) => {
      this.isTied = player.isTied;
      return html`<${LiveControls} status=${status} player=${player} />`;
    };
    render(html`<${RunView} runs=${[run]} version=${run.version} following=${true} toolbarExtras=${extras} />`, this.root);
  }
}

function LiveControls({ status, player }) {
  return html`
    <span class="live">
      <${Status} status=${status} />
      <button data-testid="jump-to-live" disabled=${player.isTied} title="Go to the newest step and stay there (End)" onClick=${() => player.go(Infinity)}>jump to live</button>
    </span>`;
}

function Status({ status }) {
  return html`<span class=${`live-status ${status.stage}`} data-testid="live-status" role="status">${status.text}</span>`;
}
