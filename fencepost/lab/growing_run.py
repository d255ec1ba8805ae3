"""A run that continues: its document grows step by step, and its oldest steps are dropped.

Rule: what a page holds is a document of a part of the run. Its steps, messages and batches have their places
in that part; a `Mark` says where the part begins and how far the page has come.
"""

# Theory of operation
#
# A document is made of a whole history (document.py). Here the history has no end, so it is made chunk by
# chunk: of the new events, and of the earlier ones that they can still change (`_Open`): messages that are on
# their way or have no reply, and batches that are not decided. The document of both says what the new steps
# look like, and what became of the old messages and batches.
#
#     earlier events   sent 7   appended t-0 [3]       |  places 40, 52
#     new events       arrived 7   appended COMMIT ... |  places 96, 97, ...
#                                                    ->  steps 96, 97, ..., message 7, batches [3] and COMMIT
#
# Places are counted from the beginning of the run. A page counts from the beginning of its part, and batches
# from the oldest that it has; `growth` translates. A page that is too far behind, or holds too many steps,
# loads the whole document again.

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import attrs

from fencepost.broker.feed import BASE_KEYS_MAX
from fencepost.faults.phrases import BROKER
from fencepost.lab.broker_recording import with_known_messages
from fencepost.lab.details import Details, MessageDetails
from fencepost.lab.document import FORMAT, RunFacts, document, machine
from fencepost.lab.feed import ISOLATION, START
from fencepost.lab.node_state import Changes
from fencepost.lab.wire_steps import NOTHING, About
from fencepost.protocol.terms import NO_PRODUCER_ID
from fencepost.simulator.world.history import (
    Appended,
    Arrived,
    Called,
    Coordinated,
    Event,
    History,
    Lost,
    Sent,
    Struck,
    Truncated,
)

STEPS_KEPT: Final = 10_000
BATCHES_KEPT: Final = 5_000
CHUNKS_KEPT: Final = 500
OPEN_BATCHES_MAX: Final = 500  # that a chunk may still change
OPEN_MESSAGES_MAX: Final = 100
OVERTAKERS_MAX: Final = 10  # of one message
LANES_MAX: Final = 40
NO_NUMBER: Final = -1
OTHERS: Final = "other clients"
DOWN: Final = "down: the process has ended"
PRODUCERS_MAX: Final = 1_000

Entry = dict[str, Any]


class Observed(NamedTuple):
    event: Event
    about: About = NOTHING
    changes: Changes = {}  # noqa: RUF012 - it is never changed


class Mark(NamedTuple):
    """What a page has: the chunks up to `version`, steps from `first` and batches from `first_batch` on."""

    version: int
    first: int
    first_batch: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def read(cls, text: str) -> Mark | None:
        parts = text.split(".")
        if len(parts) != len(cls._fields) or not all(part.isdecimal() and len(part) < 16 for part in parts):
            return None
        return cls(*map(int, parts))


class _Placed(NamedTuple):
    """An event and its place in the run."""

    place: int
    event: Event
    about: About


@attrs.frozen(kw_only=True)
class _Chunk:
    """What one chunk added, with places in the run."""

    steps: list[Entry]
    messages: list[Entry]
    batches: list[tuple[int, Entry]]


@attrs.define(eq=False)
class GrowingRun:
    """The run of one broker since the lab began to follow it. `facts` are those of its documents."""

    title: str
    facts: RunFacts = attrs.Factory(lambda: RunFacts(source="broker", nodes=frozenset({BROKER})))
    steps_kept: int = STEPS_KEPT
    version: int = 0
    first: int = 0
    first_batch: int = 0
    left_out: int = 0
    _steps: deque[Entry] = attrs.Factory(deque[Entry])
    _messages: dict[int, Entry] = attrs.Factory(dict[int, Entry])
    _batches: deque[Entry] = attrs.Factory(deque[Entry])
    _chunks: deque[_Chunk] = attrs.Factory(deque[_Chunk])
    _chunk_steps: int = 0  # in all of them
    _lanes: dict[str, str | None] = attrs.Factory(dict[str, "str | None"])
    _producers: dict[int, str] = attrs.Factory(dict[int, str])
    _details: Details = attrs.Factory(Details)
    _carried: Changes = attrs.Factory(dict[str, Any])
    _base: Changes = attrs.Factory(dict[str, Any])
    _open: list[_Placed] = attrs.Factory(list[_Placed])
    _owners: dict[int, _Placed] = attrs.Factory(dict[int, _Placed])
    _batch_at: dict[int, int] = attrs.Factory(dict[int, int])
    _number: int = 0
    _numbers_before: int = 0
    _at: int = 0
    _shift: int = -(1 << 63)
    _is_new: bool = True
    _processes: int = 0

    @property
    def _steps_max(self) -> int:
        """How many steps there may be until the oldest of them are left out."""
        return self.steps_kept + self.steps_kept // 4

    @property
    def end(self) -> int:
        """How many steps there have been."""
        return self.first + len(self._steps)

    # --- processes of the broker

    def begin_process(self, base: Changes) -> None:
        """The events of another process follow; `base` is the state before the first of them."""
        self._processes += 1
        self._is_new, self._numbers_before = True, self._number
        if self._processes > 1:
            lost = {each.event.number for each in self._open if isinstance(each.event, Sent)}
            lost -= {each.event.number for each in self._open if isinstance(each.event, Arrived | Lost)}
            gone = [key for key in self._details.state if key.startswith(("log/", "txn/", "producer/"))]
            down = {**dict.fromkeys(gone), f"participant/{BROKER}": "down"}
            ended = Struck(self._at, participant=BROKER, label=DOWN)
            losses = [Lost(self._at, number=number, because="the broker is gone") for number in sorted(lost)]
            self._grow([Observed(ended, NOTHING, down), *map(Observed, losses)])
        if base:
            self._say("was like this before", base)

    def miss(self, count: int, base: Changes) -> None:
        """`count` events are missing, because the broker has dropped them; `base` is the state after them."""
        self._say(f"{count:,} steps are missing: the broker has left them out", base)

    def _say(self, label: str, changes: Changes) -> None:
        self._grow([Observed(Called(self._at, participant=BROKER, label=label), NOTHING, changes)])

    def grow(self, observed: Iterable[Observed]) -> None:
        """Add events of the present process."""
        self._grow([self._placed_in_time(each) for each in observed])

    def _placed_in_time(self, observed: Observed) -> Observed:
        """The event with the time, the numbers and the lanes of the whole run."""
        event = observed.event
        if (
            self._is_new and event.at + self._shift < self._at
        ):  # the first process, or the machine was rebooted
            self._shift = self._at - event.at
        self._is_new = False
        self._at = max(self._at, event.at + self._shift)
        changes: dict[str, Any] = {"at": self._at}
        for name in ("number", "answers"):
            number = getattr(event, name, None)
            if number is not None:
                changes[name] = number + self._numbers_before
        for name in ("source", "target", "participant"):
            if hasattr(event, name):
                changes[name] = self._lane(getattr(event, name))
        if isinstance(event, Called) and event.label == START and self._processes > 1:
            event = Struck(event.at, participant=BROKER, label="restart")
        return observed._replace(event=attrs.evolve(event, **changes))

    def _lane(self, name: str) -> str:
        if name != BROKER and name not in self._lanes:
            if len(self._lanes) >= LANES_MAX:
                name = OTHERS
            self._lanes.setdefault(name, None)
        return name

    # --- growing

    def _grow(self, observed: Sequence[Observed]) -> None:
        known = {placed.event.number for placed in self._open if isinstance(placed.event, Sent)}
        fresh: list[_Placed] = []
        for each in observed:
            self._carried.update(self._isolations(each.changes))
            event = with_known_messages(each.event, known)
            if event is not None:
                place = self.end + len(fresh)
                fresh.append(_Placed(place, event, each.about))
                self._details.put(place, self._carried)
                self._carried = {}
        if fresh:
            self._add(fresh)

    def _isolations(self, changes: Changes) -> Changes:
        """The changes of states; the isolation levels of readers belong to the participants."""
        shown: Changes = {}
        for key, value in changes.items():
            if key.startswith(ISOLATION):
                self._lanes[self._lane(key.removeprefix(ISOLATION))] = value
            else:
                shown[key] = value
        return shown

    def _add(self, fresh: list[_Placed]) -> None:
        before = sorted(
            [*self._owners_of([*self._open, *fresh]), *self._open], key=lambda placed: placed.place
        )
        items = [*before, *fresh]
        made = cast("dict[str, Any]", document(_history(items), self.facts, _details(items)))
        places = [item.place for item in items]
        batches = self._new_batches(made["batches"], places)
        messages = self._new_messages(made["messages"], places)
        steps = [
            self._step(entry, item.place, batches)
            for entry, item in zip(made["steps"][len(before) :], fresh, strict=True)
        ]
        self._steps.extend(steps)
        gone = self._truncated(fresh)
        self._chunks.append(_Chunk(steps=steps, messages=messages, batches=[*batches.values(), *gone]))
        self._chunk_steps += len(steps)
        while len(self._chunks) > CHUNKS_KEPT or self._chunk_steps > self._steps_max:
            self._chunk_steps -= len(self._chunks.popleft().steps)
        self.version += 1
        self._keep_open(items, made)
        self._leave_out()

    def _owners_of(self, items: Iterable[_Placed]) -> list[_Placed]:
        """The events that say whose the producers of these events are."""
        wanted: dict[int, None] = {}
        for _, event, about in items:
            if isinstance(event, Coordinated):
                self._number_producer(event.record.producer_id, event.transactional_id)
            elif isinstance(event, Appended) and event.header.producer_id != NO_PRODUCER_ID:
                wanted[event.header.producer_id] = None
                self._number_producer(event.header.producer_id, "")
            wanted.update(dict.fromkeys(about.producer_ids))
        found = [self._owners[number] for number in wanted if number in self._owners]
        for placed in items:
            if isinstance(placed.event, Coordinated):
                self._owners.pop(placed.event.record.producer_id, None)
                self._owners[placed.event.record.producer_id] = placed
        while len(self._owners) > PRODUCERS_MAX:
            del self._owners[next(iter(self._owners))]
        return found

    def _number_producer(self, number: int, name: str) -> None:
        if number in self._producers or len(self._producers) < PRODUCERS_MAX:
            self._producers[number] = name or self._producers.get(number, "")

    def _step(self, entry: Entry, place: int, batches: dict[int, tuple[int, Entry]]) -> Entry:
        changes = self._details.changes.pop(place, None)
        if changes:
            entry["changes"] = changes
        if "batch" in entry:
            entry["batch"] = batches[entry["batch"]][0]
        return entry

    def _new_batches(self, entries: Sequence[Entry], places: Sequence[int]) -> dict[int, tuple[int, Entry]]:
        found: dict[int, tuple[int, Entry]] = {}
        for position, entry in enumerate(entries):
            _place(entry, ("appended", "decided", "gone"), places)
            number = self._batch_at.get(entry["appended"])
            if number is None:
                number = self._batch_at[entry["appended"]] = self.first_batch + len(self._batches)
                self._batches.append(entry)
            elif number >= self.first_batch:
                self._batches[number - self.first_batch] = entry
            found[position] = (number, entry)
        return found

    def _truncated(self, fresh: Iterable[_Placed]) -> list[tuple[int, Entry]]:
        """The earlier batches that a truncation took."""
        taken: list[tuple[int, Entry]] = []
        for place, event, _ in fresh:
            if isinstance(event, Truncated):
                for position, entry in enumerate(self._batches):
                    is_of_log = entry["partition"] == str(event.partition) and entry["gone"] is None
                    if is_of_log and entry["appended"] < place and entry["last"] >= event.next_offset:
                        entry = {**entry, "gone": place}
                        self._batches[position] = entry
                        taken.append((self.first_batch + position, entry))
        return taken

    def _new_messages(self, entries: Sequence[Entry], places: Sequence[int]) -> list[Entry]:
        changed: list[Entry] = []
        for entry in entries:
            _place(entry, ("sent", "arrived", "lost"), places)
            number = entry["number"]
            self._number = max(self._number, number)
            before = self._messages.get(number)
            if before is not None:  # a chunk does not know all that came before it
                entry["overtaken_by"] = [*dict.fromkeys([*before["overtaken_by"], *entry["overtaken_by"]])]
                for key in ("repeats", "late", "struck", "error", "transactions"):
                    entry[key] = entry[key] or before[key]
            if entry != before:
                self._messages[number] = entry
                changed.append(entry)
        return changed

    def _keep_open(self, items: Sequence[_Placed], made: dict[str, Any]) -> None:
        """Keep the events that the next chunk may change."""
        numbers = _still_needed(made["messages"])
        batches = [
            entry["appended"]
            for entry in made["batches"]
            if entry["result"] == "open" and entry["gone"] is None
        ]
        undecided = set(sorted(batches)[-OPEN_BATCHES_MAX:])
        self._open = [
            placed
            for placed in items
            if placed.place in undecided or getattr(placed.event, "number", NO_NUMBER) in numbers
        ]

    def _leave_out(self) -> None:
        """Forget the oldest steps; the state before the others is known, as far as a page could show it."""
        if len(self._steps) > self._steps_max:
            while len(self._steps) > self.steps_kept:
                for key, value in self._steps.popleft().get("changes", {}).items():
                    self._base.pop(key, None)
                    if value is not None:
                        self._base[key] = value
                self.first += 1
                self.left_out += 1
            for state in (self._base, self._details.state):
                while len(state) > BASE_KEYS_MAX:
                    del state[next(iter(state))]
            kept = {entry["message"] for entry in self._steps if "message" in entry}
            self._messages = {number: entry for number, entry in self._messages.items() if number in kept}
        while len(self._batches) > BATCHES_KEPT:
            del self._batch_at[self._batches.popleft()["appended"]]
            self.first_batch += 1

    # --- what a page gets

    @property
    def mark(self) -> Mark:
        """The mark of a page that has everything that is kept."""
        return Mark(self.version, self.first, self.first_batch)

    def full_document(self) -> Entry:
        """The document of everything that is kept."""
        mark = self.mark
        steps = [_step_for(step, mark) for step in self._steps]
        if steps and self._base:
            steps[0] = {**steps[0], "changes": {**self._base, **steps[0].get("changes", {})}}
        lesson = f"{self.left_out:,} earlier steps are not kept." if self.left_out else ""
        return {
            "format": FORMAT,
            "title": self.title,
            "lesson": lesson,
            "source": "broker",
            "settings": dict(self.facts.settings),
            "passed": None,
            "expected": [],
            "problems": [],
            "broken": [],
            "machine": machine(self.facts.transaction_version),
            "messages": [
                _message_for(_without_unknown(entry, self._messages), mark)
                for entry in self._messages.values()
            ],
            "batches": [_batch_for(entry, mark) for entry in self._batches],
            "steps": steps,
            **self._changing(),
        }

    def _changing(self) -> Entry:
        """What changes with every chunk."""
        lanes: list[Entry] = [
            {"name": name, "kind": "client", **({} if level is None else {"isolation": level})}
            for name, level in self._lanes.items()
        ]
        return {
            "participants": [*lanes, {"name": BROKER, "kind": "node"}],
            "producers": [
                {"id": number, "transactional_id": name} for number, name in self._producers.items()
            ],
            "end": self._at,
        }

    def growth(self, mark: Mark) -> Entry | None:
        """What is new since a page was at this mark; None if it has to load the whole document."""
        behind = self.version - mark.version
        is_known = mark.first <= self.first and mark.first_batch <= self.first_batch
        if not (is_known and 0 <= behind <= len(self._chunks)):
            return None
        new = [self._chunks[len(self._chunks) - behind + index] for index in range(behind)]
        messages = {entry["number"]: entry for chunk in new for entry in chunk.messages}
        batches = {number: entry for chunk in new for number, entry in chunk.batches}
        return {
            "steps": [_step_for(step, mark) for chunk in new for step in chunk.steps],
            "messages": [_message_for(entry, mark) for entry in messages.values()],
            "batches": [
                {"index": number - mark.first_batch, **_batch_for(entry, mark)}
                for number, entry in sorted(batches.items())
                if number >= mark.first_batch
            ],
            **self._changing(),
        }


def _still_needed(messages: Sequence[Entry]) -> set[int | None]:
    """The messages that later events can change, or that say what later messages repeat or overtake."""
    answered = {entry["answers"] for entry in messages if entry["arrived"] is not None}
    waiting = [
        entry
        for entry in messages
        if (entry["arrived"] is None and entry["lost"] is None)
        or (entry["answers"] is None and entry["number"] not in answered)
    ][-OPEN_MESSAGES_MAX:]
    numbers = {entry["number"] for entry in waiting} | {entry["answers"] for entry in waiting}
    numbers.update(number for entry in waiting for number in entry["overtaken_by"][-OVERTAKERS_MAX:])
    alike = {(entry["source"], entry["target"], entry["label"]): NO_NUMBER for entry in waiting}
    for entry in messages:
        key = (entry["source"], entry["target"], entry["label"])
        if key in alike:
            alike[key] = entry["number"]
    numbers.update(alike.values())
    numbers.update(entry["number"] for entry in messages if entry["answers"] in numbers)
    return numbers - {None}


def _history(items: Sequence[_Placed]) -> History:
    events = tuple(item.event for item in items)
    return History(title="", participants=(), events=events, end=events[-1].at)


def _details(items: Sequence[_Placed]) -> Details:
    """What is about the events of a chunk."""
    details = Details()
    for position, (_, event, about) in enumerate(items):
        if isinstance(event, Sent) and about is not NOTHING:
            details.messages[event.number] = MessageDetails(
                transactional_id=about.transactional_id, producer_ids=about.producer_ids, error=about.error
            )
        elif about.values is not None:
            details.values[position] = about.values
        if about.why is not None:
            details.reasons[position] = about.why
    return details


def _place(entry: Entry, keys: Iterable[str], places: Sequence[int]) -> None:
    """Turn places in a chunk into those in the run."""
    for key in keys:
        if entry[key] is not None:
            entry[key] = places[entry[key]]


# --- entries as a page counts -------------------------------------------------------------------------------


def _counted(entry: Entry, keys: Iterable[str], first: int) -> Entry:
    """An entry whose places count from `first` on; an earlier place becomes 0."""
    return {**entry, **{key: max(0, entry[key] - first) for key in keys if entry.get(key) is not None}}


def _step_for(entry: Entry, mark: Mark) -> Entry:
    if entry.get("batch", mark.first_batch) < mark.first_batch:
        entry = {key: value for key, value in entry.items() if key != "batch"}
    return _counted(entry, ("batch",), mark.first_batch)


def _message_for(entry: Entry, mark: Mark) -> Entry:
    return _counted(entry, ("sent", "arrived", "lost"), mark.first)


def _without_unknown(entry: Entry, known: Mapping[int, Entry]) -> Entry:
    """The message, without references to messages that are not kept."""
    named = {key: entry[key] for key in ("answers", "repeats") if entry[key] in known}
    overtaken_by = [number for number in entry["overtaken_by"] if number in known]
    return {**entry, "answers": None, "repeats": None, **named, "overtaken_by": overtaken_by}


def _batch_for(entry: Entry, mark: Mark) -> Entry:
    return _counted(entry, ("appended", "decided", "gone"), mark.first)
