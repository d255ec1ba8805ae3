"""The command line in this process, against one broker."""

from __future__ import annotations

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

    def rows(self, *arguments: str, code: int = 0) -> list[Any]:
        """The answer as JSON, one object per line, of a command that ends with this code."""
        assert run([*arguments, "--bootstrap-server", self.address, "--json"]) == code
        return [json.loads(line) for line in self._capture.readouterr().out.splitlines()]
