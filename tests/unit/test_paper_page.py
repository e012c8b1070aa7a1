"""`sdpg bench paper` without its runs: what is taken, what goes on, and the page of results that are made up."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdpg.bench import machine, memory, paper, paper_figures, paper_runs
from sdpg.bench.paper_runs import Combination
from sdpg.errors import SdpgError
from sdpg.run import listing

VOID = ("meta", "img", "br", "hr", "link")
STEPS = list(range(1, 6))


def result(task: str, obs: str, algorithm: str, seed: int = 10) -> dict[str, Any]:
    curve = dict.fromkeys("iteration minutes env_steps images return length grad_norm memory_mb".split(), STEPS)
    found = {"return": {"mean": 100.0 + seed}, "survived": 0.5, "episodes": 64}
    about = {"task": task, "obs": obs, "algorithm": algorithm, "seed": seed, "curve": curve, "evaluation": found}
    more = {"num_nominal": 8, "num_auxiliary": 0, "peak_mb": 512.0, "command": f"sdpg train {task} <{algorithm}>"}
    return about | more | {"machine": machine.describe(1), "teacher_minutes": 0.0}


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A folder with the page of made-up runs, and what was told meanwhile."""

    def make(run: Combination, *rest: object) -> dict[str, Any]:
        made = result(run.task, run.obs, run.algorithm, run.seed)
        return made | ({"teacher_command": "sdpg train a teacher"} if run.algorithm == "dagger" else {})

    def peak(options: memory.Options, n: int, m: int, iterations: int) -> dict[str, float]:
        return {"peak_mb": 100.0 + n}

    monkeypatch.setattr(paper_runs, "make", make)
    monkeypatch.setattr(memory, "_peak", peak)
    told: list[str] = []
    options = paper.Options(("hopper", "walker_hurdle"), seeds=2, out=tmp_path)
    paper.run(options, lambda line, passing: told.append(line))
    return tmp_path, told


def test_the_page_has_all_figures_and_needs_nothing_else(made_up: tuple[Path, list[str]]) -> None:
    folder, told = made_up
    text = (folder / "index.html").read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles[:2] == ["Returns", "Memory"] and titles[-1] == "Commands"
    assert titles[2:-1] == [
        "hopper from state", "hopper from pixels", "walker_hurdle from state", "walker_hurdle from pixels",
        "gradient norms", "state and vision", "hurdles", "memory against the number of worlds",
        "the smoothed function of one number",
    ]  # fmt: skip
    images = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(images) == len(titles) - 3
    for image in images:
        assert np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("L")).std() > 5
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import|<script', text) and "http" not in text
    assert "&lt;ppo&gt;" in text and "<ppo>" not in text
    assert told[0] == "44 runs: 0 are there, 44 are left" and "left in all" in told[1]


def test_every_tag_is_closed(made_up: tuple[Path, list[str]]) -> None:
    open_tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in VOID:
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Reader().feed((made_up[0] / "index.html").read_text())
    assert open_tags == []


def test_every_number_has_its_command_and_machine(made_up: tuple[Path, list[str]]) -> None:
    folder, _ = made_up
    with (folder / "tables" / "commands.csv").open() as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert len(rows) == 44 + 2 and all("cores" in row["machine"] for row in rows.values())
    assert rows["hopper pixels dagger 11"]["its teacher"] == "sdpg train a teacher"
    assert rows["hopper state sapo 10"]["evaluation"] == "sdpg eval RUN --episodes 64"
    scaling = "sdpg bench memory hopper --scaling --num-nominal 64 --environments 64 256 1024"
    assert rows["memory of worlds"]["training (RUN, TEACHER: folders)"] == scaling
    with (folder / "tables" / "curves.csv").open() as file:
        assert next(csv.DictReader(file))["grad_norm"] == "1"


def test_gradients_from_state_and_from_pixels_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, str]] = []
    monkeypatch.setattr(
        paper_figures, "lines", lambda results, *rest: drawn.extend((r["task"], r["algorithm"]) for r in results) or []
    )
    runs = [result("hopper", "state", "sdpg"), result("hopper", "pixels", "sdpg"), result("hopper", "state", "sapo")]
    paper_figures.gradient_norms(tmp_path, [*runs, result("hopper", "state", "ppo")])
    assert drawn == [("hopper from state", "sdpg"), ("hopper from state", "sapo"), ("hopper from pixels", "sdpg")]


def test_a_page_is_drawn_of_kept_results_without_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_runs, "make", lambda *rest: pytest.fail("a run was made"))
    kept, out = tmp_path / "kept", tmp_path / "out"
    kept.mkdir()
    others = [("hopper", "pixels", "dreamer", 10), ("ant", "state", "sdpg", 10), ("hopper", "depth", "ppo", 10)]
    for each in [
        ("hopper", "state", "ppo", 11),
        ("hopper", "state", "sdpg", 10),
        ("hopper", "state", "ppo", 10),
        *others,
    ]:
        made = {"kind": "learning"} | result(*each)
        (kept / f"{'-'.join(map(str, each))}.json").write_text(json.dumps(made))
    (kept / "other.json").write_text('{"kind": "memory"}')
    options = paper.Options(draw=kept, environments=(), out=out)
    assert paper.run(options)["runs"] == 4
    with (out / "tables" / "final.csv").open() as file:
        rows = [(row["sees"], row["algorithm"], row["every seed"]) for row in csv.DictReader(file)]
    assert rows == [("state", "sdpg", "110"), ("state", "ppo", "110, 111"), ("pixels", "dreamer", "110")]
    with pytest.raises(SdpgError, match=r"has no result of walker: give another --draw or --tasks"):
        paper.run(paper.Options(("walker",), draw=kept, out=out))


def test_a_method_has_one_colour_in_all_figures() -> None:
    places = {name: paper_figures._places(names).index(name) for names in paper_runs.RIVALS.values() for name in names}
    assert len(set(places.values())) == len(places) <= 10
    assert paper_figures._places(["sapo", "sdpg"]).index("sapo") == places["sapo"]


def test_what_was_evaluated_in_fewer_episodes_is_not_taken(tmp_path: Path) -> None:
    run = Combination("hopper", "state", "sdpg", 10, 1.0)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / f"{run.name}.json").write_text(json.dumps(result("hopper", "state", "sdpg")))
    assert paper_runs.taken(run, tmp_path, 64) is not None
    assert paper_runs.taken(run, tmp_path, 128) is None


def interrupted(where: Path, checkpoint: bool, monkeypatch: pytest.MonkeyPatch, state: listing.State) -> None:
    (where / "checkpoints").mkdir(parents=True)
    (where / listing.CONFIG).touch()
    if checkpoint:
        (where / "checkpoints" / "000050").mkdir()
    monkeypatch.setattr(listing, "look", lambda folder: listing.Run(str(folder), state))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trainings that were begun, none of which is made."""
    commands: list[str] = []
    monkeypatch.setattr(paper_runs, "_train", lambda command, *rest: commands.append(" ".join(command)))
    return commands


@pytest.mark.parametrize(
    ("state", "words"), [(None, "train hopper"), ("interrupted", "train --resume"), ("finished", "")]
)
def test_a_teacher_is_finished_before_its_student_begins(
    state: listing.State | None, words: str, begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = Combination("hopper", "pixels", "dagger", 10, 60.0)
    where = tmp_path / "runs" / "hopper-state-ppo-10-10min"
    if state is not None:
        interrupted(where, True, monkeypatch, state)
    assert paper_runs._teacher(student, tmp_path, 1, paper._silent) == where
    assert len(begun) == (state != "finished") and all(command.startswith(words) for command in begun)


@pytest.mark.parametrize(("algorithm", "checkpoint"), [("sdpg", False), ("drqv2", True), ("dagger", True)])
def test_what_cannot_go_on_exactly_is_begun_anew(
    algorithm: str, checkpoint: bool, begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer that is lost would be a handicap; a run that was killed before its first checkpoint has none."""
    run = Combination("hopper", "pixels", algorithm, 10, 60.0)
    where = tmp_path / "runs" / run.name
    interrupted(where, checkpoint, monkeypatch, "interrupted")
    told: list[str] = []
    paper_runs._finish(run, where, None, 1, lambda line, passing: told.append(line))
    assert [command.split()[:2] for command in begun] == [["train", "hopper"]]
    assert not where.exists() and where.with_name(f"{where.name}-unsaved1").exists() and "begun anew" in told[0]


def test_runs_of_other_lengths_are_other_runs(tmp_path: Path) -> None:
    names = {Combination("hopper", "state", "ppo", 10, minutes).name for minutes in (10.0, 5.0, 1 / 3)}
    assert len(names) == 3


def test_a_student_took_what_its_teacher_took() -> None:
    made = result("hopper", "pixels", "dagger") | {"teacher_minutes": 10.0, "teacher_env_steps": 1000}
    for axis, before in (("minutes", 10.0), ("env_steps", 1000), ("images", 0)):
        (line,) = paper_figures.lines([made], axis)
        assert line.x[0] == before + STEPS[0]
