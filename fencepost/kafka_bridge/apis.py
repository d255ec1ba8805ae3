"""The APIs that Kafka's clients are served, with their versions: what ApiVersions advertises.

Rule: nothing is advertised that is not served in every version of its range. Produce is the exception, as in
Kafka: see LISTED_FROM.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fencepost.kafka_bridge import (
    acls,
    cluster,
    configs,
    consumer_groups,
    data,
    describe,
    groups,
    reassignments,
    sasl,
    transactions,
)
from fencepost.kafka_bridge.exchange import Translate


class ServedApi(NamedTuple):
    """One API: Kafka's key, the first and last version, and how its requests are translated."""

    key: int
    first: int
    last: int
    translate: Translate


def _served(key: int, versions: tuple[int, int], translate: Translate) -> ServedApi:
    return ServedApi(key, *versions, translate)


# What Kafka serves and this broker does not, is in docs/fidelity.md: most requests between brokers, changes
# of ACLs and quotas, delegation tokens, share groups and streams groups.
# The first versions are those of Apache Kafka 4.
_SERVED: Final = (
    _served(0, (3, 13), data.produce),
    _served(1, (4, 18), data.fetch),
    _served(2, (1, 11), data.list_offsets),
    _served(3, (0, 13), cluster.metadata),
    _served(8, (2, 10), groups.offset_commit),
    _served(9, (1, 10), groups.offset_fetch),
    _served(10, (0, 6), cluster.find_coordinator),
    _served(11, (0, 9), groups.join_group),
    _served(12, (0, 4), groups.heartbeat),
    _served(13, (0, 5), groups.leave_group),
    _served(14, (0, 5), groups.sync_group),
    _served(15, (0, 6), groups.describe_groups),
    _served(16, (0, 5), groups.list_groups),
    _served(17, (0, 1), sasl.sasl_handshake),
    _served(19, (2, 7), cluster.create_topics),
    _served(20, (1, 6), cluster.delete_topics),
    _served(21, (0, 2), data.delete_records),
    _served(22, (0, 5), transactions.init_producer_id),
    _served(23, (2, 4), data.offset_for_leader_epoch),
    _served(24, (0, 5), transactions.add_partitions_to_txn),
    _served(25, (0, 4), transactions.add_offsets_to_txn),
    _served(26, (0, 5), transactions.end_txn),
    _served(27, (1, 2), transactions.write_txn_markers),
    _served(28, (0, 5), transactions.txn_offset_commit),
    _served(29, (1, 3), acls.describe_acls),
    _served(32, (1, 4), configs.describe_configs),
    _served(33, (0, 2), configs.alter_configs),
    _served(35, (1, 5), describe.describe_log_dirs),
    _served(36, (0, 2), sasl.sasl_authenticate),
    _served(37, (0, 3), cluster.create_partitions),
    _served(42, (0, 2), groups.delete_groups),
    _served(43, (0, 2), reassignments.elect_leaders),
    _served(44, (0, 1), configs.incremental_alter_configs),
    _served(45, (0, 1), reassignments.alter_partition_reassignments),
    _served(46, (0, 0), reassignments.list_partition_reassignments),
    _served(47, (0, 0), groups.offset_delete),
    _served(60, (0, 2), describe.describe_cluster),
    _served(61, (0, 0), transactions.describe_producers),
    _served(65, (0, 0), transactions.describe_transactions),
    _served(66, (0, 2), transactions.list_transactions),
    _served(68, (0, 1), consumer_groups.heartbeat),
    _served(69, (0, 1), consumer_groups.describe),
    _served(75, (0, 0), describe.describe_topic_partitions),
)
LISTED_FROM: Final = {0: 0}
"""By API key: the first version that ApiVersions lists, where it is not the first one served. If Produce 0 is
missing, older versions of librdkafka conclude that the broker cannot read compressed batches (KAFKA-18659).
Kafka closes the connection of a client that sends a version that is only listed, and so does the bridge."""

# Apart from the others, since ApiVersions lists itself: its own entry needs the finished list.
API_VERSIONS_RANGE: Final = (18, 0, 4)

SERVED: Final = {
    api.key: api
    for api in (
        *_SERVED,
        ServedApi(
            *API_VERSIONS_RANGE,
            cluster.api_versions(
                [
                    *((api.key, LISTED_FROM.get(api.key, api.first), api.last) for api in _SERVED),
                    API_VERSIONS_RANGE,
                ]
            ),
        ),
    )
}
