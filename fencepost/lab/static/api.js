// Questions to the lab's server. Rule: every question carries the token, and every refusal is a sentence to show.

export class Api {
  constructor(token) {
    this.token = token;
  }

  get(path) {
    return this.#ask(path, { method: "GET" });
  }

  post(path, body) {
    return this.#ask(path, { method: "POST", body: JSON.stringify(body) });
  }

  delete(path) {
    return this.#ask(path, { method: "DELETE" });
  }

  async #ask(path, options) {
    const headers = { "x-fencepost-token": this.token, "content-type": "application/json" };
    let response, answer;
    try {
      response = await fetch(`api/${path}`, { ...options, headers });
      answer = await response.json();
    } catch {
      const what = response ? `answered ${response.status}, but not in full` : "does not answer";
      throw new Error(`The lab ${what}. Is \`fencepost lab\` still running?`);
    }
    if (!response.ok) throw new Error(answer.error ?? `The lab answered ${response.status}.`);
    return answer;
  }
}
