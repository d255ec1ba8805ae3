"""Runs the worlds of seeds and plans: the roles of a plan, its random faults, and `fencepost.simulate`.

Rule: the choices of a run determine it. Run again with them, it ends in the same way: here, on the command
line and in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import attrs

from fencepost.broker.broker_configs import kafka_generation
from fencepost.broker.config_def import COMPACT, DELETE
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.log_model.compaction import CleanupRules
from fencepost.protocol.messages import CreateTopic, ReplyBody, TopicConfig
from fencepost.protocol.terms import LAST_GRANTED_EPOCH, IsolationLevel, TopicPartition
from fencepost.simulator.actors.processors import GROUP, INPUT, OUTPUT, group_processor, processor
from fencepost.simulator.actors.workloads import (
    ACCOUNTS,
    FLEETING,
    PAYMENTS,
    Membership,
    Runner,
    drifter,
    epoch_bumper,
    idempotent_writer,
    reader,
    rereader,
    stranger,
    strayer,
    topic_keeper,
    txn_writer,
)
from fencepost.simulator.faults.random_faults import (
    DEATHS,
    DEATHS_IN_CLEANINGS,
    GROUP_REPLIES,
    GROUP_REQUESTS,
    IDENTITY_REPLIES,
    REPLIES,
    REQUESTS,
    FaultKind,
    RandomFaultPlan,
)
from fencepost.simulator.fuzz.plan import PLANNERS, Planner, draw, verifies
from fencepost.simulator.recorded import Watcher
from fencepost.simulator.run import Run, run_of
from fencepost.simulator.run_result import RunObserver, RunResult
from fencepost.simulator.run_spec import Role, RunSpec, Task
from fencepost.simulator.scenarios.model import (
    LONG_MS,
    SESSIONS_MS,
    CompactionPlan,
    FuzzPlan,
    MemberPlan,
    TxnWriterPlan,
)
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.history import History
from fencepost.simulator.world.participants import NS_PER_MS
from fencepost.simulator.world.processes import ClientProcess, Script

Act = Callable[[Run, Runner], Script[None]]

NS_PER_US: Final = 1_000
PERMILLE: Final = 1_000
PARTITIONS: Final = 2
TOPICS: Final = (PAYMENTS, INPUT, OUTPUT)
PROCESSORS_ID: Final = "copiers"
PROCESSOR_LIVES: Final = 4  # how often a processor may take its id back from another one
EPOCH_BUMPERS_ID: Final = "renewers"
FINAL_READER: Final = "final"
STRAY_WRITES: Final = 40
DRIFTERS: Final = 2
DRIFTER_TRANSACTIONS: Final = 15
FEED_PAUSES_MS: Final = (0, 0, 50, 200)  # so that the input is not copied before the group has rebalanced


def partitions_of(topic: str) -> tuple[TopicPartition, ...]:
    """All partitions of a topic of a fuzzed world."""
    return tuple(TopicPartition(topic, number) for number in range(PARTITIONS))


INPUTS: Final = partitions_of(INPUT)
UPKEEP_MS: Final = 50  # between two checks for logs to clean, or for ids that expire
# A batch has a header of 61 bytes. A record has a key, a value or the header that names a tombstone.
OFFSET_BYTES_MAX: Final = 200


# --- seeds --------------------------------------------------------------------------------------------------


def simulate(
    seed: int,
    *,
    workload: str = "transactions",
    transaction_version: int = 2,
    partition_verification: bool | None = None,
    broken: Iterable[str] = (),
    without_fixes: Iterable[str] = (),
) -> RunResult:
    """Run one random world: Fencepost's brokers and clients under virtual time, with faults and judges. It
    tests Fencepost, not an application: docs/testing.md says how to test your own.

    `seed`: a whole number from 0; the same seed gives the same run. `workload`: "transactions", "groups" for
    worlds in which the members of a group process a topic, "power" for worlds that lose power under `--sync`
    commit and all, "damage" for worlds whose disks damage synced data, "requests" for worlds with a client
    that sends extreme values, "identities" for worlds in which producer ids are used up and transactional ids
    expire, "compaction" for worlds of a compacted topic, or "topics" for worlds in which a topic is deleted
    and created again.
    `transaction_version`: 0 is KIP-98, 1 the same with another format of the transaction log, 2 KIP-890.
    `partition_verification`: whether partition leaders verify transactions of older clients; None: as that
    version was shipped, off in 0. `broken`: protections of the broker to turn off: "fencing", "dedup".
    `without_fixes`: Kafka's later fixes to turn off, by their names in docs/fidelity.md. ValueError for a
    seed, a version or a name that does not exist.
    """
    # Python's generator takes more than whole numbers, and -1 and True would name the world of seed 1.
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers without types
        raise ValueError(f"seed must be a whole number from 0, not {seed!r}")
    kind = WorldKind(
        workload=workload,
        transaction_version=transaction_version,
        partition_verification=partition_verification,
        broken=broken,
        without_fixes=without_fixes,
    )
    commands = (f"replay: {kind.replay(seed)}", f"shrink: {kind.shrink(seed)}")
    return attrs.evolve(try_seed(seed, kind.planner), commands=commands)


def _names(given: Iterable[str], of: str) -> tuple[str, ...]:
    if isinstance(given, str):  # it would be taken for a list of its letters
        raise ValueError(f"{of} must be a tuple of names, not {given!r}: write ({given!r},)")
    return tuple(given)


@attrs.frozen(kw_only=True)
class WorldKind:
    """Which random worlds: the arguments of `simulate`, which explains them. ValueError for a version,
    workload, protection or fix that does not exist.
    """

    workload: str = "transactions"
    transaction_version: int = 2
    partition_verification: bool | None = None
    broken: tuple[str, ...] = attrs.field(default=(), converter=partial(_names, of="broken"))
    without_fixes: tuple[str, ...] = attrs.field(default=(), converter=partial(_names, of="without_fixes"))

    def __attrs_post_init__(self) -> None:
        if self.workload not in PLANNERS:
            raise ValueError(f"workload must be one of {sorted(PLANNERS)}, not {self.workload!r}")
        kafka_generation(self.transaction_version, without_fixes=self.without_fixes, broken=self.broken)

    @property
    def planner(self) -> Planner:
        """The planner that draws such worlds; it can be sent to other processes."""
        return partial(
            PLANNERS[self.workload],
            transaction_version=self.transaction_version,
            partition_verification=verifies(self.transaction_version, self.partition_verification),
            broken=tuple(sorted(set(self.broken))),
            without_fixes=self.without_fixes,
        )

    def __str__(self) -> str:
        """The options of `fencepost fuzz` that describe such worlds, each with a leading space."""
        said = [f" --workload {self.workload}"] if self.workload != "transactions" else []
        if self.transaction_version != 2:
            said.append(f" --transaction-version {self.transaction_version}")
        if self.partition_verification is not None:
            said.append(f" --{'' if self.partition_verification else 'no-'}partition-verification")
        said += [f" --without-fix {name}" for name in self.without_fixes]
        return "".join((*said, *(f" --break {protection}" for protection in self.broken)))

    def replay(self, seed: int) -> str:
        """The command that runs a seed again."""
        return f"fencepost fuzz --first-seed {seed} --seeds 1{self}"

    def shrink(self, seed: int) -> str:
        """The command that shrinks a seed."""
        return f"fencepost shrink --seed {seed}{self}"


def try_seed(seed: int, planner: Planner = draw) -> RunResult:
    """Run the world of a seed."""
    return attrs.evolve(try_choices(Choices(seed), planner), record=partial(_record_seed, seed, planner))


def _record_seed(seed: int, planner: Planner, observer: RunObserver) -> History:
    watcher = Watcher(observer)
    return watcher.history(f"seed {seed}", try_choices(Choices(seed), planner, watcher.watch))


def try_choices(choices: Choices, planner: Planner, watch: Callable[[Run], None] | None = None) -> RunResult:
    """Run the world that the choices draw; `watch` gets the run before its first event."""
    return try_spec(spec_of(planner(choices)), choices, watch)


def try_spec(spec: RunSpec, choices: Choices, watch: Callable[[Run], None] | None = None) -> RunResult:
    """Run a spec to its end, or to its first breach."""
    drawn = len(choices.taken)  # those that drew the spec
    run = run_of(spec, choices, watch)
    run.end_at_first_breach()
    return run.result(record=lambda observer: _record_spec(spec, choices.taken[drawn:], observer))


def _record_spec(spec: RunSpec, choices: Sequence[int], observer: RunObserver) -> History:
    watcher = Watcher(observer)
    return watcher.history("a run", try_spec(spec, Choices(recorded=choices), watcher.watch))


# --- the cast -----------------------------------------------------------------------------------------------


def spec_of(plan: FuzzPlan) -> RunSpec:
    compaction, roles = plan.compaction, tuple(_roles_of(plan))
    world = plan.world(
        # Kafka's three seconds are for members that start slowly; here they would be idle time.
        group_initial_rebalance_delay_ms=50,
        group_min_session_timeout_ms=min(SESSIONS_MS),
        **({} if compaction is None else _UPKEEP),
        **(_SHORT_METADATA if plan.topic_deletions else {}),
        **_expirations_of(plan),
    )
    return RunSpec(
        world=attrs.evolve(
            world,
            latency=plan.latency_us * NS_PER_US,
            sync_latency=plan.sync_latency_us * NS_PER_US,
            encodes=plan.encodes,
            own_travels=plan.own_travels,
        ),
        topics=tuple((name, PARTITIONS) for name in _topics_of(plan)),
        configs=() if compaction is None else tuple(_configs_of(compaction)),
        cleanup=None if compaction is None else _cleanup_of(plan, compaction),
        roles=roles,
        epochs=_epochs_of(plan, roles),
        fleeting=frozenset(partitions_of(FLEETING) if plan.topic_deletions else ()),
        final=_reader(plan, FINAL_READER, IsolationLevel.READ_COMMITTED),
        random_faults=RandomFaultPlan(
            kinds=plan.kinds,
            strikes=plan.strikes,
            pause=plan.pause_ms * NS_PER_MS,
            slow_participants=plan.slow_participants,
            requests=(*REQUESTS, *GROUP_REQUESTS) if plan.members else REQUESTS,
            replies=_replies_of(plan),
            deaths=DEATHS if compaction is None else DEATHS_IN_CLEANINGS,
        ),
        drifts_ppm=plan.drifts_ppm,
    )


# Snapshots of the metadata are written early and often, and the log is compacted with each.
_SHORT_METADATA: Final = {"log_cleaner_backoff_ms": UPKEEP_MS, "metadata_records_between_snapshots": 1}
_UPKEEP: Final = {"log_cleaner_backoff_ms": UPKEEP_MS, "log_retention_check_interval_ms": UPKEEP_MS}


def _replies_of(plan: FuzzPlan) -> tuple[type[ReplyBody], ...]:
    """The replies that may be lost."""
    if plan.identities is not None:
        return IDENTITY_REPLIES
    return (*REPLIES, *GROUP_REPLIES) if plan.members else REPLIES


def _expirations_of(plan: FuzzPlan) -> dict[str, int]:
    """The settings by which transactional ids expire, if they do."""
    if plan.identities is None or not plan.identities.expiration_ms:
        return {}
    return {
        "transactional_id_expiration_ms": plan.identities.expiration_ms,
        "transaction_remove_expired_transaction_cleanup_interval_ms": UPKEEP_MS,
    }


def _epochs_of(plan: FuzzPlan, roles: Iterable[Role]) -> dict[str, int]:
    """The epochs that transactional ids begin with, if their producer ids are nearly used up."""
    if plan.identities is None:
        return {}
    epoch = LAST_GRANTED_EPOCH - plan.identities.epochs_left
    return {role.transactional_id: epoch for role in roles if role.transactional_id is not None}


def _topics_of(plan: FuzzPlan) -> tuple[str, ...]:
    if plan.topic_deletions:
        return (*TOPICS, FLEETING)
    return TOPICS if plan.compaction is None else (ACCOUNTS,)


def _partitions(plan: FuzzPlan) -> tuple[TopicPartition, ...]:
    return tuple(where for topic in _topics_of(plan) for where in partitions_of(topic))


def _configs_of(plan: CompactionPlan) -> Iterator[TopicConfig]:
    is_deleted = plan.retention_ms or plan.retention_bytes
    yield TopicConfig(name="cleanup.policy", value=f"{COMPACT},{DELETE}" if is_deleted else COMPACT)
    yield TopicConfig(
        name="min.cleanable.dirty.ratio", value=str(plan.min_cleanable_dirty_permille / PERMILLE)
    )
    yield TopicConfig(name="min.compaction.lag.ms", value=str(plan.min_compaction_lag_ms))
    yield TopicConfig(name="delete.retention.ms", value=str(plan.delete_retention_ms))
    yield TopicConfig(name="retention.ms", value=str(plan.retention_ms or -1))
    yield TopicConfig(name="retention.bytes", value=str(plan.retention_bytes or -1))


def _cleanup_of(plan: FuzzPlan, compaction: CompactionPlan) -> CleanupRules:
    """What the judges demand. If clocks jump, how long a record has to stay is unknown."""
    jumps = FaultKind.CLOCK_JUMP in plan.kinds
    return CleanupRules(
        min_compaction_lag_ms=0 if jumps else compaction.min_compaction_lag_ms,
        delete_retention_ms=0 if jumps else compaction.delete_retention_ms,
        retention_ms=(0 if jumps else compaction.retention_ms) if compaction.retention_ms else None,
        retention_bytes=compaction.retention_bytes or None,
        offset_bytes_max=OFFSET_BYTES_MAX,
    )


def _roles_of(plan: FuzzPlan) -> Iterator[Role]:
    """Writers, processors, members and readers, as the plan says."""
    for each in plan.txn_writers:
        yield _role(
            plan,
            each.name,
            Task.WORK,
            _writes(plan, each),
            each.transactional_id,
            each.transaction_timeout_ms,
        )
    if plan.idempotent_writes:
        yield _role(plan, "feeder", Task.WORK, lambda _, runner: _feeds(plan, runner))
    for name in plan.processors:
        yield _role(plan, name, Task.COPY, _copies, PROCESSORS_ID, group=GROUP)
    for member in plan.members:
        yield _role(plan, member.name, Task.COPY, _shares(member), member.name, group=member.group)
    if plan.epoch_bumps:
        bumps = plan.epoch_bumps
        yield _role(
            plan, "renewer", Task.WORK, lambda _, runner: epoch_bumper(runner, bumps), EPOCH_BUMPERS_ID
        )
    if plan.strange_requests:
        count = plan.strange_requests
        yield _role(
            plan, "stranger", Task.WORK, lambda _, runner: stranger(runner, count, others=_partitions(plan))
        )
    if plan.topic_deletions:
        yield from _users_of_fleeting(plan)
    for number in range(0 if plan.compaction is None else plan.compaction.rereaders):
        yield _role(
            plan, f"rereader-{number + 1}", Task.READ, lambda _, runner: rereader(runner, _partitions(plan))
        )
    yield _reader(plan, "reader", IsolationLevel.READ_COMMITTED)
    if plan.reads_uncommitted:
        yield _reader(plan, "peeker", IsolationLevel.READ_UNCOMMITTED)


def _users_of_fleeting(plan: FuzzPlan) -> Iterator[Role]:
    """Those who delete and create a topic, and those who use no other."""
    fleeting = partitions_of(FLEETING)
    creation = CreateTopic(topic=FLEETING, partition_count=PARTITIONS)
    yield _role(
        plan,
        "keeper",
        Task.WORK,
        lambda run, runner: topic_keeper(runner, creation, run.recreations, plan.topic_deletions),
    )
    # Only the strictest policy protects what is written without transactions from a loss of power.
    if plan.sync is SyncPolicy.ALL or FaultKind.POWER_LOSS not in plan.kinds:
        yield _role(plan, "strayer", Task.WORK, lambda _, runner: strayer(runner, fleeting, STRAY_WRITES))
    member = Membership(group="drifters", session_timeout_ms=SESSIONS_MS[0], heartbeat_interval_ms=250)

    def drifts(_: Run, runner: Runner) -> Script[None]:
        return drifter(runner, FLEETING, partitions_of(PAYMENTS), DRIFTER_TRANSACTIONS, member)

    for name in (f"drifter-{number + 1}" for number in range(DRIFTERS)):
        yield _role(plan, name, Task.WORK, drifts, name)


def _role(
    plan: FuzzPlan,
    name: str,
    task: Task,
    script: Act,
    transactional_id: str | None = None,
    transaction_timeout_ms: int = LONG_MS,
    *,
    group: str = "",
) -> Role:
    def act(run: Run, process: ClientProcess) -> tuple[Runner, Script[None]]:
        runner = Runner(
            process,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            transaction_version=plan.producer_version,
            keys=plan.compaction,
        )
        return runner, script(run, runner)

    copies = task is Task.COPY
    return Role(
        name=name,
        task=task,
        act=act,
        transactional_id=transactional_id,
        group=group,
        reads=INPUTS if copies else (),
        writes=OUTPUT if copies else "",
    )


def _writes(plan: FuzzPlan, writer: TxnWriterPlan) -> Act:
    return lambda _, runner: txn_writer(
        runner, _written_by_all(plan), writer.transactions, records_max=writer.records_max, reads=writer.reads
    )


def _written_by_all(plan: FuzzPlan) -> tuple[TopicPartition, ...]:
    if plan.topic_deletions:
        return (*partitions_of(PAYMENTS), *partitions_of(FLEETING))
    return partitions_of(PAYMENTS if plan.compaction is None else ACCOUNTS)


def _feeds(plan: FuzzPlan, runner: Runner) -> Script[None]:
    # Rebalances and cleanings need time between the records, or they meet none.
    is_slow = plan.members or plan.compaction is not None
    return idempotent_writer(
        runner,
        INPUTS if plan.compaction is None else partitions_of(ACCOUNTS),
        plan.idempotent_writes,
        pauses_ms=FEED_PAUSES_MS if is_slow else (),
    )


def _copies(run: Run, runner: Runner) -> Script[None]:
    return processor(runner, INPUTS, run.copies, lives=PROCESSOR_LIVES)


def _shares(member: MemberPlan) -> Act:
    return lambda run, runner: group_processor(runner, (INPUT,), run.copies, output=OUTPUT, membership=member)


def _reader(plan: FuzzPlan, name: str, isolation_level: IsolationLevel) -> Role:
    """A process that reads everything."""
    partitions = _partitions(plan)
    return _role(plan, name, Task.READ, lambda _, runner: reader(runner, partitions, isolation_level))
