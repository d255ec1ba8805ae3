"""Commands as processes: ready lines, signals, exit codes, pipes; no traceback for what is expected."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.broker.connections import DESCRIPTORS_MIN
from tests.cli.processes import COMMAND, PATIENCE_S, broker, fencepost, read_ready, started


def test_a_broker_ends_with_the_parent_that_it_was_told_to_stay_with(tmp_path: Path) -> None:
    done = fencepost("serve", "--memory", "--port", "0", "--with-parent", "--log-level", "warning")
    assert (done.returncode, done.stderr) == (0, "")


def test_serving_loads_nothing_for_the_eyes() -> None:
    """The start is fast because `serve` needs no tables, no Spark and no client."""
    command = [sys.executable, "-X", "importtime", *COMMAND[1:]]
    done = subprocess.run(
        [*command, "serve", "--memory", "--port", "0", "--with-parent"],
        input="",
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    loaded = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert "fencepost.broker.server" in loaded
    assert not {
        name for name in loaded if re.match(r"(rich|pyspark|pyarrow|fencepost\.client\.sync)\b", name)
    }


def test_a_broker_that_may_open_too_few_files_does_not_start(tmp_path: Path) -> None:
    limited = [sys.executable, "-m", "tests.attack.limited", str(DESCRIPTORS_MIN - 1), "0"]
    done = subprocess.run(
        [*limited, "serve", str(tmp_path / "data"), "--port", "0", "--with-parent"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "fencepost: this process may open at most 127 files and sockets (ulimit -Hn), and a broker needs at "
        "least 128. Start it from a shell or a service with a higher hard limit\n"
    )
    assert not (tmp_path / "data").exists()


def test_lines_go_in_and_come_out(tmp_path: Path) -> None:
    lines = "apple\t3\npear\t1\nno key at all\n"
    with broker(tmp_path) as (_, address):
        at = ("--bootstrap-server", address)
        assert fencepost("topic", "create", "fruit", *at).returncode == 0
        assert "3 records written to fruit" in fencepost("produce", "fruit", *at, stdin=lines).stdout
        assert fencepost("consume", "fruit", *at).stdout == lines


INTERRUPTED_AT_THE_FIRST_IMPORT = """
import sys

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] not in ("fencepost", "__future__"):
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from fencepost.cli import main
main()
"""


def test_ctrl_c_while_the_command_is_imported_shows_no_traceback() -> None:
    """The modules that take time are all imported where Ctrl-C is expected."""
    command = [sys.executable, "-S", "-c", INTERRUPTED_AT_THE_FIRST_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (130, "")


INTERRUPTED_IN_A_CALLBACK = """
import signal, sys, weakref

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "trio":
            short_lived = set()
            watched = weakref.ref(short_lived, lambda _: signal.raise_signal(number))
            del short_lived

number = int(sys.argv.pop())
sys.meta_path.insert(0, Interrupting())
from fencepost.cli import main
main()
"""


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_a_callback_is_not_dropped(how: signal.Signals, code: int) -> None:
    """Python prints exceptions of such callbacks and runs on; each import has one."""
    command = [sys.executable, "-c", INTERRUPTED_IN_A_CALLBACK, "serve", "--memory", "--port", "0"]
    command += ["--with-parent", str(int(how))]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr, done.stdout) == (code, "", "")


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_follower_is_stopped_by_a_signal(tmp_path: Path, how: signal.Signals, code: int) -> None:
    with broker(tmp_path) as (_, address):
        at = ("--bootstrap-server", address)
        fencepost("topic", "create", "fruit", *at)
        with started("consume", "fruit", "--follow", *at) as follower:
            fencepost("produce", "fruit", *at, stdin="apple\n")
            assert follower.stdout is not None
            assert follower.stdout.readline() == "apple\n"
            follower.send_signal(how)
            _, errors = follower.communicate(timeout=PATIENCE_S)
            assert (follower.returncode, errors) == (code, "")


def test_a_follower_reports_that_the_broker_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with broker(tmp_path) as (process, address):
        fencepost("topic", "create", "fruit", "--bootstrap-server", address)
        with started("consume", "fruit", "--follow", "--bootstrap-server", address) as follower:
            fencepost("produce", "fruit", "--bootstrap-server", address, stdin="apple\n")
            assert follower.stdout is not None
            assert follower.stderr is not None
            assert follower.stdout.readline() == "apple\n"
            process.terminate()
            assert "cannot read fruit-0: the connection was lost" in follower.stderr.readline()
            assert "retrying" in follower.stderr.readline()
            process.wait(PATIENCE_S)
            with started("serve", str(tmp_path), "--port", address.rpartition(":")[2]) as successor:
                read_ready(successor)
                fencepost("produce", "fruit", "--bootstrap-server", address, stdin="pear\n")
                assert follower.stdout.readline() == "pear\n"
                assert follower.stderr.readline() == "fencepost: all partitions can be read again\n"


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    with broker(tmp_path) as (_, address):
        at = ("--bootstrap-server", address)
        fencepost("topic", "create", "fruit", *at)
        fencepost("produce", "fruit", *at, stdin="an apple a day\n" * 20_000)
        with started("consume", "fruit", *at) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "an apple a day\n"
            reader.stdout.close()
            assert reader.stderr is not None
            assert reader.stderr.read() == ""
            assert reader.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("command", [[], ["serve"]])
def test_a_reader_that_has_seen_enough_of_the_help_is_no_error(command: list[str]) -> None:
    with started(*command, "--help") as helping:
        assert helping.stdout is not None
        helping.stdout.close()
        assert helping.stderr is not None
        assert helping.stderr.read() == ""
        assert helping.wait(PATIENCE_S) == 0


def test_serve_says_which_faults_wait_and_for_whom() -> None:
    """A client id that no client has is no error, but it can be seen."""
    faults = ["--fault", "when shpo sends EndTxn #2 do drop", "--fault", "when at 1 min do crash broker"]
    faults += ["--fault", "when t-0 appends data do fail appends of t-1"]
    done = fencepost("serve", "--memory", "--port", "0", "--with-parent", *faults)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[2:5] == [
        'Fault 1 waits: when shpo sends EndTxn #2 do drop (client id "shpo")',
        "Fault 2 waits: when at 1 min do crash broker",
        (
            "Fault 3 waits: when t-0 appends data do fail appends of t-1 "
            "(partition t-0, any transactional id; not created yet: t-0, t-1)"
        ),
    ]
    assert lines[5].startswith('{"ready": true')


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nonsense"], 2, "nonsense"),
        (["serve", "--memory", "--host", "nowhere.invalid"], 1, "another host; the option is --host"),
        (["topic", "list", "--bootstrap-server", "127.0.0.1:1"], 3, "fencepost serve"),
    ],
)
def test_a_process_that_fails_says_why_and_has_the_code_of_its_kind(
    arguments: list[str], code: int, words: str
) -> None:
    """tests/cli/test_errors.py has more of them, without a process for each."""
    done = fencepost(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_is_printed_by_a_process() -> None:
    done = fencepost("serve", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout
