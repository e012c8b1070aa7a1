"""A task whose policy has several senses, fused: "helpers.sources:Senses"."""

from __future__ import annotations

import mujoco
from torch import Tensor

from sdpg.env import BranchedEnv
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera, Memory, Obs, Physics


class Senses(Cartpole):
    """Colours and depth of one camera, depth of a second one of another size and range, and a vector."""

    cameras = {
        "pixels": Camera("side", 40, 44),
        "depth": Camera("side", 40, 44, depth=True, stack=2),
        "ranges": Camera("above", 30, 24, depth=True, stack=1, far=2.0),
    }
    inputs = {"state": ("state",), "pixels": ("pixels", "depth", "ranges", "proprio")}

    def scene(self) -> mujoco.MjSpec:
        spec = super().scene()
        spec.worldbody.add_camera(name="above", pos=[0, 0, 2.2], fovy=70)  # looks down; the floor is out of its range
        return spec

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return super().observe(x, memory) | {"proprio": x.qvel[..., :1].clone()}


def watched(env: BranchedEnv, source: str) -> list[Tensor]:
    """From now on, what is seen of a source whenever the environment is observed."""
    seen: list[Tensor] = []
    original = env.observe

    def observe() -> Obs:
        obs = original()
        seen.append(obs.sources[source])
        return obs

    env.observe = observe  # type: ignore[method-assign]
    return seen
