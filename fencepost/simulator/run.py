"""One run of a world: start it, let actors act and faults strike, heal it, let it converge, read all,
judge.

Theory of operation. A fuzzed world, a scenario, a shrunk scenario and `fencepost.simulate()` are values
of one class, `RunSpec`: a cast of roles, faults at points of the protocol, faults drawn by chance, and
what must be reached. `Run` plays any of them through the same phases:

    start      nodes start, topics are created, roles enter as client processes
    act        scripts run; faults strike, at their points or when chance says so
    heal       every effect of a fault is undone, every node runs
    converge   scripts end, everything is copied, no transaction stays open (LSO = log end everywhere)
    read all   one last read_committed consumer reads every partition to its end
    settle     markers are complete, and the white-box judge sees nothing in progress
    judge      the black box looks at what clients saw, and at what was copied; `check` reads the disks

The order matters. Healing comes before converging because only a healed cluster must make progress: in
a broken one a transaction may rightly stay open. Reading comes after converging because a record is lost
only when nothing can bring it back. The judges of steps look on from the first event (world/events.py);
without them a run that ends well could have been wrong in between.

Damage to a disk is never healed. Once a damaged log was detected (judges/damage.py), the cluster need not
make progress, but must not lie: each phase has a timeout, and the judges demand everything that is not
about getting done. As long as nothing was detected, the damage must be harmless, and every rule holds.

A run ends in one of three ways: at the first breach (`keeps_going` is False: a search wants the first
cause); at its end, with every breach collected (a scenario may expect one and its
consequences); or it does not end, which is a breach of liveness. The world's choices decide everything
else, so the same spec with the same choices is the same run.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs

from fencepost.broker.leader_log import LeaderLog
from fencepost.broker.transactions.state import Transactions
from fencepost.journal.storage import DamagedLog
from fencepost.protocol.terms import TopicPartition
from fencepost.protocol.transaction_log import TransactionRecord
from fencepost.simulator.actors.clients import Actor
from fencepost.simulator.actors.processors import Copies
from fencepost.simulator.actors.workloads import Recreation
from fencepost.simulator.faults.injector import FaultInjector
from fencepost.simulator.faults.protocol_events import SAME, Listener, ProtocolEvent, ProtocolEvents
from fencepost.simulator.faults.random_faults import FAULT, RandomFaults
from fencepost.simulator.judges.clients import judge_clients
from fencepost.simulator.judges.coverage import Coverage
from fencepost.simulator.judges.damage import DamageBook
from fencepost.simulator.judges.files_rule import judge_files
from fencepost.simulator.judges.known_anomalies import KnownAnomaly, LateMessages, known_kafka
from fencepost.simulator.judges.operations import ClientOperation, Poll
from fencepost.simulator.judges.rules import Violation
from fencepost.simulator.judges.white_box import Invariants
from fencepost.simulator.run_result import RunObserver, RunResult
from fencepost.simulator.run_spec import Role, RunSpec, Task
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.events import CallBegan
from fencepost.simulator.world.history import History
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.processes import ClientProcess
from fencepost.simulator.world.world import Disordered, World

CORE_FAILED: Final = "a core failed"
JUDGE_FAILED: Final = "a judge failed"
NOT_LIVE: Final = "liveness"
DAMAGED_PHASE_TIMEOUT_NS: Final = 3_000 * NS_PER_MS  # longer than a request takes that is retried
UNREACHABLE: Final = 1 << 62  # the end of a log that cannot be read
KNOWN: Final = "known: "  # begins the mark of each known behaviour
ENDED: Final = ("commit: ok", "abort: ok")  # marks of transactions whose process learned that they ended


@attrs.define(eq=False)
class CastMember:
    """One process that plays, or played, a role."""

    role: Role
    process: ClientProcess
    actor: Actor


@attrs.define(eq=False)
class Run:
    """A run in the making. `breaches` is what was broken, `stuck` what did not end."""

    spec: RunSpec
    world: World
    invariants: Invariants = attrs.field(init=False)
    protocol_events: ProtocolEvents = attrs.field(init=False)
    injector: FaultInjector = attrs.field(init=False)
    random_faults: RandomFaults = attrs.field(init=False)
    damage: DamageBook = attrs.field(init=False)
    cast: list[CastMember] = attrs.Factory(list[CastMember])
    copiers: list[CastMember] = attrs.Factory(list[CastMember])
    working: list[ClientProcess] = attrs.Factory(list[ClientProcess])
    copies: Copies = attrs.Factory(Copies)
    recreations: list[Recreation] = attrs.Factory(list[Recreation])
    reached: list[Listener] = attrs.Factory(list[Listener])
    exercised: Counter[str] = attrs.Factory(Counter[str])
    breaches: list[Violation] = attrs.Factory(list[Violation])
    stuck: list[str] = attrs.Factory(list[str])
    judge_trusted: bool = True
    read_from: int = 0  # when the last reader began

    def __attrs_post_init__(self) -> None:
        spec, world = self.spec, self.world
        settings = world.settings.node_settings
        self.invariants = Invariants(world)
        self.protocol_events = ProtocolEvents(world, settings.transaction_state_log_num_partitions)
        self.injector = FaultInjector(world, self.protocol_events, self.call, self.replace)
        self.random_faults = RandomFaults(spec.random_faults, self.injector, self._copying)
        self.damage = DamageBook(world)

    def attach(self) -> None:
        """The judges of steps look on from now on; whatever records the run has subscribed before."""
        world = self.world
        world.writes_manifests = world.writes_manifests or self.spec.writes_manifests
        if self.spec.may_be_damaged:
            self.damage.attach()
        # Only planned faults wait for points. They look at each message and each append, which a search can
        # do without.
        if self.spec.keeps_going or self.spec.faults:
            self.protocol_events.attach()
        if self.spec.keeps_going:
            self.invariants.attach(self._guarded)
            for node in world.nodes:
                # A fault may strike between two acts, and what the first one sent must have left by then.
                node.sends_at_once = True
            return
        if not world.settings.node_settings.transaction_version.renews_identity:
            # Subscribed before the white box: it has to name an old behaviour before that calls it a
            # violation.
            LateMessages(world, self.invariants.transactions, self.invariants.partitions).attach()
        self.invariants.attach()

    def _guarded(self, look: Callable[[Any], None]) -> Callable[[Any], None]:
        """Keeps the first breach and lets the run continue. After it the judge's own record can no longer be
        trusted, so it looks no further.
        """

        def guarded(event: object) -> None:
            if self.judge_trusted:
                try:
                    look(event)
                except Violation as breach:
                    self.judge_trusted = False
                    self.breaches.append(breach)

        return guarded

    # --- phases ---------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Every phase up to the judges of clients. Violation or Disordered at once, unless it keeps going."""
        spec, world = self.spec, self.world
        for node, drift_ppm in zip(world.nodes, spec.drifts_ppm, strict=False):
            node.clock.drift_ppm = drift_ppm
        world.start()
        # Before faults are planned: points are counted from here, and nothing strikes the setup.
        world.create_topics(spec.topics, spec.configs)
        if spec.epochs:
            world.age_identities(spec.epochs)
        self.reached += [self.protocol_events.listen(point, _heard) for point in spec.reaches]
        self.injector.plan(spec.faults)
        for role in spec.roles:
            if not role.waits_for_fault:
                self.enter(role)
        self.random_faults.start()
        self._act()
        self._heal()
        is_at_rest = self._until(self._is_at_rest)
        self._read_all()
        # Everything may be read, but a coordinator may still have to log COMPLETE_*.
        if is_at_rest:
            self._until(self._has_settled)
        self._note_what_is_stuck()
        if not self.stuck and not self.damage.is_detected:
            self._judge_end()

    def _act(self) -> None:
        """Until every fault is over. In a run that ends at its first breach, a planned fault that still lasts
        when nothing else goes on is left to the healing.
        """
        try:
            self._until(self._has_struck)
        except Disordered:
            if self.injector.is_over:
                raise

    def _judge_end(self) -> None:
        if self.spec.keeps_going:
            self._guarded(lambda _: self.invariants.judge_end())(None)
            self._guarded(lambda _: self._judge_files())(None)
        else:
            self.invariants.judge_end()

    def _judge_files(self) -> None:
        if not self.world.journals.damaged:
            judge_files(self.world.journals, self.invariants.exercised)

    def _heal(self) -> None:
        """Faults no longer strike, every effect is undone, and every node runs."""
        self.random_faults.heal()
        for node in self.world.nodes:
            if node.host is None:
                node.start()
        # A participant that chance made the slowest has no effect that an injector could undo.
        self.world.speeds.clear()

    def _until(self, is_over: Callable[[], bool]) -> bool:
        """Run until `is_over` is true; returns whether it is. A phase times out after `phase_timeout_ms` in a
        run that keeps going, and DAMAGED_PHASE_TIMEOUT_NS after damage to a disk was detected.
        """
        world = self.world
        keeps_going, damage = self.spec.keeps_going, self.damage
        if not keeps_going and not self.spec.may_be_damaged:
            world.run_until(is_over)
            return True
        since = world.now
        end = since + self.spec.phase_timeout_ms * NS_PER_MS if keeps_going else None

        def is_timed_out() -> bool:
            # From the later of both, since damage may be noticed late in a phase.
            noticed = damage.detected_at
            is_late = noticed is not None and world.now >= max(since, noticed) + DAMAGED_PHASE_TIMEOUT_NS
            return is_late or (end is not None and world.now >= end)

        try:
            world.run_until(lambda: is_timed_out() or is_over())
        except Disordered as problem:
            # With an empty queue, a run that keeps going is at rest, finished or not.
            if keeps_going and world.queue:
                self.stuck.append(str(problem))
            elif not keeps_going and not damage.is_detected:
                raise
        return is_over()

    # --- when a phase is over -------------------------------------------------------------------------------

    def _has_struck(self) -> bool:
        """Whether faults are over. When nothing is left to disturb, faults that chance draws count as over,
        and, in a run that ends at its first breach, also planned faults whose points were never reached.
        """
        if self.spec.keeps_going and not self.injector.is_over:
            return False
        is_over = self.random_faults.is_over and self.injector.is_over
        return is_over or (self._is_worked() and self._is_copied())

    def _is_worked(self) -> bool:
        working = self.working
        # Asked before each act of the run, so it looks at no more than one process that is still at work.
        while working and working[-1].is_over:
            working.pop()
        return not working

    def _is_copied(self) -> bool:
        """Whether all inputs are copied; where all processors of an id are gone, another one begins."""
        for role in self.spec.roles:
            if role.task is Task.COPY:
                # Not before one has entered: a fault may have to start the first.
                rivals = [
                    each for each in self.copiers if each.role.transactional_id == role.transactional_id
                ]
                if rivals and all(each.process.is_over for each in rivals):
                    self.enter(role)
                    return False
                if not self._has_copied(role):
                    return False
        return True

    def _has_copied(self, role: Role) -> bool:
        """Whether the group of a COPY has copied all of its inputs; true of any other role."""
        return all(self.copies.is_settled(role.group, where, self.end_of(where)) for where in role.reads)

    def _copying(self) -> list[ClientProcess]:
        return [each.process for each in self.copiers if not each.process.is_over]

    def _is_at_rest(self) -> bool:
        """Scripts and copies are over, points are reached, and all that is written may be read."""
        return (
            self._is_worked()
            and self._is_copied()
            and self._is_readable()
            and not self._is_cleaning()
            and all(listener.is_over for listener in self.reached)
        )

    def _is_cleaning(self) -> bool:
        """Whether a compacted topic is being cleaned: the last reader is compared with what is left."""
        if self.spec.cleanup is None:
            return False
        return any(node.host is not None and node.host.upkeep.cleanings for node in self.world.nodes)

    def _is_readable(self) -> bool:
        """Every partition is led, and no transaction is open in it."""
        return next(self._unreadable(), None) is None

    def _unreadable(self) -> Iterator[str]:
        led: set[TopicPartition] = set()
        for where, log in self.world.led_logs():
            led.add(where)
            if log.partition.last_stable_offset != log.partition.log_end_offset:
                yield f"{where}: nothing from offset {log.partition.last_stable_offset} on may be read"
        yield from (f"{where} has no leader" for where in self.spec.partitions if where not in led)

    def _has_settled(self) -> bool:
        return (not self.judge_trusted or self.invariants.is_settled) and not self.unsettled()

    def unsettled(self) -> list[str]:
        """What keeps the cluster from being at rest, in words."""
        prepared = (
            f"{name} stays in {record.state.title}"
            for name, record in self._coordinated()
            if record.state.is_prepared
        )
        return [*self._unreadable(), *prepared]

    def _coordinated(self) -> Iterator[tuple[str, TransactionRecord]]:
        """The transactional ids that coordinators know."""
        for _, log in self.world.led_logs():
            if isinstance(log.coordinator, Transactions):
                yield from log.coordinator.records.items()

    def _note_what_is_stuck(self) -> None:
        """In a run that keeps going: what should have ended and did not."""
        if self.spec.keeps_going and not self.damage.is_detected:
            self.stuck += [
                f"{each.process.participant} never finishes"
                for each in self.cast
                if each.role.task is Task.WORK and not each.process.is_over
            ]
            self.stuck += [
                f"{role.name} never copies everything"
                for role in self.spec.roles
                if not self._has_copied(role)
            ]
            self.stuck += self.unsettled()

    # --- the cast -------------------------------------------------------------------------------------------

    def enter(self, role: Role) -> CastMember:
        """A process takes this role, from its beginning or from a process that died."""
        taken = sum(1 for each in self.cast if each.role.name == role.name)
        process = self.world.process(f"{role.name}{SAME}{taken + 1}" if taken else role.name)
        actor, script = role.act(self, process)
        member = CastMember(role, process, actor)
        self.cast.append(member)
        if role.task is Task.WORK:
            self.working.append(process)
        elif role.task is Task.COPY:
            self.copiers.append(member)
        if role.waits_for_fault:
            self.world.events.publish(CallBegan(process.participant, "starts"))
        # Last: the script runs to its first wait at once, and must find itself in the cast.
        process.start(script)
        return member

    def call(self, name: str) -> None:
        """A fault starts this role."""
        self.enter(self._role(name))

    def replace(self, name: str) -> None:
        """Another process continues where a dead one stopped, if the role allows it."""
        role = self._role(name.partition(SAME)[0])
        if role.is_replaced:
            self.enter(role)

    def _role(self, name: str) -> Role:
        return next(role for role in self.spec.roles if role.name == name)

    def participants(self) -> tuple[str, ...]:
        """Writers, then nodes, then readers, as pictures show them; not the last reader."""
        shown = [each for each in self.cast if each.role is not self.spec.final]
        readers = [each for each in shown if each.role.task is Task.READ]
        writers = [each for each in shown if each.role.task is not Task.READ]
        return (
            *(each.process.participant for each in writers),
            *(node.participant for node in self.world.nodes),
            *(each.process.participant for each in readers),
        )

    # --- the end --------------------------------------------------------------------------------------------

    def _read_all(self) -> None:
        """The last reader reads from the beginning to the end of what may be read."""
        self.read_from = self.world.now
        ends = {where: self._stable_end(where) for where in self.spec.partitions}
        actor = self.enter(self.spec.final).actor

        def has_read() -> bool:
            positions = actor.positions()
            return all(positions.get(where, 0) >= end for where, end in ends.items())

        self._until(has_read)

    def end_of(self, where: TopicPartition) -> int:
        """The end of the partition's log; UNREACHABLE if the log is damaged."""
        try:
            return self.world.journals.journal(where).log_end_offset
        except DamagedLog:
            return UNREACHABLE

    def _stable_end(self, where: TopicPartition) -> int:
        log = self.led(where)
        return 0 if log is None else log.partition.last_stable_offset

    def led(self, where: TopicPartition) -> LeaderLog | None:
        """A partition's log at the node that leads it by the newest epoch; None while no node does."""
        logs = (log for partition, log in self.world.led_logs() if partition == where)
        return max(logs, key=lambda log: log.partition.leader_epoch, default=None)

    def open_at_coordinators(self) -> set[tuple[int, TopicPartition]]:
        """Producer ids and partitions of the transactions that coordinators know as not yet ended."""
        return {
            (record.producer_id, where)
            for _, record in self._coordinated()
            for where in record.partitions
            if not record.state.is_complete
        }

    @property
    def operations(self) -> list[ClientOperation]:
        """What all clients saw, in the order in which it ended."""
        now = self.world.now
        seen = [operation for each in self.cast for operation in each.actor.all_operations(now)]
        return sorted(seen, key=lambda operation: operation.completed_at)

    def finally_read(self) -> dict[TopicPartition, list[bytes]]:
        """What the last reader got of each partition."""
        values: dict[TopicPartition, list[bytes]] = {}
        for each in self.cast:
            if each.role is self.spec.final:
                for operation in each.actor.all_operations(self.world.now):
                    for action in operation.actions:
                        if isinstance(action, Poll):
                            read = values.setdefault(action.partition, [])
                            read += [value for _, value in action.records]
        return values

    def visible(self) -> dict[TopicPartition, list[bytes]]:
        """What the last reader got; copies as an application would have written them."""
        return {
            where: [self.copies.plain(where, value) for value in values]
            for where, values in self.finally_read().items()
        }

    def read_to_their_end(self) -> list[TopicPartition]:
        """The partitions that the last reader has read to their end."""
        # It enters last; a run that ended before has read nothing to its end.
        positions = dict(self.cast[-1].actor.positions()) if self.cast[-1].role is self.spec.final else {}
        return [where for where in self.spec.partitions if positions.get(where, 0) >= self.end_of(where)]

    # --- to the first breach --------------------------------------------------------------------------------

    def end_at_first_breach(self) -> None:
        """Plays and judges until something is broken: a rule at some step, progress, or what clients saw."""
        breach = self._first_breach()
        if breach is not None:
            self.breaches.append(breach)

    def _first_breach(self) -> Violation | None:
        """An anomaly that Apache Kafka has as well is counted and is not a breach."""
        try:
            with blaming(CORE_FAILED):
                self.play()
                for anomaly in judge_clients(self):
                    excuse = known_kafka(anomaly, self.invariants.partitions)
                    if excuse is None:
                        return Violation(anomaly.rule.name, anomaly.text)
                    self.world.marks[KNOWN + excuse.name] += 1
                # Last: what a client saw says more than a wrong file.
                self._judge_files()
        except Violation as violation:
            return violation
        except Disordered as problem:
            return self._what_hangs(problem)
        return None

    def _what_hangs(self, problem: Disordered) -> Violation:
        """Why a run does not end: by the rule for healed runs, if that finds a reason."""
        try:
            self.invariants.judge_end()
        except Violation as violation:
            return Violation(violation.rule, f"{violation.evidence}: {problem}")
        return Violation(NOT_LIVE, str(problem))

    # --- the result -----------------------------------------------------------------------------------------

    def result(self, *, record: Callable[[RunObserver], History], **more: Any) -> RunResult:
        """The result of the run; `more` are the fields that only a fuzzed world, or only a scenario, has."""
        world, invariants = self.world, self.invariants
        self.exercised.update(invariants.exercised)
        if (verdict := self.damage.verdict()) is not None:
            world.marks[verdict] += 1
        world.marks.update({f"exercised: {name}": count for name, count in self.exercised.items()})
        coverage = Coverage()
        kinds = [mark.removeprefix(FAULT) for mark in world.marks if mark.startswith(FAULT)]
        coverage.add(invariants.cells.cells, kinds, invariants.rare_states)
        # Among the breaches, since it ended the run; `violation` leaves it out.
        known_anomaly = next((each for each in self.breaches if isinstance(each, KnownAnomaly)), None)
        return RunResult(
            choices=tuple(world.choices.taken),
            breaches=tuple(self.breaches),
            known_anomaly=known_anomaly,
            digest=digest_of(world),
            marks=world.marks,
            transactions=sum(world.marks[ended] for ended in ENDED),
            events=world.happened,
            elapsed=world.now,
            coverage=coverage,
            record=record,
            **more,
        )


def run_of(spec: RunSpec, choices: Choices, watch: Callable[[Run], None] | None = None) -> Run:
    """A run in which nothing has happened; `watch` may subscribe to its world before all others do."""
    run = Run(spec, World(spec.world, choices))
    if watch is not None:
        watch(run)
    run.attach()
    return run


@contextmanager
def blaming(rule: str) -> Generator[None]:
    """Any exception of the block breaks this rule. Cores and judges assert what they assume, so either
    something happened that they thought impossible, or they are wrong.
    """
    try:
        yield
    except (Violation, Disordered, MemoryError):  # findings already, and one that says nothing about the core
        raise
    except Exception as problem:
        raise _failure(rule, problem) from problem


def _failure(rule: str, problem: Exception) -> Violation:
    trace = problem.__traceback__
    assert trace is not None, "what was raised has a traceback"
    # The innermost frame: the shrinker tells failures apart by their place, so that it keeps to one cause.
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    place = f"{code.co_qualname}, line {trace.tb_lineno}"
    return Violation(rule, f"{type(problem).__name__} in {place}: {problem}")


def digest_of(world: World) -> str:
    """What happened when and by which choices, and what it left in the logs."""
    digest = hashlib.blake2b(world.digest.encode(), digest_size=16)
    for path, content in world.journals.contents():
        digest.update(f"{path} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _heard(_: ProtocolEvent) -> None:
    """A point that is only counted."""
