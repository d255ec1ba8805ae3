"""Tarjan's algorithm against its definition: small graphs of any shape, and one too deep for recursion."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fencepost.simulator.judges.cycles import components, shortest_cycle

GRAPHS = st.dictionaries(st.integers(0, 7), st.lists(st.integers(0, 7), max_size=4, unique=True), max_size=8)


def reachable(graph: dict[int, list[int]], start: int) -> dict[int, int]:
    """How many edges away each node is; the start itself only by a cycle."""
    distances: dict[int, int] = {}
    edge, distance = [start], 0
    while edge:
        distance += 1
        edge = [after for node in edge for after in graph.get(node, []) if after not in distances]
        distances.update(dict.fromkeys(edge, distance))
    return distances


@given(GRAPHS)
def test_components_are_the_nodes_that_reach_each_other(graph: dict[int, list[int]]) -> None:
    ways = {node: reachable(graph, node) for node in range(8)}
    expected = {
        tuple(other for other in range(8) if other == node or (other in ways[node] and node in ways[other]))
        for node in range(8)
    }
    assert sorted(map(tuple, components(graph))) == sorted(each for each in expected if len(each) > 1)


@given(GRAPHS)
def test_a_shortest_cycle_is_a_cycle_and_none_is_shorter(graph: dict[int, list[int]]) -> None:
    graph = {node: [after for after in targets if after != node] for node, targets in graph.items()}
    for component in components(graph):
        cycle = shortest_cycle(graph, component)
        assert all(after in graph[before] for before, after in pairwise([*cycle, cycle[0]]))
        assert len(cycle) == min(reachable(graph, node)[node] for node in component)


def test_a_chain_of_many_nodes_is_no_cycle_until_it_is_closed() -> None:
    chain = {node: [node + 1] for node in range(50_000)}
    assert components(chain) == []
    assert [len(component) for component in components(chain | {50_000: [0]})] == [50_001]
