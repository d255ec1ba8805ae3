// The bundled scenarios: their names, what each teaches, and their variants; above them the one of the editor, while it
// is shown. It may have the title of a bundled one, of which it is a copy.

import { useLayoutEffect, useRef } from "preact/hooks";
import { choice, variantOptions } from "lab/choice.js";
import { html } from "lab/html.js";
import { bringIntoSight } from "lab/sight.js";

export function ScenarioList({ scenarios, asked, shown, choose, edit }) {
  const list = useRef(null);
  useLayoutEffect(() => {
    const chosen = list.current.querySelector(".open");
    if (chosen) bringIntoSight(list.current.parentElement, chosen);
  }, []);
  return html`
    <p class="hint">Each scenario is a run of a whole cluster, and shows what can go wrong there. Choose one, and press <b>▶</b> or <kbd>→</kbd>.</p>
    <ol class="scenarios" ref=${list} data-testid="scenario-list">
      ${asked.text !== null && html`
        <li class="open" data-testid="own-scenario">
          <p class="scenario" aria-current="true">${shown.title} <span class="badge setting">yours</span></p>
          <p class="lesson-text">${shown.lesson}</p>
          <p><button onClick=${() => edit(asked.text)}>Edit</button></p>
        </li>`}
      ${scenarios.map((each) => html`<${Story} key=${each.name} story=${each} isOpen=${each.name === asked.scenario} variant=${asked.variant} choose=${choose} edit=${edit} />`)}
    </ol>`;
}

function Story({ story, isOpen, variant, choose, edit }) {
  const { name, title, lesson, variants, text } = story;
  return html`
    <li class=${isOpen ? "open" : ""}>
      <button class="scenario" data-scenario=${name} aria-current=${isOpen} onClick=${() => choose({ scenario: name })}>${title}</button>
      ${isOpen && html`
        <p class="lesson-text">${lesson}</p>
        ${variants.length > 1 && html`
          <label class="variant">variant ${choice({ id: "variant", value: variant, options: variantOptions(variants), choose: (number) => choose({ scenario: name, variant: number }) })}</label>`}
        <p><button data-testid="edit-scenario" onClick=${() => edit(text)}>Edit a copy</button></p>`}
    </li>`;
}
