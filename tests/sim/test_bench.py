"""The bench command prints what it found, the same bytes for the same seed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from halcyon.sim.bench import main
from halcyon.sim.plot_panel import spread

TRACES = Path(__file__).parents[1] / "data/traces"
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


def test_every_suite_is_reported_in_tables_and_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json: a summary of one line that starts with the suite's name, and tables whose rows fill every column."""
    found = json.loads(printed(capsys, "fairness", "chunking", "serving", "--quick"))
    assert [report["suite"] for report in found["reports"]] == ["fairness", "chunking", "serving"]
    for report in found["reports"]:
        assert report["summary"].startswith(f"{report['suite']}: ")
        assert "\n" not in report["summary"]
        assert all(len(row) == len(table["columns"]) for table in report["tables"] for row in table["rows"])


def test_progress_counts_to_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """--progress: one JSON object a line on stderr, steps from none to all of them, the suite's last line says done."""
    assert main(["fairness", "--quick", "--progress", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["done"], line["of"]) for line in lines] == [(0, 4), (1, 4), (2, 4), (3, 4), (1, 1)]
    assert {line["suite"] for line in lines} == {"fairness"}


def test_a_device_without_overhead_has_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """A device that costs nothing but tokens is bounded as well, and kept busy within 2 % of what is offered."""
    (scenario,) = json.loads(printed(capsys, "batching", "--quick", "--json", "--rate", "50", "--overhead-ms", "0"))["scenarios"]
    assert scenario["fluid_goodput_per_s"] == pytest.approx(scenario["requests"] / 12, rel=0.01)
    assert scenario["strategies"]["halcyon"]["goodput_per_s"] >= 0.98 * scenario["fluid_goodput_per_s"]


def test_a_world_without_arrivals_has_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """A rate so low that nobody arrives gives zeros, not a fault."""
    (scenario,) = json.loads(printed(capsys, "batching", "--quick", "--json", "--rate", "0.0001"))["scenarios"]
    assert (scenario["requests"], scenario["bound_goodput_per_s"], scenario["fluid_goodput_per_s"]) == (0, 0, 0)


def test_recorded_traces_are_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--traces without a suite's name runs those that the directory holds, at three loads under four orders."""
    shutil.copy(TRACES / "azure_like.csv.gz", tmp_path / "azure2023_conv.csv.gz")
    found = json.loads(printed(capsys, "traces", "--quick", "--json", "--traces", str(tmp_path)))
    assert [(s["trace"], s["load"]) for s in found["scenarios"]] == [("azure2023_conv", load) for load in (1.0, 1.5, 2.0)]
    assert all(list(s["orders"]) == ["fcfs", "shortest_prompt", "edf", "deadline"] for s in found["scenarios"])


def test_a_picture_a_suite(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--plot writes a PNG for each suite that has an axis of load, the second named after the first, and says so."""
    target = tmp_path / "b.png"
    found = json.loads(
        printed(capsys, "batching", "serving", "fairness", "--quick", "--rate", "90", "--rate", "200", "--plot", str(target))
    )
    assert found["plots"] == [str(target), str(tmp_path / "b-serving.png")]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in found["plots"])


def test_names_of_curves_do_not_overlap() -> None:
    """Names keep their distance, stay in order and above the axis; those far apart are left alone."""
    assert spread([0.5, 0.9], 0.1) == [0.5, 0.9]
    assert spread([0.50, 0.52, 0.0], 0.1) == pytest.approx([0.46, 0.56, 0.0])
    assert spread([0.0, 0.01, 0.02], 0.1) == pytest.approx([0.0, 0.1, 0.2])


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
