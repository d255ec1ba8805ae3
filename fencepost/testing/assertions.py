"""Assertions about what an application left in a broker: `assert_exactly_once`, `assert_committed` and
`assert_no_open_transactions`.

Rule: a failed assertion names the records, and where they are: partition, offset, producer id and epoch.
"""

# A topic is read as its consumers may read it: committed, for the verdict, and, only if something is lost,
# uncommitted as well, to say whether an aborted transaction holds it. Reading waits for a stable end: as long
# as a transaction is open, the content of a topic is undecided, and after `timeout` seconds the assertion
# fails.

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from fencepost.client.consumer_records import ConsumedBatch
from fencepost.client.errors import RequestFailed, unknown_partition
from fencepost.client.shells.sync import Admin, Consumer
from fencepost.lab.hidden_clients import ASSERTING_CLIENT
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import NO_OFFSET, NO_PRODUCER_ID, TopicPartition, TransactionState

LINES_MAX: Final = 20  # of a message, which must fit on a screen; more lines usually have the same cause
LINE_MAX: Final = 160  # characters
LOOK_AGAIN_S: Final = 0.02
QUIET_S: Final = 10.0  # how long to wait for an answer, and for the next record of a log that has more

Identity = Literal["key", "value"] | Callable[[Any], Hashable]
Records = str | TopicPartition | Iterable[Any]


class HasAddress(Protocol):
    """A broker: anything that knows its `host:port`."""

    @property
    def address(self) -> str: ...


class _Found(NamedTuple):
    """A record, or what the caller gave for one; `batch` is known if it was read here."""

    item: Any
    number: int
    batch: ConsumedBatch | None = None


def assert_exactly_once(
    inputs: Records,
    outputs: Records,
    *,
    by: Identity | tuple[Identity, Identity] = "value",
    broker: HasAddress | str | None = None,
    timeout: float = 10.0,
) -> None:
    """Fails unless each input has exactly one output, and each output an input.

    `inputs`, `outputs`: the name of a topic, a TopicPartition, or an iterable of records, of batches of
    records, or of plain values. `by`: what an input and its output have in common: "key", "value" or a
    function of a record; or two of them, for inputs and for outputs. Two inputs with the same identity need
    two outputs. `broker`: where topics are read: a broker or `host:port`.
    `timeout`: seconds to wait for the end of open transactions. AssertionError says which are lost,
    duplicated or unexpected, and where, or that there was nothing to test: no input in a topic or an
    iterator, and no output. ValueError if a record has no key, or `by` returns None for it.
    """
    __tracebackhide__ = True
    for name, records in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(records, str):  # which names a topic
            _refuse_one_value(name, records)
    of_input, of_output = (by, by) if callable(by) or isinstance(by, str) else by
    deadline = time.monotonic() + timeout
    asked = _by_identity(_found(inputs, broker, deadline), of_input)
    got = _by_identity(_found(outputs, broker, deadline), of_output)
    _refuse_nothing(inputs, asked, got)
    _refuse_anonymous(asked, of_input)
    _refuse_anonymous(got, of_output)
    lines = _difference(asked, got, lambda: _uncommitted(outputs, broker, deadline, of_output, got))
    if lines:
        inside, outside = (
            _name(records, what) for records, what in ((inputs, "inputs"), (outputs, "outputs"))
        )
        told = _told(f"{outside} does not have each of {inside} exactly once", lines)
        raise AssertionError(told + _hint(broker))


def assert_committed(
    topic: str | TopicPartition,
    expected: Iterable[Any],
    *,
    by: Identity = "value",
    broker: HasAddress | str | None = None,
    timeout: float = 10.0,
) -> None:
    """Fails unless the committed records of a topic are exactly the expected ones, in any order.

    `topic`: its name, or one partition of it. `expected`: what `by` returns for the records: by default their
    values. `by`: "key", "value" or a function of a record. `broker`: where the topic is read: a broker or
    `host:port`. `timeout`: seconds to wait for the end of open transactions. AssertionError says which are
    missing or unexpected.
    """
    __tracebackhide__ = True
    _refuse_one_value("expected", expected)
    deadline = time.monotonic() + timeout
    wanted: dict[Hashable, list[_Found]] = defaultdict(list)
    for number, item in enumerate(expected):
        wanted[item].append(_Found(item, number))
    got = _by_identity(_found(topic, broker, deadline), by)
    lines = _difference(wanted, got, lambda: _uncommitted(topic, broker, deadline, by, got))
    if lines:
        raise AssertionError(_told(f"{topic} does not hold exactly the expected committed records", lines))


def assert_no_open_transactions(broker: HasAddress | str, *, timeout: float = 10.0) -> None:
    """Fails if a transaction is still open after `timeout` seconds: at its coordinator, or in a partition
    whose readers wait for it. `broker`: a broker or `host:port`. AssertionError lists the transactions.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    with _admin(broker) as admin:
        while lines := [*_open_at_coordinators(admin), *_open_in_partitions(admin, _all_partitions(admin))]:
            if time.monotonic() > deadline:
                raise AssertionError(_told(f"transactions are open after {timeout:g} s", lines))
            time.sleep(LOOK_AGAIN_S)


# --- reading ------------------------------------------------------------------------------------------------


def _admin(broker: HasAddress | str) -> Admin:
    return Admin(_address(broker), **_settings())


def _address(broker: HasAddress | str) -> str:
    return broker if isinstance(broker, str) else broker.address


def _settings() -> dict[str, Any]:
    """Of the clients that read here. They do not wait a minute for a broker that was stopped."""
    return {"client_id": ASSERTING_CLIENT, "default_api_timeout_ms": round(QUIET_S * 1_000)}


def _found(records: Records, broker: HasAddress | str | None, deadline: float) -> list[_Found]:
    """Everything that a committed reader gets of a topic, or the given records."""
    if isinstance(records, str | TopicPartition):
        return _read(broker, records, "read_committed", deadline)
    found: list[_Found] = []
    for item in records:
        if isinstance(item, ConsumedBatch):
            found += [_Found(record, len(found), item) for record in item]
        else:
            found.append(_Found(item, len(found)))
    return found


def _read(
    broker: HasAddress | str | None, records: str | TopicPartition, isolation_level: str, deadline: float
) -> list[_Found]:
    if broker is None:
        raise TypeError(f"{records!r} has to be read from a broker: give the broker as broker=")
    found: list[_Found] = []
    with _admin(broker) as admin:
        partitions = _partitions(admin, records)
        ends = _stable_ends(admin, partitions, deadline)
    with Consumer(_address(broker), isolation_level=isolation_level, **_settings()) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        read_at, seen = time.monotonic(), 0
        while (left := sum(max(0, end - consumer.position(each)) for each, end in ends.items())) > 0:
            if left != seen:
                read_at, seen = time.monotonic(), left
            elif time.monotonic() > read_at + QUIET_S:
                raise AssertionError(
                    f"{records} cannot be read to its end: nothing has come for {QUIET_S:g} s, after "
                    f"{len(found)} records"
                )
            for batch in consumer.poll(100):
                found += [_Found(record, len(found), batch) for record in batch]
    return found


def _partitions(admin: Admin, records: str | TopicPartition) -> list[TopicPartition]:
    topic = records.topic if isinstance(records, TopicPartition) else records
    count = len(admin.describe_topic(topic).leaders)
    if isinstance(records, str):
        return [TopicPartition(topic, number) for number in range(count)]
    if records.partition >= count:
        raise unknown_partition(records, count).exception()
    return [records]


def _all_partitions(admin: Admin) -> list[TopicPartition]:
    return [
        TopicPartition(topic.topic, number)
        for topic in admin.list_topics()
        if not topic.is_internal
        for number, _ in enumerate(topic.leaders)
    ]


def _stable_ends(
    admin: Admin, partitions: Sequence[TopicPartition], deadline: float
) -> Mapping[TopicPartition, int]:
    """The ends of the logs, once no open transaction hides a part of them."""
    while True:
        ends = admin.end_offsets(partitions)
        if ends == admin.end_offsets(partitions, "read_uncommitted"):
            return ends
        if time.monotonic() > deadline:
            lines = [*_open_at_coordinators(admin), *_open_in_partitions(admin, partitions)]
            raise AssertionError(
                _told("a transaction is open, so it is not decided yet what is committed", lines)
            )
        time.sleep(LOOK_AGAIN_S)


def _open_at_coordinators(admin: Admin) -> list[str]:
    lines: list[str] = []
    for listed in admin.list_transactions(states=[state for state in TransactionState if state.is_open]):
        try:
            found = admin.describe_transaction(listed.transactional_id)
        except RequestFailed as problem:
            if problem.error is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue  # it has ended since it was listed, and its id has expired
        if not found.state.is_open:
            continue
        where = ", ".join(map(str, found.partitions)) or "no partition"
        who = f"producer {found.producer_id} epoch {found.producer_epoch}"
        lines.append(f"open         {found.transactional_id}: {found.state.title}, {who}, in {where}")
    return lines


def _open_in_partitions(admin: Admin, partitions: Sequence[TopicPartition]) -> list[str]:
    stable = admin.end_offsets(partitions)
    ends = admin.end_offsets(partitions, "read_uncommitted")
    return [
        f"open         {where}: since offset {each.open_since_offset}, producer {each.producer_id} epoch "
        f"{each.producer_epoch}; committed readers wait at offset {stable[where]} of {ends[where]}"
        for where in partitions
        if stable[where] < ends[where]
        for each in admin.describe_producers(where)
        if each.open_since_offset != NO_OFFSET
    ]


# --- comparing ----------------------------------------------------------------------------------------------


def _refuse_one_value(name: str, given: object) -> None:
    """TypeError for a text or bytes, which would be taken for letters or numbers."""
    __tracebackhide__ = True
    if isinstance(given, str | bytes | bytearray):
        raise TypeError(f"{name}={given!r} is one value and not a list of values: give [{given!r}]")


def _refuse_nothing(
    inputs: Records, asked: Mapping[Hashable, object], got: Mapping[Hashable, object]
) -> None:
    """AssertionError where nothing was compared, and the caller may not know it."""
    __tracebackhide__ = True
    if asked or got:
        return
    if isinstance(inputs, str | TopicPartition):
        raise AssertionError(f"{inputs} has no committed record, so nothing was tested")
    if isinstance(inputs, Iterator):
        raise AssertionError("inputs has no record, so nothing was tested: was the iterator used up before?")


def _refuse_anonymous(groups: Mapping[Hashable, list[_Found]], by: Identity) -> None:
    """ValueError for records that have no identity: all of them would count as equal."""
    __tracebackhide__ = True
    if by != "value" and None in groups:
        who = "by" if callable(by) else f"by={by!r}"
        raise ValueError(
            f"{who} gives None for {_place(groups[None][0])}, so it cannot be told apart from other records: "
            "name what an input and its output have in common"
        )


def _by_identity(found: Iterable[_Found], by: Identity) -> dict[Hashable, list[_Found]]:
    if not callable(by) and by not in ("key", "value"):
        raise ValueError(f'by is {by!r}; give "key", "value" or a function of a record')
    groups: dict[Hashable, list[_Found]] = defaultdict(list)
    for each in found:
        identity = _identity(each.item, by)
        try:
            groups[identity].append(each)
        except TypeError:
            raise TypeError(
                f"by returns {identity!r:.80} for a record, and that is not hashable: return bytes, a text, "
                "a number or a tuple of them"
            ) from None
    return groups


def _identity(item: Any, by: Identity) -> Any:
    if callable(by):
        return by(item)
    part = getattr(item, by, item)
    return part() if callable(part) else part  # confluent_kafka.Message has methods


def _difference(
    asked: Mapping[Hashable, list[_Found]],
    got: Mapping[Hashable, list[_Found]],
    uncommitted: Callable[[], Mapping[Hashable, list[_Found]]],
) -> list[str]:
    """A line for each identity that is not there as often as it should be."""
    wanted = Counter({identity: len(found) for identity, found in asked.items()})
    present = Counter({identity: len(found) for identity, found in got.items()})
    lost, surplus = wanted - present, present - wanted
    hidden: Mapping[Hashable, list[_Found]] = uncommitted() if lost else {}
    shown = _shown([*lost, *surplus])
    lines = [f"lost         {shown[each]}: {_story(asked[each], hidden.get(each, []))}" for each in lost]
    for each in surplus:
        what = "duplicated  " if each in asked else "unexpected  "
        lines.append(f"{what} {shown[each]}: {'; '.join(map(_place, got[each]))}")
    return lines


def _uncommitted(
    records: Records,
    broker: HasAddress | str | None,
    deadline: float,
    by: Identity,
    committed: Mapping[Hashable, list[_Found]],
) -> Mapping[Hashable, list[_Found]]:
    """What no committed reader sees, by identity; nothing where the records were given."""
    if not isinstance(records, str | TopicPartition):
        return {}
    found = _read(broker, records, "read_uncommitted", deadline)
    seen = {_offset(each) for group in committed.values() for each in group}
    return _by_identity((each for each in found if _offset(each) not in seen), by)


def _offset(found: _Found) -> tuple[TopicPartition, int]:
    assert found.batch is not None, "it was read here"
    return found.batch.partition, found.item.offset


# --- words --------------------------------------------------------------------------------------------------


def _story(inputs: Sequence[_Found], hidden: Sequence[_Found]) -> str:
    """Where a lost record should have come from, and where it is hidden."""
    places = [place for each in inputs if (place := _place(each))]
    aborted = [f"aborted at {_place(each)}" for each in hidden]
    return "; ".join([*(f"expected from {place}" for place in places[:1]), *(aborted or ["never written"])])


def _place(found: _Found) -> str:
    """The partition, offset and producer of a record, as far as they are known."""
    item, batch = found.item, found.batch
    if not hasattr(item, "offset"):
        return f"record {found.number + 1} of those given"
    parts = [getattr(item, name) for name in ("topic", "partition", "offset")]
    topic, partition, offset = (part() if callable(part) else part for part in parts)
    who = ""
    if batch is not None and batch.producer_id != NO_PRODUCER_ID:
        who = f" (producer {batch.producer_id} epoch {batch.producer_epoch})"
    return f"{topic}-{partition} offset {offset}{who}"


def _hint(broker: HasAddress | str | None) -> str:
    """What may explain a lost record, if the broker knows it."""
    if not getattr(broker, "has_lost_data", False):
        return ""
    return (
        "\n  A power cut lost what this broker had not synced. With sync='commit' only transactions are safe "
        "from it:\n  a record that was written outside of one may be gone. Write the inputs in a "
        "transaction, or give the broker sync='all'."
    )


def _shown(identities: Iterable[Hashable]) -> dict[Hashable, str]:
    """Each identity as text. If two look the same, such as b"1" and "1", each also shows its type."""
    texts = {each: _text(each) for each in identities}
    uses = Counter(texts.values())
    full = {each: text if uses[text] == 1 else repr(each) for each, text in texts.items()}
    return {each: text if len(text) <= 40 else f"{text[:39]}…" for each, text in full.items()}


def _text(identity: Hashable) -> str:
    return identity.decode("utf-8", "backslashreplace") if isinstance(identity, bytes) else str(identity)


def _name(records: Records, otherwise: str) -> str:
    return str(records) if isinstance(records, str | TopicPartition) else otherwise


def _told(what: str, lines: Sequence[str]) -> str:
    shown = [line if len(line) <= LINE_MAX else f"{line[: LINE_MAX - 1]}…" for line in lines[:LINES_MAX]]
    kinds = Counter(line.split(" ", 1)[0] for line in lines)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    more = [f"... and {len(lines) - LINES_MAX} more"] if len(lines) > LINES_MAX else []
    return "\n".join([f"{what}: {counts}", *(f"  {line}" for line in [*shown, *more])])
