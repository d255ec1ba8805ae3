// Where the reader is, and whether the run plays. Rule: one number, the place in the timeline, says it all; the
// address holds it as #step=42 (two runs: #step=42,40), so that a step can be linked to. Another story begins where
// it opens.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { inAddress, setAddress } from "lab/address.js";

export const SPEEDS = [1, 2, 5, 10, 25, 100]; // steps per second
const FRAME = 1000 / 25; // faster than this, several steps are taken at once

export function usePlayer(timeline, { story, opening, following = false }) {
  const [steps, setSteps] = useState(() => stepsIn() ?? opening);
  const [playing, setPlaying] = useState(false);
  const runs = useRef(false); // at once, while `playing` is of the last drawing: no tick comes after a pause
  const [speed, setSpeed] = useState(2);
  const [isTouched, touch] = useState(() => stepsIn() !== null);
  const [isTied, tie] = useState(following);
  const place = isTied ? timeline.last : timeline.placeOfAll(steps);
  const here = useRef(place);
  here.current = place;

  const turn = (on) => {
    runs.current = on;
    setPlaying(on);
  };
  const advance = (next) => {
    const bounded = Math.max(0, Math.min(next, timeline.last));
    here.current = bounded; // a key may come before the next drawing, and counts from here
    touch(true);
    tie(following && bounded === timeline.last);
    setSteps(timeline.at(bounded));
  };
  // Whoever goes somewhere wants to look there: that pauses.
  const go = (next) => {
    turn(false);
    advance(next);
  };
  const toggle = () => {
    if (!playing && (place === timeline.last || !isTouched)) advance(0);
    turn(!playing);
  };

  const told = useRef(story);
  useLayoutEffect(() => {
    if (told.current === story) return; // the same story with a change: the reader stays at the step
    told.current = story;
    touch(false);
    turn(false);
    setSteps(opening);
  }, [story]);

  useEffect(() => {
    if (!playing) return undefined;
    const pause = Math.max(1000 / speed, FRAME);
    const stride = Math.max(1, Math.round((speed * pause) / 1000));
    const timer = setInterval(() => {
      if (here.current >= timeline.last) turn(false);
      else if (runs.current) advance(here.current + stride);
    }, pause);
    return () => clearInterval(timer);
  }, [playing, speed, timeline]);

  useLayoutEffect(() => {
    if (!playing) setAddress({ step: isTouched ? timeline.at(place).join(",") : null });
  }, [place, playing, isTouched, timeline]);

  useEffect(() => {
    const jump = ({ newURL }) => {
      const asked = stepsIn(newURL);
      if (asked) go(timeline.placeOfAll(asked));
    };
    window.addEventListener("hashchange", jump);
    return () => window.removeEventListener("hashchange", jump);
  }, [timeline]);

  return {
    place,
    steps: timeline.at(place),
    go,
    move: (places) => go(here.current + places),
    playing,
    toggle,
    speed,
    setSpeed,
    isTied,
  };
}

function stepsIn(address) {
  const steps = inAddress(address).get("step");
  return /^\d+(,\d+)?$/.test(steps) ? steps.split(",").map(Number) : null;
}
