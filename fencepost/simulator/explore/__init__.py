"""The explorer: visits every state of a small world, and proves that none is wrong or shows the shortest way
there.
"""

from fencepost.simulator.explore.broker import ExploreConfig
from fencepost.simulator.explore.search import Explored, StateSearch, explore

__all__ = ["ExploreConfig", "Explored", "StateSearch", "explore"]
