"""Train, evaluate and look at the curve, from Python: what `sdpg train cartpole` and `sdpg eval` do.

python examples/train_from_python.py runs/from_python
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sdpg.evaluate import evaluate
from sdpg.presets import resolve
from sdpg.train import train


def report(what: str, facts: Mapping[str, Any]) -> None:
    """Called with "start", "iteration" (every metric of docs/metrics.md), "saved", "warning", "end"."""
    if what == "iteration":  # the return is NaN until an episode is over
        print(f"iteration {facts['iteration']}: return {facts['Train/mean_reward']:.1f}")


def main(folder: str, **changes: Any) -> dict[str, Any]:
    cfg = resolve("cartpole", obs="state")  # the task's preset: a frozen dataclass of every option
    cfg = replace(cfg, seed=1, **changes)
    cfg = replace(cfg, algo=replace(cfg.algo, actor_lr=1e-3))  # the algorithm's own options are in cfg.algo
    train(cfg, folder, report=report)  # a folder like that of any run: sdpg play, view, compare ... work on it
    return evaluate(folder, episodes=32)


if __name__ == "__main__":
    print(main(sys.argv[1])["return"])
