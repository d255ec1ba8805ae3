"""The two files of access control as text: users with their credentials, and ACLs. Both are TOML.

Rule: every error names the file, the line and what to write instead. A shell reads and writes the files.
"""

from __future__ import annotations

import re
import tomllib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn, cast

from fencepost.broker.access.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    AclEntry,
    Acls,
    Operation,
    Pattern,
    Resource,
)
from fencepost.protocol.errors import FencepostError
from fencepost.protocol.scram import ITERATIONS, ITERATIONS_MAX, KEY_SIZE, Credential, Users

NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,249}")
"""A user name. The "=" and "," of a certificate's name are not allowed, so no user name can pass for one."""


class AccessFileError(FencepostError):
    """A user file or an ACL file is not valid; the message says where, and what to write."""


def _parsed(text: str, file: str, advice: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as problem:  # a number may have more digits than Python reads
        raise AccessFileError(f"{file}: not TOML: {problem}; {advice}") from problem


# --- ACLs ---------------------------------------------------------------------------------------------------

# The key of an entry that names its resource: the type in lower case, with `_prefix` for a prefixed pattern.
_RESOURCE_KEYS: Final = {
    "topic": (Resource.TOPIC, False),
    "topic_prefix": (Resource.TOPIC, True),
    "group": (Resource.GROUP, False),
    "group_prefix": (Resource.GROUP, True),
    "transactional_id": (Resource.TRANSACTIONAL_ID, False),
    "transactional_id_prefix": (Resource.TRANSACTIONAL_ID, True),
    "cluster": (Resource.CLUSTER, False),
}
_OPERATION_NAMES: Final = {operation.value: operation for operation in Operation}
_HEADER = re.compile(r"\s*\[\[\s*acl\s*\]\]")


def parse_acls(text: str, file: str) -> Acls:
    """The rules in the text of an ACL file; AccessFileError if one is not valid."""
    given = _parsed(text, file, "`fencepost help access` shows an ACL file")
    if "users" in given:
        raise AccessFileError(f"{file}: this is a user file, not an ACL file: pass it with --users")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    entries = given.pop("acl", [])
    super_users = given.pop("super_users", [])
    if given:
        raise AccessFileError(f"{file}: unknown key {next(iter(given))!r}: write super_users or [[acl]]")
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) for entry in cast(list[Any], entries)
    ):
        raise AccessFileError(f"{file}: write each rule as an entry [[acl]]")
    top = _Entry(f"{file}: ", {})
    rules: list[AclEntry] = []
    for number, entry in enumerate(cast("list[dict[str, Any]]", entries)):
        line = f" (line {lines[number]})" if number < len(lines) else ""
        rules += _Entry(f"{file}: [[acl]] entry {number + 1}{line}: ", entry).rules()
    return Acls(rules=tuple(rules), super_users=frozenset(top.principals(super_users, "super_users")))


class _Entry:
    """One [[acl]] entry; `fail` knows where it is."""

    def __init__(self, place: str, fields: Mapping[str, Any]) -> None:
        self.place = place
        self.fields = fields

    def fail(self, what: str) -> NoReturn:
        raise AccessFileError(self.place + what)

    def rules(self) -> Iterator[AclEntry]:
        unknown = sorted(self.fields.keys() - {"principal", "allow", "deny", *_RESOURCE_KEYS})
        if unknown:
            self.fail(f"unknown key {unknown[0]!r}: write principal, allow, deny, or {self._resources()}")
        if "principal" not in self.fields:
            self.fail('no principal: write principal = "User:NAME", or "User:*" for everyone')
        principals = self.principals(self.fields["principal"], "principal")
        pattern = self._pattern()
        if not self.fields.keys() & {"allow", "deny"}:
            self.fail('neither allow nor deny: write for example allow = ["Read"]')
        for key in ("allow", "deny"):
            if key in self.fields:
                operations = self._operations(key, pattern.resource)
                yield AclEntry(
                    principals=frozenset(principals),
                    pattern=pattern,
                    operations=operations,
                    is_allowed=key == "allow",
                )

    def _texts(self, given: Any, key: str) -> list[str]:
        texts = cast("list[Any]", given if isinstance(given, list) else [given])
        if not all(isinstance(text, str) and text for text in texts):
            self.fail(f"{key} must be a string or a list of strings, not {given!r}")
        return texts

    def principals(self, given: Any, key: str) -> list[str]:
        found = self._texts(given, key)
        for principal in found:
            if not principal.startswith("User:") or principal == "User:":
                self.fail(f'{key} {principal!r} has no type: write "User:{principal.removeprefix("User:")}"')
        return found

    def _resources(self) -> str:
        return ", ".join(_RESOURCE_KEYS)

    def _pattern(self) -> Pattern:
        keys = [key for key in _RESOURCE_KEYS if key in self.fields]
        if len(keys) != 1:
            found = " and ".join(keys) or "none"
            self.fail(
                f"an entry needs one resource, but this one has {found}: write one of {self._resources()}"
            )
        resource, is_prefix = _RESOURCE_KEYS[keys[0]]
        name = self.fields[keys[0]]
        if resource is Resource.CLUSTER:
            if name is not True:
                self.fail("there is only one cluster: write cluster = true")
            return Pattern(resource=resource, name=CLUSTER_NAME)
        if not isinstance(name, str) or not name:
            self.fail(f'{keys[0]} must be a name, not {name!r}: write {keys[0]} = "NAME", or "*" for all')
        if "*" in name and (is_prefix or name != "*"):
            start = name.partition("*")[0]
            what = f'write {resource_key(resource)}_prefix = "{start}"' if start else f'{keys[0]} = "*"'
            self.fail(f'{keys[0]} = "{name}": only "*" alone stands for all names: {what}')
        return Pattern(resource=resource, name=name, is_prefix=is_prefix)

    def _operations(self, key: str, resource: Resource) -> frozenset[Operation]:
        names = self._texts(self.fields[key], key)
        possible = [operation.value for operation in OPERATIONS[resource]]
        for name in names:
            if name not in possible:
                self.fail(
                    f"{key}: {name!r} is not an operation on a {resource.value}: write {', '.join(possible)}"
                )
        if not names:
            self.fail(f'{key} is empty: write for example {key} = ["{possible[1]}"]')
        return frozenset(_OPERATION_NAMES[name] for name in names)


def resource_key(resource: Resource) -> str:
    """The key of a literal pattern of this type in an entry."""
    return next(
        key for key, (kind, is_prefix) in _RESOURCE_KEYS.items() if kind is resource and not is_prefix
    )


# --- users --------------------------------------------------------------------------------------------------

_HEAD: Final = """\
# The users of a Fencepost broker: `fencepost user add` writes this file. It holds no passwords, but anyone
# who can read it can try to guess them: let only the broker read it.
"""


def check_name(name: str, place: str = "") -> None:
    """AccessFileError unless a user may have this name; `place` is where the name was found."""
    if NAME.fullmatch(name) is None:
        raise AccessFileError(
            f"{place}{name!r} is not a valid user name: use up to 249 ASCII letters, digits, "
            "'.', '_', '@' and '-'"
        )


def parse_users(text: str, file: str) -> Users:
    """The users in the text of a user file; AccessFileError if it is not valid."""
    advice = "make entries with `fencepost user add`"
    given = _parsed(text, file, advice)
    if "acl" in given:
        raise AccessFileError(f"{file}: this is an ACL file, not a user file: pass it with --acls")
    try:
        iterations, users = given["iterations"], given["users"]
        if type(iterations) is not int or not ITERATIONS <= iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations must be a number from {ITERATIONS} to {ITERATIONS_MAX}")
        decoy_key = _bytes(given, "decoy_key", KEY_SIZE)
        credentials: dict[str, Credential] = {}
        for name, entry in users.items():
            check_name(name, f"{file}: ")
            credentials[name] = Credential(
                salt=b64decode(entry["salt"], validate=True),
                iterations=iterations,
                stored_key=_bytes(entry, "stored_key", KEY_SIZE),
                server_key=_bytes(entry, "server_key", KEY_SIZE),
            )
    except KeyError as problem:
        raise AccessFileError(f"{file}: not a complete user file: it has no {problem}; {advice}") from problem
    except (AttributeError, TypeError, NotBase64, ValueError) as problem:
        raise AccessFileError(f"{file}: {problem}; {advice}") from problem
    return Users(credentials=credentials, decoy_key=decoy_key, iterations=iterations)


def _bytes(entry: Mapping[str, Any], key: str, size: int) -> bytes:
    found = b64decode(entry[key], validate=True)
    if len(found) != size:
        raise ValueError(f"{key} has {len(found)} bytes, not {size}")
    return found


def format_users(users: Users) -> str:
    """The text of a user file."""
    lines = [_HEAD + f"iterations = {users.iterations}"]
    lines.append(f'decoy_key = "{_base64(users.decoy_key)}"  # makes up salts for names that do not exist')
    lines.append("\n[users]")
    for name, credential in sorted(users.credentials.items()):
        fields = (
            f'{key} = "{_base64(getattr(credential, key))}"' for key in ("salt", "stored_key", "server_key")
        )
        lines.append("\n".join([f'[users."{name}"]', *fields, ""]))
    return "\n".join(lines)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
