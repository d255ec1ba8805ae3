"""Seeds on several cores: processes that are handed a few seeds at a time and send back what they came to.

Rule: nobody else dies quietly. A worker that is gone is told with the seed it was at, and Ctrl-C ends all.
"""

from __future__ import annotations

import gc
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol, cast

import attrs

from fencepost.cli.errors import CommandFailed
from fencepost.simulator.fuzz.seeds import Tried, try_one
from fencepost.simulator.fuzz.trial import Planner

AHEAD: Final = 4  # seeds that a worker has before it, so that it never waits for more
GLANCE_SECONDS: Final = 0.2  # how long to wait for a result before whoever watches may look at the rest
PATIENCE_SECONDS: Final = 5.0


class Pipe(Protocol):
    """One end of a pipe between processes; what it is called differs by system."""

    def send(self, obj: object, /) -> None: ...

    def recv(self) -> Any: ...

    def close(self) -> None: ...

    def fileno(self) -> int: ...


@attrs.frozen
class Timed:
    """What a seed came to, and the seconds of a core that it took."""

    tried: Tried
    seconds: float


def try_seeds(seeds: range, planner: Planner, *, cores: int) -> Generator[Timed | None]:
    """Every seed's result, in any order; None when there is nothing new for a moment. CommandFailed when a
    worker dies.
    """
    return _in_this_process(seeds, planner) if cores == 1 else _in_workers(seeds, planner, cores)


def _in_this_process(seeds: range, planner: Planner) -> Generator[Timed]:
    with PausedCollector():
        for seed in seeds:
            yield _try_timed(seed, planner)


def _try_timed(seed: int, planner: Planner) -> Timed:
    began = time.process_time()
    tried = try_one(seed, planner)
    gc.collect()  # a world is full of cycles: it goes as a whole, between two seeds
    return Timed(tried, time.process_time() - began)


# --- workers ------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Worker:
    """A process, our end of its pipe, and the seeds that it has not answered for."""

    process: BaseProcess
    pipe: Pipe
    expected: deque[int] = attrs.Factory(deque[int])

    def hand(self, seed: int) -> None:
        self.expected.append(seed)
        try:
            self.pipe.send(seed)
        except (BrokenPipeError, ConnectionResetError):
            raise self.death() from None

    def take(self) -> Timed:
        try:
            timed: Timed = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        self.expected.popleft()
        return timed

    def death(self) -> CommandFailed:
        self.process.join(PATIENCE_SECONDS)
        seed = self.expected[0]
        return CommandFailed(
            f"the process that tried seed {seed} died with exit code {self.process.exitcode}",
            then=f"see why with `fencepost fuzz --first-seed {seed} --seeds 1 --cores 1`",
        )


def _in_workers(seeds: range, planner: Planner, cores: int) -> Generator[Timed | None]:
    workers: list[_Worker] = []
    try:
        for _ in range(min(cores, len(seeds))):
            workers.append(_hire(planner))
        yield from _hand_round(iter(seeds), workers)
    finally:
        _dismiss(workers)


def _hire(planner: Planner) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, planner), name="fencepost-seeds", daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _hand_round(waiting: Iterator[int], workers: Sequence[_Worker]) -> Iterator[Timed | None]:
    for _ in range(AHEAD):
        for worker in workers:
            _hand_next(waiting, worker)
    while busy := {worker.pipe.fileno(): worker for worker in workers if worker.expected}:
        ready = wait(busy, timeout=GLANCE_SECONDS)
        if not ready:
            yield None
        for pipe in ready:
            worker = busy[cast("int", pipe)]
            timed = worker.take()
            _hand_next(waiting, worker)
            yield timed


def _hand_next(waiting: Iterator[int], worker: _Worker) -> None:
    seed = next(waiting, None)
    if seed is not None:
        worker.hand(seed)


def _dismiss(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(PATIENCE_SECONDS)


def _work(pipe: Pipe, planner: Planner) -> None:
    """A worker's life: it ends with its pipe. Ctrl-C reaches everybody; whoever hired us dismisses us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with PausedCollector():
        while True:
            try:
                pipe.send(_try_timed(pipe.recv(), planner))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


class PausedCollector:
    """Inside it nothing is collected unless it is asked for, and what was there before is never looked at."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()
