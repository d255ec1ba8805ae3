// The way of the selected step's message: where it left and arrived, how long it took, and its request or answer. Each
// is a button that goes there.

import { html } from "lab/html.js";
import { milliseconds } from "lab/words.js";

export function Way({ run, step, number: at, side, onStep, onMessage }) {
  const message = run.messages.get(step.message);
  if (!message) return null;
  const { number, sent, arrived, lost, answers, repeats } = message;
  const ended = arrived ?? lost;
  const answer = answers == null ? run.answerOf(number) : null;
  const took = ended == null ? null : milliseconds(run.steps[ended].at - run.steps[sent].at);
  const choose = (event) =>
    onMessage({ number, step: at, side, anchor: event.currentTarget.getBoundingClientRect() });
  return html`
    <p class="way-of"><span>Message ${number}</span>
      ${go(run, onStep, "sent", sent)}
      ${ended != null && go(run, onStep, arrived == null ? "lost" : "arrived", ended)}
      ${took !== null && html`<span>after ${took} ms</span>`}
      ${answers != null && go(run, onStep, `its request ${answers}`, run.messages.get(answers)?.sent)}
      ${answer && go(run, onStep, `its reply ${answer.number}`, answer.sent)}
      ${onMessage && html`<button data-testid="whatif-message" onClick=${choose}>what if …</button>`}
      ${repeats != null && go(run, onStep, `repeats ${repeats}`, run.messages.get(repeats)?.sent)}
    </p>`;
}

function go(run, onStep, words, step) {
  if (step == null) return null;
  return html`<button title=${`Go to step ${step}, ${milliseconds(run.steps[step].at)} ms`} onClick=${() => onStep(step)}>${words}</button>`;
}
