// What a region is called: with two runs on a page, its title and the side, because no two regions share a name.

import { createContext } from "preact";
import { useContext } from "preact/hooks";

export const SideName = createContext("");

export function useName(title) {
  const side = useContext(SideName);
  return side ? `${title}, ${side}` : title;
}
