"""`fencepost lab`: serves a page for watching runs and adding faults to them."""

from __future__ import annotations

import json
import os
import webbrowser
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter, validators

from fencepost.bundled import bundled_scenarios
from fencepost.cli.errors import OK, CommandFailed, WrongUsage, complain, report
from fencepost.cli.options import (
    ADMIN_ID,
    ANSWER_MS,
    AS_TIME,
    BOOTSTRAP_OPTION,
    CommandConfig,
    addresses_in,
    problems_of,
    security_of,
)
from fencepost.client.errors import AuthenticationFailed, AuthorizationFailed, ClientError
from fencepost.protocol.extras import adding

if TYPE_CHECKING:
    import socket

    from fencepost.client.security import SecuritySettings

MIB: Final = 1 << 20
CHECK_SECONDS: Final = 6.0  # what is found out later is printed after the lab has started
MEMORY_MIN: Final = 256  # MiB: a process needs a third of that before it plays anything


def _check_broker(bootstrap: str, security: SecuritySettings) -> int:
    """Says in the terminal why the lab cannot follow the broker, since perhaps nobody looks at the page.
    Returns an exit code, which is not OK if waiting will not help.
    """
    if reasons := problems_of(bootstrap.split(",")):
        complain(
            f"no broker answers at {reasons}",
            then="start one with `fencepost serve DIRECTORY --follow`; the lab waits for it",
        )
        return OK
    from fencepost.client.shells.sync import Admin

    try:
        with Admin(bootstrap, client_id=ADMIN_ID, default_api_timeout_ms=ANSWER_MS, **security) as admin:
            is_followed = bool(admin.follow(wait_ms=1).run)
    except ClientError as problem:
        code = report(problem)
        return code if isinstance(problem, AuthenticationFailed | AuthorizationFailed) else OK
    if not is_followed:
        complain(
            f"{bootstrap} was started without --follow, so the page cannot show what it does",
            then="stop it and start it again with --follow: `fencepost serve DIRECTORY --follow`",
        )
    return OK


class _BrokerCheck(Thread):
    """Checks the broker in a thread of its own. `code` is the result of `_check_broker`."""

    def __init__(self, bootstrap: str, security: SecuritySettings) -> None:
        super().__init__(daemon=True)
        self.code, self._brokers, self._security = OK, bootstrap, security

    def run(self) -> None:
        self.code = _check_broker(self._brokers, self._security)


def lab(
    *,
    bootstrap: Annotated[str | None, Parameter((BOOTSTRAP_OPTION, "-b"), metavar="HOST:PORT")] = None,
    command_config: CommandConfig = None,
    port: Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65_535))] = 8778,
    browser: Annotated[bool, Parameter(negative="--no-browser")] = True,
    time_limit: Annotated[float, AS_TIME, Parameter(validator=validators.Number(gt=0))] = 10.0,
    memory_limit: Annotated[
        int, Parameter(metavar="MIB", validator=validators.Number(gte=MEMORY_MIN))
    ] = 1024,
) -> int:
    """Serve a page on which to watch runs, step through them and add faults to them.

    Parameters
    ----------
    bootstrap
        Follow the broker at this address, which `fencepost serve --follow` has started, instead of running
        scenarios. Unlike other commands, lab does not take the address from FENCEPOST_BOOTSTRAP_SERVER.
    port
        TCP port on the loopback interface; 0 takes any free port.
    browser
        Open the page in a browser.
    time_limit
        How long one run may take before it is stopped, such as 30s.
    memory_limit
        How much memory the process that simulates the runs may use, in MiB.
    """
    for package in ("starlette", "hypercorn"):
        if find_spec(package) is None:
            raise WrongUsage(
                f"the lab needs the package {package}",
                then=f"{adding('lab')}; without it, `fencepost run NAME --html FILE` writes the page of one "
                "run",
            )
    import trio

    from fencepost.lab.server import LabSettings, serve_lab
    from fencepost.lab.workers import WorkLimits

    settings = LabSettings(
        bundled={name: path.read_text(encoding="utf-8") for name, path in bundled_scenarios().items()},
        limits=WorkLimits(seconds_max=time_limit, memory_bytes_max=memory_limit * MIB),
        broker=None if bootstrap is None else ",".join(addresses_in(bootstrap)),
        security=security_of(command_config),
    )

    def ready(address: str) -> None:
        print(f"The lab is at {address}")
        print("Keep the address to yourself: with it, anyone can run simulations here. Ctrl-C stops the lab.")
        print(json.dumps({"ready": True, "address": address, "pid": os.getpid()}), flush=True)
        if browser:  # one in the terminal may take seconds
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with _bound(port) as listening:  # before the check of the broker, which takes seconds
        if settings.broker is not None:
            check = _BrokerCheck(settings.broker, settings.security)
            check.start()
            check.join(CHECK_SECONDS)
            if check.code != OK:
                return check.code
        trio.run(serve_lab, settings, listening, ready)
    return OK


def _bound(port: int) -> socket.socket:
    from fencepost.lab.server import PortUnusable, bound_socket

    try:
        return bound_socket(port)
    except PortUnusable as problem:
        raise CommandFailed(str(problem), then=problem.then) from None
