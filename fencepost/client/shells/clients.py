"""What the blocking and the async clients have in common: their constructors, and how a script becomes a
public method.

Rule: `sync.py` and `aio.py` list the same methods. Each is a script (`calls`), with the signature and the
docstring of the script; the drivers hold the differences between the two.
"""

# A call exists once, as a script. The shells make it a method:
#
#     ConsumerCalls.poll                            (timeout_ms: float) -> CallScript[list[ConsumedBatch]]
#     Consumer.poll      = blocking(ConsumerCalls.poll)    (timeout_ms: float) -> list[ConsumedBatch]
#     AsyncConsumer.poll = awaited(ConsumerCalls.poll)     (timeout_ms: float) -> a coroutine of the same
#
# `blocking` and `awaited` pass the parameters on through a ParamSpec, so type checkers and editors see the
# whole signature and the docstring; `described` does the same for help(). A method that never waits is made
# by `at_once` from a plain method of the calls. Only sending, context managers and close() are written twice,
# because they differ by more than `await`.

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from types import FunctionType
from typing import Any, Final, Generic, TypeVar, Unpack

from fencepost.client.admin import AdminCalls
from fencepost.client.append_lock import AppendLock
from fencepost.client.arguments import BootstrapServers, Count, checks_arguments
from fencepost.client.calls import CallDriver
from fencepost.client.consumer import ConsumerMachine
from fencepost.client.consumer_calls import ConsumerCalls
from fencepost.client.consumer_records import RecordDecoder
from fencepost.client.network import NetworkClient
from fencepost.client.partitioners import Partitioner, partitioner_named
from fencepost.client.producer import ProducerMachine
from fencepost.client.producer_calls import ProducerCalls
from fencepost.client.requests import RequestMachine
from fencepost.client.security import SecuritySettings
from fencepost.client.send_path import SendPath
from fencepost.client.serializers import Deserializer, Serializer
from fencepost.client.settings import ConsumerSettings, ProducerSettings, compression_named, isolation_named
from fencepost.client.shells.sockets import Clock, handshakes, monotonic_ms
from fencepost.protocol.terms import IsolationLevel

WAIT_FOR_RECORDS_MS: Final = 60_000
"""How long one poll() of an iteration waits; then the next one does."""

DriverT = TypeVar("DriverT", bound=CallDriver)
CallsT = TypeVar("CallsT")
FutureT = TypeVar("FutureT")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def described(method: MethodT, script: Callable[..., Any]) -> MethodT:
    """The method with the name, signature and docstring of its script, for help(), inspect and typing."""
    method.__name__, method.__qualname__, method.__doc__ = script.__name__, script.__name__, script.__doc__
    shape = signature(script)
    result = str(shape.return_annotation)
    if result.startswith("CallScript["):
        result = result.removeprefix("CallScript[").removesuffix("]")
    method.__annotations__ = {**script.__annotations__, "return": result}
    method.__dict__["__signature__"] = shape.replace(return_annotation=result)
    method.__dict__["__wrapped__"] = script  # `get_type_hints` looks names up where the script is
    return method


def public(method: MethodT, name: str, result: type) -> MethodT:
    """A copy of a method that help() and errors show by its public name and result. The code is the same, so
    the copy is as fast.
    """
    code: FunctionType = method  # type: ignore[assignment] - a plain function
    copy = FunctionType(code.__code__, code.__globals__, name, code.__defaults__, code.__closure__)
    copy.__kwdefaults__ = code.__kwdefaults__
    copy.__doc__ = code.__doc__
    copy.__annotations__ = {**code.__annotations__, "return": result}
    copy.__dict__["__signature__"] = signature(code).replace(return_annotation=result)
    return copy  # type: ignore[return-value] - the same signature


class Client(Generic[DriverT, CallsT]):
    """A driver, and the scripts that it runs."""

    _make_driver: Callable[[NetworkClient, Clock], DriverT]
    """The class of the driver."""
    _driver: DriverT
    _calls: CallsT

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in vars(cls).items():
            if hasattr(method, "__signature__"):
                method.__qualname__ = f"{cls.__qualname__}.{name}"

    def _connect(
        self,
        machine: RequestMachine,
        client_id: str,
        request_timeout_ms: int,
        clock: Clock,
        security: SecuritySettings,
    ) -> DriverT:
        network = NetworkClient(
            machine,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            start_handshake=handshakes(security),
        )
        return self._make_driver(network, clock)


class ProducerClient(SendPath[FutureT], Client[DriverT, ProducerCalls]):
    """The constructor of both producers."""

    _make_future: type[FutureT]

    @checks_arguments
    def __init__(
        self,
        bootstrap_servers: BootstrapServers,
        *,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        batch_size: int = 131_072,
        linger_ms: int = 5,
        buffer_memory: int = 33_554_432,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        max_in_flight_requests_per_connection: int = 5,
        max_block_ms: int = 60_000,
        compression_type: str = "none",
        partitioner: str | Partitioner = "murmur2",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str = "",
        transaction_version: int = 2,
        clock: Clock = monotonic_ms,
        **security: Unpack[SecuritySettings],
    ) -> None:
        """Parameters are named after Kafka's producer configs; times are milliseconds, sizes are bytes.

        `bootstrap_servers`: "host:port,host:port", at least one broker. `transactional_id`: the name that
        fences earlier producers with the same name; None: no transactions. `transaction_timeout_ms`: the
        coordinator aborts a transaction that is open for longer. `batch_size`, `linger_ms`: a batch is sent
        when it has this size or this age; with `linger_ms=0`, when it is full or no earlier batch of its
        partition waits for an acknowledgement. `buffer_memory`: the limit for records without an
        acknowledgement. `delivery_timeout_ms`: the limit from send() to the acknowledgement, retries
        included; then DeliveryTimeout. `request_timeout_ms`: the limit of one attempt.
        `max_in_flight_requests_per_connection`: how many Produce requests to a broker, and batches of a
        partition, may be unacknowledged at once, 1 to 5. `max_block_ms`: how long a call may wait, unless it
        has a `timeout_ms` of its own.
        `compression_type`: none, gzip, snappy, lz4 or zstd. `partitioner`: selects the partition of a record
        with a key. "murmur2" is the default of Kafka's Java client, "consistent" (CRC-32) that of librdkafka;
        or a function of the key and the number of partitions, which must always return the same partition for
        the same arguments. `key_serializer`, `value_serializer`: from objects to bytes; None: keys and values
        are bytes. `client_id`: the name of this client in the broker's log and in descriptions.
        `transaction_version`: 2 for KIP-890, 0 for the protocol before it. `clock`: a function that returns
        milliseconds, for tests. `security`: security_protocol, sasl_mechanism, sasl_plain_username,
        sasl_plain_password, ssl_cafile, ssl_certfile, ssl_keyfile, ssl_check_hostname (docs/access.md).
        ValueError if a setting is invalid.
        """
        self.settings = ProducerSettings(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            batch_size=batch_size,
            linger_ms=linger_ms,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            max_in_flight_requests_per_connection=max_in_flight_requests_per_connection,
            max_block_ms=max_block_ms,
            compression_type=compression_named(compression_type),
            partitioner=partitioner_named(partitioner),
            client_id=client_id,
            transaction_version=transaction_version,
        )
        """The settings that the arguments make."""
        machine = ProducerMachine(bootstrap_servers, self.settings)
        self._driver = self._connect(machine, client_id, request_timeout_ms, clock, security)
        append_lock = AppendLock()
        self._calls = ProducerCalls(machine, self._driver, append_lock)
        super().__init__(
            machine.accumulator,
            self._make_future,
            append_lock=append_lock,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )


class ConsumerClient(Client[DriverT, ConsumerCalls]):
    """The constructor of both consumers."""

    @checks_arguments
    def __init__(
        self,
        bootstrap_servers: BootstrapServers,
        *,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        partition_assignment_strategy: Iterable[str] = ("range", "cooperative-sticky"),
        isolation_level: str | IsolationLevel = "read_committed",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        fetch_max_bytes: int = 1_048_576,
        fetch_max_wait_ms: int = 500,
        auto_offset_reset: str = "earliest",
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        client_id: str = "",
        filters_aborted: bool = True,
        clock: Clock = monotonic_ms,
        **security: Unpack[SecuritySettings],
    ) -> None:
        """Parameters are named after Kafka's consumer configs; times are milliseconds, sizes are bytes.

        `bootstrap_servers`: "host:port,host:port", at least one broker. `group_id`: needed to subscribe and
        to commit. `group_instance_id`: makes this a static member, which may restart within the session
        timeout without a rebalance (KIP-345). `session_timeout_ms`, `heartbeat_interval_ms`: after how long
        without a heartbeat the group expels a member, and how often it sends one. `max_poll_interval_ms`: a
        member that does not poll for this long leaves its group (KIP-62). `partition_assignment_strategy`:
        "range", "cooperative-sticky", or both. `isolation_level`: read_committed (the default, unlike
        Kafka's) or read_uncommitted. `key_deserializer`, `value_deserializer`: from bytes to objects; None:
        keys and values are bytes. `fetch_max_bytes`: how much a broker returns at once. `fetch_max_wait_ms`:
        how long a broker waits for new records before it returns none. `auto_offset_reset`: where to begin
        without a valid offset: "earliest" (the default, unlike Kafka's), "latest", "by_duration:PT1H" (the
        records of the last hour, KIP-1106), or "none", which raises OffsetOutOfRange. `metadata_max_age_ms`:
        how often the leader of a group looks for new partitions. `request_timeout_ms`: the limit of one
        attempt. `default_api_timeout_ms`: the limit of a call, retries included; then RequestTimeout.
        `client_id`: the name of this client in the broker's log and in descriptions. `filters_aborted`: False
        shows the records that read_committed would filter out. `clock`: a function that returns milliseconds,
        for tests. `security`: as for a producer. ValueError if a setting is invalid.
        """
        self.settings = ConsumerSettings(
            group_id=group_id,
            group_instance_id=group_instance_id,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            partition_assignment_strategy=tuple(partition_assignment_strategy),
            isolation_level=isolation_named(isolation_level),
            fetch_max_bytes=fetch_max_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            auto_offset_reset=auto_offset_reset,
            metadata_max_age_ms=metadata_max_age_ms,
            request_timeout_ms=request_timeout_ms,
            default_api_timeout_ms=default_api_timeout_ms,
            client_id=client_id,
            filters_aborted=filters_aborted,
        )
        """The settings that the arguments make."""
        decoding = RecordDecoder(key=key_deserializer, value=value_deserializer)
        self._machine = ConsumerMachine(bootstrap_servers, self.settings, decoding)
        self._driver = self._connect(self._machine, client_id, request_timeout_ms, clock, security)
        self._machine.wall_ahead_ms = self._driver.wall_ms - self._driver.now
        self._calls = ConsumerCalls(self._machine, self._driver)


class AdminClient(Client[DriverT, AdminCalls]):
    """The constructor of both admins."""

    @checks_arguments
    def __init__(
        self,
        bootstrap_servers: BootstrapServers,
        *,
        request_timeout_ms: Count = 30_000,
        default_api_timeout_ms: Count = 60_000,
        client_id: str = "",
        clock: Clock = monotonic_ms,
        **security: Unpack[SecuritySettings],
    ) -> None:
        """`bootstrap_servers`: "host:port,host:port", at least one broker. `request_timeout_ms`: the limit of
        one attempt, in milliseconds. `default_api_timeout_ms`: the limit of a call, retries included; then
        RequestTimeout. `client_id`: the name of this client in the broker's log and in descriptions. `clock`:
        a function that returns milliseconds, for tests. `security`: as for a producer. ValueError if a
        setting is invalid.
        """
        machine = RequestMachine(bootstrap_servers)
        self._driver = self._connect(machine, client_id, request_timeout_ms, clock, security)
        self._calls = AdminCalls(machine, self._driver, api_timeout_ms=default_api_timeout_ms)
