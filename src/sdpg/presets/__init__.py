"""(task, preset, observations, algorithm) -> a run's configuration, as differences from the defaults.

A module of this package for every algorithm that has presets: its function `delta` tells what differs. An algorithm
without one, a third party's for instance, begins with the defaults of its options.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace

from sdpg.algos.registry import algorithm as algorithm_options
from sdpg.config import TrainCfg
from sdpg.presets.delta import Delta, Values
from sdpg.tasks.base import TASKS, task_class
from sdpg.tasks.registry import canonical


def resolve(task: str, preset: str = "cpu", obs: str = "state", algorithm: str = "sdpg") -> TrainCfg:
    """The configuration of a run before the command line's own options."""
    task = canonical(task)
    algo, seen = algorithm_options(algorithm)(), obs
    run: Values = {"num_auxiliary": 0} if algo.auxiliaries[1] == 0 else {}
    cfg = TrainCfg(task=task, preset=preset, obs=obs, algorithm=algorithm, algo=algo)  # type: ignore[arg-type]
    if ":" in task or task in TASKS.targets():
        found = task_class(task)
        cfg = replace(cfg, task_cfg=found.Cfg())
        if obs in found.inputs and not set(found.inputs[obs]) & set(found.cameras):
            seen = "state"  # without a camera, what learns from state will do
    delta = _delta(task, preset, seen, algorithm)
    return replace(cfg, **run | delta.run, algo=replace(algo, **delta.algo))


def _delta(task: str, preset: str, obs: str, algorithm: str) -> Delta:
    name = f"{__name__}.{algorithm}"
    if not algorithm.isidentifier() or importlib.util.find_spec(name) is None:
        return Delta()
    return importlib.import_module(name).delta(task, preset, obs)
