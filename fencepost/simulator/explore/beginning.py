"""Where an explored world begins: its bounds, and the state in which every client knows whom to ask.

Rule: the first state is made by the cores themselves: topics are created, identities are granted.
"""

from __future__ import annotations

from typing import Final

import attrs

from fencepost.broker.kafka_fixes import ALL_FIXES, KafkaFixes
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS
from fencepost.client.producer import ProducerMachine
from fencepost.client.settings import ProducerSettings
from fencepost.client.transaction_versions import newest_dialect
from fencepost.protocol.terms import TransactionResult
from fencepost.simulator.explore.broker import Answer, Broker
from fencepost.simulator.explore.connections import NO_WIRES, Inner
from fencepost.simulator.explore.process import TOPIC, Plan, Process, Stage
from fencepost.simulator.explore.steps import Steps
from fencepost.simulator.explore.worlds import World
from fencepost.simulator.fuzz.plan import verifies

NEVER_MS: Final = 10**12  # no client ever gives up on a record: that is not among the faults of these worlds
INTRODUCTION_STEPS_MAX: Final = 100


@attrs.frozen(kw_only=True)
class ExploreConfig:
    """The bounds of a world. `retries` is how often each client gives up a connection."""

    producers: int = 1
    transactions: int = 2
    retries: int = 1
    partitions: int = 1
    transaction_version: int = 2
    partition_verification: bool | None = None
    """Whether partition leaders ask the coordinator about older clients' batches (KIP-890 part 1); None:
    not in version 0, as KIP-98 was shipped.
    """
    crashes: int = 0
    ends: tuple[TransactionResult, ...] = (TransactionResult.COMMIT, TransactionResult.ABORT)
    broken: frozenset[str] = frozenset()
    fixes: KafkaFixes = ALL_FIXES
    symmetry: bool = True
    """Worlds that differ only in which producer is which count as one."""
    max_states: int = 1_000_000

    @property
    def verifies(self) -> bool:
        """Whether partition leaders ask before they append."""
        return verifies(self.transaction_version, self.partition_verification)


def root(config: ExploreConfig, steps: Steps) -> World:
    """Every client has its identity and knows whom to ask; nothing is on its way."""
    settings = NodeSettings(
        port=1,
        generation=TRANSACTION_VERSIONS[config.transaction_version],
        partition_verification=config.verifies,
        broken=config.broken,
        fixes=config.fixes,
        transaction_state_log_num_partitions=1,
        offsets_topic_num_partitions=1,
    )
    broker = Broker.started(settings, TOPIC, config.partitions, may_die=config.crashes > 0)
    plan = Plan(transactions=config.transactions, partitions=config.partitions, ends=config.ends)
    world: tuple[int, ...] = ()
    for number in range(config.producers):
        process = _process(f"p{number}", config, plan)
        _introduce(broker, process)
        [process] = process.go_on()
        wires = NO_WIRES
        state, sent = steps.keep_process(process)
        wires = wires.sent(sent)
        world += (state, steps.wires.number(wires, wires))
    return (steps.keep_broker(broker), steps.inners.number(Inner(), Inner()), config.crashes, *world)


def _process(name: str, config: ExploreConfig, plan: Plan) -> Process:
    settings = ProducerSettings(
        transactional_id=name,
        linger_ms=0,
        delivery_timeout_ms=NEVER_MS,
        transaction_version=newest_dialect(config.transaction_version),
    )
    machine = ProducerMachine("127.0.0.1:1", settings)
    return Process(name=name, machine=machine, plan=plan, retries=config.retries)


def _introduce(broker: Broker, process: Process) -> None:
    """Messages are delivered at once, in order, until the client knows all that it needs."""
    process.start()
    for _ in range(INTRODUCTION_STEPS_MAX):
        if process.stage is not Stage.STARTING:
            return
        if not process.sent:
            process.wake()
            continue
        node, question = process.sent.pop(0)
        for _, answer in broker.settle(broker.receive(question, 1)):
            assert isinstance(answer, Answer), "a client is asked nothing"
            process.hear(node, answer)
    raise AssertionError(f"{process.name} never got its identity")
