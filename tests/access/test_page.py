"""The example of docs/access.md runs as it stands there, and prints what the page says."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.cli.application import run
from tests.cli.processes import PATIENCE_S, read_ready

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "access.md").read_text(encoding="utf-8")
FILES = re.compile(r"This is `([\w.]+)`:\n\n```toml\n(.*?)```", re.DOTALL)
CONSOLES = re.compile(r"```console\n(.*?)```", re.DOTALL)
CONFLUENT = re.compile(r"```python\n(from confluent_kafka .*?)```", re.DOTALL)
PROGRAM = re.compile(r"```python\n(.*?)```\n\nIt prints:\n\n```\n(.*?)```", re.DOTALL)


def transcript() -> list[tuple[str, str]]:
    """Each command of the page, with what it prints."""
    steps = re.split(r"^\$ ", "".join(CONSOLES.findall(PAGE)), flags=re.MULTILINE)[1:]
    return [(command, said) for command, _, said in (step.partition("\n") for step in steps)]


def with_address(program: str) -> str:
    """The program with the address of this broker."""
    return program.replace("127.0.0.1:9092", os.environ["FENCEPOST_BOOTSTRAP_SERVER"])


class Terminal:
    """Plays the few words of a shell that the page uses; the broker is a process of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture
        self.broker: subprocess.Popen[str] | None = None

    def play(self, command: str) -> str:
        """What the command prints."""
        before, bar, command = command.rpartition(" | ")
        stdin = subprocess.run(["bash", "-c", before], capture_output=True).stdout if bar else b""
        match shlex.split(command):
            case ["python", *words]:
                subprocess.run([sys.executable, *words], check=True)
            case ["export", *pairs]:
                self._set(pairs)
            case ["unset", *names]:
                for name in names:
                    self._patch.delenv(name)
            case ["fencepost", "serve", *options, "&"]:
                self._serve(options)
            case ["env", "-u", name, "fencepost", *words]:
                config = os.environ[name]
                self._patch.delenv(name)
                self._run(words, stdin)
                self._patch.setenv(name, config)
            case [pair, "fencepost", *words]:
                self._set([pair])
                self._run(words, stdin)
                self._patch.delenv(pair.partition("=")[0])
            case words:
                assert words[0] == "fencepost"
                self._run(words[1:], stdin)
        said = self._capture.readouterr()
        return said.out + said.err

    def _set(self, pairs: list[str]) -> None:
        for pair in pairs:
            name, _, value = pair.partition("=")
            self._patch.setenv(name, value)

    def _run(self, words: list[str], stdin: bytes) -> None:
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        run(words)

    def _serve(self, options: list[str]) -> None:
        words = [sys.executable, "-m", "fencepost", "serve", *options, "--port", "0"]
        self.broker = subprocess.Popen(
            words, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        self._set([f"FENCEPOST_BOOTSTRAP_SERVER=127.0.0.1:{read_ready(self.broker)['port']}"])


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, text in FILES.findall(PAGE):
        (tmp_path / name).write_text(text)
    terminal = Terminal(monkeypatch, capsys)
    try:
        for command, expected in transcript():
            assert (command, terminal.play(command)) == (command, expected)
        program, printed = PROGRAM.findall(PAGE)[0]
        exec(with_address(program), {})
        assert capsys.readouterr().out == printed
        exec(with_address(CONFLUENT.findall(PAGE)[0]), {})
        assert terminal.play("fencepost consume orders") == "one\ntwo\nthree\n"
    finally:
        if terminal.broker is not None:
            terminal.broker.send_signal(signal.SIGTERM)
            terminal.broker.communicate(timeout=PATIENCE_S)
