// A row of tabs, of which the selected one is a stop of the Tab key; the arrow keys go to the others.

import { html } from "lab/html.js";

// `tabs` are [id, words] each, `selected` an id; `panel` is the id of the element that shows what is selected.
export function Tabs({ label, tabs, selected, select, panel }) {
  const press = (event) => {
    const at = tabs.findIndex(([id]) => id === selected);
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    const place = (places[event.key] + tabs.length) % tabs.length;
    select(tabs[place][0]);
    event.currentTarget.children[place].focus();
  };
  return html`
    <div class="tabs" role="tablist" aria-label=${label} onKeyDown=${press}>
      ${tabs.map(([id, words]) => html`
        <button key=${id} role="tab" id=${`tab-${id}`} data-testid=${`tab-${id}`} aria-selected=${id === selected}
          tabindex=${id === selected ? 0 : -1} aria-controls=${panel} onClick=${() => select(id)}>${words}</button>`)}
    </div>`;
}
