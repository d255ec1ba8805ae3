"""Stories with group.protocol=consumer (KIP-848), against a broker on a real socket.

With confluent-kafka, or with the newest of Java's kafka-clients if `--java` is given. aiokafka and
kafka-python do not have this protocol.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import fencepost
from fencepost import TopicPartition
from tests.kafka_bridge import java
from tests.kafka_bridge import test_stories as stories
from tests.kafka_bridge.confluent import ADMIN, KAFKA, Confluent
from tests.kafka_bridge.conftest import IMPATIENT, own_topic
from tests.kafka_bridge.libraries import (
    CONSUMER,
    PATIENCE_S,
    POLLS_MAX,
    Access,
    Library,
    Reported,
    consume,
    poll_until,
    texts,
)
from tests.kafka_bridge.story import Story

QUICK: Final = {
    **IMPATIENT,
    "group.consumer.heartbeat.interval.ms": 50,
    "group.consumer.assignment.interval.ms": 0,
}
CLIENT_IDS: Final = {"confluent-kafka": "rdkafka", java.NEWEST: "consumer-"}
INSTANCE_TAKEN: Final = {
    "confluent-kafka": "instance ID is still used by another member",
    java.NEWEST: "UnreleasedInstanceIdException",
}
# A member that joins, says so, and then sends heartbeats until its process is killed.
MEMBER: Final = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer", "log_level": 0,
})
consumer.subscribe([sys.argv[3]])
while not consumer.assignment():
    consumer.poll(0.05)
print("joined", flush=True)
while True:
    consumer.poll(0.05)
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker whose members need not wait for their next heartbeat."""
    with fencepost.Broker(override=QUICK) as broker:
        yield broker.address


@pytest.fixture(scope="module")
def modern(request: pytest.FixtureRequest) -> Iterator[Library]:
    """The library that the stories are told with."""
    if request.config.getoption("java"):
        library = java.Java(protocol=CONSUMER)
        yield library
        assert library.left() == []
        library.close()
    else:
        yield Confluent(CONSUMER)


@pytest.fixture
def story(modern: Library, servers: str, request: pytest.FixtureRequest) -> Iterator[Story]:
    """A story with a topic and a group of its own."""
    with Story(modern, Access(servers=servers), own_topic(request)) as told:
        yield told


def described(story: Story, group: str) -> Any:
    """The group, as confluent-kafka's admin client describes it."""
    admin = ADMIN.AdminClient({"bootstrap.servers": story.access.servers, "log_level": 0})
    (found,) = admin.describe_consumer_groups([f"{story.topic}.{group}"]).values()
    return found.result(PATIENCE_S)


@pytest.mark.parametrize(
    "tell",
    [
        stories.test_a_group_continues_where_it_committed,
        stories.test_members_share_the_partitions_and_inherit_them,
        stories.test_offsets_are_committed_with_their_transaction,
        stories.test_offsets_are_aborted_with_their_transaction,
        stories.test_offsets_of_a_member_that_has_left_are_refused,
    ],
    ids=lambda tell: tell.__name__.removeprefix("test_"),
)
def test_the_stories_of_groups(story: Story, tell: Callable[[Story], None]) -> None:
    tell(story)


def test_a_group_is_of_the_consumer_protocol_and_becomes_empty(story: Story) -> None:
    reader = story.consumer("g")
    poll_until(lambda: len(reader.assignment()) == 2, reader)
    group = described(story, "g")
    assert (group.type.name, group.state.name, group.partition_assignor) == ("CONSUMER", "STABLE", "uniform")
    (member,) = group.members
    assert member.client_id.startswith(CLIENT_IDS[story.library.name])
    assert member.host == "/127.0.0.1"
    with fencepost.Admin(story.access.servers) as admin:
        ours = admin.describe_consumer_group(f"{story.topic}.g")
        (told,) = [each for each in admin.list_consumer_groups() if each.group_id == ours.group_id]
    assert (ours.state.title, ours.protocol, told.group_type.title) == ("Stable", "uniform", "Consumer")
    assert set(ours.members[0].partitions) == {story.part, story.other}
    reader.close()
    assert described(story, "g").state.name == "EMPTY"


def test_a_static_member_keeps_its_partitions_while_it_is_away(story: Story) -> None:
    first, second = story.consumer("g", instance="one"), story.consumer("g", instance="two")
    poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
    of_first = first.assignment()
    first.close()
    again = story.consumer("g", instance="one")
    poll_until(lambda: again.assignment() == of_first, again, second)
    assert len(second.assignment()) == 1


def test_a_second_owner_of_an_instance_id_is_refused(story: Story) -> None:
    first = story.consumer("g", instance="one")
    poll_until(lambda: len(first.assignment()) == 2, first)
    second = story.consumer("g", instance="one")
    with pytest.raises(Reported, match=INSTANCE_TAKEN[story.library.name]):
        poll_until(lambda: False, second)


def test_a_new_topic_and_a_larger_one_are_assigned(story: Story) -> None:
    new = f"{story.topic}.new"
    reader = story.consumer("g", topic=new)
    with fencepost.Admin(story.access.servers) as admin:
        admin.create_topic(new, 1)
        poll_until(lambda: len(reader.assignment()) == 1, reader)
        admin.create_partitions(new, 3)
        poll_until(lambda: len(reader.assignment()) == 3, reader)


def test_an_expression_is_matched_by_the_broker(story: Story) -> None:
    settings = {"bootstrap.servers": story.access.servers, "log_level": 0, "group.protocol": CONSUMER}
    consumer: Any = KAFKA.Consumer(settings | {"group.id": f"{story.topic}.g"})
    consumer.subscribe([f"^{story.topic}$"])
    for _ in range(POLLS_MAX):
        consumer.poll(0.05)
        if len(consumer.assignment()) == 2:
            break
    (member,) = described(story, "g").members
    assert {part.topic for part in member.assignment.topic_partitions} == {story.topic}
    consumer.close()


def test_the_partitions_of_a_killed_member_are_assigned_to_the_others(modern: Library) -> None:
    settings = {**QUICK, "group.consumer.session.timeout.ms": 1_000}
    with (
        fencepost.Broker(override=settings) as broker,
        Story(modern, Access(servers=broker.address), "t") as story,
    ):
        killed = subprocess.Popen(
            [sys.executable, "-c", MEMBER, broker.address, "t.g", "t"], stdout=subprocess.PIPE, text=True
        )
        assert killed.stdout is not None
        assert killed.stdout.readline() == "joined\n"
        heir = story.consumer("g")
        poll_until(lambda: len(heir.assignment()) == 1, heir)
        killed.kill()
        killed.communicate()
        poll_until(lambda: len(heir.assignment()) == 2, heir)


def test_a_member_stays_in_its_group_when_the_broker_is_killed(modern: Library, tmp_path: Path) -> None:
    quick = {"group.consumer.heartbeat.interval.ms": 50}
    with (
        fencepost.BrokerProcess(tmp_path, override=quick) as broker,
        Story(modern, Access(servers=broker.address), "t") as story,
    ):
        story.produced("a")
        reader = story.consumer("g")
        assert texts(consume(reader, 1)) == ["a"]
        reader.commit()
        (before,) = described(story, "g").members
        broker.kill()
        broker.restart()
        story.produced("b")
        assert texts(consume(reader, 1)) == ["b"]
        reader.commit()
        (after,) = described(story, "g").members
        assert (after.member_id, len(after.assignment.topic_partitions)) == (before.member_id, 2)
        assert reader.committed(TopicPartition("t", 0)) == 2


def test_a_classic_group_that_is_empty_becomes_one_of_the_consumer_protocol(story: Story) -> None:
    story.produced("a", "b")
    classic = Confluent().consumer(story.access, story.topic, group=f"{story.topic}.g")
    assert texts(consume(classic, 1)) == ["a"]
    classic.commit()
    classic.close()
    reader = story.consumer("g")
    assert texts(consume(reader, 1)) == ["b"]
    reader.commit()
    reader.close()
    again = Confluent().consumer(story.access, story.topic, group=f"{story.topic}.g")
    story.produced("c")
    assert texts(consume(again, 1)) == ["c"]
    again.close()
