"""The explorer: visits every state of a small world, and proves that none is wrong or shows the shortest way
there.
"""

from fencepost.simulator.explore.search import ExploreConfig, Explored, StateSearch, explore

__all__ = ["ExploreConfig", "Explored", "StateSearch", "explore"]
