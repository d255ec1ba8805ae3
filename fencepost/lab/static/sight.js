// Scrolls a box, and nothing around it, until an element in it is in sight; of one that is too large, its beginning.

export function bringIntoSight(box, element) {
  const [outer, inner] = [box, element].map((each) => each.getBoundingClientRect());
  box.scrollLeft += way(outer.left, outer.right, inner.left, inner.right);
  box.scrollTop += way(outer.top, outer.bottom, inner.top, inner.bottom);
}

function way(from, to, start, end) {
  return start < from ? start - from : Math.max(0, Math.min(start - from, end - to));
}
