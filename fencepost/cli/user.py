"""`fencepost user`: the user file of a broker.

Rule: a password is read from the terminal or from standard input, never from the command line, where other
users of the machine could see it.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import secrets
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import attrs

from fencepost.broker.access.files import AccessFileError, check_name, format_users, parse_users
from fencepost.cli.errors import CommandFailed, WrongUsage
from fencepost.cli.files import read_text
from fencepost.cli.likely_paths import did_you_mean_beside
from fencepost.cli.options import AsJson
from fencepost.cli.output import print_done
from fencepost.journal.data_directory import META_FILE
from fencepost.protocol.scram import KEY_SIZE, SALT_SIZE, Users, make_credential
from fencepost.protocol.suggestions import suggestion


def add_user(file: Path, name: str, /, *, as_json: AsJson = False) -> None:
    """Add a user to a user file, or change a user's password.

    Parameters
    ----------
    file
        The user file; created if missing.
    name
        The name of the user; the principal in ACLs is User:NAME.
    """
    try:
        check_name(name)
    except AccessFileError as problem:
        raise WrongUsage(str(problem)) from problem
    with _locked(file):
        _users_in(file)  # before a person types a password
    password, salt = _password(name), secrets.token_bytes(SALT_SIZE)
    with _locked(file):
        users = _users_in(file)
        is_new = name not in users.credentials
        credential = make_credential(password, salt, users.iterations)
        _replace(file, format_users(attrs.evolve(users, credentials={**users.credentials, name: credential})))
    did = f"Added {name} to" if is_new else f"Changed the password of {name} in"
    facts = {"user": name, "file": str(file), "is_new": is_new}
    print_done(f"{did} {file}. Restart the broker to apply this.", facts, as_json=as_json)


def remove_user(file: Path, name: str, /, *, as_json: AsJson = False) -> None:
    """Remove a user from a user file.

    Parameters
    ----------
    file
        The user file.
    name
        The name of the user.
    """
    if not file.exists():
        then = did_you_mean_beside(file) or "`fencepost user add FILE NAME` writes a user file"
        raise WrongUsage(f"no such file: {file}", then=then)
    with _locked(file):
        users = _users_in(file)
        if name not in users.credentials:
            names = ", ".join(sorted(users.credentials))
            then = f"its users are {names}" if names else "it has no users"
            meant = suggestion(name, sorted(users.credentials))
            raise CommandFailed(f"{file} has no user {name}{meant}", then=then)
        rest = {user: credential for user, credential in users.credentials.items() if user != name}
        _replace(file, format_users(attrs.evolve(users, credentials=rest)))
    done = f"Removed {name} from {file}. Restart the broker to lock the user out."
    print_done(done, {"user": name, "file": str(file)}, as_json=as_json)


@contextmanager
def _locked(file: Path) -> Generator[None]:
    """Keep other commands from changing the file during the block. The lock is on its directory, because the
    file itself is replaced. A broker locks its data directory, too, so the file cannot be there.
    """
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        if (file.parent / META_FILE).exists():
            raise WrongUsage(
                f"{file.parent} is the data directory of a broker",
                then="choose another directory for the user file",
            )
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _users_in(file: Path) -> Users:
    if not file.exists():
        return Users(credentials={}, decoy_key=secrets.token_bytes(KEY_SIZE))
    then = "`fencepost user add FILE NAME` with a new file writes a user file"
    text = read_text("the user file", file, then=then)
    try:
        return parse_users(text, str(file))
    except AccessFileError as problem:
        raise WrongUsage(str(problem)) from problem


def _password(name: str) -> str:
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {name}: ")
        if getpass.getpass("Repeat the password: ") != password:
            raise WrongUsage("the passwords do not match", then="run the command again")
    else:
        line = sys.stdin.readline()
        if not line:
            raise WrongUsage(
                "standard input is empty, so there is no password",
                then="type it in a terminal, or give it on standard input as one line",
            )
        password = line.rstrip("\r\n")
    if not password or "\0" in password or not password.isprintable():
        raise WrongUsage(
            "the password is empty or has characters that cannot be printed",
            then="type a password of printable characters, or give it on standard input as one line",
        )
    return password


def _replace(file: Path, text: str) -> None:
    """Write the whole file or nothing, readable by its owner alone."""
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as fresh:  # mkstemp made it with mode 600
            fresh.write(text)
            fresh.flush()
            os.fsync(fresh.fileno())
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
