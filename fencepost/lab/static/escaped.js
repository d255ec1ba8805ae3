// Texts as they can be shown: ids, keys and values come from anyone. What a browser obeys instead of showing it, such as
// the sign that turns a line around, is written as in a terminal: \u202e. Signs that join letters, and lines, are left.
// Rule: only what is shown is changed, never a run.

const OBEYED = /[\0-\x08\v\f\x0e-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function escaped(text) {
  return typeof text === "string" ? text.replace(OBEYED, inWords) : text;
}

function inWords(sign) {
  const code = sign.charCodeAt(0).toString(16);
  return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
}
