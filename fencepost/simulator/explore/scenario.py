"""A violation that the explorer found, as a scenario that `fencepost run` plays.

An explored world has no time: any message may come at any moment. A scenario has time, and faults that bend
it. So the trace is not translated step by step. What disturbed it becomes faults: a late request is delayed
until something that came before it, a lost reply is dropped, a crash strikes where it struck. Each candidate
is run, and the first that violates the same rule is the scenario.

Rule: what is returned was run and violates the rule; None means that no candidate does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Final, NamedTuple

import attrs

from fencepost.broker.observer import UNAWAITED
from fencepost.simulator.draw.fates import DrawnMessage, follow
from fencepost.simulator.explore.broker import TOPIC, ExploreConfig
from fencepost.simulator.explore.history import BROKER_NAME
from fencepost.simulator.scenarios.builder import Builder, scenario
from fencepost.simulator.scenarios.model import Scenario, ScenarioExpectation, cases
from fencepost.simulator.scenarios.runner import run_case
from fencepost.simulator.world.history import Appended, Arrived, Called, Event, History, Sent, Struck

POINTS_MAX: Final = 8  # that a fault may strike at or end at, nearest first
CANDIDATES_MAX: Final = 64
RULES: Final = {
    "bounds": ("I1 bounds",),
    "duplicate": ("duplicate", "I3 unique sequence"),
    "hanging-transaction": ("hanging-transaction", "I4 hanging"),
}
"""The rules of scenarios that an anomaly breaks, where they are not just the rule of its name."""

Messages = dict[int, DrawnMessage]


class FaultWords(NamedTuple):
    when: str
    do: str
    until: str | None = None


def scenario_of(history: History, config: ExploreConfig, rule: str, lesson: str) -> Scenario | None:
    """The scenario that violates `rule` as the trace does; None if no candidate does."""
    rules, messages = frozenset(RULES.get(rule, (rule,))), follow(history.events)
    wanted = [
        *(list(_delays(history, messages, message)) for message in messages.values() if _is_stray(message)),
        *([fault] for fault in _drops(messages)),
        *(list(_crashes(history, messages, at)) for at in _crash_places(history)),
    ]
    for faults in islice(product(*wanted), CANDIDATES_MAX):
        found = _violating(_story(history, config, faults, lesson), rules)
        if found is not None:
            return found
    return None


def _violating(story: Scenario, rules: frozenset[str]) -> Scenario | None:
    """The scenario with what it violates as its expectation, if one of the rules is among that."""
    (case,) = cases(story)
    broken = run_case(case).broken
    if rules.isdisjoint(broken):
        return None
    expected = attrs.evolve(story, expect=ScenarioExpectation(violates=broken))
    (case,) = cases(expected)
    return expected if run_case(case).passed else None


def _story(history: History, config: ExploreConfig, faults: Sequence[FaultWords], lesson: str) -> Scenario:
    told: Builder = scenario(history.title, lesson).cluster(
        topics={TOPIC: config.partitions},
        transaction_version=config.transaction_version,
        partition_verification=config.node_settings.partition_verification,
        broken=sorted(config.broken),
        without_fixes=config.fixes.off,
    )
    for client in history.participants:
        if client != BROKER_NAME:
            told.producer(client, *_script(history, client, config.partitions), transactional_id=client)
    for fault in faults:
        told.when(fault.when).do(fault.do, until=fault.until)
    return told.scenario()


def _script(history: History, client: str, partitions: int) -> Iterator[str]:
    """What the client did. A pause before each end leaves time for what comes late."""
    yield "init"
    attempt = 0
    for event in history.events:
        match event:
            case Called(participant=name, label="begin") if name == client:
                attempt += 1
                yield "begin"
                yield from (f"send {TOPIC}-{n} {client}.{attempt}.{n}" for n in range(partitions))
                yield "flush"
            case Called(participant=name, label="commit" | "abort") if name == client:
                yield "pause 100 ms"
                yield event.label
            case _:
                pass


# --- faults -------------------------------------------------------------------------------------------------


def _is_stray(message: DrawnMessage) -> bool:
    return message.is_late and message.event.source != BROKER_NAME


def _api(message: DrawnMessage) -> str:
    return message.event.label.partition(" ")[0]


def _sends(messages: Messages, message: DrawnMessage) -> str:
    """The point at which a message leaves."""
    event = message.event
    alike = [
        each.event.number
        for each in messages.values()
        if (each.event.source, each.event.target, _api(each)) == (event.source, event.target, _api(message))
        and (each.event.answers is None) == (event.answers is None)
    ]
    reply = "" if event.answers is None else " reply"
    return f"{event.source} sends {_api(message)}{reply} to {event.target} #{alike.index(event.number) + 1}"


def _delays(history: History, messages: Messages, message: DrawnMessage) -> Iterator[FaultWords]:
    """A late request is delayed until one of the last points before it came."""
    points = _points(history.events[message.sent + 1 : message.arrived], messages)
    for until in islice(reversed(points), POINTS_MAX):
        yield FaultWords(_sends(messages, message), "delay", until)


def _drops(messages: Messages) -> Iterator[FaultWords]:
    """Replies to callers that gave up are lost, and so are retried requests that never arrived."""
    repeated = {message.repeats for message in messages.values()}
    for message in messages.values():
        answered = messages.get(message.event.answers or 0)
        is_lost_reply = message.because == UNAWAITED and not (answered and _is_stray(answered))
        is_lost_request = message.ended is None and message.event.number in repeated
        if is_lost_reply or is_lost_request:
            yield FaultWords(_sends(messages, message), "drop")


def _crash_places(history: History) -> list[int]:
    return [
        place
        for place, event in enumerate(history.events)
        if isinstance(event, Struck) and event.label == "crash"
    ]


def _crashes(history: History, messages: Messages, place: int) -> Iterator[FaultWords]:
    """The broker crashes at one of the last points before it did."""
    for when in islice(reversed(_points(history.events[:place], messages)), POINTS_MAX):
        yield FaultWords(when, f"crash {BROKER_NAME}", "after 100 ms")


def _points(events: Sequence[Event], messages: Messages) -> list[str]:
    """The protocol points among events, counted from the first of them."""
    found: list[str] = []
    for event in events:
        match event:
            case Arrived(number=number):
                message = messages[number]
                sent: Sent = message.event
                reply = "" if sent.answers is None else " reply"
                point = f"{sent.target} receives {_api(message)}{reply} from {sent.source}"
            case Appended():
                what = "data" if event.result is None else f"{event.result.name} marker"
                point = f"{event.partition} appends {what}"
            case _:
                continue
        times = sum(each.rpartition(" #")[0] == point for each in found) + 1
        found.append(f"{point} #{times}")
    return found
