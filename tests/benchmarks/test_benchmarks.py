"""The benchmarks run, measure what they say, and write where they should; none is asked how fast it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from benchmarks import growth
from benchmarks.__main__ import CLIENT_LOADS, PAGE, app
from benchmarks.apache_kafka import JARS_VARIABLE
from benchmarks.brokers import System
from benchmarks.brokers_report import BROKER_LOADS, OURS, brokers_grid, brokers_results
from benchmarks.load_rounds import Round, timed
from benchmarks.loads import Load, Sample, Scale, Standing
from benchmarks.report import (
    Report,
    conditions,
    figures_as_json,
    grids,
    import_trio,
    load_results,
    markdown,
    standing_results,
    write_section,
)
from benchmarks.simulator import SimulatorScale, Subject

TINY = Scale(records=2_000, transactions=3)


@pytest.mark.thorough
def test_a_quick_run_measures_every_load_on_every_system(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(JARS_VARIABLE, raising=False)
    monkeypatch.setattr("benchmarks.__main__.QUICK_SIMULATOR", SimulatorScale(calm_worlds=1, seeds=2))
    with pytest.raises(SystemExit, match=r"^0$"):
        app(["--quick", "--rounds", "1", "--records", "2000", "--transactions", "3", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    here = {system.value for system in (System.OURS, System.CONFLUENT) if system.is_installed}
    assert [load["load"] for load in found["loads"]] == [load.value for load in CLIENT_LOADS]
    for load in found["loads"]:
        assert set(load["rates"]) == here
        assert all(rate["middle"] > 0 for rate in load["rates"].values())
        assert (load["ratio"] is None) == (len(here) == 1)
    assert {broker["system"] for broker in found["brokers"]} == here
    assert set(found["figures"]) == {"ready", *(load.value for load in CLIENT_LOADS)}
    assert all(
        set(figure) == {"ours", "peer", "ratio", "goal", "met"} for figure in found["figures"].values()
    )
    _check_brokers(found["one_client"])
    simulated = found["simulator"]
    assert {figure["subject"] for figure in simulated["figures"]} == {subject.value for subject in Subject}
    assert all(figure["rate"]["middle"] > 0 for figure in simulated["figures"])
    for shares in simulated["shares"].values():
        assert sum(shares.values()) == pytest.approx(1, abs=0.001)


def _check_brokers(found: list[dict[str, Any]]) -> None:
    assert [load["load"] for load in found] == [load.value for load in BROKER_LOADS]
    for load in found:
        assert set(load["peers"]) == {System.CONFLUENT.value}
        assert set(load["broker_cpu_us"]) == {OURS.value, System.CONFLUENT.value}
        assert load["rates"]["middle"] > 0


def _sample(rate: float, cpu_us: float | None = 1.0) -> Sample:
    cpu_seconds = None if cpu_us is None else cpu_us * 1_000 / 1_000_000
    return Sample(
        operations=1_000,
        seconds=1_000 / rate,
        client_cpu_seconds=0.002,
        broker_cpu_seconds=cpu_seconds,
        client_bytes=30 << 20,
    )


def _round(load: Load, ours: float, theirs: float | None, cpu_us: float | None = 1.0) -> Round:
    samples = {System.OURS: _sample(ours, cpu_us)}
    if theirs is not None:
        samples[System.CONFLUENT] = _sample(theirs, cpu_us)
    standing = Standing(start_seconds=0.2, idle_bytes=20 << 20, peak_bytes=None, ready_seconds=0.19)
    return Round(samples={load: samples}, standing=dict.fromkeys(samples, standing), import_trio_seconds=0.1)


def test_a_ratio_is_that_of_the_same_round() -> None:
    """The machine was slow in the second round, for both."""
    rounds = [_round(Load.COMMITS, 300, 100), _round(Load.COMMITS, 60, 15), _round(Load.COMMITS, 200, 80)]
    [result] = load_results(rounds)
    assert result.ratio is not None
    assert (result.ratio.least, result.ratio.middle, result.ratio.most) == pytest.approx((2.5, 3, 4))
    assert result.rates[System.OURS].middle == pytest.approx(200)
    assert result.client_cpu_us[System.OURS] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("load", "ours", "theirs", "reached"),
    [
        (Load.PRODUCE, 1_500, 1_000, True),
        (Load.PRODUCE, 1_490, 1_000, False),
        (Load.COMMITS, 2_990, 1_000, False),
        (Load.COMMITS_OF_TEN_SYNCED, 300, 1_000, True),
        (Load.FETCH_VALUES, 7_990, 1_000, False),
        (Load.PRODUCE, 1_500, None, None),
    ],
)
def test_a_goal_is_reached_by_the_median_ratio(
    load: Load, ours: float, theirs: float | None, reached: bool | None
) -> None:
    [result] = load_results([_round(load, ours, theirs)])
    assert result.is_reached is reached


@pytest.mark.parametrize(("ours_us", "met"), [(180, True), (181, False)])
def test_a_latency_is_better_if_it_is_lower(ours_us: float, met: bool) -> None:
    took = {System.OURS: ours_us, System.CONFLUENT: 100}
    samples = {s: attrs.evolve(_sample(1), median_seconds=us / 1_000_000) for s, us in took.items()}
    standing = dict.fromkeys(samples, Standing(start_seconds=0.3, idle_bytes=None, peak_bytes=None))
    standing[System.OURS] = attrs.evolve(standing[System.OURS], ready_seconds=0.251)
    rounds = [Round(samples={Load.LATENCY: samples}, standing=standing, import_trio_seconds=0.1)]
    found = figures_as_json(load_results(rounds), standing_results(rounds))
    latency = found["latency of one record"]
    assert latency == {
        "ours": pytest.approx(ours_us),
        "peer": pytest.approx(100),
        "ratio": pytest.approx(ours_us / 100),
        "goal": 1.8,
        "met": met,
    }
    assert found["ready"] == {"ours": 251, "peer": None, "ratio": None, "goal": 250, "met": False}
    assert f"| latency of one record, µs | {ours_us} | 100 |" in _markdown(rounds)


def test_the_growth_of_the_cores_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [table for table in growth.TABLES if table[0] not in ("records in a batch", "connections")]
    monkeypatch.setattr(growth, "TABLES", tables)
    rows = growth.measured_growth(quick=True, seconds_max=0.05)
    assert {row.what for row in rows} == {what for what, *_ in tables}
    assert all(row.operations and 0 < row.made <= row.wanted for row in rows)
    page = markdown(growth.growth_grids(rows), growth.growth_conditions(rows))
    assert "| partitions | commits/s | relative to the first |" in page
    assert "1.00× |" in page


def _brokers_round(*rates: float) -> Round:
    systems = (OURS, System.CONFLUENT, System.CONFLUENT_ON_KAFKA)
    samples = {system: _sample(rate) for system, rate in zip(systems, rates, strict=False)}
    return Round(samples={Load.COMMITS: samples}, standing={}, import_trio_seconds=0.1)


def test_one_client_is_compared_on_each_broker() -> None:
    rounds = [_brokers_round(300, 400, 100), _brokers_round(50, 40, 30), _brokers_round(300, 300, 150)]
    page = markdown([brokers_grid(brokers_results(rounds))], "")
    assert "| load | fencepost | mock cluster | ratio | goal | Apache Kafka | ratio | goal | broker" in page
    ratios = "1.00× (0.75× to 1.25×) | ≥ 1× met", "2.00× (1.67× to 3.00×) | ≥ 2× met"
    assert all(ratio in page for ratio in ratios)
    assert "| 1 / 1 / 1 |" in page


def test_without_apache_kafka_its_columns_are_left_out() -> None:
    page = markdown([brokers_grid(brokers_results([_brokers_round(300, 400)]))], "")
    assert "| 300 | 400 | 0.75× | ≥ 1× missed | 1 / 1 |" in page


def test_a_figure_that_a_machine_does_not_give_is_a_dash() -> None:
    rounds = [_round(Load.PRODUCE, 2_000, 1_000, cpu_us=None)]
    page = _markdown(rounds)
    assert "| produce, records/s | 2,000 | 1,000 | 2.00× | ≥ 1.5× met | 2 / 2 | - / - | 30 / 30 |" in page
    assert "| fencepost | 190 ms | ≤ 250 ms met | 200 ms | 20 | - |" in page
    assert "| a Python process that only imports trio | - | - | 100 ms | - | - |" in page


def _markdown(rounds: list[Round]) -> str:
    report = Report(
        loads=load_results(rounds),
        standing=standing_results(rounds),
        import_trio=import_trio(rounds),
        scale=TINY,
        rounds=1,
    )
    return markdown(grids(report), conditions(report))


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def test_only_the_section_of_that_name_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    other = "<!-- simulated: begin -->\nother\n<!-- simulated: end -->"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbetween\n{other}\nafter\n")
    write_section(page, "measured", _markdown([_round(Load.PRODUCE, 2_000, 1_000)]))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\nbetween\n{other}\nafter\n")
    assert "old" not in text
    assert "2.00×" in text


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("words\n")
    with pytest.raises(ValueError, match="no section"):
        write_section(page, "measured", "figures")
    assert page.read_text() == "words\n"


@pytest.mark.parametrize("section", ["measured", "brokers", "simulated", "growth", "spark", "spark-growth"])
def test_the_page_has_every_section(tmp_path: Path, section: str) -> None:
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    write_section(page, section, "figures")
    assert "\nfigures\n" in page.read_text()


def test_each_operation_may_be_timed() -> None:
    assert timed(lambda: [0.1, 0.3, 0.2], 3, broker_process_id=1).median_seconds == pytest.approx(0.2)
    with pytest.raises(AssertionError, match="2 of 3 operations"):
        timed(lambda: [0.1, 0.3], 3, broker_process_id=1)


def test_a_load_that_was_not_all_done_is_no_sample() -> None:
    with pytest.raises(AssertionError, match="9 of 10 operations"):
        timed(lambda: 9, 10, broker_process_id=1)


def test_what_is_fetched_fits_into_the_memory_of_the_peer() -> None:
    """librdkafka's mock cluster drops what a partition holds beyond 5 MB."""
    for records in (1, 100_000, 1_000_000):
        scale = Scale(records=records)
        longest = max(len(key) + len(value) for key, value in Scale(records=1_000).keyed_records())
        partitions = 4 * len(scale.fetch_topics)
        assert records * longest / partitions < 5_000_000
