// A component that is drawn again only when one of its properties is another value.

import { Component } from "preact";
import { html } from "lab/html.js";

export function memo(Inside) {
  return class extends Component {
    shouldComponentUpdate(next) {
      return Object.keys(next).some((name) => next[name] !== this.props[name]);
    }

    render(props) {
      return html`<${Inside} ...${props} />`;
    }
  };
}
