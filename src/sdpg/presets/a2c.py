"""Presets of A2C: PPO's, but for what makes it A2C."""

from __future__ import annotations

from sdpg.presets import ppo
from sdpg.presets.delta import Delta

_NOT_ITS_OWN = ("epochs", "minibatches", "desired_kl")
# Each sample is used once: shorter segments, and more of them.
_CPU = Delta({"iterations": 4000})
CPU = {"cartpole": Delta({"iterations": 600}, {"lr": 3e-3})}


def delta(task: str, preset: str, obs: str) -> Delta:
    of_ppo = ppo.delta(task, preset, obs)
    result = Delta(of_ppo.run, {name: value for name, value in of_ppo.algo.items() if name not in _NOT_ITS_OWN})
    return result | _CPU | CPU.get(task, Delta()) if preset == "cpu" else result
