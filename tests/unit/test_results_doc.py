"""Every line of the tables in docs/results.md says what the file that it names says."""

from __future__ import annotations

import json
import re

import pytest
from helpers.options_table import ROOT
from PIL import Image

from sdpg.bench import plot

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
    mine = not re.search(r"preset|settings|iterations|PPO|SAPO|DAgger|DrQ-v2|DreamerV3|D\.Va", task)
    assert mine == (result["label"] == plot.PRESET)
    assert (int(seed), int(iterations)) == (result["seed"], found["iteration"])
    assert minutes == f"{found['train_seconds'] / 60:.1f}"
    assert returned == f"{found['return']['mean']:,.0f} ± {found['return']['std']:,.0f}"
    assert survived == f"{100 * found['survived']:.0f} %"
    forward = found["reward_per_step"].get("forward")
    assert speed == ("" if forward is None else f"{forward:.2f} m/s")


@pytest.mark.parametrize(("obs", "name"), [("state", "learning.png"), ("both", "pixels.png")])
def test_figures_show_the_files_as_they_are(obs: str, name: str) -> None:
    shown = Image.open(ROOT / "docs" / name).text[plot.SOURCES]  # type: ignore[attr-defined]
    assert shown == plot.sources(plot.chosen(plot.load(ROOT / "benchmarks" / "results"), obs))


def test_returns_of_the_first_page_are_of_the_tables() -> None:
    told = re.findall(r"\d[\d,]* ± [\d,]*\d", (ROOT / "README.md").read_text())
    assert len(told) >= 8
    assert [value for value in told if not any(f"| {value} |" in line for line in LINES)] == []
