"""A connection that speaks Kafka's protocol, one request after the other, in any version."""

from __future__ import annotations

import io
import socket
import struct
from typing import Any

import attrs
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

PATIENCE_S = 60


@attrs.define(eq=False)
class KafkaSocket:
    """A connection that waits for each answer."""

    socket: socket.socket

    def close(self) -> None:
        self.socket.close()

    def exchange(self, frame: bytes) -> bytes:
        """Send a frame and get one. EOFError if the broker closes the connection instead."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        schema: Any = load_request_schema(api_key, version)
        out = io.BytesIO()
        entity_writer(schema)(out, schema(**fields))
        return self.ask_bytes(api_key, version, out.getvalue())

    def ask_bytes(self, api_key: int, version: int, request: bytes) -> Any:
        """The response to the bytes of a request without its header."""
        header: Any = load_request_schema(api_key, version).__header_schema__
        out = io.BytesIO()
        entity_writer(header)(
            out,
            header(request_api_key=api_key, request_api_version=version, correlation_id=7, client_id="old"),
        )
        answer = self.exchange(out.getvalue() + request)
        response = load_response_schema(api_key, version)
        _, size = entity_reader(response.__header_schema__)(memoryview(answer).toreadonly(), 0)
        return entity_reader(response)(memoryview(answer).toreadonly(), size)[0]


def connected(address: str) -> KafkaSocket:
    host, _, port = address.rpartition(":")
    return KafkaSocket(socket.create_connection((host, int(port)), timeout=PATIENCE_S))
