"""The command line in this process, against one broker."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from fencepost.cli.application import run

Output = pytest.CaptureFixture[str]


class Tool:
    """`fencepost ... --bootstrap-server` with the address of a broker."""

    def __init__(self, address: str, capture: Output) -> None:
        self.address = address
        self._capture = capture

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What a command says that ends with this code."""
        assert run([*arguments, "--bootstrap-server", self.address]) == code
        said = self._capture.readouterr()
        return said.err if code else said.out

    def json(self, *arguments: str) -> Any:
        """The answer as JSON."""
        return json.loads(self(*arguments, "--json"))

    def both(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Standard output and standard error."""
        assert run([*arguments, "-b", self.address]) == code
        return self._capture.readouterr()

    def rows(self, *arguments: str, code: int = 0) -> list[Any]:
        """The answer as JSON, one object per line, of a command that ends with this code."""
        assert run([*arguments, "--bootstrap-server", self.address, "--json"]) == code
        return [json.loads(line) for line in self._capture.readouterr().out.splitlines()]


class DataTool(Tool):
    """`fencepost produce` from text, and `consume`."""

    def __init__(self, address: str, capture: Output, patch: pytest.MonkeyPatch) -> None:
        super().__init__(address, capture)
        self._patch = patch

    def give(self, text: str | bytes) -> None:
        """Puts this on standard input."""
        data = text.encode() if isinstance(text, str) else text
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    def produce(self, topic: str, text: str | bytes, *options: str, code: int = 0) -> str:
        """Writes this text as records."""
        self.give(text)
        return self("produce", topic, *options, code=code)

    def values(self, topic: str, *options: str) -> list[str | None]:
        """The values as JSON."""
        return [row["value"] for row in self.rows("consume", topic, *options)]
