"""Conversations about groups of the consumer protocol, as Apache Kafka 4.3.1 answered them, played again.

Rule: each request goes through the bridge in its own version, and each field of the recorded answer must be
the same. Time is virtual.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import attrs
import pytest
from kio.index import load_request_schema

from fencepost.broker.cluster.controller import Controller
from fencepost.kafka_bridge.apis import SERVED
from fencepost.kafka_bridge.exchange import Answer, Context, exchange_in
from fencepost.kafka_bridge.fetch_session import FetchSession
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.wire_protocol import SessionRoom
from tests.broker.requests import Identity, body_of
from tests.broker.story import SETTINGS, Story
from tests.kafka_bridge.samples import NoTopics, filled

RECORDED: Final = {
    conversation["name"]: conversation["steps"]
    for line in (Path(__file__).parent / "consumer_groups.jsonl").read_text().splitlines()
    for conversation in [json.loads(line)]
}
# As the recording broker was set: nothing waits for the assignment interval.
SETTINGS_OF_RECORDING: Final = attrs.evolve(
    SETTINGS,
    group_consumer_session_timeout_ms=6_000,
    group_consumer_heartbeat_interval_ms=500,
    group_consumer_assignment_interval_ms=0,
)
SUBSCRIPTION: Final = b"\0\0\0\0\0\0\xff\xff\xff\xff"  # of a classic member, to no topic
TRANSACTIONAL_ID: Final = "copy"
CREATED: Final = "M1"  # the name of a member id that the broker made

Step = Mapping[str, Any]
Values = Mapping[str, Any]


class KnownTopics(NoTopics):
    """The ids of the topics, as a connection knows them."""

    def __init__(self, cluster: Controller) -> None:
        self._cluster = cluster

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._cluster.names.get(topic_id)

    def topic_id(self, topic: str) -> bytes | None:
        found = self._cluster.topics.get(topic)
        return None if found is None else found.topic_id


class Replay:
    """A broker without topics, and Kafka's requests to it."""

    def __init__(self) -> None:
        self.story = Story(settings=SETTINGS_OF_RECORDING, topics={})
        self.created = ""
        self.ids: dict[str, UUID] = {}  # of all topics that there were

    def do(self, step: Step) -> None:
        """Let something happen that is no request of a member."""
        match dict(step):
            case {"topic": topic, "partitions": count}:
                self.story.create(topic, count)
                self.ids[topic] = UUID(bytes=self.story.host.node.cluster.topics[topic].topic_id)
            case {"grow": topic, "partitions": count}:
                self.story.ask(
                    m.CreatePartitions(
                        topics=(m.NewPartitions(topic=topic, count=count),), validate_only=False
                    )
                )
            case {"delete": topic}:
                self.story.ask(m.DeleteTopics(topics=(topic,)))
            case {"wait": duration_ms}:
                self.story.wait(duration_ms)
            case _:
                raise AssertionError(f"{step} is no step")

    def send(self, step: Step) -> Values:
        """What the broker answers, in the words of the recording."""
        key, phrase, tell = PHRASES[step["send"]]
        version = step.get("version", 1)
        request = filled(load_request_schema(key, version), phrase(self, step))
        translated = SERVED[key].translate(request, version)
        context = Context(KnownTopics(self.story.host.node.cluster), FetchSession(SessionRoom(1)))
        exchange = exchange_in(context, translated)
        answers: list[Answer] = []
        for asked in exchange.requests:
            self.story.versions = {type(asked): version}
            reply = self.story.ask(asked)
            answers.append(Answer(reply.error, reply.body))
        return tell(self, exchange.respond(answers))

    def member(self, name: str | None) -> str | None:
        return self.created if name == CREATED else name

    def named(self, member_id: str) -> str:
        """A member as the recording names it."""
        if member_id.count("-") >= 2:
            self.created = member_id
        return CREATED if member_id and member_id == self.created else member_id

    @cached_property
    def producer(self) -> Identity:
        """The producer of all transactions."""
        return self.story.identity(TRANSACTIONAL_ID)

    def parts(self, topics: Iterable[Values]) -> dict[str, list[int]]:
        names = self.story.host.node.cluster.names
        return {names[topic["topic_id"].bytes]: sorted(topic["partitions"]) for topic in topics}

    def owned(self, owned: Mapping[str, list[int]] | None) -> list[Values] | None:
        if owned is None:
            return None
        return [{"topic_id": self.ids[topic], "partitions": parts} for topic, parts in owned.items()]


def error_of(values: Values) -> str:
    return ErrorCode(values["error_code"]).name


def errors_of(values: Iterable[Values]) -> list[str]:
    return [error_of(each) for each in values]


# --- each request, and its answer in the words of the recording


def beat(replay: Replay, step: Step) -> Values:
    return {
        "group_id": step["group"],
        "member_id": replay.member(step["member"]),
        "member_epoch": step["epoch"],
        "instance_id": step.get("instance"),
        "rack_id": step.get("rack"),
        "rebalance_timeout": step.get("rebalance_timeout", -1),
        "subscribed_topic_names": step.get("topics"),
        "subscribed_topic_regex": step.get("regex"),
        "server_assignor": step.get("assignor"),
        "topic_partitions": replay.owned(step.get("owned")),
    }


def beaten(replay: Replay, values: Values) -> Values:
    told: dict[str, Any] = {"error": error_of(values)}
    if not values["error_code"]:
        told |= {"member": replay.named(values["member_id"]), "epoch": values["member_epoch"]}
        if values["assignment"] is not None:
            told["assignment"] = replay.parts(values["assignment"]["topic_partitions"])
    return told


def describe(_: Replay, step: Step) -> Values:
    return {"group_ids": [step["group"]], "include_authorized_operations": False}


def described(replay: Replay, values: Values) -> Values:
    (group,) = values["groups"]
    if group["error_code"]:
        return {"error": error_of(group)}
    return {
        "error": "NONE",
        "state": group["group_state"],
        "epoch": group["group_epoch"],
        "assignment_epoch": group["assignment_epoch"],
        "assignor": group["assignor_name"],
        "members": {
            member["member_id"]: {
                "instance": member["instance_id"],
                "rack": member["rack_id"],
                "epoch": member["member_epoch"],
                "topics": list(member["subscribed_topic_names"]),
                "regex": member["subscribed_topic_regex"],
                "assignment": replay.parts(member["assignment"]["topic_partitions"]),
                "target": replay.parts(member["target_assignment"]["topic_partitions"]),
                "type": member["member_type"],
            }
            for member in group["members"]
        },
    }


def commit(replay: Replay, step: Step) -> Values:
    part = {
        "partition_index": step["partition"],
        "committed_offset": step["offset"],
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    return {
        "group_id": step["group"],
        "generation_id_or_member_epoch": step["epoch"],
        "member_id": replay.member(step["member"]),
        "group_instance_id": step.get("instance"),
        "topics": [{"name": step["topic"], "partitions": [part]}],
    }


def committed(_: Replay, values: Values) -> Values:
    return {"error": error_of(values["topics"][0]["partitions"][0])}


def commit_in_transaction(replay: Replay, step: Step) -> Values:
    producer = replay.producer
    return {
        **commit(replay, step),
        "transactional_id": TRANSACTIONAL_ID,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "generation_id": step["epoch"],
    }


def fetch(replay: Replay, step: Step) -> Values:
    group = {
        "group_id": step["group"],
        "member_id": replay.member(step["member"]),
        "member_epoch": step["epoch"],
        "topics": [{"name": step["topic"], "partition_indexes": [step["partition"]]}],
    }
    return {"groups": [group], "require_stable": False}


def fetched(_: Replay, values: Values) -> Values:
    (group,) = values["groups"]
    if group["error_code"]:
        return {"error": error_of(group)}
    return {"error": "NONE", "offset": group["topics"][0]["partitions"][0]["committed_offset"]}


def join(replay: Replay, step: Step) -> Values:
    return {
        "group_id": step["group"],
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "member_id": replay.member(step["member"]),
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        "reason": None,
    }


def joined(replay: Replay, values: Values) -> Values:
    return {"error": error_of(values), "member": replay.named(values["member_id"])}


def of_generation(replay: Replay, step: Step) -> Values:
    return {
        "group_id": step["group"],
        "generation_id": step["epoch"],
        "member_id": replay.member(step["member"]),
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    }


def error_alone(_: Replay, values: Values) -> Values:
    return {"error": error_of(values)}


def leave(replay: Replay, step: Step) -> Values:
    member = {
        "member_id": replay.member(step["member"]),
        "group_instance_id": step.get("instance"),
        "reason": None,
    }
    return {"group_id": step["group"], "members": [member]}


def left(_: Replay, values: Values) -> Values:
    return {"error": error_of(values), "members": errors_of(values["members"])}


def describe_classic(_: Replay, step: Step) -> Values:
    return {"groups": [step["group"]], "include_authorized_operations": False}


def described_classic(_: Replay, values: Values) -> Values:
    (group,) = values["groups"]
    return {"error": error_of(group), "state": group["group_state"], "protocol_type": group["protocol_type"]}


def list_groups(_: Replay, step: Step) -> Values:
    return {"states_filter": step["states"], "types_filter": step["types"]}


def listed(_: Replay, values: Values) -> Values:
    groups = {
        each["group_id"]: [each["group_type"], each["group_state"], each["protocol_type"]]
        for each in values["groups"]
    }
    return {"error": error_of(values), "groups": groups}


def delete_groups(_: Replay, step: Step) -> Values:
    return {"groups_names": [step["group"]]}


def deleted_groups(_: Replay, values: Values) -> Values:
    return {"error": error_of(values["results"][0])}


def delete_offset(_: Replay, step: Step) -> Values:
    topic = {"name": step["topic"], "partitions": [{"partition_index": step["partition"]}]}
    return {"group_id": step["group"], "topics": [topic]}


def deleted_offset(_: Replay, values: Values) -> Values:
    parts = [part for topic in values["topics"] for part in topic["partitions"]]
    return {"error": error_of(values), "partitions": errors_of(parts)}


Phrase = Callable[[Replay, Step], Values]
Tell = Callable[[Replay, Values], Values]
PHRASES: Final[Mapping[str, tuple[int, Phrase, Tell]]] = {
    "ConsumerGroupHeartbeat": (68, beat, beaten),
    "ConsumerGroupDescribe": (69, describe, described),
    "OffsetCommit": (8, commit, committed),
    "TxnOffsetCommit": (28, commit_in_transaction, committed),
    "OffsetFetch": (9, fetch, fetched),
    "JoinGroup": (11, join, joined),
    "Heartbeat": (12, of_generation, error_alone),
    "LeaveGroup": (13, leave, left),
    "SyncGroup": (14, of_generation, error_alone),
    "DescribeGroups": (15, describe_classic, described_classic),
    "ListGroups": (16, list_groups, listed),
    "DeleteGroups": (42, delete_groups, deleted_groups),
    "OffsetDelete": (47, delete_offset, deleted_offset),
}


@pytest.mark.parametrize("name", RECORDED)
def test_answers_are_kafkas(name: str) -> None:
    replay = Replay()
    for number, step in enumerate(RECORDED[name]):
        if "send" not in step:
            replay.do(step)
            continue
        assert replay.send(step) == step["reply"], f"step {number}: {step}"
    assert replay.story.check_recovery()


def test_each_conversation_survives_a_restart_after_each_step() -> None:
    """The coordinator forgets deadlines alone."""
    replay = Replay()
    for step in RECORDED["three_members"]:
        if "send" not in step:
            replay.do(step)
            continue
        replay.story.restart()
        assert replay.send(step) == step["reply"], step
    described = m.ConsumerGroupDescribe(groups=("g",))
    before = body_of(replay.story.ask(described), m.ConsumerGroupDescribeReply)
    replay.story.restart()
    assert body_of(replay.story.ask(described), m.ConsumerGroupDescribeReply) == before
