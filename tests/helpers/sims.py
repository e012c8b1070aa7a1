"""A scene for every engine, and how tests start, step and compare its worlds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sdpg.sim.api import Simulator

# A pushed ball and a hinged pole that hits it, on a floor: contacts, friction, actuator state, a velocity sensor.
SCENE = """
<mujoco><option timestep="0.005"/><worldbody><geom type="plane" size="5 5 .1"/>
<body pos="0 0 .12"><freejoint/><geom name="ball" size=".1" mass=".5"/></body>
<body pos=".3 0 .6"><joint name="hinge" axis="0 1 0" damping=".05"/>
<geom type="capsule" size=".03" fromto="0 0 0 0 0 -.5"/></body>
</worldbody><actuator><general joint="hinge" dyntype="filter" dynprm=".05" gainprm="2"/></actuator>
<sensor><jointvel joint="hinge"/></sensor></mujoco>
"""
READS = ("xpos", "sensordata")
E = 6


def start_worlds(sim: Simulator, worlds: Tensor, seed: int = 0) -> None:
    """Different states in `worlds`, near the model's own."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.tensor([0.0, 0.0, 0.12, 1.0, 0.0, 0.0, 0.0, 0.4])[: sim.nq]
    qpos = base + 0.02 * torch.randn(len(worlds), sim.nq, generator=generator)
    sim.write(worlds, qpos, 0.5 * torch.randn(len(worlds), sim.nv, generator=generator))


def ctrl_at(sim: Simulator, t: int) -> Tensor:
    return torch.randn(sim.num_worlds, sim.nu, generator=torch.Generator().manual_seed(100 + t))


def copied_fields(sim: Simulator) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in sim.fields.items()}


def run_steps(sim: Simulator, steps: int, ctrl: Callable[[int], Tensor] | None = None) -> list[dict[str, Tensor]]:
    history = []
    for t in range(steps):
        assert not sim.step(ctrl(t) if ctrl else ctrl_at(sim, t), 2).any()
        history.append(copied_fields(sim))
    return history


def same_fields(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]], worlds: Tensor | None = None) -> bool:
    pick = slice(None) if worlds is None else worlds
    return all(torch.equal(x[name][pick], y[name][pick]) for x, y in zip(a, b, strict=True) for name in x)
