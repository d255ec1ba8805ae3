"""The examples of docs/clients.md run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from tests.cli.processes import PATIENCE_S
from tests.kafka_bridge.conftest import IMPATIENT

PAGE = Path(__file__).parent.parent.parent / "docs" / "clients.md"
EXAMPLES = re.findall(r"^## (\S+)\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_each_library_has_an_example() -> None:
    assert [name for name, _ in EXAMPLES] == ["confluent-kafka", "aiokafka", "kafka-python"]


@pytest.mark.parametrize("example", [code for _, code in EXAMPLES], ids=[name for name, _ in EXAMPLES])
def test_an_example_reads_what_it_wrote(example: str) -> None:
    with fencepost.Broker(override=IMPATIENT) as broker:
        code = example.replace("127.0.0.1:9092", broker.bootstrap_servers)
        assert code != example
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.stdout, ran.returncode) == ("alice 10\n", 0), ran.stderr
