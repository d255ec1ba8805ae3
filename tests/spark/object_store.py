"""An object store on this machine that speaks as much of S3 as a reader needs: a directory is a bucket.

It stores nothing: objects are the files of the directory, as they are when they are requested.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ACCESS_KEY: Final = "reader"


class ObjectStore(ThreadingHTTPServer):
    """Serves a bucket `logs`; counts requests."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory = directory
        self.requests: list[tuple[str, str, str]] = []
        """Method, key or prefix, and range of each."""

    def uri(self, path: str, *, key: str = ACCESS_KEY) -> str:
        """The URI of a directory in the bucket."""
        port = self.server_address[1]
        return f"s3://{key}:secret@logs/{path}?endpoint_override=127.0.0.1:{port}&scheme=http&region=here"


@contextmanager
def object_store(directory: Path) -> Generator[ObjectStore]:
    """A store that runs in a thread until the end of the block."""
    store = ObjectStore(directory)
    thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        thread.join()
        store.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def store(self) -> ObjectStore:
        assert isinstance(self.server, ObjectStore)
        return self.server

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix("/logs").strip("/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        asked = query.get("prefix", key)
        self.store.requests.append((self.command, asked, self.headers.get("Range", "")))
        if f"Credential={ACCESS_KEY}/" not in self.headers.get("Authorization", ""):
            self._send(403, b"", with_content=with_content)
        elif "list-type" in query:
            self._send(200, self._listing(asked.strip("/")), with_content=with_content)
        elif not key or (self.store.directory / key).is_file():
            self._object(key, with_content=with_content)
        else:
            self._send(404, b"", with_content=with_content)

    def _listing(self, prefix: str) -> bytes:
        directory = self.store.directory / prefix
        entries = sorted(directory.iterdir()) if directory.is_dir() else []
        found = "".join(map(self._entry, entries))
        count = f"<KeyCount>{len(entries)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult><Name>logs</Name>{count}{found}</ListBucketResult>".encode()

    def _entry(self, path: Path) -> str:
        key = escape(self._key(path))
        if path.is_dir():
            return f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>"
        return f"<Contents><Key>{key}</Key><Size>{path.stat().st_size}</Size></Contents>"

    def _key(self, path: Path) -> str:
        return path.relative_to(self.store.directory).as_posix()

    def _object(self, key: str, *, with_content: bool) -> None:
        path = self.store.directory / key
        asked = self.headers.get("Range")
        if asked is None:
            self._send(200, path.read_bytes() if key else b"", with_content=with_content)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        with path.open("rb") as file:
            file.seek(int(first))
            self._send(206, file.read(int(last) + 1 - int(first)), with_content=with_content)

    def _send(self, status: int, content: bytes, *, with_content: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", formatdate(0, usegmt=True))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nobody reads it."""
