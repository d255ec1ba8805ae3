"""TLS over memory: the standard library's `ssl` without a socket.

Rule: version 1.2 or newer. The caller moves the bytes, so broker and clients, blocking and async, share this.
"""

# Why not trio.SSLStream: a reply of the broker leaves without an await, at the end of a turn, and the
# blocking client has no trio. `SSLObject` is what SSLStream wraps, too.
#
# A connection that ends without close_notify counts as ended. Frames carry their length, so a message
# cannot lose its end unnoticed.

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, cast

from fencepost.protocol.batches import Buffer
from fencepost.protocol.errors import Unusable
from fencepost.protocol.secure import ALERT_RECORD, HANDSHAKE_RECORD, VERSION_ALERT, TlsFailed, WrongTransport

_READ_SIZE: Final = 1 << 16
_PART_SIZE: Final = 1 << 18

# The short names of RFC 2253, which Kafka's principals use.
_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}


Subject = Iterable[Iterable[tuple[str, str]]]
"""The parts of a name, each with one or more attributes."""


class PemFile(NamedTuple):
    """A file with certificates or a key, and the setting or option that names it."""

    setting: str
    path: str

    def __str__(self) -> str:
        return f"{self.setting} {self.path}"


class BadCertificate(Unusable):
    """A certificate or key file cannot be used. The message is the cause (`because`), which names the setting
    and the file, and the next step (`advice`).
    """

    def __init__(self, because: str, *, advice: str) -> None:
        super().__init__(f"{because}; {advice}")
        self.because = because
        self.advice = advice


def server_context(cert: PemFile, key: PemFile, client_ca: PemFile | None) -> ssl.SSLContext:
    """The TLS settings of a broker, from PEM files; with `client_ca` it demands certificates of its clients.
    Raises BadCertificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, cert, key)
    if client_ca is not None:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    cafile: PemFile | None, cert: PemFile | None, key: PemFile | None, *, check_hostname: bool
) -> ssl.SSLContext:
    """The TLS settings of a client; without `cafile` the system's authorities. Raises BadCertificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    if cafile is None:
        context.load_default_certs()
    else:
        _load_authorities(context, cafile)
    if cert is not None:
        _load_chain(context, cert, key)
    return context


# What a PEM file may hold, and the mark of it.
_CERTIFICATE: Final = ("certificate", b"CERTIFICATE-----")
_KEY: Final = ("private key", b"PRIVATE KEY-----")


def _load_chain(context: ssl.SSLContext, cert: PemFile, key: PemFile | None) -> None:
    # OpenSSL names neither the file nor what is wrong with it.
    _check_pem(cert, _CERTIFICATE, _KEY)
    _check_pem(key or cert, _KEY, _CERTIFICATE)

    def password() -> str:
        # Without this, OpenSSL would ask for the password at the terminal, and the broker would hang.
        raise BadCertificate(
            f"the private key in {key or cert} is encrypted", advice="give a key without a password"
        )

    try:
        context.load_cert_chain(cert.path, None if key is None else key.path, password=password)
    except OSError as problem:  # ssl.SSLError is one
        if getattr(problem, "reason", None) == "KEY_VALUES_MISMATCH":
            what = f"the private key in {key or cert} does not belong to the certificate in {cert}"
            raise BadCertificate(what, advice="give the key with which it was made") from problem
        where = str(cert) if key is None else f"{cert} and {key}"
        raise BadCertificate(
            f"cannot use {where}: {_reason(problem)}", advice="give a certificate and its private key"
        ) from problem


def _check_pem(file: PemFile, wanted: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    """BadCertificate unless the file holds what is wanted; `other` is what it may have been mistaken for."""
    try:
        content = Path(file.path).read_bytes()
    except OSError as problem:
        check = "permissions" if isinstance(problem, PermissionError) else "path"
        raise BadCertificate(
            f"cannot read {file}: {_reason(problem)}", advice=f"check its {check}"
        ) from problem
    if wanted[1] in content:
        return
    if other[1] in content:
        raise BadCertificate(
            f"{file} holds no {wanted[0]}, but a {other[0]}",
            advice="check that certificate and key are not swapped",
        )
    raise BadCertificate(f"{file} holds no {wanted[0]}", advice="give a file in PEM format")


def _load_authorities(context: ssl.SSLContext, cafile: PemFile) -> None:
    _check_pem(cafile, _CERTIFICATE, _KEY)
    try:
        context.load_verify_locations(cafile.path)
    except OSError as problem:
        raise BadCertificate(
            f"cannot use {cafile}: {_reason(problem)}", advice="give the certificates of the authorities"
        ) from problem


def _reason(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the certificate of the peer is not valid: {problem.verify_message}"
    reason = getattr(problem, "reason", None)
    return reason.replace("_", " ").lower() if reason else problem.strerror or str(problem)


class TlsChannel:
    """One side of a TLS connection; see `secure.Tls`."""

    def __init__(
        self, context: ssl.SSLContext, *, is_server: bool = False, server_hostname: str | None = None
    ) -> None:
        self.is_ready = self.is_ended = False
        self._is_server = is_server
        self._is_checked = False  # the first byte
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._records: list[Buffer] = []
        self._tls = context.wrap_bio(
            self._arrived, self._leaving, server_side=is_server, server_hostname=server_hostname
        )

    def start(self) -> None:
        self._shake()

    def receive(self, chunk: Buffer) -> bytes:
        if not self._is_checked and len(chunk):
            self._check(chunk[0])
        self._arrived.write(chunk)
        try:
            return self._read() if self.is_ready or self._shake() else b""
        except ssl.SSLError as problem:
            raise TlsFailed(_reason(problem)) from problem

    def _check(self, first: int) -> None:
        self._is_checked = True
        if self._is_server and first != HANDSHAKE_RECORD:
            self._leaving.write(VERSION_ALERT)
            raise WrongTransport("the client does not speak TLS, and this port requires it")
        if first not in (HANDSHAKE_RECORD, ALERT_RECORD):
            raise WrongTransport("the broker does not speak TLS on this port")

    def _shake(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_ready = True
        return True

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            try:
                piece = self._tls.read(_READ_SIZE)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            if not piece:
                self.is_ended = True
                break
            pieces.append(piece)
        return b"".join(pieces)

    def send(self, pieces: Iterable[Buffer]) -> None:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[self._tls.write(rest[:_PART_SIZE]) :]
                # In parts, so that a reply of 100 MiB is never in memory a third time.
                if self._leaving.pending >= _PART_SIZE:
                    self._records.append(self._leaving.read())

    def outgoing(self) -> list[Buffer]:
        records, self._records = self._records, []
        if self._leaving.pending:
            records.append(self._leaving.read())
        return records

    @property
    def peer(self) -> str | None:
        certificate = self._tls.getpeercert() if self.is_ready else None
        if not certificate:
            return None
        return distinguished_name(cast("Subject", certificate.get("subject", ())))


def distinguished_name(subject: Subject) -> str:
    """The subject of a certificate as `SSLSocket.getpeercert` returns it, in the format of RFC 2253: from the
    most specific part to the least, as X500Principal.getName prints it. A part with several attributes
    differs from several parts.
    """
    parts = (
        "+".join(f"{_SHORT.get(key, key)}={_escaped(text)}" for key, text in part)
        for part in reversed([*subject])
    )
    return ",".join(parts)


def _escaped(text: str) -> str:
    """RFC 2253: otherwise a CN "alice,OU=admins" would read like two parts."""
    escaped = "".join(f"\\{sign}" if sign in ',+"\\<>;=#' else sign for sign in text)
    if escaped.startswith(" "):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if len(escaped) > 1 and escaped.endswith(" ") else escaped
