// The keyboard. Rule: one table, from which the page acts and the help is written; a field where one types, and any
// key with Ctrl, Alt or Meta, is left alone.

import { useLayoutEffect } from "preact/hooks";

export const KEYS = [
  { keys: [" "], shown: "Space", words: "play or pause", act: ({ player }) => player.toggle() },
  {
    keys: ["ArrowRight", "ArrowDown"],
    shown: "→ or ↓",
    words: "step forward",
    act: ({ player }) => player.move(1),
  },
  {
    keys: ["ArrowLeft", "ArrowUp"],
    shown: "← or ↑",
    words: "step back",
    act: ({ player }) => player.move(-1),
  },
  {
    keys: ["PageDown"],
    shown: "Page down",
    words: "20 steps forward",
    act: ({ player }) => player.move(20),
  },
  {
    keys: ["PageUp"],
    shown: "Page up",
    words: "20 steps back",
    act: ({ player }) => player.move(-20),
  },
  { keys: ["Home"], shown: "Home", words: "first step", act: ({ player }) => player.go(0) },
  {
    keys: ["End"],
    shown: "End",
    words: "last step",
    act: ({ player, timeline }) => player.go(timeline.last),
  },
  { keys: ["f", "F"], shown: "F", words: "next fault", act: ({ jump, back }) => jump("fault", back) },
  { keys: ["r", "R"], shown: "R", words: "next refusal", act: ({ jump, back }) => jump("refusal", back) },
  { keys: ["m", "M"], shown: "M", words: "next marker", act: ({ jump, back }) => jump("marker", back) },
  {
    keys: ["v", "V"],
    shown: "V",
    words: "next violation (Shift: the one before)",
    act: ({ jump, back }) => jump("violation", back),
  },
  {
    keys: ["d", "D"],
    shown: "D",
    words: "point of divergence of two runs",
    act: ({ player, timeline }) => timeline.parting !== null && player.go(timeline.parting),
  },
  { keys: ["+", "="], shown: "+", words: "zoom in", act: ({ look }) => look.zoomBy(1) },
  { keys: ["-"], shown: "-", words: "zoom out", act: ({ look }) => look.zoomBy(-1) },
  { keys: ["l", "L"], shown: "L", words: "large type", act: ({ look }) => look.toggleLarge() },
  {
    keys: ["t", "T"],
    shown: "T",
    words: "light, dark or automatic colours",
    act: ({ look }) => look.nextTheme(),
  },
  { keys: ["?"], shown: "?", words: "this help", act: ({ setHelp }) => setHelp(true) },
];

const TYPED = "input:not([type=range]), textarea, select, [contenteditable], dialog";

const SCROLLED = ".panels, .aside"; // there the vertical keys scroll
const VERTICAL = ["ArrowUp", "ArrowDown", "PageUp", "PageDown"];

export function useKeys(context) {
  // In the same task as what is drawn: the next key must not act on the step before.
  useLayoutEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
      const isButton = event.target.closest?.("button, a, summary") && [" ", "Enter"].includes(event.key);
      const isSlider =
        event.target.matches?.("input[type=range]") && /^(Arrow|Page|Home|End)/.test(event.key);
      if (isButton || isSlider || event.target.closest?.(TYPED)) return;
      const isScroll = event.target.closest?.(SCROLLED) && VERTICAL.includes(event.key);
      if (isScroll) return;
      const found = KEYS.find(({ keys }) => keys.includes(event.key));
      if (!found) return;
      event.preventDefault();
      found.act({ ...context, back: event.shiftKey ? -1 : 1 });
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
}
