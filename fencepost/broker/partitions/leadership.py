"""What is said of a partition whose log this node does not lead.

Rule: one that somebody else leads is not the same as one that nobody has.
"""

from __future__ import annotations

from typing import Final

from fencepost.broker.contract import Refused
from fencepost.broker.node import Node
from fencepost.broker.rules import Rule, first_that_holds
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition


def _is_led_elsewhere(node: Node, key: TopicPartition) -> bool:
    return node.cluster.leader(key) is not None


def _is_nowhere(node: Node, key: TopicPartition) -> bool:
    return node.cluster.leader(key) is None


PLACE_RULES: Final = (
    Rule("is for a partition of another leader", ErrorCode.NOT_LEADER_OR_FOLLOWER, _is_led_elsewhere),
    Rule("is for a partition that nobody has", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _is_nowhere),
)


def place_problem(node: Node, key: TopicPartition) -> Refused:
    """Why there is no log of this partition here."""
    refused = first_that_holds(PLACE_RULES, node, key)
    assert refused is not None, "a partition is led elsewhere or nowhere"
    return refused
