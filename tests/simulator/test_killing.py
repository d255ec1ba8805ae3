"""A node that is killed in an unlucky moment."""

from __future__ import annotations

from fencepost.broker.settings import NodeSettings
from fencepost.journal.storage import directory_name
from fencepost.protocol.terms import TopicPartition
from fencepost.simulator.world.choices import Choices
from fencepost.simulator.world.world import World, WorldSettings

KEY = TopicPartition("payments", 0)


def test_a_node_is_killed_while_the_disk_of_a_log_that_another_lost_refuses() -> None:
    """Whoever asks for such a log recovers it first, and cutting its torn end is a write."""
    world = World(WorldSettings(node_settings=NodeSettings()), Choices())
    world.start()
    world.create_topics(((KEY.topic, 1),))
    world.journals.journal(KEY)
    world.journals.give_up(KEY)
    disk = world.journals.disks[KEY]
    directory = directory_name(KEY)
    (log,) = [name for name in disk.files(directory) if name.endswith(".log")]
    disk.open(f"{directory}/{log}", create=True).append(b"a torn batch")
    disk.breaks = lambda _operation, _path: True
    (node,) = world.nodes
    node.kill()
    assert node.host is None
