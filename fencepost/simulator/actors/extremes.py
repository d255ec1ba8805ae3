"""Requests of valid structure and extreme meaning, derived from the message definitions.

Rule: a field is filled by its annotation, so a message that is added tomorrow is drawn tomorrow. All chance
is in the choices, and choice 0 is the calmest value.
"""

# What each annotation may become:
#
#     int of n bits   0, 1, -1, 2, the smallest and the largest, their neighbours, 2^(n/2)
#     text            a known name, an unknown one, "", at a limit and one longer, unusual characters
#     tuple           empty, one, some, an entry twice, a name twice, as many as allowed, one more
#     bytes, records  empty, garbage, a batch as clients build it, one with extreme numbers, a marker
#     the rest        each member of an enum, True and False, None
#
# The names are those that the caller supplies: a stranger in a simulated world has a topic, a group and a
# transactional id of its own, so that the judges of the other clients still know what to expect.

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

import attrs

from fencepost.broker.limits import ENTRIES, GROUP_ID
from fencepost.protocol.batches import build_batch, build_marker
from fencepost.protocol.codec import STRING_LENGTH_MAX
from fencepost.protocol.frames import FRAME_SIZE_MAX, FrameTooLarge, encode_request
from fencepost.protocol.messages import APIS, Request
from fencepost.protocol.records import build_data_batch
from fencepost.protocol.terms import INT32_MAX, INTERNAL_TOPICS, NO_TOPIC_ID, TransactionResult
from fencepost.simulator.world.choices import Choices

KINDS: Final[tuple[type[Request], ...]] = tuple(api.request for api in APIS)
MANY_PERMILLE: Final = 15  # of lists: most of the work goes into the other ones
LONG_PERMILLE: Final = 30  # of texts
# Codepoints of several bytes, a separator of file names, a terminal escape, and a name in a file system.
ODD: Final = ("é" * 125, "a/b", "\x1b[2J", "..", "a\0b")


@attrs.frozen(kw_only=True)
class Names:
    """The names and producer ids that drawn requests may use: they exist, or a request may create them."""

    topics: Sequence[str]
    groups: Sequence[str]
    transactional_ids: Sequence[str]
    now_ms: Callable[[], int]

    def of_field(self, field: str) -> Sequence[str]:
        """The names that make sense in a field; all names if the field's own name does not say which."""
        if "topic" in field:
            return (*self.topics, *sorted(INTERNAL_TOPICS))
        if "group" in field:
            return self.groups
        if "transactional" in field:
            return self.transactional_ids
        return (*self.topics, *self.groups, *self.transactional_ids)


@attrs.frozen
class Extremes:
    """Draws requests. In a list with many entries, inner lists are short: no frame could hold both."""

    choices: Choices
    names: Names
    draws_many: bool = True

    def request(self, kinds: Sequence[type[Request]] = KINDS) -> Request:
        """One of these requests, no larger than a frame may be: a client cannot send a larger one."""
        while True:
            request = self.message(self.choices.one_of(kinds))
            if least_size(request) > FRAME_SIZE_MAX:
                continue
            try:
                encode_request(request, correlation_id=1)
            except FrameTooLarge:
                continue
            return request

    def message(self, kind: Any) -> Any:
        """A message, or an entry of one."""
        return kind(**{name: self._value(hint, name) for name, hint in _fields(kind)})

    def _value(self, hint: Any, field: str) -> Any:
        origin, choices = get_origin(hint), self.choices
        if origin is Annotated:
            mark = get_args(hint)[1]
            return self._records() if mark == "records" else choices.one_of(_integers(mark))
        if origin in (Union, types.UnionType):
            inner = next(each for each in get_args(hint) if each is not types.NoneType)
            return self._value(inner, field) if choices.below(4) else None
        if origin is tuple:
            return self._list(get_args(hint)[0], field)
        if attrs.has(hint) or issubclass(hint, tuple):
            return self.message(hint)
        if issubclass(hint, Enum):
            return choices.one_of(tuple(hint))
        if hint is str:
            return self._text(field)
        if field == "topic_id":  # another id is refused before anything else is looked at
            return choices.one_of((NO_TOPIC_ID, NO_TOPIC_ID, *_PLAIN[bytes]))
        return choices.one_of(_PLAIN[hint])

    def _list(self, hint: Any, field: str) -> tuple[Any, ...]:
        choices = self.choices
        if choices.happens(MANY_PERMILLE) and self.draws_many:
            inner = attrs.evolve(self, draws_many=False)
            return (inner._value(hint, field),) * (ENTRIES.value + choices.below(2))
        entries = [self._value(hint, field) for _ in range(choices.one_of((1, 0, 2, 3)))]
        if entries and choices.happens(300):
            entries += [entries[0]] * choices.one_of((1, 40))
        if entries and choices.happens(300):
            entries.append(self._namesake(entries[0], hint))
        return tuple(entries)

    def _namesake(self, entry: Any, hint: Any) -> Any:
        """Another entry with the texts of this one: it names the same thing and says something else."""
        kind: Any = hint
        if not (attrs.has(kind) or (isinstance(kind, type) and issubclass(kind, tuple))):
            return entry
        other, fields = self.message(hint), [name for name, _ in _fields(hint)]
        said = {
            name: getattr(entry if isinstance(getattr(entry, name), str) else other, name) for name in fields
        }
        return hint(**said)

    def _text(self, field: str) -> str:
        choices = self.choices
        if choices.happens(LONG_PERMILLE):
            return "x" * choices.one_of((GROUP_ID.value, GROUP_ID.value + 1, 4_097, STRING_LENGTH_MAX))
        known = self.names.of_field(field)
        return choices.one_of((*known, *known, "unknown", "", *ODD))

    # --- records

    def _records(self) -> bytes:
        choices, draw = self.choices, self._integer
        producer_id, producer_epoch, base_sequence = draw(64), draw(16), draw(32)
        now = self.names.now_ms()
        times = (now, 0, -1, now + 1_000_000_000, _integers(64)[-1])
        match choices.below(6):
            case 0:
                made = build_data_batch([b"v"], base_timestamp=now)
            case 1:
                made = build_data_batch(
                    [b"v", b"w"],
                    base_timestamp=now,
                    transactional=True,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=base_sequence,
                )
            case 2:
                made = build_batch(
                    b"\x95\xc0\xc0\x91\xc0\xc0\xc0",
                    attributes=draw(16) & 0x7FFF,
                    record_count=choices.one_of((1, 0, INT32_MAX)),
                    last_offset_delta=choices.one_of((0, INT32_MAX)),
                    base_timestamp=choices.one_of(times),
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    base_sequence=base_sequence,
                )
            case 3:
                made = build_marker(
                    TransactionResult.COMMIT,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    coordinator_epoch=base_sequence,
                    timestamp=now,
                )
            case 4:
                made = build_data_batch([b"v"], base_timestamp=now) * 2
            case _:
                made = choices.one_of((b"", b"\0" * 61, build_data_batch([b"v"], base_timestamp=now)[:-1]))
        return bytes(made)

    def _integer(self, bits: int) -> int:
        return self.choices.one_of(_integers(bits))


def least_size(value: object) -> int:
    """The bytes of the texts and bytes in a message: encoded, it is no shorter. A list repeats one object,
    which is measured once; encoding some of these lists takes gigabytes.
    """
    if isinstance(value, str | bytes):
        return len(value)
    parts: tuple[object, ...] = ()
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
    elif attrs.has(type(value)):
        parts = attrs.astuple(cast("attrs.AttrsInstance", value), recurse=False)
    times, by_id = Counter(map(id, parts)), {id(part): part for part in parts}
    return sum(times[key] * least_size(part) for key, part in by_id.items())


_PLAIN: Final[dict[type, tuple[object, ...]]] = {
    bytes: (b"\0\1", b"", b"\xff" * 9, b"\0\1\x7f\xff\xff\xff", bytes(5_000)),
    bool: (False, True),
}


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(kind, include_extras=True).items())


@cache
def _integers(bits: int) -> tuple[int, ...]:
    high = (1 << (bits - 1)) - 1
    return (0, 1, -1, 2, 5, 1 << (bits // 2), -high - 1, -high, high - 1, high)
