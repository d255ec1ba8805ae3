"""`fencepost top`: what a broker does now. Rates are differences between two replies of the broker.

Rule: the broker is asked once per interval, and nothing is guessed: its own clock says how much time passed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import StringIO
from typing import Annotated, Final, NamedTuple

import attrs
from cyclopts import Parameter

from fencepost.cli.options import AS_TIME, LOCAL, AsJson, AtLeastOne, ClusterOptions, Flag
from fencepost.cli.output import Columns, print_json, print_progress, print_rows, row_of
from fencepost.cli.table import Duration, as_words, is_terminal, moment
from fencepost.client.shells.sync import Admin
from fencepost.protocol.messages import BrokerStatusReply, RequestStatus, TopicStatus

CLEAR: Final = "\x1b[H\x1b[2J"
ROWS: Final = 20  # of each table, unless the lines of a terminal limit them
LINES_BETWEEN: Final = 9  # headline, titles, empty lines
INTERVAL_MAX_S: Final = 86_400


def _check_interval(_: type, seconds: float) -> None:
    if not 0 < seconds <= INTERVAL_MAX_S:
        raise ValueError(f"Must be more than 0 and at most {INTERVAL_MAX_S // 3_600}h.")


Interval = Annotated[float, AS_TIME, Parameter(validator=_check_interval)]


class TopicRates(NamedTuple):
    """A topic, and what happened to it per second."""

    topic: TopicStatus
    records_in: float
    bytes_in: float
    bytes_out: float


class RequestRates(NamedTuple):
    """An API, and its requests per second; `mean_ms` is None if there were none."""

    api: str
    requests: float
    mean_ms: float | None
    errors: float


TOPICS: Columns[TopicRates] = (
    ("topic", "TOPIC", lambda rates: rates.topic.topic),
    ("records_in_per_second", "RECORDS/S", lambda rates: rates.records_in),
    ("bytes_in_per_second", "BYTES-IN/S", lambda rates: rates.bytes_in),
    ("bytes_out_per_second", "BYTES-OUT/S", lambda rates: rates.bytes_out),
    ("open_transactions", "OPEN-TRANSACTIONS", lambda rates: rates.topic.open_transactions),
    ("stable_lag", "LSO-LAG", lambda rates: rates.topic.stable_lag),
    ("size_bytes", "BYTES", lambda rates: rates.topic.size_bytes),
)
REQUESTS: Columns[RequestRates] = (
    ("request", "REQUEST", lambda rates: rates.api),
    ("requests_per_second", "REQUESTS/S", lambda rates: rates.requests),
    ("mean_ms", "MEAN-MS", lambda rates: rates.mean_ms),
    ("errors_per_second", "ERRORS/S", lambda rates: rates.errors),
)


def top(
    *,
    interval: Interval = 2.0,
    once: Flag = False,
    limit: AtLeastOne | None = None,
    cluster: ClusterOptions = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Show the current load of a broker.

    Parameters
    ----------
    interval
        Time between two measurements, such as 500ms.
    once
        Print the rates of one interval, and stop.
    limit
        Number of topics and requests to show, the busiest first. [default: what fits the terminal; 20 with
        --once and in a pipe]
    """
    refreshes = is_terminal() and not (once or as_json)
    with cluster.connect() as admin:
        before = admin.broker_status()
        print_progress(f"measuring for {interval:g} s ...")
        while True:
            lines_max = shutil.get_terminal_size().lines - 1 if refreshes else None
            before = _measure(admin, before, interval, limit=limit, lines_max=lines_max, as_json=as_json)
            if once:
                return


def _measure(
    admin: Admin,
    before: BrokerStatusReply,
    interval: float,
    *,
    limit: int | None,
    lines_max: int | None,
    as_json: bool,
) -> BrokerStatusReply:
    """Print the rates of the next interval, in place of the last ones if `lines_max` is given; returns the
    status at its end.
    """
    time.sleep(interval)
    now = admin.broker_status()
    print_progress()
    if now.started_ms != before.started_ms:  # another run of the broker, whose counters began at 0
        before = attrs.evolve(before, now_ms=now.started_ms, topics=(), requests=())
    rows = limit or (ROWS if lines_max is None else max(1, (lines_max - LINES_BETWEEN) // 2))
    topics, requests = topic_rates(before, now)[:rows], request_rates(before, now)[:rows]
    if as_json:
        print_json(
            {
                "now_ms": now.now_ms,
                "node_id": now.node_id,
                "connections": now.connections,
                "topics": [row_of(TOPICS, each) for each in topics],
                "requests": [row_of(REQUESTS, each) for each in requests],
            }
        )
        return now
    with nullcontext() if lines_max is None else _in_place(lines_max):
        print(f"{_headline(now)}\n")
        print_rows(TOPICS, topics, as_json=False)
        print()
        print_rows(REQUESTS, requests, as_json=False)
    print(flush=True)
    return now


class _Screen(StringIO):
    """What is printed for a terminal."""

    def isatty(self) -> bool:
        return True


@contextmanager
def _in_place(lines_max: int) -> Generator[None]:
    """Clears the terminal and shows the first lines of what the body prints, so that they do not scroll
    away; of the headline, as much as fits.
    """
    with redirect_stdout(_Screen()) as screen:
        yield
    lines = screen.getvalue().splitlines()
    width = shutil.get_terminal_size().columns
    lines[0] = lines[0][: width * max(1, lines_max)]
    lines_max -= (len(lines[0]) - 1) // width  # the headline may need a second line
    if len(lines) > lines_max:
        lines[max(1, lines_max - 1) :] = ["... (a larger terminal shows more)"] if lines_max > 1 else []
    print(CLEAR + "\n".join(lines), end="")


def _headline(now: BrokerStatusReply) -> str:
    uptime = Duration(now.now_ms - now.started_ms)
    open_count = sum(each.open_transactions for each in now.topics)
    return (
        f"{moment(now.now_ms)}  node {now.node_id}, up {as_words(uptime)}, connections: {now.connections}, "
        f"open transactions: {open_count}"
    )


def topic_rates(before: BrokerStatusReply, now: BrokerStatusReply) -> list[TopicRates]:
    """The rates of all topics between two replies, the busiest first."""
    earlier, seconds = {topic.topic: topic for topic in before.topics}, _seconds(before, now)

    def rate(topic: TopicStatus, counter: str) -> float:
        known = earlier.get(topic.topic)
        grown = getattr(topic, counter) - (0 if known is None else getattr(known, counter))
        return round(max(0, grown) / seconds, 1)  # a topic may have been deleted and created again

    rates = [
        TopicRates(topic, rate(topic, "records_in"), rate(topic, "bytes_in"), rate(topic, "bytes_out"))
        for topic in now.topics
    ]
    return sorted(rates, key=lambda each: (-each.bytes_in - each.bytes_out, each.topic.topic))


def request_rates(before: BrokerStatusReply, now: BrokerStatusReply) -> list[RequestRates]:
    """The rates of all APIs between two replies, the busiest first."""
    nothing, seconds = RequestStatus(api="", count=0, errors=0, total_us=0), _seconds(before, now)
    earlier = {each.api: each for each in before.requests}
    rates: list[RequestRates] = []
    for each in now.requests:
        known = earlier.get(each.api, nothing)
        count, took_us = each.count - known.count, each.total_us - known.total_us
        mean_ms = round(took_us / count / 1_000, 2) if count else None
        errors = round((each.errors - known.errors) / seconds, 1)
        rates.append(RequestRates(each.api, round(count / seconds, 1), mean_ms, errors))
    return sorted(rates, key=lambda each: (-each.requests, each.api))


def _seconds(before: BrokerStatusReply, now: BrokerStatusReply) -> float:
    return max(1, now.now_ms - before.now_ms) / 1_000
