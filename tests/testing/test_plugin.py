"""The pytest plugin, as a user's tests meet it: fixtures, marks, what a failure shows and saves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.reading import runs_in

pytest_plugins = ["pytester"]


def test_the_broker_is_fresh_and_the_topic_is_named_after_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import fencepost

        @pytest.mark.parametrize("case", ["a b", "c"])
        def test_one(fencepost_broker, fencepost_topic, case):
            with fencepost.Producer(fencepost_broker.address) as producer:
                producer.send(fencepost_topic, b"x").result()
            fencepost.assert_committed(fencepost_topic, [b"x"], broker=fencepost_broker)
            with fencepost.Admin(fencepost_broker.address) as admin:
                assert [topic.topic for topic in admin.list_topics()] == [fencepost_topic]
            assert fencepost_topic == {"a b": "test_one-a-b", "c": "test_one-c"}[case]
        """
    )
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_marks_set_options_and_partitions(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import fencepost

        pytestmark = pytest.mark.fencepost(sync="all", partitions=2)

        def partitions(broker, topic):
            with fencepost.Admin(broker.address) as admin:
                return len(admin.describe_topic(topic).leaders)

        def test_of_the_module(fencepost_broker, fencepost_topic):
            assert fencepost_broker.settings.sync.value == "all"
            assert partitions(fencepost_broker, fencepost_topic) == 2

        @pytest.mark.fencepost(partitions=3)
        def test_of_the_function(fencepost_broker, fencepost_topic, fencepost_topic_factory):
            assert fencepost_broker.settings.sync.value == "all"
            assert partitions(fencepost_broker, fencepost_topic) == 3
            assert partitions(fencepost_broker, fencepost_topic_factory("another", 4)) == 4
        """
    )
    pytester.runpytest("--strict-markers").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("synk='all'", 'Broker has no option synk; did you mean "sync"?'),
        ("nothing=1", "Broker has no option nothing: it has directory, port, sync"),
        ("sync='comit'", "sync='comit' is not one of 'none', 'commit', 'all'"),
        ("port='x'", "port must be a number from 0 to 65535, not 'x'"),
        (
            "override={'num.partitons': 3}",
            'a broker has no setting num.partitons; did you mean "num.partitions"',
        ),
        ("'all'", "options have names, such as sync='commit'"),
    ],
)
def test_a_wrong_option_says_what_is_possible(pytester: pytest.Pytester, mark: str, says: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.fencepost({mark})
        def test_it(fencepost_broker):
            pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["* ERROR at setup of test_it *", f"@pytest.mark.fencepost: *{says}*", "*short*"]
    )
    assert "fixtures.py" not in result.stdout.str()
    assert "During handling" not in result.stdout.str()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('broker.faults.add("when shop sendz Produce do drop")', '*did you mean "shop sends Produce"*'),
        ('broker.faults.add("when shop sends Produce do drop").wait_until_struck(0)', "*never struck: *"),
        ('fencepost.assert_committed("nope", [], broker=broker)', "*'nope' does not exist*"),
        ('fencepost.Producer(broker.address, acks="all")', "*no parameter 'acks'*"),
        ('fencepost.Broker(sync="comit")', "*sync='comit' is not one of*"),
    ],
)
def test_an_error_of_the_user_shows_the_lines_of_the_user(
    pytester: pytest.Pytester, line: str, says: str
) -> None:
    pytester.makepyfile(
        f"""
        import fencepost

        def helper(broker):
            {line}

        def test_it(fencepost_broker):
            helper(fencepost_broker)
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["> * helper(fencepost_broker)", f">*{line[:20]}*", f"E *{says}"])
    ours = "fencepost/*.py:*: in *"
    result.stdout.no_fnmatch_line(f"*{ours}")
    assert "raise " not in result.stdout.str()
    pytester.runpytest("--full-trace").stdout.fnmatch_lines("*raise *")


@pytest.mark.parametrize(
    ("line", "says", "cause"),
    [
        (
            'fencepost.Admin(broker.address, security_protocol="SSL", ssl_cafile="nowhere.pem")',
            "*BadCertificate: cannot read ssl_cafile nowhere.pem: *",
            "FileNotFoundError: *",
        ),
        (
            'fencepost.Broker(tls_cert="nowhere.pem", tls_key="nowhere.pem").start()',
            "*BadCertificate: cannot read tls_cert nowhere.pem: *",
            "FileNotFoundError: *",
        ),
        ("app.call(broker)", "*app.AppFailed", "E *RequestFailed: *'nope' does not exist*"),
        (
            "app.handle(broker)",
            "*RequestFailed: *'nope' does not exist*",
            "*json/decoder.py:*JSONDecodeError",
        ),
    ],
)
def test_the_causes_of_an_error_show_the_lines_of_the_user(
    pytester: pytest.Pytester, line: str, says: str, cause: str
) -> None:
    pytester.makepyfile(
        app="""
        import json
        import fencepost

        class AppFailed(Exception):
            pass

        def call(broker):
            with fencepost.Admin(broker.address) as admin:
                try:
                    admin.describe_topic("nope")
                except fencepost.RequestFailed as problem:
                    raise AppFailed from problem

        def handle(broker):
            try:
                json.loads("not JSON")
            except ValueError:
                with fencepost.Admin(broker.address) as admin:
                    admin.describe_topic("nope")
        """,
        test_it=f"""
        import app
        import fencepost

        def test_it(fencepost_broker):
            broker = fencepost_broker
            {line}
        """,
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random([f">*{line[:20]}*", f"E *{says}", cause])
    result.stdout.no_fnmatch_line("*fencepost/*.py:*")
    pytester.runpytest("--full-trace").stdout.fnmatch_lines("*fencepost/*.py:*")


def test_a_fault_that_never_struck_is_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(fencepost_broker):
            fencepost_broker.faults.add("when shop sends Produce do drop")
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["* test_it *", 'FaultNeverStruck: the fault "when shop sends Produce do drop" never*', "*what*"]
    )
    assert "pytest_runs.py" not in result.stdout.str()


def test_a_misspelt_fault_of_a_process_is_not_explained_twice(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(fencepost_broker_process):
            fencepost_broker_process.faults.add("when shop sendz Produce do drop")
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*shop sendz Produce*", "E *BadPhrase: *"])
    result.stdout.no_fnmatch_line("*direct cause*")
    result.stdout.no_fnmatch_line("*fault_registry.py*")


def test_a_bug_of_fencepost_shows_its_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import fencepost
        from fencepost.client.shells.sync import Admin

        def test_it(fencepost_broker, monkeypatch):
            monkeypatch.setattr("fencepost.client.admin._topics", lambda reply: {}[0])
            with fencepost.Admin(fencepost_broker.address) as admin:
                admin.list_topics()
        """
    )
    pytester.runpytest().stdout.fnmatch_lines(["*fencepost/client/admin.py*", "E *KeyError: 0"])


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        ("points='3'", "points='3' is not a whole number"),
        ("pionts=3", "a sweep has no option pionts; it has seed, points"),
        ("3", "a sweep takes options by name, such as points=20"),
    ],
)
def test_a_wrong_option_of_a_sweep_is_one_line(pytester: pytest.Pytester, mark: str, says: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.fencepost_sweep({mark})
        def test_it(fencepost_broker):
            pass

        def test_next():
            pass
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([f"@pytest.mark.fencepost_sweep: {says}*", "*short*"])


FAILING = """
    import fencepost

    def test_it(fencepost_broker, fencepost_topic):
        with fencepost.Producer(fencepost_broker.address, client_id="shop") as producer:
            producer.send(fencepost_topic, b"apple").result()
        assert False, "as planned"
    """


def test_a_failure_shows_what_happened_and_saves_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_shop=FAILING)
    result = pytester.runpytest("--fencepost-output", "artefacts")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*as planned*",
            "*fencepost: what happened*",
            "*test_shop.py::test_it*",
            "*ms shop*broker*",
            "*Produce test_it-0 apple 0/0*",
            "*saved in artefacts/test_shop.py-test_it: table.txt, drawing.svg, page.html*",
        ]
    )
    saved = pytester.path / "artefacts" / "test_shop.py-test_it"
    assert "Produce test_it-0 apple 0/0" in (saved / "table.txt").read_text()
    assert (saved / "drawing.svg").read_text().startswith("<svg")
    (shown,) = runs_in(saved / "page.html")["documents"]
    assert shown["source"] == "broker"


def test_without_a_directory_it_is_saved_in_pytests_cache(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_shop=FAILING)
    pytester.runpytest().stdout.fnmatch_lines(["saved in *.pytest_cache*fencepost*test_shop.py-test_it: *"])
    assert list(pytester.path.rglob("drawing.svg"))


def test_a_success_saves_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING.replace("assert False", "assert True"))
    pytester.runpytest("--fencepost-output", "artefacts").assert_outcomes(passed=1)
    assert not (pytester.path / "artefacts").exists()


def test_a_point_at_which_nothing_is_done_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(fencepost_broker):
            fencepost_broker.faults.when("nobody sends EndTxn")
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(['*when("nobody sends EndTxn") has no do(...), so nothing happens there*'])


@pytest.mark.parametrize("fixture", ["fencepost_broker", "fencepost_broker_process"])
def test_a_broker_that_another_fixture_or_the_test_asks_for_is_used_in_the_same_way(
    pytester: pytest.Pytester, fixture: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.fixture
        def broker(request):
            return request.getfixturevalue("{fixture}")

        def test_by_a_fixture(broker, fencepost_topic):
            assert fencepost_topic == "test_by_a_fixture"
            broker.faults.add("when nobody sends EndTxn do drop")

        def test_in_its_body(request):
            broker = request.getfixturevalue("{fixture}")
            broker.faults.add("when nobody sends EndTxn do drop")

        def test_that_passes(broker, fencepost_topic_factory):
            topic = fencepost_topic_factory("invoices")
            import fencepost
            with fencepost.Admin(broker.address) as admin:
                assert admin.describe_topic(topic)
        """
    )
    result = pytester.runpytest("--fencepost-output", "artefacts")
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(2 * ['*the fault "when nobody sends EndTxn do drop" never struck*'])
    assert len(list((pytester.path / "artefacts").iterdir())) == 2


def test_a_broker_process_is_used_in_the_same_way(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        import pytest
        import fencepost

        @pytest.mark.fencepost(sync="commit", partitions=2)
        def test_it(fencepost_broker_process, fencepost_topic):
            assert fencepost_broker_process.pid != os.getpid()
            with fencepost.Producer(fencepost_broker_process.address) as producer:
                producer.send(fencepost_topic, b"apple", partition=1).result()
                fencepost_broker_process.kill()
                fencepost_broker_process.restart()
            fencepost.assert_committed(fencepost_topic, [b"apple"], broker=fencepost_broker_process)

        def test_a_fault_never_struck(fencepost_broker_process):
            fencepost_broker_process.faults.add("when nobody sends EndTxn do drop")
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    never_struck = '*the fault "when nobody sends EndTxn do drop" never struck*'
    result.stdout.fnmatch_lines(
        [never_struck, "*fencepost: output of the broker process*", '{"ready": true*']
    )


def test_a_failure_shows_what_happened_at_a_process_in_all_its_lives(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import fencepost

        def test_it(fencepost_broker_process, fencepost_topic):
            broker = fencepost_broker_process
            broker.faults.when("broker sends Produce reply to shop").do("drop")
            with fencepost.Producer(broker.address, client_id="shop") as producer:
                producer.send(fencepost_topic, b"apple").result()
                broker.kill()
                broker.restart()
                producer.send(fencepost_topic, b"pear").result()
            assert False, "as planned"
        """
    )
    result = pytester.runpytest("--fencepost-output", "artefacts")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*fencepost: what happened*",
            "*shop*broker*",
            "*Produce*",
            "*drop*",
            "*crash*",
            "*restart*",
            "*Produce*",
            "saved in *table.txt, drawing.svg, page.html",
        ]
    )


def test_a_fault_that_struck_is_drawn(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import fencepost

        def test_it(fencepost_broker, fencepost_topic):
            fault = fencepost_broker.faults.when("broker sends Produce reply to shop").do("drop")
            with fencepost.Producer(fencepost_broker.address, client_id="shop") as producer:
                producer.send(fencepost_topic, b"apple").result()
            assert fault.struck == 1
            fencepost.assert_committed(fencepost_topic, [b"apple"], broker=fencepost_broker)
            assert False
        """
    )
    result = pytester.runpytest("--fencepost-output", "artefacts")
    result.stdout.fnmatch_lines(["*⚡*drop*", "*LOST*Produce NONE @0*", "*Produce NONE @0 AGAIN*"])


def test_the_fixtures_are_listed_with_their_help(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--fixtures")
    result.stdout.fnmatch_lines(["fencepost_broker *", "*A fresh broker in memory*"])
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.fencepost(*"])


def test_the_plugin_imports_next_to_nothing(tmp_path: Path) -> None:
    program = "import sys, pytest; before = {*sys.modules}; import fencepost.testing.pytest_plugin; "
    program += "print(*({*sys.modules} - before))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = {*done.stdout.split()}
    assert {name.split(".")[0] for name in loaded} == {"fencepost"}
    assert {name.split(".")[1] for name in loaded if "." in name} <= {"testing", "protocol"}
    assert len(loaded) < 8
