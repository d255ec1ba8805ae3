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
    let response;
    try {
      response = await fetch(`api/${path}`, { ...options, headers });
    } catch {
      throw new Error("The lab does not answer. Is `fencepost lab` still running?");
    }
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error ?? `The lab answered ${response.status}.`);
    return answer;
  }
}
