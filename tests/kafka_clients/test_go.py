"""franz-go, the library in Go: its stories (stories_test.go), and its example in docs/clients.md."""

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


def go(*arguments: str, directory: Path, servers: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments],
        cwd=directory,
        env={**os.environ, "BOOTSTRAP_SERVERS": servers},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_the_stories(servers: str) -> None:
    told = go("test", "-count=1", ".", directory=MODULE, servers=servers)
    assert told.returncode == 0, told.stdout + told.stderr


def test_the_example_reads_what_it_wrote(servers: str, tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, tmp_path)
    (tmp_path / "main.go").write_text(EXAMPLE.replace("127.0.0.1:9092", servers))
    ran = go("run", ".", directory=tmp_path)
    assert ran.stdout == "alice 10\n", ran.stderr


def test_the_go_files_are_formatted() -> None:
    ran = subprocess.run(["gofmt", "-l", str(MODULE)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.stdout, ran.returncode) == ("", 0), ran.stderr
