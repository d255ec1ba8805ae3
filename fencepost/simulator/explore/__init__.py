"""Every future of a small world, one state after the other: the proof that nothing in it can go wrong, or
how.
"""

from fencepost.simulator.explore.search import ExploreConfig, Explored, Search, explore

__all__ = ["ExploreConfig", "Explored", "Search", "explore"]
