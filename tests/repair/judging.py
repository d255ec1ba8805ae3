"""A damaged data directory, its repair, and the verdict: nothing wrong, nothing missing that was not told."""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.check.directory import check_directory
from fencepost.check.findings import Severity
from fencepost.protocol.batches import read_marker, walk
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import FetchedPartition, FetchReply
from fencepost.protocol.records import read_columns
from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.repair.perform import perform
from fencepost.repair.plan import Plan
from fencepost.repair.planner import make_plan
from fencepost.repair.salvage import LossKind
from tests.broker.requests import ABORT, COMMIT, COMMITTED, ORDERS, OTHERS, fetch_request, next_offset
from tests.broker.story import Memory
from tests.broker.test_every_byte import DamagedStory

Place = tuple[TopicPartition, IsolationLevel]
Seen = dict[Place, dict[int, str]]
ERROR_AT: Final = -1
BATCHES_MAX: Final = 40  # more than a partition has: a reader that gets more runs in circles
ADOPTED: Final = frozenset({"orders"})


def visible(part: FetchedPartition) -> dict[int, str]:
    """What a consumer makes of an answer, by offset."""
    waiting = sorted(part.aborted or (), key=lambda aborted: aborted.first_offset)
    dropping: set[int] = set()
    found: dict[int, str] = {}
    for at, header in walk(part.records):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropping.add(waiting.pop(0).producer_id)
        if header.is_control:
            if read_marker(part.records, at).result is ABORT:
                dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            columns = read_columns(part.records, header, at)
            deltas = columns.offset_deltas or range(len(columns.values))  # compaction leaves gaps
            values = zip(deltas, columns.values, strict=True)
            found |= {header.base_offset + delta: bytes(value or b"").decode() for delta, value in values}
    return found


def seen_by_readers(story: DamagedStory) -> Seen:
    """All records by their offsets; an entry at ERROR_AT where the broker refuses."""
    seen: Seen = {}
    for key, isolation in [(key, isolation) for key in (ORDERS, OTHERS) for isolation in IsolationLevel]:
        found, offset = dict[int, str](), 1 if key == OTHERS else 0
        for _ in range(BATCHES_MAX):
            reply = story.ask(fetch_request(key, isolation, offset=offset))
            assert isinstance(reply.body, FetchReply)
            (part,) = reply.body.partitions
            if part.error:
                found[ERROR_AT] = part.error.name
            if part.error or not part.records:
                break
            found |= visible(part)
            offset = next_offset(part)
        else:
            found[ERROR_AT] = "the reader runs in circles"
        seen[key, isolation] = found
    return seen


class Repaired(NamedTuple):
    """A repair, and the broker that was started after it."""

    plan: Plan
    story: DamagedStory
    complaints: list[str]


def repaired(storage: Memory, whole: Seen) -> Repaired:
    """Repair a directory, start a broker on it, and judge what it says and serves."""
    plan = make_plan(storage, adopt=ADOPTED)
    perform(storage, plan)
    complaints = [f"repaired again: {damage}" for damage in make_plan(storage, adopt=ADOPTED).damages]
    complaints += [
        f"check: {finding.file}: {finding.what}"
        for finding in check_directory(storage).found
        if finding.severity is Severity.PROBLEM
    ]
    story = DamagedStory.over(storage)
    complaints += [
        f"the broker: {trouble.text}"
        for trouble in story.host.troubles
        if not (plan.notes and "dropped" in trouble.text)  # a torn tail
    ]
    complaints += judged(plan, seen_by_readers(story), whole)
    return Repaired(plan, story, complaints)


def judged(plan: Plan, seen: Seen, whole: Seen) -> list[str]:
    """What is wrong with the answers after a repair. A record may be missing in a range that the plan calls
    lost; committed ones also in a transaction that it calls aborted.
    """
    complaints: list[str] = []
    lost = [
        (damage.file.partition("/")[0], damage.offsets)
        for damage in plan.damages
        if damage.offsets is not None
    ]
    gone = {damage.file for damage in plan.damages if damage.kind == LossKind.MISSING_PARTITION.value}
    aborted = {each.partition for log in plan.logs for each in log.settled if not each.is_proven}
    for (key, isolation), records in whole.items():
        found = seen[key, isolation]
        complaints += [
            f"wrong: {key} {offset} {each}" for offset, each in found.items() if records.get(offset) != each
        ]
        for offset in records.keys() - found.keys():
            is_told = str(key) in gone or any(
                where == str(key) and first <= offset <= last for where, (first, last) in lost
            )
            if not is_told and not (isolation is COMMITTED and key in aborted):
                complaints.append(f"missing: {key} {offset}")
    return complaints


def goes_on(story: DamagedStory) -> bool:
    """Whether a new transaction over an old topic and a new one commits, and its records are read."""
    story.create("fresh")
    fresh = TopicPartition("fresh", 0)
    me = story.identity()
    accepted = [story.produce(me, "new").error, story.produce(me, "new", key=fresh).error]
    story.end(me, COMMIT)
    story.restart()
    return set(accepted) == {ErrorCode.NONE} and all(
        story.visible(key).endswith("new") for key in (ORDERS, fresh)
    )
