"""Starts the stores that `make stores` installed, each on loopback for the length of a block."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import attrs
import pytest

HERE: Final = Path(__file__).parent
INSTALLED: Final = HERE / "target"
START_S: Final = 120.0  # these are bounds on a hang
PROCESS_S: Final = 600.0
ACCOUNT: Final = "devstoreaccount1"  # this account and its key are built into Azurite
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@attrs.frozen
class Store:
    """A running store."""

    root: str
    """The URI of a bucket or directory, up to its query."""
    query: str
    environment: dict[str, str]
    """What a process needs to use it."""

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}{self.query}"

    def run(self, *arguments: str) -> str:
        """Runs a Python module that uses the store; returns what it prints."""
        ran = subprocess.run(
            [sys.executable, "-m", *arguments],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@contextmanager
def gcs(home: Path) -> Generator[Store]:
    server = _installed("bin/fake-gcs-server")
    port = _free_port()
    place = f"127.0.0.1:{port}"
    options = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command = [server, *options, "-public-host", place, "-external-url", f"http://{place}"]
    with _running(command, home, "server started"):
        query = f"?scheme=http&endpoint_override={place}&retry_limit_seconds=5"
        yield Store("gs://anonymous@logs", query, {"GOOGLE_CLOUD_PROJECT": "fencepost"})


@contextmanager
def azure(home: Path) -> Generator[Store]:
    server = _installed("node_modules/.bin/azurite-blob")
    port = _free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    command = [server, *options, "--skipApiVersionCheck", "--disableTelemetry"]
    with _running(command, home, "successfully listens"):
        yield Store(f"abfs://{ACCOUNT}@127.0.0.1:{port}/logs", f"?enable_tls=false&{_token()}", {})


@contextmanager
def hdfs(home: Path) -> Generator[Store]:
    import pyspark

    library = _installed("libhdfs.so")
    jars = os.pathsep.join(map(str, (INSTALLED / "jars").glob("*.jar")))
    command = ["java", "-cp", jars, str(HERE / "Hdfs.java"), str(home / "hdfs")]
    with _running(command, home, "port ") as line:
        port = line.split()[1]
        # The jars of PySpark contain the client of Hadoop, all that libhdfs needs.
        client = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
        java = _run("java", "-XshowSettings:properties", "-version")
        environment = {
            "ARROW_LIBHDFS_DIR": str(Path(library).parent),
            "CLASSPATH": os.pathsep.join(map(str, client)),
            "JAVA_HOME": java.partition("java.home = ")[2].partition("\n")[0],
        }
        yield Store(f"hdfs://127.0.0.1:{port}/logs", "", environment)


@contextmanager
def _running(command: Sequence[str], home: Path, ready: str) -> Generator[str]:
    """Runs a server, with standard input open, during the block; yields the line that says it is ready."""
    pipe = subprocess.PIPE
    server = subprocess.Popen(command, cwd=home, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    lines = iter(server.stdout)
    reader = threading.Thread(target=deque, args=(lines, 0))  # so that the server can go on writing
    impatience = threading.Timer(START_S, server.kill)
    with server:
        impatience.start()
        try:
            line = next((line for line in lines if ready in line), None)
            assert line is not None, f"{command[0]} ended before it said {ready!r}"
            impatience.cancel()
            reader.start()
            yield line
        finally:
            impatience.cancel()
            server.kill()
            if reader.ident:
                reader.join()


def _installed(name: str) -> str:
    path = INSTALLED / name
    if not path.exists():
        pytest.skip(f"{path} does not exist: `make stores` installs it")
    return str(path)


def _run(*command: str) -> str:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    ).stdout


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _token() -> str:
    """A SAS token of the account for everything."""
    fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": "2100-01-01T00:00:00Z", "sv": "2020-12-06"}
    names = ("sp", "ss", "srt", "st", "se", "sip", "spr", "sv", "ses")
    signed = "".join(f"{line}\n" for line in (ACCOUNT, *(fields.get(name, "") for name in names)))
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    return urlencode({**fields, "sig": base64.b64encode(digest).decode()})
