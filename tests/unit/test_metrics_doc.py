"""Every metric that a run writes is documented, and every documented metric is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from helpers.runs import tiny

from sdpg.presets import resolve
from sdpg.run import log
from sdpg.train import train

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def _documented() -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", DOC.read_text(), flags=re.MULTILINE))


def test_names(tmp_path: Path) -> None:
    targets = tiny("helpers.targets:Targets", iterations=4)  # a task with measures; its episodes end in four iterations
    train(replace(targets, algo=replace(targets.algo, guide_passes=1)), tmp_path / "run")  # type: ignore[call-arg]
    small = {"steps": 2, "buffer": 200, "batch": 2, "hidden": 8, "seed_steps": 0}
    pixels = replace(resolve("cartpole", obs="pixels", algorithm="drqv2"), num_nominal=2, iterations=1, threads=1)
    train(replace(pixels, algo=replace(pixels.algo, **small)), tmp_path / "drqv2")  # type: ignore[arg-type]
    rivals = {
        "sapo": {"horizon": 2},
        "ppo": {"horizon": 2},
        "dagger": {"steps": 2, "seed_steps": 0, "teacher": str(tmp_path / "ppo")},
    }
    for name, few in rivals.items():
        cfg = replace(resolve("cartpole", algorithm=name), num_nominal=2, iterations=1, threads=1)
        train(replace(cfg, algo=replace(cfg.algo, **few)), tmp_path / name)  # type: ignore[arg-type]
    small = {"steps": 4, "buffer": 200, "seed_steps": 0, "size": "1m", "batch": 2, "length": 2, "imagination": 2}
    pixels = replace(resolve("cartpole", obs="pixels", algorithm="dreamer"), num_nominal=2, iterations=1, threads=1)
    train(replace(pixels, algo=replace(pixels.algo, **small)), tmp_path / "dreamer")  # type: ignore[arg-type]
    written = set().union(*(row for run in ("run", "drqv2", "dreamer", *rivals) for row in log.read(tmp_path / run)))
    general = {re.sub(r"^Episode_Reward/.*", "Episode_Reward/<term>", name) for name in written}
    general = {re.sub(r"^Episode/.*", "Episode/<measure>", name) for name in general}
    documented = _documented()
    assert general - documented == set(), "not in docs/metrics.md"
    assert documented - general == set(), "in docs/metrics.md, but no run writes them"


def test_each_is_documented_once() -> None:
    names = re.findall(r"^\| `([^`]+)` \|", DOC.read_text(), flags=re.MULTILINE)
    assert len(names) == len(set(names))
