"""`--without NAME`, wherever a command starts brokers: Kafka's later corrections that they shall do without.

Rule: a name that is none is refused before anything starts, and the answer says which there are.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fencepost.cli.errors import WRONG_USAGE, CommandFailed


def _are_known(_: type, names: tuple[str, ...]) -> None:
    from fencepost.broker.kafka_fixes import KafkaFixes

    try:
        KafkaFixes.without(names)
    except ValueError as problem:
        raise CommandFailed(
            f"--without: {problem}", then="docs/fidelity.md says what each of them is", code=WRONG_USAGE
        ) from problem


Without = Annotated[tuple[str, ...], Parameter("--without", negative="", validator=_are_known)]


def spelled(names: tuple[str, ...]) -> str:
    """The options as they are typed."""
    return "".join(f" --without {name}" for name in names)
