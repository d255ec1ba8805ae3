// Searches from the page: random clusters, every state of a small one, and a found run made smaller.

import { useEffect, useState } from "preact/hooks";
import { choice } from "lab/choice.js";
import { html } from "lab/html.js";
import { icon } from "lab/icons.js";

const POLL_MS = 400;

// The search that the page follows: it goes on while another tab is shown.
export function useSearch(api) {
  const [search, set] = useState(null);
  const isRunning = search?.state === "running";
  useEffect(() => {
    if (!isRunning) return undefined;
    let isAsked = true;
    const fail = ({ message }) => set((last) => ({ ...last, state: "failed", error: message }));
    const follow = (work) => work.then((found) => isAsked && set(found), (refused) => isAsked && fail(refused));
    const timer = setInterval(() => follow(api.get(`searches/${search.id}`)), POLL_MS);
    return () => {
      isAsked = false;
      clearInterval(timer);
    };
  }, [isRunning, search?.id]);
  return {
    search,
    isRunning,
    begin: async (described) => {
      const { id } = await api.post("searches", described);
      set(await api.get(`searches/${id}`));
    },
    stop: async () => set(await api.delete(`searches/${search.id}`)),
  };
}

export function Searches({ search: following, open, attempt, switches, workloads }) {
  const { search, isRunning, begin, stop } = following;
  const [kind, setKind] = useState("fuzz");
  const [version, setVersion] = useState(0);
  const [off, setOff] = useState([]);
  const [fuzz, setFuzz] = useState({ workload: "transactions", seeds: 500, first_seed: 0 });
  const [explore, setExplore] = useState({ producers: 1, transactions: 2, retries: 1, crashes: 0 });
  const describe = () => ({ kind, transaction_version: version, broken: off, ...(kind === "fuzz" ? fuzz : explore) });
  const submit = (event) => {
    event.preventDefault();
    attempt(() => begin(describe()));
  };
  const toggle = (name) => setOff(off.includes(name) ? off.filter((each) => each !== name) : [...off, name]);
  return html`
    <form class="searches" onSubmit=${submit}>
      <fieldset class="kinds"><legend>Look for a broken rule</legend>
        ${radio({ value: "fuzz", kind, setKind, words: "in random clusters (fuzz)", help: "each seed draws nodes, clients and faults" })}
        ${radio({ value: "explore", kind, setKind, words: "in every state (explore)", help: "of a small cluster, whose requests may come late" })}
      </fieldset>
      <label>transaction version ${choice({ id: "search-version", value: version, options: [0, 1, 2].map((each) => [each, each]), choose: setVersion })}</label>
      <fieldset><legend>switched off</legend>
        ${(switches?.broken ?? []).map((name) => html`<label key=${name}><input type="checkbox" data-testid=${`search-off-${name}`} checked=${off.includes(name)} onChange=${() => toggle(name)} /> ${name}</label>`)}
      </fieldset>
      ${kind === "fuzz" && html`
        <label>workload ${choice({ value: fuzz.workload, options: workloads.map((each) => [each, each]), choose: (workload) => setFuzz({ ...fuzz, workload }) })}</label>
        ${number({ of: fuzz, set: setFuzz, key: "seeds", words: "seeds", min: 1, max: 1000000 })}
        ${number({ of: fuzz, set: setFuzz, key: "first_seed", words: "first seed", min: 0, max: Number.MAX_SAFE_INTEGER })}`}
      ${kind === "explore" && html`
        ${number({ of: explore, set: setExplore, key: "producers", words: "producers", min: 1, max: 9 })}
        ${number({ of: explore, set: setExplore, key: "transactions", words: "transactions each", min: 1, max: 9 })}
        ${number({ of: explore, set: setExplore, key: "retries", words: "connections given up", min: 0, max: 9 })}
        ${number({ of: explore, set: setExplore, key: "crashes", words: "crashes", min: 0, max: 9 })}`}
      <div class="row">
        <button class="main" data-testid="search-start" disabled=${isRunning}>Search</button>
        <button type="button" data-testid="search-stop" disabled=${!isRunning} onClick=${() => attempt(stop)}>Stop</button>
      </div>
    </form>
    ${search && html`<${Progress} search=${search} />`}
    ${search && html`<${Found} search=${search} open=${open} shrink=${(text) => attempt(() => begin({ kind: "shrink", text }))} isRunning=${isRunning} />`}`;
}

function radio({ value, kind, setKind, words, help }) {
  return html`<label class="switch"><input type="radio" name="kind" data-testid=${`search-${value}`} checked=${kind === value} onChange=${() => setKind(value)} /><span>${words}<small>${help}</small></span></label>`;
}

function number({ of, set, key, words, min, max }) {
  return html`<label key=${key}>${words} <input type="number" data-testid=${`search-${key}`} min=${min} max=${max} value=${of[key]} onInput=${(event) => set({ ...of, [key]: event.currentTarget.valueAsNumber })} /></label>`;
}

function Progress({ search }) {
  const { progress, state, error, kind } = search;
  const ended = { done: "done", stopped: "stopped", failed: "failed" }[state];
  return html`
    <section class="progress" data-testid="search-progress" aria-live="polite">
      <h2>${kind}${ended ? `: ${ended}` : " …"}</h2>
      <progress aria-label="progress" value=${progress.of ? progress.at : undefined} max=${progress.of ?? undefined} hidden=${state !== "running"}></progress>
      <p>${progress.words}</p>
      ${error && html`<p class="refused">${error}</p>`}
    </section>`;
}

function Found({ search, open, shrink, isRunning }) {
  if (search.found.length === 0) return search.state === "done" ? html`<p class="healed">${icon("ok")} Nothing was found.</p>` : null;
  return html`
    <ol class="found" data-testid="found">
      ${search.found.map((each) => html`
        <li key=${each.title + each.rule} class=${each.known ? "known" : "new"}>
          <b>${each.title}</b> ${each.known ? "shows" : "breaks"} <b>${each.rule}</b>${each.known ? ", known of this version of Kafka" : ""}
          <small>${each.evidence}</small>
          <div class="row">
            <button data-testid="open-found" onClick=${() => open(each)}>Open</button>
            ${search.kind === "fuzz" && html`<button data-testid="shrink-found" disabled=${isRunning} onClick=${() => shrink(each.text)}>Make it smaller</button>`}
          </div>
        </li>`)}
    </ol>`;
}
