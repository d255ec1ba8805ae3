"""Options and commands of Kafka's clients and tools that Fencepost does not have, and what it does instead.

Rule: every error for an unknown option, of a client or of a command, and for an unknown command reads this
one table.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Instead(NamedTuple):
    """What Fencepost does instead of an option, as the end of a sentence; empty where nobody expects it."""

    in_client: str
    in_command: str


_IDEMPOTENT: Final = "a producer is always idempotent, with acks=all"
_NO_AUTO_COMMIT: Final = "a consumer never commits on its own: call commit()"
_COMMITS: Final = "`consume --group` commits the offsets of what it has printed"
_BROKERS: Final = "--bootstrap-server names the broker"
_KEYS: Final = (
    "a tab separates key and value (--separator changes that); `consume --format` selects what it prints"
)
_SECURITY: Final = (
    "--command-config names a file with the security settings; others are options of the command"
)
_ONE_REPLICA: Final = "a broker is the only node, so a partition has one replica"

INSTEAD: Final = {
    "acks": Instead(_IDEMPOTENT, _IDEMPOTENT),
    "address": Instead("", _BROKERS),
    "auto_commit_interval_ms": Instead(_NO_AUTO_COMMIT, _COMMITS),
    "bootstrap_server": Instead("", "this command needs no broker"),
    "broker": Instead("", _BROKERS),
    "broker_list": Instead("", _BROKERS),
    "brokers": Instead("", _BROKERS),
    "configs": Instead("", "`fencepost topic alter --config` changes the settings of a topic"),
    "consumer_config": Instead("", _SECURITY),
    "consumer_groups": Instead("", "`fencepost group` has the commands for groups"),
    "consumer_property": Instead("", _SECURITY),
    "enable_auto_commit": Instead(_NO_AUTO_COMMIT, _COMMITS),
    "enable_idempotence": Instead(_IDEMPOTENT, _IDEMPOTENT),
    "from_beginning": Instead("", "`consume` starts at the beginning unless --from says otherwise"),
    "get_offsets": Instead("", "`fencepost topic describe` shows where the logs start and end"),
    "if_exists": Instead("", "without the topic, `topic delete` changes nothing and exits with 1"),
    "if_not_exists": Instead("", "if the topic exists, `topic create` changes nothing and exits with 1"),
    "include": Instead("", "`consume` reads one topic"),
    "max_messages": Instead("", "`consume --max` limits the number of records"),
    "offset": Instead("", "`consume --from` takes an offset, earliest or latest"),
    "print_data_log": Instead("", "`dump --records` shows the records"),
    "producer_config": Instead("", _SECURITY),
    "producer_property": Instead("", _SECURITY),
    "property": Instead("", _KEYS),
    "replication_factor": Instead(_ONE_REPLICA, _ONE_REPLICA),
    "retries": Instead("a producer retries until delivery_timeout_ms", ""),
    "server_start": Instead("", "`fencepost serve` runs a broker"),
    "sync": Instead("", "`produce` waits until the broker has acknowledged every record"),
    "timeout_ms": Instead("", "`consume` stops at the end of the topic unless --follow is given"),
    "version": Instead("", "`fencepost --version` prints the version"),
    "zookeeper": Instead("", _BROKERS),
}
"""By their names as keyword arguments; commands without kafka- and .sh."""

NOTHING: Final = Instead("", "")


def instead_of(name: str) -> Instead:
    """What Fencepost does instead of an option or a command, such as "acks" or "kafka-get-offsets.sh"."""
    name = name.removeprefix("kafka-").removesuffix(".sh")
    return INSTEAD.get(name.replace("-", "_").replace(".", "_"), NOTHING)
