"""The loader: makes the topics and writes the flights with an idempotent producer. Its own process.

Rule: each flight carries its row number in the data set, by which it is recognised to the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from fencepost.client.shells.sync import Admin, Producer
from fencepost.demo.dataset import rows
from fencepost.demo.speech import PARTITION_COUNT, say
from fencepost.demo.transform import DELAYS, FLIGHTS, TOTALS, flight_record

CHUNK = 2_000  # flights between two words of progress


def load(bootstrap: str, numbered: Iterator[tuple[int, Mapping[str, str]]]) -> None:
    """Creates `flights`, `delays` and `totals`, and fills the first; says how many flights are sent."""
    with Admin(bootstrap) as admin:
        for topic in (FLIGHTS, DELAYS, TOTALS):
            admin.create_topic(topic, partitions=PARTITION_COUNT)
    sent = 0
    with Producer(bootstrap) as producer:
        while chunk := list(islice(numbered, CHUNK)):
            for key, value in (flight_record(number, row) for number, row in chunk):
                producer.send(FLIGHTS, value, key)
            sent += len(chunk)
            say("sent", flights=sent)
        producer.flush()
    say("finished")


def main() -> None:
    """The process: `python -m fencepost.demo.loader BOOTSTRAP FILE FLIGHTS`."""
    bootstrap, file, flights = sys.argv[1:]
    load(bootstrap, enumerate(rows(Path(file), limit=int(flights)), start=1))


if __name__ == "__main__":
    main()
