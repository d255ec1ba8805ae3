"""The names in certificates."""

from __future__ import annotations

import pytest

from fencepost.protocol.tls import distinguished_name


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ([[("organizationalUnitName", "admins")], [("commonName", "alice")]], "CN=alice,OU=admins"),
        ([[("commonName", "alice"), ("organizationalUnitName", "admins")]], "CN=alice+OU=admins"),
        ([[("commonName", "alice,OU=admins")]], "CN=alice\\,OU\\=admins"),
        ([[("commonName", " #a+b ")]], "CN=\\ \\#a\\+b\\ "),
        ([[("emailAddress", "a@b.example")]], "emailAddress=a@b.example"),
        ([], ""),
    ],
)
def test_different_subjects_are_different_principals(
    subject: list[list[tuple[str, str]]], expected: str
) -> None:
    assert distinguished_name(subject) == expected
