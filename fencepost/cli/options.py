"""The options that several commands share, and their checks: broker, partition, JSON, fixes of Kafka."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import attrs
from cyclopts import Parameter, Token, convert, validators

from fencepost.cli import environment
from fencepost.cli.config_file import COMMAND_LINE, ENVIRONMENT
from fencepost.cli.environment import security_variables, variable
from fencepost.cli.errors import (
    CREATE_THE_TOPIC,
    MUST_NOT_BE_EMPTY,
    NO_BROKER,
    START_A_BROKER,
    CommandFailed,
    WrongUsage,
)
from fencepost.cli.files import read_toml
from fencepost.cli.likely_names import NameKind, suggesting
from fencepost.cli.times import convert_duration
from fencepost.protocol.terms import ID_LENGTH_MAX, INT64_MAX, TopicPartition

if TYPE_CHECKING:
    from fencepost.client.admin import TopicDescription
    from fencepost.client.security import SecuritySettings
    from fencepost.client.shells.sync import Admin

DEFAULT: Final = "127.0.0.1:9092"
CONNECT_SECONDS: Final = 5.0
ANSWER_MS: Final = 15_000  # a person is waiting; programs use the longer timeouts of the client

ADMIN_ID: Final = "fencepost-admin"
"""The client id of commands that neither write nor read records."""

BOOTSTRAP_OPTION: Final = "--bootstrap-server"


class Addresses(str):
    """The addresses of brokers. `given_in`: where they come from: an option, a variable, or a key of
    a file.
    """

    __slots__ = ("given_in",)
    given_in: str

    def __new__(cls, text: str, *, given_in: str) -> Addresses:
        made = super().__new__(cls, text)
        made.given_in = given_in
        return made


def _addresses(_: type, tokens: Sequence[Token]) -> Addresses:
    (token,) = tokens
    match token.source:
        case source if source == COMMAND_LINE:
            given_in = BOOTSTRAP_OPTION
        case source if source == ENVIRONMENT:
            given_in = str(token.keyword)
        case file:
            given_in = f"{BOOTSTRAP_OPTION.lstrip('-')} of {file}"
    return Addresses(token.value, given_in=given_in)


CommandConfig = Annotated[
    Path | None,
    Parameter(
        "--command-config",
        env_var=environment.COMMAND_CONFIG,
        help="TOML file with the security settings of the client (`fencepost help access`).",
    ),
]
ClientId = Annotated[
    str,
    Parameter(
        "--client-id", help="The name of this client: for faults, the broker's log and `fencepost group`."
    ),
]
Flag = Annotated[bool, Parameter(negative="")]
"""An option without a value, and without a --no-... form."""
AtLeastZero = Annotated[int, Parameter(validator=validators.Number(gte=0))]
AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Int64 = Annotated[int, Parameter(validator=validators.Number(gte=-INT64_MAX - 1, lte=INT64_MAX))]
"""A time or an id, as the protocol encodes it."""
AsJson = Annotated[
    bool, Parameter(("--json", "-J"), negative="", help="Print JSON instead of text: one object per line.")
]
InTopic = Annotated[str, Parameter(alias="-t")]
InPartition = Annotated[int, Parameter(alias="-p")]
InPartitions = Annotated[tuple[int, ...], Parameter(alias="-p")]
Configs = Annotated[tuple[str, ...], Parameter(alias="-c")]
"""Options with the short names that users of kcat and rpk know."""


AS_TIME: Final = Parameter(
    converter=convert_duration,
    allow_leading_hyphen=True,
    metavar="TIME",
    show_default=lambda seconds: f"{seconds:g}s",
)
"""A number of seconds that is given as 500ms, 90s, 10m or 1h30m."""
TimeBudget = Annotated[float | None, AS_TIME, Parameter("--for", show_default=False)]
"""How long a command may search."""


def _not_empty(kind: Any, tokens: Sequence[Token]) -> object:
    if any(not token.value for token in tokens):
        raise ValueError(MUST_NOT_BE_EMPTY)
    return cast("object", convert(kind, tokens))


NOT_EMPTY: Final = Parameter(converter=_not_empty)
"""A text that would be ignored if it were empty, as it is when a variable of the shell is not set."""


def is_offset(given: str) -> bool:
    """Whether the text is a valid log offset."""
    return given.isdecimal() and len(given) <= len(str(INT64_MAX)) and int(given) <= INT64_MAX


def check_reachable(bootstrap: str) -> str:
    """Returns the addresses if something listens at one of them; otherwise raises CommandFailed.

    A client would retry for a minute before it gave up; a person at a terminal should not wait for that.
    """
    if not (reasons := problems_of(addresses_in(bootstrap))):
        return bootstrap
    then, given_in = START_A_BROKER, _given_in(bootstrap)
    if given_in != BOOTSTRAP_OPTION:
        then = f"the address comes from {given_in}; {then}"
    raise CommandFailed(f"cannot connect to {reasons}", then=then, code=NO_BROKER)


def addresses_in(bootstrap: str) -> list[str]:
    """The addresses of brokers, separated by commas; WrongUsage if one is not host:port."""
    addresses = [address.strip() for address in bootstrap.split(",")]
    if bad := [address for address in addresses if not is_address(address)]:
        wrong = f"{_given_in(bootstrap)} {bad[0] or repr(str(bootstrap))}"
        raise WrongUsage(
            f"{wrong} is not host:port, with a port from 1 to 65535",
            then=f"for example {DEFAULT}, or broker-1:9092,broker-2:9092",
        )
    return addresses


def _given_in(bootstrap: str) -> str:
    return bootstrap.given_in if isinstance(bootstrap, Addresses) else BOOTSTRAP_OPTION


def problems_of(addresses: Sequence[str]) -> str:
    """Why nothing can be connected to at any of the addresses; empty if something can."""
    problems = dict(zip(addresses, map(problem_of, addresses), strict=True))
    if None in problems.values():
        return ""
    return "; ".join(f"{address}: {problem}" for address, problem in problems.items())


def is_address(text: str) -> bool:
    """Whether the text is host:port."""
    found = re.fullmatch(r"[^:/][^/]*:(\d{1,5})", text)
    return found is not None and 0 < int(found[1]) < 1 << 16


def problem_of(address: str) -> str | None:
    """Why nothing answers at the address, or None."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError, OverflowError) as problem:  # not a host's name; not a port's number
        return getattr(problem, "strerror", None) or str(problem)
    return None


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ClusterOptions:
    """Where the brokers are, and how to log in to them."""

    bootstrap: Annotated[
        str,
        Parameter(
            (BOOTSTRAP_OPTION, "-b"),
            converter=_addresses,
            env_var=environment.BOOTSTRAP_SERVER,
            help="Address of the broker as host:port, or of several brokers, separated by commas.",
        ),
    ] = DEFAULT
    command_config: CommandConfig = None

    def connect(self, client_id: str = ADMIN_ID) -> Admin:
        """An admin client of the broker, with short timeouts, for a person who waits."""
        from fencepost.client.shells.sync import Admin

        security = self.security()  # first: a person can correct it without a broker
        bootstrap = check_reachable(self.bootstrap)
        return Admin(bootstrap, client_id=client_id, default_api_timeout_ms=ANSWER_MS, **security)

    def security(self) -> SecuritySettings:
        """The security settings of a client."""
        return security_of(self.command_config)


LOCAL: Final = ClusterOptions()
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def security_of(config: Path | None) -> SecuritySettings:
    """The security settings in the file, and in variables such as FENCEPOST_SASL_PLAIN_PASSWORD, which win.

    There are no options for them: other users of a machine can see its command lines.
    """
    from fencepost.client.security import SecuritySettings
    from fencepost.client.shells.sockets import handshakes
    from fencepost.protocol.tls import BadCertificate

    names = SecuritySettings.__annotations__
    then = "`fencepost help access` shows such a file, and the environment variables that can replace it"
    found = {} if config is None else read_toml("--command-config", config, then=then)
    if unknown := found.keys() - names.keys():
        from fencepost.protocol.suggestions import suggestion  # only this error needs it

        what = f"{config}: unknown setting {min(unknown)!r}{suggestion(min(unknown), list(names))}"
        raise WrongUsage(what, then=f"the settings are {', '.join(names)}")
    keys = {name: key for name, key in security_variables().items() if variable(key)}
    found |= {name: variable(key) for name, key in keys.items()}
    places = [] if config is None else [str(config)]
    then = f"correct {' or '.join([*places, *keys.values()])}; `fencepost help access` shows the settings"
    check = found.get("ssl_check_hostname", True)
    if not isinstance(check, bool):
        if str(check).lower() not in _TRUTH:
            raise WrongUsage(f"ssl_check_hostname must be true or false, not {check!r}", then=then)
        found["ssl_check_hostname"] = _TRUTH[str(check).lower()]
    settings = cast(SecuritySettings, found)
    try:
        handshakes(settings)  # reads the files, too
    except (TypeError, ValueError, BadCertificate) as problem:
        raise WrongUsage(str(problem), then=then) from problem
    return settings


def settings_in(option: str, given: tuple[str, ...], *, example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, value = pair_in(option, text, example=example)
        if name in found:
            raise WrongUsage(f"{option} sets {name} twice", then="give each setting once")
        found[name] = value
    return found


def pair_in(option: str, text: str, *, example: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise WrongUsage(
            f"{option} {text or repr(text)} is not name=value", then=f"for example {option} {example}"
        )
    return name, value


def described_topic(admin: Admin, topic: str, *, then: str | None = None) -> TopicDescription:
    """A topic; CommandFailed with this next step if it does not exist."""
    if ":" in topic:
        raise WrongUsage(
            f"{topic!r} is not the name of a topic",
            then="give the topic alone; commands that use single partitions have the option --partition",
        )
    with suggesting(admin, NameKind.TOPICS, topic, then=then):
        return admin.describe_topic(topic)


def topic_and_partitions(topic: str, partitions: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The values of --topic and --partition, also if --topic has both, as Kafka's tool for groups takes them:
    TOPIC:PARTITION,PARTITION.
    """
    name, colon, listed = topic.partition(":")
    if not colon:
        return topic, partitions
    numbers = listed.split(",")
    if not (name and all(map(is_offset, numbers))):
        raise WrongUsage(
            f"--topic {topic} is not TOPIC or TOPIC:PARTITION,PARTITION",
            then="for example --topic orders:0,1",
        )
    if partitions:
        raise WrongUsage(
            f"--topic {topic} names partitions, and so does --partition", then="leave out one of them"
        )
    return name, tuple(map(int, numbers))


def partitions_of(
    admin: Admin, topic: str, wanted: Iterable[int] = (), *, then: str | None = None
) -> list[TopicPartition]:
    """The wanted partitions of a topic, or all; CommandFailed if one does not exist. `then`: the next step if
    the topic does not exist.

    A client that asked for the leader of a missing partition would retry until its timeout.
    """
    count = len(described_topic(admin, topic, then=then).leaders)
    numbers = list(wanted) or range(count)
    for number in numbers:
        if not 0 <= number < count:
            raise CommandFailed(
                f"topic {topic} has no partition {number}",
                then="its only partition is 0" if count == 1 else f"its partitions are 0 to {count - 1}",
            )
    return [TopicPartition(topic, number) for number in numbers]


def partitions_to_use(admin: Admin, topic: str, wanted: Iterable[int]) -> list[TopicPartition]:
    """The same for a command that writes or reads records; if there is no such topic, the next step is to
    create it.
    """
    return partitions_of(admin, topic, wanted, then=CREATE_THE_TOPIC)


def check_id(option: str, given: str | None) -> None:
    """Refuses a group or a transactional id that no broker takes."""
    if given is not None and not 1 <= len(given) <= ID_LENGTH_MAX:
        raise WrongUsage(
            f"{option} must have 1 to {ID_LENGTH_MAX} characters, not {len(given)}", then="give another one"
        )


def _check_fix_names(_: type, names: tuple[str, ...]) -> None:
    """Refuses an unknown name before anything starts; the error lists the names."""
    from fencepost.broker.kafka_fixes import KafkaFixes

    try:
        KafkaFixes.without(names)
    except ValueError as problem:
        raise WrongUsage(
            f"--without-fix: {problem}", then="`fencepost help fidelity` describes each of them"
        ) from problem


WithoutFixes = Annotated[
    tuple[str, ...], NOT_EMPTY, Parameter("--without-fix", negative="", validator=_check_fix_names)
]
"""Turns off one of Kafka's later fixes in the brokers that a command starts."""
