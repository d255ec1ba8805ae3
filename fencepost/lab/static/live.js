// The page of `fencepost lab --broker`: a real broker, step by step as it happens.
//
// Rule: the view stays at the newest step until the reader steps back, and then it stays where the reader is. The
// page holds a bounded part of the run: one that gets too long is loaded anew, without its oldest steps.

import { render } from "preact";
import { Api } from "lab/api.js";
import { html } from "lab/html.js";
import { load } from "lab/run.js";
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
    this.behind = 0; // steps that are not loaded, because the reader looks at older ones
  }

  async follow() {
    for (;;) {
      const [version, text] = [this.run?.version, this.status.text];
      try {
        this.take(await this.api.get(`live?after=${this.mark}`));
      } catch (problem) {
        this.status = { stage: "waiting", text: problem.message };
        this.mark = ""; // another lab counts anew
        await pause(RETRY);
      }
      if (this.run?.version !== version || this.status.text !== text) this.draw();
      await pause(PAUSE);
    }
  }

  take({ status, mark, steps, document, growth }) {
    this.status = status;
    const isFull = this.run !== null && this.run.last >= STEPS_MAX;
    if (isFull && this.isTied) {
      this.mark = "";
      return;
    }
    if (document !== null && this.run !== null && !this.isTied) {
      this.behind = steps; // what the reader looks at is not there any more: keep it until they jump to the end
    } else if (document !== null) {
      this.run = document.steps.length ? load(document) : null;
      this.behind = 0;
      this.mark = this.run ? mark : "";
    } else if (!isFull) {
      if (growth.steps.length || growth.messages.length || growth.batches.length) this.run.append(growth);
      this.mark = mark;
    } else {
      this.behind = steps - this.run.last - 1;
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
