"""The face: a broker to run, producer, consumer and admin to talk to it, and a world to simulate them in. A
name loads when first used.

Rule: `import fencepost` costs next to nothing; a program that only reads a log never imports a network.
"""

from __future__ import annotations

from fencepost.protocol.version import VERSION

# Type checkers take it as true. The module `typing` would take more time than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fencepost.broker.embedded import Broker as Broker
    from fencepost.broker.embedded import BrokerFailed as BrokerFailed
    from fencepost.broker.faults import FaultNeverStruck as FaultNeverStruck
    from fencepost.broker.user_calls import ObserverFailed as ObserverFailed
    from fencepost.client.admin import AbortSpec as AbortSpec
    from fencepost.client.batch import RecordMetadata as RecordMetadata
    from fencepost.client.consumer_records import ConsumedBatch as ConsumedBatch
    from fencepost.client.consumer_records import Record as Record
    from fencepost.client.errors import AuthenticationFailed as AuthenticationFailed
    from fencepost.client.errors import AuthorizationFailed as AuthorizationFailed
    from fencepost.client.errors import BufferFull as BufferFull
    from fencepost.client.errors import ClientClosed as ClientClosed
    from fencepost.client.errors import ClientError as ClientError
    from fencepost.client.errors import CommitFailed as CommitFailed
    from fencepost.client.errors import CommitOutcomeUnknown as CommitOutcomeUnknown
    from fencepost.client.errors import CorruptRecords as CorruptRecords
    from fencepost.client.errors import DeliveryFailed as DeliveryFailed
    from fencepost.client.errors import DeliveryTimeout as DeliveryTimeout
    from fencepost.client.errors import FencedInstanceId as FencedInstanceId
    from fencepost.client.errors import OffsetOutOfRange as OffsetOutOfRange
    from fencepost.client.errors import ProducerFailed as ProducerFailed
    from fencepost.client.errors import ProducerFenced as ProducerFenced
    from fencepost.client.errors import RebalanceInProgress as RebalanceInProgress
    from fencepost.client.errors import RecordTooLarge as RecordTooLarge
    from fencepost.client.errors import RequestFailed as RequestFailed
    from fencepost.client.errors import RequestTimeout as RequestTimeout
    from fencepost.client.errors import TransactionAborted as TransactionAborted
    from fencepost.client.errors import UnknownTopic as UnknownTopic
    from fencepost.client.errors import WrongState as WrongState
    from fencepost.client.group_member import RebalanceListener as RebalanceListener
    from fencepost.client.group_offsets import ConsumerGroupMetadata as ConsumerGroupMetadata
    from fencepost.client.group_offsets import OffsetAndMetadata as OffsetAndMetadata
    from fencepost.client.serializers import json_deserializer as json_deserializer
    from fencepost.client.serializers import json_serializer as json_serializer
    from fencepost.client.serializers import string_deserializer as string_deserializer
    from fencepost.client.serializers import string_serializer as string_serializer
    from fencepost.client.shells.aio import AsyncAdmin as AsyncAdmin
    from fencepost.client.shells.aio import AsyncConsumer as AsyncConsumer
    from fencepost.client.shells.aio import AsyncProducer as AsyncProducer
    from fencepost.client.shells.sync import Admin as Admin
    from fencepost.client.shells.sync import Consumer as Consumer
    from fencepost.client.shells.sync import Producer as Producer
    from fencepost.lab.broker_recording import Recording as Recording
    from fencepost.lab.feed import StepFeed as StepFeed
    from fencepost.protocol.errors import ErrorCode as ErrorCode
    from fencepost.protocol.errors import FencepostError as FencepostError
    from fencepost.protocol.errors import ProtocolViolation as ProtocolViolation
    from fencepost.protocol.errors import Remedy as Remedy
    from fencepost.protocol.terms import IsolationLevel as IsolationLevel
    from fencepost.protocol.terms import TopicPartition as TopicPartition
    from fencepost.protocol.terms import TransactionState as TransactionState
    from fencepost.simulation import run_scenario as run_scenario
    from fencepost.simulator.failure import SimulationFailed as SimulationFailed
    from fencepost.simulator.fuzz.worlds import simulate as simulate
    from fencepost.simulator.run_result import RunResult as RunResult
    from fencepost.testing.assertions import assert_committed as assert_committed
    from fencepost.testing.assertions import assert_exactly_once as assert_exactly_once
    from fencepost.testing.assertions import assert_no_open_transactions as assert_no_open_transactions
    from fencepost.testing.broker_process import BrokerProcess as BrokerProcess
    from fencepost.testing.proxy import Proxy as Proxy
    from fencepost.testing.sweep import SweepFailed as SweepFailed
    from fencepost.testing.sweep import SweepReport as SweepReport
    from fencepost.testing.sweep import sweep as sweep
    from fencepost.testing.sweep import sweep_points as sweep_points

__version__ = VERSION

# Where each public name lives; the block above says the same to type checkers, and a test compares the two.
_HOMES = {
    "AbortSpec": "fencepost.client.admin",
    "Admin": "fencepost.client.shells.sync",
    "assert_committed": "fencepost.testing.assertions",
    "assert_exactly_once": "fencepost.testing.assertions",
    "assert_no_open_transactions": "fencepost.testing.assertions",
    "AsyncAdmin": "fencepost.client.shells.aio",
    "AsyncConsumer": "fencepost.client.shells.aio",
    "AsyncProducer": "fencepost.client.shells.aio",
    "AuthenticationFailed": "fencepost.client.errors",
    "AuthorizationFailed": "fencepost.client.errors",
    "Broker": "fencepost.broker.embedded",
    "BrokerFailed": "fencepost.broker.embedded",
    "BrokerProcess": "fencepost.testing.broker_process",
    "BufferFull": "fencepost.client.errors",
    "ClientClosed": "fencepost.client.errors",
    "ClientError": "fencepost.client.errors",
    "CommitFailed": "fencepost.client.errors",
    "CommitOutcomeUnknown": "fencepost.client.errors",
    "ConsumedBatch": "fencepost.client.consumer_records",
    "Consumer": "fencepost.client.shells.sync",
    "ConsumerGroupMetadata": "fencepost.client.group_offsets",
    "CorruptRecords": "fencepost.client.errors",
    "DeliveryFailed": "fencepost.client.errors",
    "DeliveryTimeout": "fencepost.client.errors",
    "ErrorCode": "fencepost.protocol.errors",
    "FaultNeverStruck": "fencepost.broker.faults",
    "FencedInstanceId": "fencepost.client.errors",
    "FencepostError": "fencepost.protocol.errors",
    "IsolationLevel": "fencepost.protocol.terms",
    "json_deserializer": "fencepost.client.serializers",
    "json_serializer": "fencepost.client.serializers",
    "ObserverFailed": "fencepost.broker.user_calls",
    "OffsetAndMetadata": "fencepost.client.group_offsets",
    "OffsetOutOfRange": "fencepost.client.errors",
    "Producer": "fencepost.client.shells.sync",
    "ProducerFailed": "fencepost.client.errors",
    "ProducerFenced": "fencepost.client.errors",
    "ProtocolViolation": "fencepost.protocol.errors",
    "RebalanceInProgress": "fencepost.client.errors",
    "RebalanceListener": "fencepost.client.group_member",
    "Proxy": "fencepost.testing.proxy",
    "Record": "fencepost.client.consumer_records",
    "RecordMetadata": "fencepost.client.batch",
    "RecordTooLarge": "fencepost.client.errors",
    "Recording": "fencepost.lab.broker_recording",
    "Remedy": "fencepost.protocol.errors",
    "RequestFailed": "fencepost.client.errors",
    "RequestTimeout": "fencepost.client.errors",
    "run_scenario": "fencepost.simulation",
    "simulate": "fencepost.simulator.fuzz.worlds",
    "SimulationFailed": "fencepost.simulator.failure",
    "StepFeed": "fencepost.lab.feed",
    "string_deserializer": "fencepost.client.serializers",
    "string_serializer": "fencepost.client.serializers",
    "sweep": "fencepost.testing.sweep",
    "sweep_points": "fencepost.testing.sweep",
    "SweepFailed": "fencepost.testing.sweep",
    "SweepReport": "fencepost.testing.sweep",
    "TopicPartition": "fencepost.protocol.terms",
    "TransactionAborted": "fencepost.client.errors",
    "TransactionState": "fencepost.protocol.terms",
    "RunResult": "fencepost.simulator.run_result",
    "UnknownTopic": "fencepost.client.errors",
    "WrongState": "fencepost.client.errors",
}

# For `from fencepost import *`; the type checker takes it from the block above.
__all__ = tuple(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll] - one list is enough


def __getattr__(name: str) -> object:
    """Loads a public name from its home (PEP 562); AttributeError for any other."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
