"""Ctrl-C and SIGTERM where they would do harm: they wait, but not for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fencepost.cli.interruptions import Stopped, WholeStep, held_back

INTERRUPTS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('ran on')"


def test_ctrl_c_waits_while_a_process_is_started() -> None:
    said: list[str] = []

    def start() -> None:
        with held_back():
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


@pytest.mark.parametrize(("number", "ended"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)])
def test_a_signal_waits_for_the_end_of_a_step(number: signal.Signals, ended: type[BaseException]) -> None:
    step, done = WholeStep(), list[str]()

    def run() -> None:
        with step:
            signal.raise_signal(number)
            done.append("the rest of the step")
        done.append("the next step")

    try:
        with pytest.raises(ended):
            run()
        with pytest.raises(ended):
            signal.raise_signal(number)
    finally:
        step.close()
    assert done == ["the rest of the step"]


def test_a_step_that_waits_is_interrupted() -> None:
    step, read_end = WholeStep(), os.pipe()[0]

    def run() -> None:
        with step:
            signal.raise_signal(signal.SIGINT)
            os.read(read_end, 1)  # nobody writes

    try:
        with pytest.raises(KeyboardInterrupt):
            run()
    finally:
        step.close()
