"""The face: a broker to run, and producer, consumer and admin to talk to it. A name loads when first used.

Rule: `import fencepost` costs next to nothing; whoever only reads a log never imports a network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.client.aio import AsyncAdmin as AsyncAdmin
    from fencepost.client.aio import AsyncConsumer as AsyncConsumer
    from fencepost.client.aio import AsyncProducer as AsyncProducer
    from fencepost.client.errors import BufferFull as BufferFull
    from fencepost.client.errors import CommitOutcomeUnknown as CommitOutcomeUnknown
    from fencepost.client.errors import DeliveryTimeout as DeliveryTimeout
    from fencepost.client.errors import ProducerFenced as ProducerFenced
    from fencepost.client.errors import TransactionAborted as TransactionAborted
    from fencepost.client.sync import Admin as Admin
    from fencepost.client.sync import Consumer as Consumer
    from fencepost.client.sync import Producer as Producer
    from fencepost.embedded import Broker as Broker
    from fencepost.protocol.errors import BrokerError as BrokerError
    from fencepost.protocol.errors import ErrorCode as ErrorCode
    from fencepost.protocol.errors import FencepostError as FencepostError
    from fencepost.protocol.errors import ProtocolViolation as ProtocolViolation
    from fencepost.protocol.terms import IsolationLevel as IsolationLevel
    from fencepost.protocol.terms import TopicPartition as TopicPartition

__version__ = "0.1.0"

# Where each public name lives; the block above tells type checkers the same, and a test compares the two.
_HOMES = {
    "Admin": "fencepost.client.sync",
    "AsyncAdmin": "fencepost.client.aio",
    "AsyncConsumer": "fencepost.client.aio",
    "AsyncProducer": "fencepost.client.aio",
    "Broker": "fencepost.embedded",
    "BrokerError": "fencepost.protocol.errors",
    "BufferFull": "fencepost.client.errors",
    "CommitOutcomeUnknown": "fencepost.client.errors",
    "Consumer": "fencepost.client.sync",
    "DeliveryTimeout": "fencepost.client.errors",
    "ErrorCode": "fencepost.protocol.errors",
    "FencepostError": "fencepost.protocol.errors",
    "IsolationLevel": "fencepost.protocol.terms",
    "Producer": "fencepost.client.sync",
    "ProducerFenced": "fencepost.client.errors",
    "ProtocolViolation": "fencepost.protocol.errors",
    "TopicPartition": "fencepost.protocol.terms",
    "TransactionAborted": "fencepost.client.errors",
}


def __getattr__(name: str) -> Any:
    """Loads a public name from its home (PEP 562); AttributeError for any other."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fencepost' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
