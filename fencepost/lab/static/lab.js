// The page of `fencepost lab`: a scenario, its run, and what becomes of it when a fault is added.
//
// Rule: what is asked for is one value (asked.js). Undo goes back to the value before; the server plays it again
// from the same seed. Nothing is simulated here.

import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { inAddress, setAddress } from "lab/address.js";
import { Api } from "lab/api.js";
import { altered, changed, fromWords, inWords, isNamed, isOther, plain, useAsked } from "lab/asked.js";
import { Editor } from "lab/editor.js";
import { escaped } from "lab/escaped.js";
import { html } from "lab/html.js";
import { useKept } from "lab/kept.js";
import { Menu } from "lab/menu.js";
import { Run } from "lab/run.js";
import { ScenarioList } from "lab/scenarios.js";
import { Searches, useSearch } from "lab/searches.js";
import { Tabs } from "lab/tabs.js";
import { RunView } from "lab/view.js";
import { WhatIf } from "lab/whatif.js";

export async function start(boot, root) {
  const api = new Api(boot.token);
  const [scenarios, vocabulary] = await Promise.all([api.get("scenarios"), api.get("vocabulary")]);
  const opened = async (given) => {
    const asked = isNamed(given) ? fromWords(given) : plain({ scenario: scenarios[0].name });
    return { asked, problem: "", ...(await answered(api, asked)) };
  };
  const first = await opened(inAddress()).catch(async ({ message }) => {
    setAddress({ step: null });
    return { ...(await opened(new URLSearchParams())), problem: `What this address asks for cannot be played: ${message}` };
  });
  render(html`<${Lab} api=${api} scenarios=${scenarios} vocabulary=${vocabulary} first=${first} />`, root);
}

function Lab({ api, scenarios, vocabulary, first }) {
  const asking = useAsked(first.asked);
  const { asked } = asking;
  const [shown, setShown] = useState(first);
  const [problem, setProblem] = useState(first.problem);
  const [isBusy, setBusy] = useState(false);
  const [draft, setDraft] = useKept("draft", "", "sessionStorage"); // of the editor, until it is run
  const [text, setText] = useState(draft || null); // of the editor, if somebody wrote there
  const written = useRef(draft); // also while a run is awaited
  written.current = draft;
  const [tab, setTab] = useState(draft ? "editor" : "scenarios");
  const [beside, setBeside] = useState(() => inAddress().get("step")?.includes(",") ?? false);
  const [isOpen, setOpen] = useState(true); // the panel at the side
  const [menu, setMenu] = useState(null);
  const search = useSearch(api);
  const attempt = (work) => work().catch((refused) => setProblem(refused.message));

  useEffect(() => {
    let isAsked = true;
    setMenu(null);
    setBusy(asked !== shown.asked);
    if (asked === shown.asked) return undefined;
    answered(api, asked)
      .then((answer) => {
        if (!isAsked) return;
        setProblem("");
        if (isOther(asked, shown.asked)) setAddress({ ...inWords(asked), step: null }, true);
        else setAddress(inWords(asked));
        setShown({ asked, ...answer });
        asking.accept();
        if (written.current === asked.text) setDraft("");
      })
      .catch((refused) => {
        if (!isAsked) return;
        setProblem(refused.message);
        asking.refuse();
      })
      .finally(() => isAsked && setBusy(false));
    return () => (isAsked = false);
  }, [asked]);

  useEffect(() => setAddress(inWords(asked)), []);

  // Another run in the address: a link was pasted there, or one went back to it. This listens before the player, for which
  // the step of another run is not.
  useLayoutEffect(() => {
    const move = (event) => {
      const [given, ours] = [inAddress(), inWords(shown.asked)];
      const isOurs = Object.keys(ours).every((key) => given.get(key) === ours[key]);
      if (isOurs || !isNamed(given)) return setAddress(ours);
      event.stopImmediatePropagation();
      window.location.reload();
    };
    window.addEventListener("hashchange", move);
    return () => window.removeEventListener("hashchange", move);
  }, [shown]);

  useEffect(() => {
    const press = (event) => {
      const isTyped = event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea");
      if (isTyped || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
      event.preventDefault();
      (event.shiftKey ? asking.redo : asking.undo)?.();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });

  const story = scenarios.find((each) => each.name === asked.scenario);
  const original = asked.text ?? story?.text ?? "";
  const write = (toml) => {
    setText(toml);
    setDraft(toml === original ? "" : toml);
  };
  const play = (toml, variant) => choose({ text: toml, variant });
  const choose = (next) => {
    setBeside(false);
    asking.begin(plain(next));
  };
  const add = (fault) => {
    setTab("whatif");
    setOpen(true);
    asking.change(altered(asked, { faults: [...asked.faults, fault] }));
  };
  const edit = (toml) => {
    setTab("editor");
    if (!draft || draft === toml || window.confirm("The editor has text that was not run. Replace it?")) write(toml);
  };
  const open = (found) => {
    setBeside(false);
    if (found.text) choose({ text: found.text });
    else setShown({ asked, isTrace: true, ...shownOf({ document: found.document }) });
  };
  const { runs, divergence = null } = beside && shown.runs.length > 1 ? shown : { runs: shown.runs.slice(-1) };
  const isOwn = shown.asked.text !== null && !shown.isTrace;
  const { title } = shown.runs[0].document;
  useEffect(() => {
    document.title = `${escaped(title)} - Fencepost lab`;
  }, [title]);
  // What a change leaves as it is: the reader stays at the step.
  const told = shown.isTrace || isOwn ? `${isOwn} ${title}` : `${shown.asked.scenario} ${shown.asked.variant}`;
  const panels = {
    scenarios: () => html`<${ScenarioList} scenarios=${scenarios} asked=${asked} shown=${runs.at(-1).document} choose=${choose} edit=${edit} />`,
    whatif: () => html`<${WhatIf} api=${api} asking=${asking} shown=${shown} beside=${beside} setBeside=${setBeside} edit=${edit} setProblem=${setProblem} />`,
    editor: () => html`<${Editor} api=${api} vocabulary=${vocabulary} text=${text ?? original} setText=${write} play=${play} shown=${draft && title} discard=${() => write(original)} />`,
    search: () => html`<${Searches} search=${search} open=${open} attempt=${attempt} switches=${first.switches} workloads=${vocabulary.workloads} />`,
  };
  const tabs = [
    ["scenarios", "Scenarios"],
    ["whatif", html`What if${changed(asked) > 0 && html`<b class="count" title="changes">${changed(asked)}</b>`}`],
    ["editor", html`Editor${draft && html`<b class="count" title="text that was not run"><span aria-hidden="true">✎</span><span class="sr-only"> not run</span></b>`}`],
    ["search", "Search"],
  ];
  const aside = html`
    <${Tabs} label="Lab" tabs=${tabs} selected=${tab} select=${setTab} panel="lab-panel" />
    ${problem && html`<p class="refused" role="alert" data-testid="problem">${problem} <button onClick=${() => setProblem("")} aria-label="Dismiss">✕</button></p>`}
    <p role="status" data-testid="busy">${isBusy && html`<span class="busy">Playing the scenario …</span>`}</p>
    <div class=${`lab-panel ${tab}`} id="lab-panel" role="tabpanel" aria-labelledby=${`tab-${tab}`} aria-busy=${isBusy}>${panels[tab]()}</div>`;
  const panelSwitch = () => html`
    <button data-testid="toggle-panel" aria-pressed=${isOpen} title="Scenarios, what if, editor and search: show or hide them" onClick=${() => setOpen(!isOpen)}>Lab</button>`;
  return html`
    <${RunView} runs=${runs} isOwn=${isOwn} story=${told} divergence=${divergence} aside=${isOpen && aside} toolbarExtras=${panelSwitch} onMessage=${shown.isTrace ? undefined : setMenu} onParticipant=${shown.isTrace ? undefined : setMenu} />
    ${menu && html`<${Menu} chosen=${menu} run=${runs[menu.side]} add=${add} close=${() => setMenu(null)} />`}`;
}

// A changed run is played beside the scenario as it was, so that the page can say what the change came to.
async function answered(api, asked) {
  if (!changed(asked)) return shownOf(await api.post("play", asked));
  return shownOf(await api.post("compare", { left: plain(asked), right: asked }));
}

function shownOf({ document, left, right, ...rest }) {
  return { runs: (document ? [document] : [left, right]).map((each) => new Run(each)), ...rest };
}
