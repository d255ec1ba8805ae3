"""Ctrl-C and SIGTERM where they would do harm: they wait, but not for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fencepost.cli.interruptions import deferred_signals

INTERRUPTS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('ran on')"


def test_ctrl_c_waits_while_a_process_is_started() -> None:
    said: list[str] = []

    def start() -> None:
        with deferred_signals():
            os.kill(os.getpid(), signal.SIGINT)
            said.append(subprocess.check_output([sys.executable, "-c", INTERRUPTS_ITSELF], text=True))

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert said == ["ran on\n"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
