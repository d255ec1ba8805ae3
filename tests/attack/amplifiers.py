"""Small requests that would lead to large answers, large batches or much work."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgpack

from fencepost.protocol import messages as m
from fencepost.protocol.frames import REQUEST_HEADER_MAX
from fencepost.protocol.messages import API_BY_REQUEST
from fencepost.protocol.terms import TopicPartition
from tests.attack.attacks import Attack
from tests.attack.scene import Scene
from tests.attack.wires import encoded, exchange

GROUP = "g" * 249
WIDE = "wide"
SMALL_COUNT = 3  # requests of one kind that are sent one after the other

Draw = Callable[[Scene], Iterable[m.Request]]


def create(topic: str, partitions: int) -> m.CreateTopics:
    """One topic."""
    return m.CreateTopics(topics=(m.CreateTopic(topic=topic, partition_count=partitions),))


def offset(number: int) -> m.OffsetToCommit:
    """A position in a partition of the wide topic."""
    return m.OffsetToCommit(topic=WIDE, partition=number, offset=1, leader_epoch=-1, metadata="m" * 4_096)


def offsets(*commits: m.OffsetToCommit) -> m.OffsetCommit:
    """A commit of a group without members."""
    return m.OffsetCommit(
        group_id=GROUP, generation_id=-1, member_id="", group_instance_id=None, offsets=commits
    )


def wide_metadata(scene: Scene) -> Iterable[m.Request]:
    """A topic of many partitions, named again and again in one request."""
    yield create(WIDE, scene.scaled(50, 2_000))
    for _ in range(scene.scaled(3, 20)):
        yield m.Metadata(topics=(WIDE,) * 1_000)


def pipelined_metadata(scene: Scene) -> Iterable[m.Request]:
    """The same topic, named once in each of many requests that are sent without waiting."""
    yield create(WIDE, scene.scaled(50, 2_000))
    for _ in range(scene.scaled(100, 2_000)):
        yield m.Metadata(topics=(WIDE,))


def many_topics(scene: Scene) -> Iterable[m.Request]:
    """Many topics of many partitions in one request, again and again."""
    for round_ in range(scene.scaled(2, 10)):
        topics = (
            m.CreateTopic(topic=f"many-{round_}-{number}", partition_count=10_000) for number in range(240)
        )
        yield m.CreateTopics(topics=tuple(topics))


def equal_offsets(scene: Scene) -> Iterable[m.Request]:
    """An OffsetCommit of one partition named thousands of times, for a group with a long id."""
    yield create(WIDE, 2)
    entry = m.OffsetToCommit(topic=WIDE, partition=0, offset=1, leader_epoch=-1, metadata="")
    for _ in range(SMALL_COUNT):
        yield offsets(*[entry] * scene.scaled(500, 4_400))


def large_offsets(scene: Scene) -> Iterable[m.Request]:
    """OffsetCommits with as much metadata as a request can hold."""
    count = REQUEST_HEADER_MAX // 5_000  # the batch repeats the group id beside each
    yield create(WIDE, count)
    for _ in range(SMALL_COUNT):
        yield offsets(*map(offset, range(count)))
    yield m.OffsetFetch(group_id=GROUP, require_stable=False, partitions=None)


def group_many_times(scene: Scene) -> Iterable[m.Request]:
    """A group with offsets, described under the same name thousands of times."""
    yield create(WIDE, 2)
    yield offsets(*map(offset, range(2)))
    for _ in range(SMALL_COUNT):
        yield m.DescribeGroups(groups=(GROUP,) * scene.scaled(100, 4_000))
        yield m.OffsetFetch(
            group_id=GROUP,
            require_stable=False,
            partitions=(TopicPartition(WIDE, 0),) * scene.scaled(100, 20_000),
        )


def long_ids(scene: Scene) -> Iterable[m.Request]:
    """Many transactional ids, as long as they may be, listed again and again."""
    for number in range(scene.scaled(50, 5_000)):
        yield m.InitProducerId(
            transactional_id=f"{number:0249}",
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
    for _ in range(scene.scaled(5, 50)):
        yield m.ListTransactions(states=(), producer_ids=(), duration_ms=-1)


def of_requests(name: str, does: str, draw: Draw) -> Attack:
    """An attack that sends requests on one connection and counts what comes back."""

    async def act(scene: Scene) -> None:
        requests = list(draw(scene))
        done = await exchange(scene, encoded(requests), answers=len(requests))
        scene.figures |= {
            "requests": len(requests),
            "replies": done.answers,
            "KB sent": round(done.sent / 1024),
            "KB received": round(done.received / 1024),
        }
        if done.answers < len(requests) and not done.is_closed:
            scene.faults.append(f"{len(requests) - done.answers} requests have no reply")

    return Attack(name=name, does=does, act=act)


# --- msgpack ----------------------------------------------------------------------------------------------


def nested(depth: int) -> bytes:
    """An array in an array in an array."""
    return b"\x91" * depth + b"\x90"


def frame(body: bytes) -> bytes:
    """A Metadata request with this msgpack value as its list of topics."""
    api = API_BY_REQUEST[m.Metadata]
    head = b"\x95" + b"".join(msgpack.packb(field) for field in (api.key, api.maximum, 1, ""))
    header = head + b"\x91" + body
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


async def empty_arrays(scene: Scene) -> None:
    """Frames that decode to far more objects than they have bytes; each ends its connection."""
    most = REQUEST_HEADER_MAX - 64
    bodies = {
        "empty arrays": b"\xdd" + most.to_bytes(4, "big") + b"\x90" * most,
        "empty maps": b"\xdd" + most.to_bytes(4, "big") + b"\x80" * most,
        "nested arrays": nested(most),
        "a million entries announced": b"\xdd" + (1 << 20).to_bytes(4, "big"),
        "a huge frame of them": b"\xdd" + (20 * most).to_bytes(4, "big") + b"\x90" * 20 * most,
    }
    closed = 0
    for _ in range(scene.scaled(1, 5)):
        for body in bodies.values():
            closed += (await exchange(scene, frame(body), answers=1)).is_closed
    scene.figures |= {"frames": scene.scaled(1, 5) * len(bodies), "connections closed": closed}


ATTACKS: tuple[Attack, ...] = (
    of_requests("metadata of a wide topic", "one topic named 1,000 times", wide_metadata),
    of_requests("pipelined metadata", "a wide topic, named in each of many requests", pipelined_metadata),
    of_requests("many topics", "2,400,000 partitions in 2 KB", many_topics),
    of_requests("equal offsets", "one partition committed thousands of times", equal_offsets),
    of_requests("large offsets", "metadata beside offsets, to the limit", large_offsets),
    of_requests("one group many times", "one group described thousands of times", group_many_times),
    of_requests("long ids", "transactional ids of 249 characters, listed", long_ids),
    Attack(name="empty arrays", does="msgpack that is larger in memory than on the wire", act=empty_arrays),
)
