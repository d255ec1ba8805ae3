"""TLS, logins and ACLs, with each of three libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import trustme

import fencepost
from fencepost.protocol.scram import PLAIN, SCRAM_SHA_256
from tests.kafka_bridge.conftest import IMPATIENT
from tests.kafka_bridge.java import NAMES
from tests.kafka_bridge.libraries import POLLS_MAX, Access, Library, Reported, texts

TOPIC: Final = "orders"
RIGHTS: Final = """
super_users = ["User:root"]

[[acl]]
principal = "User:alice"
topic = "orders"
allow = ["Read"]

[[acl]]
principal = "User:alice"
topic = "elsewhere"
allow = ["Write"]

[[acl]]
principal = "User:alice"
group = "*"
allow = ["Read"]
"""
DENIED: Final = {
    "confluent-kafka": "TOPIC_AUTHORIZATION_FAILED",
    "aiokafka": "TopicAuthorizationFailedError",
    "kafka-python": "TopicAuthorizationFailedError",
    **dict.fromkeys(NAMES, "TopicAuthorizationException"),
}


class Guarded(NamedTuple):
    """A broker that asks for a login over TLS."""

    address: str
    cafile: str

    def access(self, user: str, mechanism: str) -> Access:
        """How one of its users reaches it."""
        return Access(
            servers=self.address,
            mechanism=mechanism,
            username=user,
            password=f"{user}-secret",
            cafile=self.cafile,
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    place: Path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca, cert, key = (str(place / name) for name in ("ca", "cert", "key"))
    authority.cert_pem.write_to_path(ca)
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    users = {name: f"{name}-secret" for name in ("root", "alice")}
    with fencepost.Broker(override=IMPATIENT, users=users, acls=RIGHTS, tls_cert=cert, tls_key=key) as broker:
        yield Guarded(broker.address, ca)


def send(library: Library, access: Access, name: str, value: bytes) -> None:
    """A transaction of one record."""
    with closing(library.producer(access, name)) as producer:
        producer.begin()
        producer.send(TOPIC, value)
        producer.commit()


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_SHA_256])
def test_a_user_logs_in_over_tls(library: Library, guarded: Guarded, mechanism: str) -> None:
    name = f"{library.name}.{mechanism}"
    send(library, guarded.access("root", mechanism), name, name.encode())
    alice = guarded.access("alice", mechanism)
    with closing(
        library.consumer(alice, TOPIC, group=name, isolation="read_committed", instance=None)
    ) as reader:
        got: list[str] = []
        for _ in range(POLLS_MAX):
            got += texts(reader.poll(10))
            if name in got:
                break
    assert name in got


def test_who_may_only_read_cannot_write(library: Library, guarded: Guarded) -> None:
    send(library, guarded.access("root", PLAIN), f"{library.name}.root", b"x")  # the topic is there
    with closing(library.producer(guarded.access("alice", PLAIN))) as producer:

        def write() -> None:
            producer.send(TOPIC, b"never")
            producer.flush()

        with pytest.raises(Reported) as raised:
            write()
    assert raised.value.name == DENIED[library.name]
