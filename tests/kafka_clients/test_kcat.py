"""kcat, and through it an old librdkafka, that of the system."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from tests.cli.processes import PATIENCE_S
from tests.kafka_bridge.test_page import PAGE

(EXAMPLE,) = re.findall(r"## kcat\n\n```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
SHOWN = "%o %k %s\\n"  # offset, key, value


def kcat(servers: str, *arguments: str, stdin: str = "") -> str:
    """What kcat prints."""
    ran = subprocess.run(
        ["kcat", "-b", servers, *arguments], input=stdin, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def read(servers: str, topic: str, *options: str) -> list[str]:
    """The records of a topic, from its beginning to its end."""
    return kcat(servers, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *options).splitlines()


def produce(servers: str, topic: str, text: str, *options: str) -> None:
    kcat(servers, "-P", "-t", topic, *options, stdin=text)


def test_the_example_prints_what_the_page_says(servers: str) -> None:
    write, command, *printed = EXAMPLE.splitlines()
    for shell in (write, command):
        ran = subprocess.run(
            ["bash", "-c", shell.removeprefix("$ ").replace("127.0.0.1:9092", servers)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.splitlines() == (printed if shell is command else [])


def test_records_come_back_in_each_compression(servers: str) -> None:
    for number, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        produce(servers, "compressed", f"k{number}:{name * 100}\n", "-K:", "-z", name)
        assert read(servers, "compressed", "-f", SHOWN)[number] == f"{number} k{number} {name * 100}"


def test_a_transaction_of_a_file_is_read_as_one(servers: str) -> None:
    produce(servers, "pairs", "a\nb\n", "-X", "transactional.id=pairs")
    produce(servers, "pairs", "c\n", "-X", "transactional.id=pairs")
    assert read(servers, "pairs", "-f", SHOWN) == ["0  a", "1  b", "3  c"]  # 2 is the marker of the first


def test_members_of_a_group_read_on(servers: str) -> None:
    produce(servers, "grouped", "a\nb\n")
    options = ("-X", "auto.offset.reset=earliest", "-q", "-f", SHOWN, "-G", "readers", "grouped")
    assert kcat(servers, "-c", "1", *options) == "0  a\n"
    assert kcat(servers, "-c", "1", *options) == "1  b\n"


def test_metadata_are_listed(servers: str) -> None:
    produce(servers, "listed", "a\n")
    metadata: dict[str, Any] = json.loads(kcat(servers, "-L", "-J", "-t", "listed"))
    assert metadata["brokers"] == [{"id": 1, "name": servers}]
    (topic,) = metadata["topics"]
    assert (topic["topic"], [part["leader"] for part in topic["partitions"]]) == ("listed", [1])
    assert kcat(servers, "-Q", "-t", "listed:0:-1") == "listed [0] offset 1\n"
