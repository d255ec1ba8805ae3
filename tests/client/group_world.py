"""Consumers of one group and a broker, in one world of values: time passes only when a story says so.

Each application polls whenever something happens, runs its callbacks at once, and notes what it was told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import attrs

from fencepost.broker.contract import Disconnected, ReplyTo
from fencepost.broker.settings import NodeSettings
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.effects import CallAnswered, Effect, SendRequest, WakeAt, WarnProgram
from fencepost.client.errors import ClientError
from fencepost.client.member_states import MemberState
from fencepost.client.metadata import CoordinatorOf
from fencepost.client.settings import ConsumerSettings
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.terms import CoordinatorType, GroupState, TopicPartition
from tests.broker.group_story import GROUP, GroupStory
from tests.broker.requests import Identity, produce_request, produced
from tests.broker.story import SETTINGS

SESSION_MS: Final = 10_000
HEARTBEAT_MS: Final = 1_000
MAX_POLL_MS: Final = 30_000
NOBODY: Final = Identity(-1, -1)
TURNS_MAX: Final = 10_000


def where(text: str) -> TopicPartition:
    """`t0` is partition 0 of t."""
    return TopicPartition(text[:-1], int(text[-1]))


def brief(partitions: Any) -> str:
    """`t0 t1`."""
    return " ".join(f"{p.topic}{p.partition}" for p in sorted(partitions))


class Application:
    """A program with one consumer. It can stop polling, freeze as a whole, or die."""

    def __init__(self, world: GroupWorld, name: str, number: int, settings: ConsumerSettings) -> None:
        self.world, self.name, self.number = world, name, number
        self.machine = ConsumerMachine("h:1", settings)
        self.wake_at: int | None = None
        self.told: list[str] = []
        """Callbacks and errors, as `revoked t0 t1`."""
        self.warned: list[str] = []
        self.read: list[str] = []
        self.answers: dict[int, CallAnswered] = {}
        self.inbox: list[Callable[[], list[Effect]]] = []
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.is_polling = True
        self.is_frozen = False
        self.is_alive = True
        self.in_callback: Callable[[str], None] = lambda told: None

    # --- what the shell does

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendRequest():
                    self.sent[type(effect.request).__name__] += 1
                    self.world.ask(self, effect)
                case WakeAt():
                    self.wake_at = effect.at
                case CallAnswered():
                    self.answers[effect.number] = effect
                case WarnProgram():
                    self.warned.append(effect.because)
                case _:
                    raise AssertionError(effect)

    def act(self) -> bool:
        """Everything that can happen now; whether something did."""
        if self.is_frozen or not self.is_alive:
            return False
        before = (len(self.told), len(self.read), sum(self.sent.values()))
        while self.inbox:
            self.perform(self.inbox.pop(0)())
        if self.wake_at is not None and self.wake_at <= self.world.now:
            self.wake_at = None
            self.perform(self.machine.wake(self.world.now))
        if self.is_polling:
            self.poll()
        return before != (len(self.told), len(self.read), sum(self.sent.values()))

    def poll(self) -> None:
        try:
            self.perform(self.machine.poll(self.world.now))
        except ClientError as problem:
            self.told.append(type(problem).__name__)
            self.is_polling = False
            return
        self.run_callbacks()
        self.read += [bytes(v or b"").decode() for batch in self.machine.take() for v in batch.values]
        self.perform(self.machine.wake(self.world.now))

    def run_callbacks(self) -> None:
        while (call := self.machine.rebalance_call) is not None:
            told = f"{call.event.name.lower()} {brief(call.partitions)}".strip()
            self.told.append(told)
            self.in_callback(told)
            self.perform(self.machine.returned(self.world.now))
            if self.is_polling:
                self.perform(self.machine.poll(self.world.now))

    # --- what the program does

    def subscribe(self, *topics: str) -> None:
        self.perform(self.machine.subscribe(topics, self.world.now))

    def leave(self) -> None:
        self.is_polling = False
        self.perform(self.machine.unsubscribe(self.world.now))
        self.run_callbacks()
        self.world.settle()

    def commit(self, offsets: dict[str, int]) -> str:
        """NONE, or what it raises."""
        try:
            request = self.machine.commit_request({where(text): offset for text, offset in offsets.items()})
        except ClientError as problem:
            return type(problem).__name__
        group = CoordinatorOf(CoordinatorType.GROUP, GROUP)
        number = self.machine.calls.submit(request, group, self.world.now + 60_000)
        self.perform(self.machine.wake(self.world.now))
        self.world.settle(calm=self)
        answer = self.answers.pop(number)
        return "NONE" if answer.failure is None else answer.failure.kind.__name__

    @property
    def assigned(self) -> str:
        return brief(self.machine.assigned)

    @property
    def generation(self) -> int:
        return self.machine.group_metadata().generation_id

    @property
    def state(self) -> MemberState:
        assert self.machine.member is not None, f"{self.name} is not subscribed"
        return self.machine.member.state

    def heard(self) -> list[str]:
        """What it was told since the last time that a story asked."""
        told, self.told = self.told, []
        return told


class GroupWorld:
    """A broker with topics t (4 partitions) and u (2), and the applications of a group."""

    def __init__(self, *, settings: NodeSettings = SETTINGS, topics: dict[str, int] | None = None) -> None:
        self.story = GroupStory(settings=settings)
        for topic, count in ({"t": 4, "u": 2} if topics is None else topics).items():
            self.story.create(topic, count)
        self.apps: list[Application] = []
        self.asked: dict[ReplyTo, tuple[Application, int]] = {}
        self.refuses: dict[type, ErrorCode] = {}
        """The error that each request of a kind gets."""

    @property
    def now(self) -> int:
        return self.story.now

    def app(self, name: str, *topics: str, strategy: str = "range", **settings: Any) -> Application:
        """A program that has subscribed and begins to poll."""
        chosen = ConsumerSettings(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=MAX_POLL_MS,
            partition_assignment_strategy=(strategy,),
            client_id=name,
        )
        made = Application(self, name, 100 + len(self.apps), attrs.evolve(chosen, **settings))
        self.apps.append(made)
        if topics:
            made.subscribe(*topics)
        return made

    # --- messages

    def ask(self, app: Application, send: SendRequest) -> None:
        error = self.refuses.get(type(send.request))
        if error is not None:
            self._tell(app, send.token, error, None)
            return
        to = self.story.offer(send.request, connection=app.number)
        self.asked[to] = (app, send.token)

    def _deliver(self) -> bool:
        for to in [to for to in self.story.replies if to in self.asked]:
            reply = self.story.replies.pop(to)
            app, token = self.asked.pop(to)
            self._tell(app, token, reply.error, reply.body)
        return any(app.inbox and app.is_alive and not app.is_frozen for app in self.apps)

    def _tell(self, app: Application, token: int, error: ErrorCode, body: Any) -> None:
        app.inbox.append(lambda: app.machine.on_reply(token, error, body, self.now))

    def crash(self) -> None:
        """The broker dies and starts again; every connection is lost."""
        self.story.restart()
        for app, token in self.asked.values():
            self._tell(app, token, ErrorCode.NETWORK_EXCEPTION, None)
        self.asked.clear()

    def kill(self, app: Application) -> None:
        """The process is gone without a word."""
        app.is_alive = False
        self.story.host.offer(Disconnected(connection=app.number))
        self.settle()

    # --- time

    def settle(self, *, calm: Application | None = None) -> None:
        """Everything happens that can happen now. `calm` waits for an answer, and does not poll meanwhile."""
        was_polling = calm is not None and calm.is_polling
        if calm is not None:
            calm.is_polling = False
        for _ in range(TURNS_MAX):
            self.story.run()
            acted = [app.act() for app in self.apps]
            if not any(acted) and not self._deliver() and self.story.host.is_idle:
                break
        else:
            raise AssertionError("the world runs in circles")
        if calm is not None:
            calm.is_polling = was_polling

    def wait(self, duration_ms: int) -> None:
        """Time passes, and what is due happens at its time."""
        until = self.now + duration_ms
        self.settle()
        while (at := self._next_at()) is not None and at <= until:
            self.story.now = max(self.now + 1, at)
            self.settle()
        self.story.now = max(self.now, until)
        self.settle()

    def _next_at(self) -> int | None:
        awake = [app for app in self.apps if app.is_alive and not app.is_frozen]
        times = [self.story.host.wakes_at_ms, *(app.wake_at for app in awake)]
        return min((at for at in times if at is not None), default=None)

    # --- looking

    def produce(self, partition: str, *values: str) -> None:
        key = where(partition)
        request = produce_request(NOBODY, {key: " ".join(values)}, name=None)
        assert produced(self.story.ask(request))[key].error is ErrorCode.NONE

    def check_stable(self, *apps: Application) -> None:
        """These are the group, in one generation, and every partition has one reader."""
        assert self.story.state is GroupState.STABLE, self.story.group
        assert [app.state for app in apps] == [MemberState.STABLE] * len(apps)
        assert {app.generation for app in apps} == {self.story.generation}
        assert len(self.story.group.members) == len(apps)
        readers = [partition for app in apps for partition in app.machine.assigned]
        assert len(readers) == len(set(readers)), {app.name: app.assigned for app in apps}
