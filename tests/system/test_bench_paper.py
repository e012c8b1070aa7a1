"""`sdpg bench paper` as a user types it: every rival on the cartpole, and the page that comes out."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import subprocess_env
from PIL import Image

from sdpg.algos.registry import ALGORITHMS
from sdpg.bench import paper, paper_runs
from sdpg.errors import SdpgError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Fewer episodes and worlds than a benchmark has: they would take most of the time.
WORDS = "bench paper --budget 2 --tasks cartpole --seeds 2 --episodes 4 --environments 4 16 --threads 1".split()


def _bench(folder: Path) -> tuple[dict, str]:
    command = [sys.executable, "-m", "sdpg", *WORDS, "--json", "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=subprocess_env(), check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def _rivals() -> set[tuple[str, str]]:
    return {(obs, name) for obs, names in paper_runs.RIVALS.items() for name in names if name in ALGORITHMS.targets()}


@pytest.mark.slow
def test_the_papers_evaluation_by_one_command(tmp_path: Path) -> None:
    folder = tmp_path / "paper"
    result, said = _bench(folder)
    assert result["failed"] == [] and result["runs"] == 2 * len(_rivals())
    assert f"1 of {result['runs']}: cartpole from state, sdpg, seed 10" in said
    _every_rival_is_told(folder)
    _page_needs_nothing_else(folder / "index.html")
    # What is there is taken.
    logs = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("metrics.jsonl")}
    again, _ = _bench(folder)
    assert again["returns"] == result["returns"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("metrics.jsonl")} == logs
    if CHROMIUM is not None:
        _opens_in_a_browser(folder / "index.html", tmp_path)


def _every_rival_is_told(folder: Path) -> None:
    with (folder / "tables" / "final.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["sees"], row["algorithm"]) for row in rows} == _rivals()
    assert all(int(row["seeds"]) == 2 and len(row["every seed"].split(", ")) == 2 for row in rows)
    text = (folder / "index.html").read_text()
    assert all(f"--algorithm {name} --obs {obs} --seed 11" in text for obs, name in _rivals())
    with (folder / "tables" / "memory.csv").open() as file:
        assert all(0.1 < float(row["peak here, GB"]) < 20.0 for row in csv.DictReader(file))


def _page_needs_nothing_else(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r'(src|href)="(?!data:)', text)
    tags: list[str] = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: tags.append(tag)  # type: ignore[method-assign]
    reader.feed(text)
    images = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(images) == tags.count("img") >= 6  # state, pixels, gradient norms, state and vision, memory, the toy
    for image in images:
        assert np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("L")).std() > 5


def _opens_in_a_browser(page: Path, folder: Path) -> None:
    shot = folder / "page.png"
    flags = f"--headless=new --no-sandbox --disable-gpu --user-data-dir={folder / 'profile'} --window-size=1200,3000"
    subprocess.run([str(CHROMIUM), *flags.split(), f"--screenshot={shot}", page.as_uri()], check=True, timeout=120)
    assert np.asarray(Image.open(shot).convert("L")).std() > 10


def test_shares_add_up_to_the_budget() -> None:
    what = (("cartpole",), ("sdpg", "drqv2"), {"state": 2, "pixels": 2})
    minutes = paper_runs.share_out(26.0, *what, {"state": 1.0, "pixels": 6.0})
    runs = paper_runs.plan(*what, minutes)
    assert sum(run.minutes for run in runs) == pytest.approx(26.0)
    assert minutes["pixels"] == pytest.approx(6.0 * minutes["state"])
    assert [run.seed for run in runs] == [10, 10, 10, 11, 11, 11]
    fewer = paper_runs.plan(("cartpole",), ("sdpg", "drqv2"), {"state": 2, "pixels": 1}, minutes)
    assert [(run.obs, run.seed) for run in fewer] == [("state", 10), ("pixels", 10), ("pixels", 10), ("state", 11)]


def test_an_unknown_rival_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SdpgError, match="unknown algorithm 'pp'"):
        paper.run(paper.Options(algorithms=("pp",), out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_rival_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: paper_runs.Combination, *rest: object) -> dict:
        raise SdpgError(f"{run} failed: no")

    told: list[str] = []
    monkeypatch.setattr(paper_runs, "make", broken)
    options = paper.Options(("cartpole",), ("state", "pixels"), ("sdpg",), 1, out=tmp_path)
    with pytest.raises(SdpgError, match="no run came to an end"):
        paper.run(options, lambda line, passing: told.append(line))
    assert [line for line in told if "failed: no" in line] == [
        "cartpole from state, sdpg, seed 10 failed: no",
        "cartpole from pixels, sdpg, seed 10 failed: no",
    ]
