// Small pictures for buttons and flags, drawn as paths on a ground of 16 by 16: no font decides how they look.

import { html } from "lab/html.js";

const PATHS = {
  play: "M4 2.5v11l9-5.5z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  forward: "M4 3v10l6-5zM11 3h2v10h-2z",
  back: "M12 3v10L6 8zM3 3h2v10H3z",
  first: "M14 3v10L9 8zM9 3v10L4 8zM2 3h2v10H2z",
  last: "M2 3v10l5-5zM7 3v10l5-5zM12 3h2v10h-2z",
  fault: "M9 1 3 9h4l-1 6 7-9H9z",
  refusal: "M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM3.5 7h9v2.2h-9z",
  marker: "M5.2 3.5h5.6a4.5 4.5 0 0 1 0 9H5.2a4.5 4.5 0 0 1 0-9z", // as a marker looks in a log
  violation: "M3.2 1.5 8 6.2l4.8-4.7 1.8 1.8L9.8 8l4.8 4.8-1.8 1.8L8 9.8l-4.8 4.8-1.8-1.8L6.2 8 1.4 3.3z",
  late: "M3 1h10v2l-3.6 5L13 13v2H3v-2l3.6-5L3 3z",
  lost: "M1 7h6v2H1zM9 5.2 10.2 4 12 5.8 13.8 4 15 5.2 13.2 7.9 15 10.6 13.8 12 12 10 10.2 12 9 10.6l1.8-2.7z",
  again: "M8 2a6 6 0 1 0 6 6h-2a4 4 0 1 1-4-4v3l4.5-4L8-.5z",
  ok: "M6.4 13.4 1.2 8.2l2-2 3.2 3.2L12.8 3l2 2z",
  help: "M5 5a3 3 0 1 1 4.2 2.8c-.5.3-.7.6-.7 1.7H6.8c0-2 .6-2.6 1.4-3C9 6.1 9.3 5.7 9.3 5A1.3 1.3 0 0 0 6.7 5zM6.7 11h2v2h-2z",
  theme: "M8 1.5a6.5 6.5 0 1 0 0 13zm0 1.5v10a5 5 0 0 0 0-10z",
};

export function icon(name) {
  return html`<svg class=${`icon ${name}`} viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} fill-rule="evenodd" /></svg>`;
}
