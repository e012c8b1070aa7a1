"""Every metric that a run writes is documented, and every documented metric is written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from helpers.runs import tiny

from sdpg.run import log
from sdpg.train import train

DOC = Path(__file__).parents[2] / "docs" / "metrics.md"


def _documented() -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", DOC.read_text(), flags=re.MULTILINE))


def test_names(tmp_path: Path) -> None:
    targets = tiny("helpers.targets:Targets", iterations=4)  # a task with measures; its episodes end in four iterations
    train(replace(targets, algo=replace(targets.algo, kl_limit=0.1)), tmp_path / "run")  # type: ignore[call-arg]
    written = set().union(*log.read(tmp_path / "run"))
    general = {re.sub(r"^Episode_Reward/.*", "Episode_Reward/<term>", name) for name in written}
    general = {re.sub(r"^Episode/.*", "Episode/<measure>", name) for name in general}
    documented = _documented()
    assert general - documented == set(), "not in docs/metrics.md"
    assert documented - general == set(), "in docs/metrics.md, but no run writes them"


def test_each_is_documented_once() -> None:
    names = re.findall(r"^\| `([^`]+)` \|", DOC.read_text(), flags=re.MULTILINE)
    assert len(names) == len(set(names))
