"""What a call of a client is: a script, written once, that every driver can run. The scripts are in
`producer_calls`, `consumer_calls` and `admin`.

Rule: a script never blocks. It touches the machine, passes effects to its driver, and yields a `Wait`, or a
`Callback` of the program.
"""

# Theory of operation
# -------------------
#
# The machines (`producer`, `consumer`, `requests`) turn inputs into effects and never wait. Their callers do
# wait: until a commit is answered, until the buffer has room, until a record arrives. A script is a generator
# that decides what its call waits for, for how long, and what happens when the wait ends early:
#
#         script                         driver                                   where
#         ------                         ------                                   -----
#         perform(effects)         -->   bytes into sockets
#         yield Wait(until, ...)   -->   rounds of a selector                     shells/sync_driver.py
#                                        a parked task                            shells/aio_driver.py
#                                        a process in virtual time                simulator/world/processes.py
#         (continues)              <--   `until()` is true, or `deadline` passed
#         yield Callback(...)      -->   runs a rebalance listener of the program
#         return value             -->   the result of the public method
#
# So the simulator runs the code that users run, and the sync and async clients cannot drift apart: their
# public methods are these scripts, each with its signature and its docstring (`shells/clients.py`).
#
# A driver keeps three promises:
#
# * A script runs alone: between two of its `yield`s, nothing else changes the machine, except that the hot
#   path of another thread may add records to open batches (accumulator.py). The blocking driver holds a lock
#   and releases it only while a script waits.
# * A script resumes when `until()` is true or when the deadline has passed. It checks which of the two it
#   was.
# * An exception that hits the waiting caller (Ctrl-C, a cancelled task) is thrown into the script at its
#   `yield`. Otherwise a call could end silently: a commit whose EndTxn was sent and not answered must end as
#   CommitOutcomeUnknown, because "cancelled" reads like "not committed", and the program would do the work a
#   second time.
#
# Timeouts follow Kafka's names: `max_block_ms` (max.block.ms) limits send, init, commit and abort;
# `default_api_timeout_ms` limits requests of consumers and admins. After RequestTimeout the request is still
# pending, and the same call continues to wait for it, as in KafkaProducer.

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from fencepost.client.effects import CallAnswered, Effect, TransactionCall
from fencepost.client.errors import Failure
from fencepost.client.requests import RequestMachine
from fencepost.client.retries import BrokerAt, Target
from fencepost.client.settings import UNKNOWN_GRACE_MS
from fencepost.protocol.messages import Request
from fencepost.protocol.terms import TopicPartition

ResultT = TypeVar("ResultT")

# The `woken_by` of a Wait names what can make its condition true, so that a driver wakes only those tasks.
ANYTHING: Final = "anything"


class Wait(NamedTuple):
    """Resume when `until()` is true, or at `deadline` (ms of the driver's clock), whichever is first."""

    until: Callable[[], bool]
    woken_by: Hashable = ANYTHING
    deadline: float = inf
    is_shielded: bool = False
    """Whether a cancelled caller waits nevertheless."""


class Callback(NamedTuple):
    """Call a function of the program, without a lock, because it may use the client. It may be async."""

    function: Callable[[list[TopicPartition]], Awaitable[None] | None]
    partitions: list[TopicPartition]


CallScript = Generator[Wait | Callback, None, ResultT]


class CallDriver(Protocol):
    """What runs scripts: it has the clock, the connections, and the results of the machine."""

    @property
    def now(self) -> int:
        """Milliseconds of the monotonic clock for timeouts."""
        ...

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970, for the timestamps of records."""
        ...

    @property
    def cancelled(self) -> tuple[type[BaseException], ...]:
        """The exceptions of a cancelled task. A cancel scope swallows them, and with them a lost outcome."""
        ...

    @property
    def resolved(self) -> dict[TransactionCall, Failure | None]: ...

    @property
    def answers(self) -> dict[int, CallAnswered]: ...

    def perform(self, effects: list[Effect]) -> None: ...

    def check_running(self) -> None:
        """Raises WrongState or ClientClosed outside the life of the client."""
        ...


class RequestCalls:
    """The calls of a client that sends requests: the parent of those of a consumer and an admin."""

    __slots__ = ("_api_timeout_ms", "_driver", "_machine")

    def __init__(self, machine: RequestMachine, driver: CallDriver, *, api_timeout_ms: int) -> None:
        self._machine = machine
        self._driver = driver
        self._api_timeout_ms = api_timeout_ms

    def ask(self, request: Request, target: Target) -> CallScript[Any]:
        """Returns the reply. RequestFailed if the broker rejects it, RequestTimeout after the API timeout."""
        (answer,) = yield from self.ask_each([(request, target)])
        if answer.failure is not None:
            raise answer.failure.exception()
        return answer.reply

    def ask_each(self, requests: Iterable[tuple[Request, Target]]) -> CallScript[list[CallAnswered]]:
        """The answers, in this order. All requests are sent at once, and none waits for another. For a
        partition or a broker that still does not exist after UNKNOWN_GRACE_MS, UnknownTopic or
        RequestFailed answers.
        """
        calls, answers, driver = self._machine.calls, self._driver.answers, self._driver
        began, since = driver.now, calls.cluster.asked
        deadline = began + self._api_timeout_ms
        numbers: dict[int, Target] = {}
        for request, target in requests:
            numbers[calls.submit(request, target, deadline)] = target

        def is_settled(number: int, target: Target) -> bool:
            if number in answers:
                return True
            is_grace_over = driver.now - began >= UNKNOWN_GRACE_MS
            is_denied = is_grace_over and calls.denied(target) is not None
            return is_denied and calls.cluster.is_newer_than(since)

        try:
            self._wake()
            for number, target in numbers.items():
                may_be_denied = isinstance(target, TopicPartition | BrokerAt)
                woken_by = ANYTHING if may_be_denied else ("answer", number)
                yield Wait(partial(is_settled, number, target), woken_by)
                if number not in answers:
                    # Now, because the partition may be created while the other answers are awaited.
                    answers[number] = CallAnswered(number, reply=None, failure=calls.denied(target))
        finally:
            for number in numbers:
                calls.cancel(number)  # an interrupted caller does not need the reply
            found = [answers.pop(number, None) for number in numbers]
        answered = [answer for answer in found if answer is not None]
        assert len(answered) == len(numbers), "every request is answered, if only by its deadline"
        return answered

    def _wake(self) -> None:
        self._driver.perform(self._machine.wake(self._driver.now))
