// How the page looks: colours, size of type, height of rows. Rule: what a reader chose is kept for the next page.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { useKept } from "lab/kept.js";

const THEMES = ["auto", "light", "dark"];
const ZOOMS = [0.5, 0.75, 1, 1.25, 1.5, 2];
const ROW = 1.57; // rem: a row at 100 %

export function useLook() {
  const [theme, setTheme] = useKept("theme", "auto");
  const [large, setLarge] = useKept("large", false);
  const [zoom, setZoom] = useKept("zoom", 1);
  const [rem, setRem] = useState(14);
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = theme;
    document.documentElement.classList.toggle("large", large);
    setRem(typeSize());
  }, [theme, large]);
  useEffect(() => {
    const measure = () => setRem(typeSize());
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  const nearest = ZOOMS.indexOf(zoom);
  return {
    theme,
    large,
    zoom,
    zooms: ZOOMS,
    unit: Math.round(ROW * rem * zoom),
    setZoom,
    zoomBy: (steps) => setZoom(ZOOMS[Math.max(0, Math.min(ZOOMS.length - 1, nearest + steps))]),
    toggleLarge: () => setLarge(!large),
    nextTheme: () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]),
  };
}

// Pixels of a rem: the style sheet decides, by the width of the screen and the size of type.
function typeSize() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize);
}
