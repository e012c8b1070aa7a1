"""Every line of the tables of results in docs/ says what the file that it names says."""

from __future__ import annotations

import csv
import json
import re

import pytest
from helpers.options_table import ROOT
from PIL import Image

from sdpg.bench import paper, paper_figures, plot

PAGES = [(ROOT / "docs" / name).read_text() for name in ("results.md", "experiments.md")]
LINES = [line for page in PAGES for line in page.splitlines() if line.endswith(".json` |")]

ROBOTS = re.findall(r"^\| `([\w-]+\.json)` \| (.*) \|$", (ROOT / "docs" / "results.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("file", "told"), ROBOTS, ids=[file for file, _ in ROBOTS])
def test_line_of_a_robot_that_sees(file: str, told: str) -> None:
    results = ROOT / "benchmarks" / "results"
    result = json.loads((results / "robots" / file).read_text())
    untrained = json.loads((results / "untrained" / f"{result['task']}-zero.json").read_text())
    found = result["evaluation"]
    task, seen, seed, minutes, iterations, returned, measures = told.split(" | ")
    assert (task, seen, int(seed)) == (result["task"], result["obs"], result["seed"])
    assert (minutes, int(iterations)) == (f"{found['train_seconds'] / 60:.1f}", found["iteration"])
    both = [numbers["return"]["mean"] for numbers in (found, untrained)]
    assert returned == f"{both[0]:,.0f} ({both[1]:,.0f})"
    for measure in measures.split(", "):
        name, value, before = re.fullmatch(r"(\w+) (-?[\d.]+) \((-?[\d.]+)\)", measure).groups()  # type: ignore[union-attr]
        means = [numbers["measures"][name]["mean"] for numbers in (found, untrained)]
        assert [value, before] == [f"{mean:.2f}" for mean in means]


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


def test_rivals() -> None:
    results = paper.kept(paper.Options(draw=ROOT / "benchmarks" / "results" / "rivals"))
    with (ROOT / "docs" / "paper" / "tables" / "final.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [[str(cell) for cell in row] for row in paper_figures.final_table(results)]
    _, *rows = paper_figures.memory_table(results)
    assert len(rows) >= 9
    for task, *cells in rows:
        assert task == "hopper"
        assert f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |\n" in PAGES[0]


@pytest.mark.parametrize(("obs", "name"), [("state", "learning.png"), ("both", "pixels.png")])
def test_figures_show_the_files_as_they_are(obs: str, name: str) -> None:
    shown = Image.open(ROOT / "docs" / name).text[plot.SOURCES]  # type: ignore[attr-defined]
    assert shown == plot.sources(plot.chosen(plot.load(ROOT / "benchmarks" / "results"), obs))


def test_returns_of_the_first_page_are_of_the_tables() -> None:
    told = re.findall(r"\d[\d,]* ± [\d,]*\d", (ROOT / "README.md").read_text())
    assert len(told) >= 8
    assert [value for value in told if not any(f"| {value} |" in line for line in LINES)] == []
