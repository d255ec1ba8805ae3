"""A story: clients of one library around one topic; they are closed when it ends."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Self

import fencepost
from fencepost import TopicPartition
from tests.kafka_bridge.libraries import POLLS_MAX, Access, Admin, Consumer, Library, Message, Producer, texts
from tests.topics import create_topic

END = "the end"


class Story:
    """What a story is told with."""

    def __init__(self, library: Library, access: Access, topic: str) -> None:
        self.library = library
        self.access = access
        self.topic = topic
        self.part = TopicPartition(topic, 0)
        self.other = TopicPartition(topic, 1)
        self._readers = 0
        self._open = ExitStack()

    def __enter__(self) -> Self:
        create_topic(self.access.servers, self.topic, 2)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def producer(
        self, transactional_id: str | None = None, *, timeout_ms: int = 60_000, compression: str | None = None
    ) -> Producer:
        """A producer; its transactional id is that of the story with this suffix."""
        full = None if transactional_id is None else f"{self.topic}.{transactional_id}"
        made = self.library.producer(self.access, full, timeout_ms=timeout_ms, compression=compression)
        return self._open.enter_context(closing(made))

    def consumer(
        self,
        group: str | None = None,
        *,
        topic: str | None = None,
        isolation: str = "read_committed",
        instance: str | None = None,
    ) -> Consumer:
        """A member of this group, or of a new one."""
        self._readers += 1
        full = f"{self.topic}.{group or f'reader-{self._readers}'}"
        made = self.library.consumer(
            self.access, topic or self.topic, group=full, isolation=isolation, instance=instance
        )
        return self._open.enter_context(closing(made))

    def reader(self, isolation: str = "read_committed", *, partition: int = 0) -> Consumer:
        """A reader of a partition from its beginning, in no group."""
        made = self.library.reader(self.access, TopicPartition(self.topic, partition), isolation=isolation)
        return self._open.enter_context(closing(made))

    def admin(self) -> Admin:
        """An admin client."""
        return self._open.enter_context(closing(self.library.admin(self.access)))

    def ours(self) -> fencepost.Producer:
        """A producer of our own."""
        return self._open.enter_context(fencepost.Producer(self.access.servers))

    def produced(self, *values: str, partition: int = 0) -> None:
        """Records outside transactions, by the library."""
        producer = self.producer()
        for value in values:
            producer.send(self.topic, value.encode(), partition=partition)
        producer.flush()

    def messages(self, isolation: str = "read_committed", *, partition: int = 0) -> list[Message]:
        """All records of a partition that a reader gets, up to one that is written now."""
        with fencepost.Producer(self.access.servers) as producer:
            producer.send(self.topic, END.encode(), partition=partition).result()
        reader = self.reader(isolation, partition=partition)
        got: list[Message] = []
        for _ in range(POLLS_MAX):
            got += reader.poll(500)
            if got and got[-1].text == END:
                return got[:-1]
        raise AssertionError(f"the last record has not come: {len(got)} have")

    def texts(self, isolation: str = "read_committed", *, partition: int = 0) -> list[str]:
        """Their values."""
        return texts(self.messages(isolation, partition=partition))
