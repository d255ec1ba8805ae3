"""franz-go, the library in Go: our stories (stories_test.go), its own tests, and the example in the docs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.cli.processes import PATIENCE_S
from tests.kafka_bridge.test_page import PAGE

MODULE = Path(__file__).parent / "go"
(EXAMPLE,) = re.findall(r"```go\n(.*?)```", PAGE.read_text(), re.DOTALL)


# Of the library's own tests: chains of groups that consume, transform and produce, without and with
# transactions, whose members come and go. Each record must arrive once, in the order of its partition.
ITS_OWN_TESTS = "TestGroupETL|TestTxnEtl"
WITH_BROKEN_CONNECTIONS = {
    "KGO_TEST_CHAOS": "1",  # each connection breaks after a second
    "KGO_TEST_RECORDS": "10000",
    "KGO_TEST_RF": "1",  # replicas
    "KGO_LOG_LEVEL": "none",
}


def go(
    *arguments: str, directory: Path, servers: str = "", **options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments],
        cwd=directory,
        env={**os.environ, "BOOTSTRAP_SERVERS": servers, "KGO_SEEDS": servers, **options},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_the_stories(servers: str) -> None:
    told = go("test", "-count=1", ".", directory=MODULE, servers=servers)
    assert told.returncode == 0, told.stdout + told.stderr


def test_its_own_tests_of_groups_and_transactions_while_connections_break(servers: str) -> None:
    arguments = ("test", "-count=1", "-vet=off", f"-run={ITS_OWN_TESTS}", "github.com/twmb/franz-go/pkg/kgo")
    ran = go(*arguments, directory=MODULE, servers=servers, **WITH_BROKEN_CONNECTIONS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("ok"), ran.stdout
    assert "no tests to run" not in ran.stdout, ran.stdout


def test_the_example_reads_what_it_wrote(servers: str, tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, tmp_path)
    (tmp_path / "main.go").write_text(EXAMPLE.replace("127.0.0.1:9092", servers))
    ran = go("run", ".", directory=tmp_path)
    assert ran.stdout == "alice 10\n", ran.stderr


def test_the_go_files_are_formatted() -> None:
    ran = subprocess.run(["gofmt", "-l", str(MODULE)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.stdout, ran.returncode) == ("", 0), ran.stderr
