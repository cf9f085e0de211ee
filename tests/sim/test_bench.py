"""The bench command prints what it found, the same bytes for the same seed."""

from __future__ import annotations

import json

import pytest

from halcyon.sim.bench import main

KEYS = {
    "goodput_per_s",
    "bound_share",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "slo_urgent",
    "slo_relaxed",
    "slo_by_size_quartile",
    "utilisation",
    "mean_batch",
    "shed",
}


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints, with status 0."""
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_json_has_its_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts find suite, seed and scenarios with every strategy and every figure."""
    found = json.loads(printed(capsys, "batching", "--seed", "5", "--quick", "--json", "--rate", "90"))
    assert (found["suite"], found["seed"]) == ("batching", 5)
    (scenario,) = found["scenarios"]
    assert {"rate_per_s", "requests", "bound_goodput_per_s", "strategies"} <= scenario.keys()
    assert list(scenario["strategies"]) == ["no_batching", "fixed_batch", "edf", "halcyon"]
    assert all(row.keys() == KEYS and len(row["slo_by_size_quartile"]) == 4 for row in scenario["strategies"].values())


def test_the_world_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """A faster device raises the bound; the scheduler is not told and follows."""
    arguments = ("batching", "--quick", "--json", "--rate", "260")
    slow = json.loads(printed(capsys, *arguments))["scenarios"][0]
    fast = json.loads(printed(capsys, *arguments, "--overhead-ms", "9", "--per-token-ms", "0.011"))["scenarios"][0]
    assert fast["bound_goodput_per_s"] > slow["bound_goodput_per_s"]
    assert fast["strategies"]["halcyon"]["goodput_per_s"] > slow["strategies"]["halcyon"]["goodput_per_s"]


def test_two_runs_print_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Several suites in one run, twice."""
    arguments = ("fairness", "chunking", "--quick", "--json", "--seed", "3")
    first = printed(capsys, *arguments)
    assert first == printed(capsys, *arguments)
    assert [suite["suite"] for suite in json.loads(first)["suites"]] == ["fairness", "chunking"]


def test_tables_end_in_one_line_of_summary(capsys: pytest.CaptureFixture[str]) -> None:
    """People get a table and one sentence a suite."""
    assert printed(capsys, "fairness", "--quick").strip().splitlines()[-1].startswith("fairness: ")


def test_unknown_suites_and_missing_traces_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and the message says what there is."""
    assert main(["nonsense"]) == 2
    assert "batching" in capsys.readouterr().err
    assert main(["traces"]) == 2
    assert "--traces" in capsys.readouterr().err


def test_decisions_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """The scale suite reports a positive median for every depth and fleet."""
    points = json.loads(printed(capsys, "scale", "--quick", "--json"))["points"]
    assert {point["depth"] for point in points} == {16, 128, 512, 2048, 16384}
    assert all(point["all"]["median_us"] > 0 for point in points)
