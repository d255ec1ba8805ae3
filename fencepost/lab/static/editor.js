// The editor of scenarios: text with line numbers, completion, and the command line's error at its line. Text that was not
// run is marked, because the page shows another run.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { completions, firstBlank } from "lab/completion.js";
import { choice, variantOptions } from "lab/choice.js";
import { html } from "lab/html.js";
import { bringIntoSight } from "lab/sight.js";

const CHECK_MS = 250; // after the last key

export function Editor({ api, vocabulary, text, setText, play, shown, discard }) {
  const [check, setCheck] = useState(null);
  const [variant, setVariant] = useState(1);
  const [offered, offer] = useState([]);
  const [chosen, setChosen] = useState(0);
  const field = useRef(null);
  const list = useRef(null);
  const gutter = useRef(null);

  useEffect(() => {
    let isAsked = true;
    const timer = setTimeout(() => {
      api.post("check", { text }).then(
        (found) => isAsked && setCheck(found),
        (refused) => isAsked && setCheck({ ok: false, error: refused.message }),
      );
    }, CHECK_MS);
    return () => {
      isAsked = false;
      clearTimeout(timer);
    };
  }, [text]);

  useLayoutEffect(() => {
    if (offered.length > 0) bringIntoSight(list.current, list.current.children[chosen]);
  }, [offered, chosen]);

  const line = check && !check.ok ? Number(/\bline (\d+)/.exec(check.error)?.[1] ?? 0) : 0;
  const variants = check?.ok ? check.variants : [];
  const wanted = variants.some(({ number }) => number === variant) ? variant : 1;
  const run = () => check?.ok && play(text, wanted);
  const suggest = () => {
    setChosen(0);
    offer(completions(vocabulary, field.current.value, field.current.selectionStart));
  };
  const take = ({ insert, from }) => {
    const { value, selectionStart: caret } = field.current;
    const next = value.slice(0, from) + insert + value.slice(caret);
    const blank = firstBlank(insert);
    offer([]);
    setText(next);
    requestAnimationFrame(() => {
      field.current.focus();
      field.current.setSelectionRange(...(blank ? blank.map((at) => from + at) : [from + insert.length, from + insert.length]));
      if (/ = $/.test(insert)) suggest();
    });
  };
  const press = (event) => {
    const isOffered = offered.length > 0;
    const keys = {
      ArrowDown: isOffered && (() => setChosen((chosen + 1) % offered.length)),
      ArrowUp: isOffered && (() => setChosen((chosen + offered.length - 1) % offered.length)),
      Enter: event.ctrlKey || event.metaKey ? run : isOffered && (() => take(offered[chosen])),
      Tab: isOffered && !event.shiftKey && (() => take(offered[chosen])),
      Escape: isOffered && (() => offer([])),
      " ": event.ctrlKey && suggest,
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  const lines = useMemo(() => text.split("\n").length, [text]);
  const scroll = () => {
    gutter.current.scrollTop = field.current.scrollTop;
  };
  return html`
    <div class="editor">
      <div class="row">
        <button class="main" data-testid="run-text" disabled=${!check?.ok} onClick=${run} title="Ctrl+Enter">▶ Run</button>
        ${variants.length > 1 && choice({ id: "editor-variant", label: "variant", value: wanted, options: variantOptions(variants), choose: setVariant })}
        <small>Ctrl+Space completes, Ctrl+Enter runs, Esc and Tab leave</small>
      </div>
      <p class=${`editor-error ${check === null ? "" : check.ok ? "ok" : "wrong"}`} data-testid="editor-error" role="status">
        ${check === null ? "…" : check.ok ? `This is a scenario: ${check.title}` : check.error}</p>
      ${shown && html`
        <p class="not-run" data-testid="not-run">Not run yet: the page shows <b>${shown}</b>. <button data-testid="discard" onClick=${discard}>Discard the changes</button></p>`}
      <div class="paper">
        <ol class="lines" ref=${gutter} aria-hidden="true">${Array.from({ length: lines }, (_, at) => html`<li key=${at} class=${at + 1 === line ? "wrong" : ""}>${at + 1}</li>`)}</ol>
        <textarea data-testid="editor" aria-label="Scenario (TOML)" aria-autocomplete="list" aria-controls="completions" aria-invalid=${check?.ok === false}
          aria-activedescendant=${offered.length > 0 ? `completion-${chosen}` : undefined}
          spellcheck=${false} wrap="off" ref=${field} value=${text} onKeyDown=${press} onScroll=${scroll} onBlur=${() => offer([])}
          onInput=${(event) => {
            setText(event.currentTarget.value);
            suggest();
          }}></textarea>
      </div>
      <ul class="completions" id="completions" ref=${list} role="listbox" aria-label="Completions" data-testid="completions" hidden=${offered.length === 0}>
        ${offered.map((each, place) => html`
          <li key=${`${each.label} ${each.insert}`} id=${`completion-${place}`} role="option" aria-selected=${place === chosen}
            onMouseDown=${(event) => {
              event.preventDefault();
              take(each);
            }}><code>${each.label}</code><small>${each.help}</small></li>`)}
      </ul>
    </div>`;
}
