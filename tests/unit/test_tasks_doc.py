"""docs/tasks.md says of every task what `sdpg tasks NAME` says, and shows a picture of it."""

from __future__ import annotations

import json

import pytest
from helpers.arms import need_scene
from helpers.task_facts import PAGE, asked, wanted

from sdpg.presets import resolve
from sdpg.tasks.registry import BUILT_IN

TEXT = PAGE.read_text()
TABLES = list(asked(TEXT))


@pytest.mark.parametrize(("kind", "names", "text"), TABLES, ids=[names.replace(" ", "-") for _, names, _ in TABLES])
def test_tables_are_up_to_date(kind: str, names: str, text: str) -> None:
    for name in names.split():
        need_scene(name)
    assert text == wanted(kind, names), "run: python tests/helpers/task_facts.py"


def test_every_task_is_there_with_a_small_picture() -> None:
    assert {name for _, names, _ in TABLES for name in names.split()} == set(BUILT_IN)
    sizes = [(PAGE.parent / "tasks" / f"{name}.png").stat().st_size for name in BUILT_IN]
    assert max(sizes) < 200e3 and sum(sizes) < 1e6
    for name in BUILT_IN:
        assert f"](tasks/{name}.png)" in TEXT, name


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if line.endswith(".json` |")])
def test_costs_are_those_of_the_file(line: str) -> None:
    *told, file = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
    result = json.loads((PAGE.parents[1] / "benchmarks" / "results" / file).read_text())
    assert told[0] == result["task"]
    if result["kind"] == "sim":
        (row,) = result["rows"]
        assert told[1:] == [f"{row[f'{part}_cpu_ratio_to_native']:.2f}" for part in ("sim", "env")]
    else:
        worlds = result["num_nominal"], result["num_auxiliary"]
        preset = resolve(result["task"], obs=result["obs"])
        assert worlds == (preset.num_nominal, preset.num_auxiliary)
        assert told[1:4] == [result["obs"], f"{worlds[0]} x {worlds[1]}", str(result["horizon"])]
        assert told[4:] == [f"{result['iteration_seconds']:.1f} s", f"{100 * result['rendering_share']:.1f} %"]
        assert result["rendering_share"] < 0.2
