"""The environment variables that commands read.

Rule: an empty variable is not set. A variable that is nearly one of these is an error, as a misspelt option
is; any other is left alone: Kubernetes, for example, sets FENCEPOST_SERVICE_HOST for a service of this name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from fencepost.cli.errors import WrongUsage

PREFIX: Final = "FENCEPOST_"
BOOTSTRAP_SERVER: Final = f"{PREFIX}BOOTSTRAP_SERVER"
COMMAND_CONFIG: Final = f"{PREFIX}COMMAND_CONFIG"
CONFIG: Final = f"{PREFIX}CONFIG"
PROFILE: Final = f"{PREFIX}PROFILE"
OWN: Final = (BOOTSTRAP_SERVER, COMMAND_CONFIG, CONFIG, PROFILE)
SECURITY: Final = tuple(f"{PREFIX}{family}_" for family in ("SASL", "SSL", "SECURITY"))
"""How the names of security settings begin: nothing else has such names."""


def variable(name: str) -> str | None:
    """The value of a variable; None if it is not set."""
    return os.environ.get(name) or None


def security_variables() -> dict[str, str]:
    """By security setting: the variable that overrides it."""
    from fencepost.client.security import SecuritySettings

    return {name: f"{PREFIX}{name.upper()}" for name in SecuritySettings.__annotations__}


def check_variables() -> None:
    """WrongUsage for a variable that is misspelt."""
    given = [name for name in os.environ if name.startswith(PREFIX) and variable(name) and name not in OWN]
    known = [*OWN, *security_variables().values()] if given else []
    for name in given:
        if name in known:
            continue
        meant = _question(name, known)
        if not meant and not name.startswith(SECURITY):
            continue
        raise WrongUsage(
            f"the environment variable {name} is not one that Fencepost reads",
            then=f"{meant}`fencepost help cli` lists them; unset it if it is meant for something else",
        )


def _question(name: str, known: Sequence[str]) -> str:
    """ "did you mean ...? " with the nearest names, which are compared without the prefix.

    Names that contain this one are not suggested: FENCEPOST_SERVER may be a variable of Docker.
    """
    from fencepost.protocol.suggestions import either, nearest  # only this error needs it

    near = nearest(name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known])
    return f"did you mean {either([f'{PREFIX}{each}' for each in near])}? " if near else ""
