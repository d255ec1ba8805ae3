"""`fencepost consume`: prints records as lines, up to the current end of the topic or for ever.

Rule: its default output is the input format of `fencepost produce`. A partition that cannot be read is
reported on stderr and retried, without --follow only until no record has arrived for `ANSWER_MS`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter, validators

from fencepost.cli.errors import ADVICE, WRONG_USAGE, CommandFailed, complain
from fencepost.cli.options import (
    ANSWER_MS,
    DEFAULT,
    AsJson,
    Bootstrap,
    CommandConfig,
    InPartitions,
    connect,
    is_offset,
    partitions_of,
    security_of,
)
from fencepost.cli.output import Json, print_json, text_of
from fencepost.client.consumer_records import ConsumedBatch, Record
from fencepost.client.shells.sync import Consumer
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import TopicPartition, escaped

POLL_MS = 500


def consume(
    topic: str,
    /,
    *,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    from_: Annotated[str, Parameter("--from")] = "earliest",
    partition: InPartitions = (),
    max_: Annotated[int | None, Parameter(("--max", "-n"), validator=validators.Number(gte=1))] = None,
    follow: Annotated[bool, Parameter(negative="")] = False,
    places: Annotated[bool, Parameter(negative="")] = False,
    bootstrap: Bootstrap = DEFAULT,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print records as lines of text.

    Parameters
    ----------
    topic
        The topic to read.
    isolation
        read_committed skips aborted records and stops before the first undecided one; read_uncommitted shows
        all records.
    from_
        Where to start: earliest, latest, or an offset.
    partition
        Only this partition. Repeatable.
    max_
        Stop after this number of records.
    follow
        Wait for new records at the end.
    places
        Print partition and offset before each record.
    """
    left = max_
    with (
        connect(bootstrap, command_config) as admin,
        Consumer(
            bootstrap,
            isolation_level=isolation,
            default_api_timeout_ms=ANSWER_MS,
            **security_of(command_config),
        ) as consumer,
    ):
        partitions = partitions_of(admin, topic, partition)
        ends = admin.end_offsets(partitions, isolation_level=isolation)
        consumer.assign(partitions)
        go_to_start(consumer, partitions, ends, from_)
        retries = Retries(polls_max=None if follow else ANSWER_MS // POLL_MS)
        while left != 0 and (follow or any(consumer.position(p) < end for p, end in ends.items())):
            batches = consumer.poll(POLL_MS)
            retries.note(batches, consumer.fetch_errors())
            for batch in batches:
                for record in batch:
                    if left == 0 or not (follow or record.offset < ends[batch.partition]):
                        break
                    show(record, as_json=as_json, places=places)
                    left = None if left is None else left - 1
            sys.stdout.flush()


def go_to_start(
    consumer: Consumer, partitions: list[TopicPartition], ends: dict[TopicPartition, int], start: str
) -> None:
    """Positions the consumer."""
    if start == "earliest":
        consumer.seek_to_beginning()
    elif start == "latest":
        for partition in partitions:
            consumer.seek(partition, ends[partition])
    elif is_offset(start):
        for partition in partitions:
            consumer.seek(partition, int(start))
    else:
        raise CommandFailed(
            f"--from {start} is not a position", then="give earliest, latest or an offset", code=WRONG_USAGE
        )


@attrs.define
class Retries:
    """Reports partitions that cannot be read, once per error."""

    polls_max: int | None
    """After so many polls with an error and without a record, the command fails."""
    _reported: set[ErrorCode] = attrs.Factory(set[ErrorCode])
    _polls: int = 0

    def note(self, batches: Collection[ConsumedBatch], errors: Mapping[TopicPartition, ErrorCode]) -> None:
        """Takes the result of a poll into account."""
        self._polls = self._polls + 1 if errors and not batches else 0
        for partition, error in errors.items():
            what = f"cannot read {partition}: {error.meaning} ({error.name})"
            if self._polls == self.polls_max:
                raise CommandFailed(what, then=ADVICE.get(error, "check the broker at --bootstrap-server"))
            if error not in self._reported:
                complain(what, then="retrying; Ctrl-C ends this command")
                self._reported.add(error)
        if self._reported and not errors:
            complain("all partitions can be read again")
            self._reported.clear()


def show(record: Record, *, as_json: bool, places: bool) -> None:
    """One record on one line."""
    if as_json:
        print_json(facts(record))
        return
    place = f"{record.partition}:{record.offset}\t" if places else ""
    parts = [part for part in (record.key, record.value or b"") if part is not None]
    if sys.stdout.isatty():
        # A record must not change the title, clear the screen, or print what looks like other lines.
        print(place + "\t".join(escaped(part.decode(errors="replace")) for part in parts))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(place.encode() + b"\t".join(parts) + b"\n")


def facts(record: Record) -> dict[str, Json]:
    """One record as JSON."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": {name: text_of(content) for name, content in record.headers or ()},
    }
