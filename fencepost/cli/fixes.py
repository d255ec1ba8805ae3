"""`--without-fix NAME`, for each command that starts brokers: turns off one of Kafka's later fixes.

Rule: an unknown name is refused before anything starts, and the error lists the names.
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
            f"--without-fix: {problem}", then="docs/fidelity.md says what each of them is", code=WRONG_USAGE
        ) from problem


WithoutFixes = Annotated[tuple[str, ...], Parameter("--without-fix", negative="", validator=_are_known)]


def spelled(names: tuple[str, ...]) -> str:
    """The options as they are typed."""
    return "".join(f" --without-fix {name}" for name in names)
