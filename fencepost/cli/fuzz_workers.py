"""Runs seeds on several cores, in worker processes that receive a few seeds at a time and return the results.

Rule: no worker dies silently. The error names the seed that a dead worker was running. Ctrl-C ends all
workers.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from typing import Any, Final, Protocol, cast

import attrs

from fencepost.cli.errors import CommandFailed
from fencepost.cli.interruptions import deferred_signals
from fencepost.simulator.fuzz.plan import Planner
from fencepost.simulator.fuzz.seeds import Tried, try_one

QUEUED_SEEDS: Final = 4  # in each worker, so that it never waits for the next one
POLL_SECONDS: Final = 0.2  # how long to wait for a result before the caller updates its progress bar
JOIN_SECONDS: Final = 5.0


class Pipe(Protocol):
    """One end of a pipe between processes; its class differs between operating systems."""

    def send(self, obj: object, /) -> None: ...

    def recv(self) -> Any: ...

    def close(self) -> None: ...

    def fileno(self) -> int: ...


def try_seeds(seeds: range, planner: Planner, *, cores: int) -> Generator[Tried | None]:
    """The result of every seed, in any order; None whenever no result arrived for a moment.

    CommandFailed if a worker dies.
    """
    return _in_this_process(seeds, planner) if cores == 1 else _in_workers(seeds, planner, cores)


def _in_this_process(seeds: range, planner: Planner) -> Generator[Tried]:
    with PausedCollector():
        for seed in seeds:
            yield _try_timed(seed, planner)


def _try_timed(seed: int, planner: Planner) -> Tried:
    began = time.process_time()
    tried = try_one(seed, planner)
    gc.collect()  # a finished run is full of reference cycles: free it at once, between two seeds
    return attrs.evolve(tried, seconds=time.process_time() - began)


# --- workers ------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Worker:
    """A process, our end of its pipe, and the seeds whose results are outstanding."""

    process: BaseProcess
    pipe: Pipe
    expected: deque[int] = attrs.Factory(deque[int])

    def send(self, seed: int) -> None:
        self.expected.append(seed)
        try:
            self.pipe.send(seed)
        except (BrokenPipeError, ConnectionResetError):
            raise self.death() from None

    def receive(self) -> Tried:
        try:
            tried: Tried = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        self.expected.popleft()
        return tried

    def death(self) -> CommandFailed:
        self.process.join(JOIN_SECONDS)
        seed = self.expected[0]
        return CommandFailed(
            f"the worker process died with exit code {self.process.exitcode} while it ran seed {seed}",
            then=f"reproduce it with the same options and `--first-seed {seed} --seeds 1 --cores 1`",
        )


def _in_workers(seeds: range, planner: Planner, cores: int) -> Generator[Tried | None]:
    workers: list[_Worker] = []
    try:
        for _ in range(cores):
            workers.append(_start_worker(planner))
        yield from _distribute(iter(seeds), workers)
    finally:
        _stop_workers(workers)


def _start_worker(planner: Planner) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, planner), name="fencepost-seeds", daemon=True)
    ensure_running()  # the first start would do it, and unblock Ctrl-C
    # Ctrl-C reaches every process of the terminal, but this one ends its workers itself.
    with deferred_signals():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _distribute(waiting: Iterator[int], workers: Sequence[_Worker]) -> Iterator[Tried | None]:
    for _ in range(QUEUED_SEEDS):
        for worker in workers:
            _send_next(waiting, worker)
    while busy := {worker.pipe.fileno(): worker for worker in workers if worker.expected}:
        ready = wait(busy, timeout=POLL_SECONDS)
        if not ready:
            yield None
        for pipe in ready:
            worker = busy[cast("int", pipe)]
            tried = worker.receive()
            _send_next(waiting, worker)
            yield tried


def _send_next(waiting: Iterator[int], worker: _Worker) -> None:
    seed = next(waiting, None)
    if seed is not None:
        worker.send(seed)


def _stop_workers(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
        worker.pipe.close()
    for worker in workers:
        worker.process.join(JOIN_SECONDS)


def _work(pipe: Pipe, planner: Planner) -> None:
    """The main function of a worker, which ends with its pipe."""
    with PausedCollector():
        while True:
            try:
                pipe.send(_try_timed(pipe.recv(), planner))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


class PausedCollector:
    """Inside it, Python collects garbage only on request, and never scans objects that existed before.

    A simulated cluster is full of short-lived reference cycles; collecting it as a whole after the run is
    cheaper than scanning it while it grows. What a caller has frozen stays frozen.
    """

    def __enter__(self) -> None:
        self._is_ours = not gc.get_freeze_count()
        gc.collect()
        if self._is_ours:
            gc.freeze()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
        if self._is_ours:
            gc.unfreeze()
