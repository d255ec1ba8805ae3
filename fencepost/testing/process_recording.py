"""The recording of a broker process: the child writes what happens to a file, and its parent reads that.

Rule: an event is in the file before the broker continues, so that a kill loses none.
"""

# Each life of the process has files of its own, in which events follow each other as pickles. When a file is
# full, it becomes the older one of two, so that a life keeps its last events and no more. Processes of a
# machine share the monotonic clock, so their events are ordered by it. Messages are numbered in each life
# from 1, and by `LIFE_NUMBERS` higher in the next.

from __future__ import annotations

import os
import pickle
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Self

import attrs

from fencepost.broker.fault_requests import FAULT_REQUESTS
from fencepost.broker.notices import BROKER as BROKER_LOG
from fencepost.faults.phrases import BROKER, Point, PointKind
from fencepost.lab.broker_recording import EVENTS_KEPT, Recording
from fencepost.protocol.forked_process import in_child
from fencepost.simulator.world.history import Arrived, Coordinated, Event, History, Lost, Sent, Struck

LIFE_NUMBERS: Final = 1_000_000_000
OLDER: Final = ".older"
CUT: Final = ".cut"  # an empty file: the first events of this life are lost
_ABOUT_FAULTS: Final = frozenset(request.__name__ for request in FAULT_REQUESTS)  # no fault strikes these


@attrs.define(eq=False)
class FileRecording(Recording):
    """An observer that writes each event to a file; in the child."""

    _path: Path = attrs.field(kw_only=True, alias="path")
    _file: int | None = attrs.field(init=False)
    """None after an error of the disk: the recording is over, and the broker continues."""
    _written: int = attrs.field(init=False, default=0)

    @classmethod
    def to(cls, path: Path) -> Self:
        """A recording in this file; its times are those of the monotonic clock."""
        recording = cls(path=path)
        recording._began_ns = 0
        recording._file = _opened(path)
        return recording

    def _add(self, event: Event) -> None:
        if self._file is None:
            return
        try:
            self._write(self._file, pickle.dumps(event))
        except OSError as problem:
            BROKER_LOG.warning("the recording of this process ends here: %s", problem.strerror)
            os.close(self._file)
            self._file = None

    def _write(self, file: int, event: bytes) -> None:
        left = memoryview(event)
        while left:  # a disk that gets full takes a part, and then nothing
            left = left[os.write(file, left) :]
        self._written += 1
        if self._written == EVENTS_KEPT:
            older = Path(f"{self._path}{OLDER}")
            if older.exists():
                Path(f"{self._path}{CUT}").touch()
            self._path.rename(older)
            fresh = _opened(self._path)
            os.close(file)
            self._file, self._written = fresh, 0


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


@attrs.define(eq=False)
class ProcessRecording(Recording):
    """What happened at a broker process, through all its lives; in the parent."""

    _directory: Path = attrs.Factory(lambda: Path(mkdtemp(prefix="fencepost-")))
    _lives: list[Path] = attrs.Factory(list[Path])
    _marks: list[Event] = attrs.Factory(list[Event])
    _removal: weakref.finalize[..., ProcessRecording] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._removal = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        in_child(self, ProcessRecording._leave_to_parent)

    def _leave_to_parent(self) -> None:
        self._removal.detach()

    def next_life(self) -> Path:
        """The file for a process that starts now."""
        if self._lives:
            self._mark("restart")
        self._lives.append(self._directory / f"{len(self._lives)}.events")
        return self._lives[-1]

    def end_life(self) -> None:
        """The parent has killed the process."""
        self._mark("crash")

    def _mark(self, label: str) -> None:
        self._marks.append(Struck(self._now(), participant=BROKER, label=label))

    def history(self, title: str = "what happened") -> History:
        """Everything that is kept of all lives. `title`: the heading of its table and drawing."""
        events = self._on_disk()
        self.left_out = max(0, len(events) - EVENTS_KEPT)
        self._events = events[self.left_out :]
        return Recording.history(self, title)

    @property
    def is_cut(self) -> bool:
        """Whether a life was so long that its files have lost its first events."""
        return any(Path(f"{path}{CUT}").exists() for path in self._lives)

    def points(self) -> Iterator[Point]:
        """The points that a sweep can use, in their order: requests, and states of transactions. They are
        all that were reached, unless the recording `is_cut`.
        """
        for event in self._on_disk():
            match event:
                case Sent(source=client, label=label, answers=None) if client != BROKER:
                    if (request := label.split()[0]) not in _ABOUT_FAULTS:
                        yield Point(kind=PointKind.SENDS, who=client, what=request, whom=BROKER)
                case Coordinated(transactional_id=name, record=record):
                    yield Point(kind=PointKind.DECIDES, who=f"coordinator of {name}", what=record.state.name)
                case _:
                    continue

    def _on_disk(self) -> list[Event]:
        """What the files of all lives hold, in order."""
        events = [*self._marks]
        for number, path in enumerate(self._lives):
            for each in (Path(f"{path}{OLDER}"), path):
                events += (self._placed(event, number) for event in _read(each))
        return sorted(events, key=lambda event: event.at)

    def _placed(self, event: Event, life: int) -> Event:
        """The event with the times and numbers of all lives."""
        at, first = event.at - self._began_ns, life * LIFE_NUMBERS
        match event:
            case Sent(number=number, answers=answers):
                answered = None if answers is None else first + answers
                return attrs.evolve(event, at=at, number=first + number, answers=answered)
            case Arrived(number=int(number)) | Lost(number=int(number)) | Struck(number=int(number)):
                return attrs.evolve(event, at=at, number=first + number)
            case _:
                return attrs.evolve(event, at=at)


def _read(path: Path) -> Iterator[Event]:
    """The events in a file; the last one may be torn by a kill."""
    if path.exists():
        with path.open("rb") as file:
            while True:
                try:
                    yield pickle.load(file)
                except (EOFError, pickle.UnpicklingError):
                    return
