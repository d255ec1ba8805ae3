"""A recorded conversation: what a client asked Kafka, what Kafka answered, and what happened in between.

Rule: a file is read in full or not at all. A step that nobody here can play is an error with its place, so
that none is ever skipped in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS

Fields = Mapping[str, Any]
"""A JSON object of a recording."""


class UnreadableRecording(ValueError):
    """A file that is no recording of this form; the message says where and why."""


@attrs.frozen(kw_only=True)
class Question:
    """A request, and what Kafka answered; the answer is None when there was to be none.

    One with a name (`later`) waits: others are asked before the control `answer` says that it has come.
    """

    number: int
    request: str
    version: int
    args: Fields
    reply: Any
    later: str | None = None


@attrs.frozen(kw_only=True)
class Control:
    """Something that happens to the cluster, or to time."""

    number: int
    control: str
    args: Fields


@attrs.frozen(kw_only=True)
class Conversation:
    """Starts on an empty broker. `number` in its steps counts from 0, as the recordings' own notes do."""

    line: int
    name: str
    area: str
    about: str
    steps: tuple[Question | Control, ...]

    @property
    def questions(self) -> list[Question]:
        """The steps that Kafka answered."""
        return [step for step in self.steps if isinstance(step, Question)]

    @property
    def controls(self) -> list[Control]:
        """The other steps."""
        return [step for step in self.steps if isinstance(step, Control)]


CONTROLS: Final[Mapping[str, frozenset[str]]] = {
    "create topic": frozenset({"topic", "partitions", "held", "config"}),
    "settle": frozenset(),
    "hold": frozenset(),
    "release": frozenset(),
    "wait": frozenset({"ms"}),
    "answer": frozenset({"of"}),
    "kill and restart": frozenset(),
    "may be stuck": frozenset({"wait_ms"}),
    "raise epoch": frozenset({"transactional_id", "producer", "from", "to"}),
}
"""What may happen between questions, and what is said about it."""


def read_conversations(path: Path, known: Mapping[str, frozenset[str]]) -> list[Conversation]:
    """The conversations of one file, a line each. `known` names each request's arguments.

    UnreadableRecording says which line, conversation and step nobody can play.
    """
    with path.open(encoding="utf-8") as lines:
        return [_conversation(path, n, line, known) for n, line in enumerate(lines, 1) if line.strip()]


def _conversation(path: Path, number: int, line: str, known: Mapping[str, frozenset[str]]) -> Conversation:
    place = f"{path}:{number}"
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as problem:
        raise UnreadableRecording(f"{place}: no JSON: {problem}") from None
    if not isinstance(fields, dict) or not {"name", "area", "about", "steps"} <= set(_object(fields)):
        raise UnreadableRecording(f"{place}: a conversation has a name, an area, an about and steps")
    found = _object(fields)
    where = f"{place}: {found['name']}"
    steps = tuple(_step(f"{where}, step {n}", n, step, known) for n, step in enumerate(found["steps"]))
    return Conversation(
        line=number, name=found["name"], area=found["area"], about=found["about"], steps=steps
    )


def _object(fields: Any) -> dict[str, Any]:
    return fields


def _step(
    place: str, number: int, step: dict[str, Any], known: Mapping[str, frozenset[str]]
) -> Question | Control:
    if "control" in step:
        args = {name: value for name, value in step.items() if name != "control"}
        _check(place, "control", step["control"], args, CONTROLS)
        return Control(number=number, control=step["control"], args=args)
    if not {"request", "version", "args", "reply"} <= set(step):
        raise UnreadableRecording(f"{place}: neither a request with its reply nor a control")
    _check(place, "request", step["request"], step["args"], known)
    return Question(
        number=number,
        request=step["request"],
        version=step["version"],
        args=step["args"],
        reply=step["reply"],
        later=step.get("later"),
    )


def _check(place: str, kind: str, name: str, args: Fields, known: Mapping[str, frozenset[str]]) -> None:
    if name not in known:
        raise UnreadableRecording(f"{place}: the {kind} {name!r} is unknown here; known: {', '.join(known)}")
    if unknown := sorted(set(args) - known[name]):
        raise UnreadableRecording(f"{place}: {name} has no {', '.join(unknown)} here")


# --- the cluster that it was recorded from ---------------------------------------------------------------

RECORDER_SETTINGS: Final = NodeSettings(
    transaction_state_log_num_partitions=2,
    offsets_topic_num_partitions=2,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=200,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=500,
)
"""As the recorder's broker was set up."""

AREA_SETTINGS: Final[Mapping[str, Mapping[str, int]]] = {
    "expiry": {
        "transactional_id_expiration_ms": 2_000,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 300,
        "producer_id_expiration_ms": 2_000,
        "producer_id_expiration_check_interval_ms": 200,
    }
}
"""What it was set up with besides for the conversations of an area."""

# What a topic may be configured with, and the broker's setting that it stands in for: topics have no
# settings of their own here, so all topics of a conversation must agree.
TOPIC_SETTINGS: Final = {"max.message.bytes": "message_max_bytes"}

_GENERATION: Final = re.compile(r"broker-v(?P<version>\d)-(?P<verified>un)?verified")


def settings_of(path: Path) -> NodeSettings | None:
    """The generation that a file was recorded from, by its name; None when the name does not say."""
    found = _GENERATION.search(path.name)
    if found is None:
        return None
    return attrs.evolve(
        RECORDER_SETTINGS,
        transaction_version=TRANSACTION_VERSIONS[int(found["version"])],
        partition_verification=found["verified"] is None,
    )


def settings_for(conversation: Conversation, cluster: NodeSettings) -> NodeSettings:
    """The cluster's settings, with what the conversation's topics want."""
    wanted = {**AREA_SETTINGS.get(conversation.area, {}), **dict(_topic_settings(conversation))}
    return attrs.evolve(cluster, **wanted)


def _topic_settings(conversation: Conversation) -> Iterator[tuple[str, int]]:
    configs = [s.args.get("config", {}) for s in conversation.controls if s.control == "create topic"]
    for config in configs:
        if config != configs[0]:
            raise UnreadableRecording(f"{conversation.name}: topics that are configured differently")
        for name, value in config.items():
            if name not in TOPIC_SETTINGS:
                raise UnreadableRecording(f"{conversation.name}: nobody here knows the topic's {name}")
            yield TOPIC_SETTINGS[name], int(value)
