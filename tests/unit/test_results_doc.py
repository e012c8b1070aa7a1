"""Every line of the tables in docs/results.md says what the file that it names says."""

from __future__ import annotations

import json

import pytest
from helpers.options_table import ROOT

LINES = [line for line in (ROOT / "docs" / "results.md").read_text().splitlines() if line.endswith(".json` |")]


def test_there_are_tables() -> None:
    assert len(LINES) >= 10


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("`")[-2])
def test_line(line: str) -> None:
    task, seed, minutes, iterations, returned, survived, speed, file = [cell.strip() for cell in line.split("|")[1:-1]]
    result = json.loads((ROOT / "benchmarks" / "results" / file.strip("`")).read_text())
    found = result["evaluation"]
    assert task.split(",")[0] == result["task"]
    assert ("the paper's settings" in task) == (result["preset"] == "paper")
    assert (int(seed), int(iterations)) == (result["seed"], found["iteration"])
    assert minutes == f"{found['train_seconds'] / 60:.1f}"
    assert returned == f"{found['return']['mean']:,.0f} ± {found['return']['std']:,.0f}"
    assert survived == f"{100 * found['survived']:.0f} %"
    forward = found["reward_per_step"].get("forward")
    assert speed == ("" if forward is None else f"{forward:.2f} m/s")
