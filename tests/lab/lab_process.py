"""`fencepost lab` as a process of its own, and questions to it over a real socket."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import islice
from subprocess import Popen
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from attrs import define, frozen

from tests.cli.processes import started

PATIENCE_S = 120.0  # a bound on a hang
NOTHING: Mapping[str, str | None] = {}


@frozen(kw_only=True)
class Answer:
    """What the lab says: its status, its headers by their names in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of a refusal."""
        said: str = self.json["error"]
        return said


@define(eq=False)
class LabProcess:
    """A lab that runs."""

    process: Popen[str]
    address: str
    host: str
    token: str

    def ask(
        self, path: str, body: object = None, *, method: str = "", headers: Mapping[str, str | None] = NOTHING
    ) -> Answer:
        """Ask one question. `headers` replace those that the page sends; None leaves one out."""
        sent = {"x-fencepost-token": self.token, "content-type": "application/json", **headers}
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = HTTPConnection(self.host, timeout=PATIENCE_S)
        try:
            connection.putrequest(
                method or ("GET" if raw is None else "POST"), path, skip_host="host" in sent
            )
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if raw is not None:
                connection.putheader("content-length", str(len(raw)))
            connection.endheaders(raw)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=found, body=response.read())
        finally:
            connection.close()

    def answer(self, path: str, body: object = None) -> Any:
        """The answer to a question that is not refused."""
        answer = self.ask(path, body)
        assert answer.status in (200, 201), answer.body
        return answer.json

    def errors(self, count: int) -> list[str]:
        """The next lines on stderr, as soon as there are so many."""
        said: list[str] = []
        reader = Thread(target=lambda: said.extend(islice(self.process.stderr or (), count)), daemon=True)
        reader.start()
        reader.join(PATIENCE_S)
        assert len(said) == count, said
        return said

    def play(self, scenario: str = "duplicate_after_lost_ack", **more: object) -> Any:
        """A run of a bundled scenario."""
        return self.answer("/api/play", {"scenario": scenario, **more})


@contextmanager
def lab(*options: str) -> Generator[LabProcess]:
    """A lab on a free port, without a browser."""
    with started("lab", "--port", "0", "--no-browser", *options) as process:
        yield lab_of(process)


def lab_of(process: Popen[str]) -> LabProcess:
    """The lab of a process that was just started."""
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"http://\S+", said)
    assert found is not None, said or process.communicate()[1]
    address = urlsplit(found[0])
    return LabProcess(process, found[0], address.netloc, parse_qs(address.query)["token"][0])
