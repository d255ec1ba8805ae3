"""The topics of a world, made before anything else happens in it.

Rule: they are asked for as anybody would ask; nothing is put into a node behind its back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.client.calls import RequestCalls
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import CONTROLLER
from fencepost.protocol.messages import CreateTopic, CreateTopics
from fencepost.simulator.world.processes import Script
from fencepost.simulator.world.world import World

PATIENCE_MS: Final = 60_000


def create_topics(world: World, topics: Sequence[tuple[str, int]]) -> None:
    """Makes topics, each with its number of partitions, and returns when they are there."""
    process = world.process("admin")
    machine = RequestMachine(world.bootstrap)
    port = process.port(machine, request_timeout_ms=PATIENCE_MS)
    wanted = tuple(CreateTopic(topic=name, partition_count=count) for name, count in topics)

    def script() -> Script[None]:
        # Raises if they cannot be made: nothing strikes before they are there.
        yield from RequestCalls(machine, port, api_timeout_ms=PATIENCE_MS).ask(
            CreateTopics(topics=wanted), CONTROLLER
        )

    process.start(script())
    world.run_until(lambda: process.is_over)
    world.processes.remove(process)
