"""The ids of topics, which tell a topic from a later one of the same name.

Rule: an offset means something only in the log that it was read from. A reader that remembers an offset also
remembers the id of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.journal.kafka_directory import METADATA, SNAPSHOT_SUFFIX, read_topic_id
from fencepost.journal.layouts import FencepostLayout, LogLayout
from fencepost.journal.segments import LOG, walk_batches
from fencepost.journal.storage import StorageReader, directory_name
from fencepost.protocol.errors import ProtocolViolation
from fencepost.protocol.kraft_log import read_kraft_records
from fencepost.protocol.terms import TopicPartition, spell_topic_id
from fencepost.spark_bridge.partition_files import opened


def find_topic_ids(layout: LogLayout, partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """The ids of topics, as far as they are known, as Kafka spells them."""
    if isinstance(layout, FencepostLayout):
        return _topic_ids_in_metadata(layout.storages[0])
    found: dict[str, str] = {}
    for partition in partitions:
        if partition.topic in found:
            continue
        topic_id = read_topic_id(layout.storages[layout.home(partition)], partition)
        if topic_id is not None:
            found[partition.topic] = topic_id
    return found


def _topic_ids_in_metadata(storage: StorageReader) -> dict[str, str]:
    """The newest id of each topic in `__cluster_metadata`; of deleted topics, too."""
    directory = directory_name(METADATA)
    if directory not in storage.directories():
        return {}
    found: dict[str, str] = {}
    files = storage.files(directory)
    names = (sorted(name for name in files if name.endswith(kind)) for kind in (SNAPSHOT_SUFFIX, f".{LOG}"))
    for name in (*next(names), *next(names)):
        with opened(storage, f"{directory}/{name}") as file:
            try:
                for _, header, batch in walk_batches(file, 0, files[name]):
                    for record in () if header.is_control else read_kraft_records(batch, header):
                        if record.topic is not None and record.topic_id is not None:
                            found[record.topic] = spell_topic_id(record.topic_id)
            except ProtocolViolation:  # a torn tail; `partitions` raised StorageError for other damage
                break
    return found
