// The page of `fencepost lab`: choose a scenario, and look at its run.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Api } from "lab/api.js";
import { html } from "lab/html.js";
import { load } from "lab/run.js";
import { ScenarioList } from "lab/scenarios.js";
import { RunView } from "lab/view.js";

export async function start(boot, root) {
  const api = new Api(boot.token);
  const scenarios = await api.get("scenarios");
  const [first] = scenarios;
  const { document } = await api.post("play", { scenario: first.name });
  render(html`<${Lab} api=${api} scenarios=${scenarios} first=${first.name} opening=${document} />`, root);
}

function Lab({ api, scenarios, first, opening }) {
  const [asked, ask] = useState({ scenario: first, variant: 1 });
  const [run, setRun] = useState(() => load(opening));
  useEffect(() => {
    let isAsked = true;
    api.post("play", asked).then(({ document }) => isAsked && setRun(load(document)));
    return () => (isAsked = false);
  }, [asked]);
  return html`<${RunView} runs=${[run]} aside=${html`<${ScenarioList} scenarios=${scenarios} asked=${asked} ask=${ask} />`} />`;
}
