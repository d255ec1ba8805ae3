"""Cycles in a directed graph of small numbers: strongly connected components, and a short cycle in each.

Rule: linear in nodes and edges (Tarjan's algorithm, without recursion); what is searched for cycles is
bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

Graph = Mapping[int, Sequence[int]]

STARTS_MAX = 32  # nodes of a component from which a shortest cycle is searched: each costs its edges once


def components(graph: Graph) -> list[list[int]]:
    """The strongly connected components of more than one node, each in ascending order (Tarjan 1972)."""
    numbers: dict[int, int] = {}
    lows: dict[int, int] = {}
    trail: list[int] = []
    found: list[list[int]] = []
    for root in graph:
        if root not in numbers:
            _visit(graph, root, numbers, lows, trail, found)
    return found


def _visit(
    graph: Graph,
    root: int,
    numbers: dict[int, int],
    lows: dict[int, int],
    trail: list[int],
    found: list[list[int]],
) -> None:
    """One depth-first search; `lows` holds the nodes that are on the trail."""
    path: list[tuple[int, Iterator[int]]] = []

    def enter(node: int) -> None:
        numbers[node] = lows[node] = len(numbers)
        trail.append(node)
        path.append((node, iter(graph.get(node, ()))))

    enter(root)
    while path:
        node, targets = path[-1]
        for target in targets:
            if target not in numbers:
                enter(target)
                break
            if target in lows:
                lows[node] = min(lows[node], numbers[target])
        else:
            path.pop()
            low = lows[node]
            if path:
                above = path[-1][0]
                lows[above] = min(lows[above], low)
            if low == numbers[node]:
                component: list[int] = []
                while not component or component[-1] != node:
                    component.append(trail.pop())
                    del lows[component[-1]]
                if len(component) > 1:
                    found.append(sorted(component))


def shortest_cycle(graph: Graph, component: Sequence[int]) -> list[int]:
    """The nodes of a shortest cycle through one of the first STARTS_MAX nodes of a component."""
    members = frozenset(component)
    shortest: list[int] = []
    for start in component[:STARTS_MAX]:
        cycle = _cycle_through(graph, start, members)
        if not shortest or len(cycle) < len(shortest):
            shortest = cycle
        if len(shortest) == 2:
            break
    return shortest


def _cycle_through(graph: Graph, start: int, members: frozenset[int]) -> list[int]:
    """A shortest way from `start` back to it, inside its component: breadth first."""
    came_from: dict[int, int] = {}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for target in graph.get(node, ()):
            if target == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(came_from[cycle[-1]])
                return cycle[::-1]
            if target in members and target not in came_from:
                came_from[target] = node
                waiting.append(target)
    raise AssertionError("every node of a strongly connected component lies on a cycle")
