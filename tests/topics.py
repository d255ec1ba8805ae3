"""Creates the topic of a test on a running broker."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost import Admin


def create_topic(
    address: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """As `Admin.create_topic` does it."""
    with Admin(address) as admin:
        admin.create_topic(topic, partitions, configs)
