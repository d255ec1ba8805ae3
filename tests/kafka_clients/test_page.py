"""The Java example of docs/clients.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kafka_bridge.test_page import PAGE
from tests.kafka_clients.tools import run

(EXAMPLE,) = re.findall(r"```java\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example_reads_what_it_wrote(servers: str, tmp_path: Path) -> None:
    file = tmp_path / "Example.java"
    file.write_text(EXAMPLE.replace("127.0.0.1:9092", servers))
    assert run(str(file)) == "alice 10\n"
