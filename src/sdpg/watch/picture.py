"""One picture of a task: a third-person view beside what each of its cameras shows, as a policy sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.tasks.base import Task
from sdpg.watch.film import third_person
from sdpg.watch.player import beside, colours

STEPS = 30  # with zero actions before it is drawn: what hangs has settled, what stands is still on its feet


def picture(task: Task, size: int = 300, seed: int = 0, steps: int = STEPS) -> np.ndarray:
    """(H, W, 3) uint8."""
    kinds = [obs for obs, sources in task.inputs.items() if set(sources) & set(task.cameras)]
    worlds = {obs: _settled(task, obs, seed, steps) for obs in kinds or list(task.inputs)[:1]}
    seen: dict[str, Tensor] = {}
    for env in worlds.values():
        sources = env.observe().sources
        seen |= {name: _newest(sources[name][0], task, name) for name in sources if name in task.cameras}
    env = next(iter(worlds.values()))
    return beside(third_person(env, size)(env.physics().qpos[:, 0]), list(seen.values()))


def write_picture(path: Path, image: np.ndarray) -> None:
    """As a PNG of 256 colours, a third of the size."""
    from PIL import Image

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).quantize(256, dither=Image.Dither.NONE).save(path, format="PNG", optimize=True)
    except OSError as error:
        raise SdpgError(f"the picture '{path}' can't be written: {error.strerror}") from error


def _settled(task: Task, obs: str, seed: int, steps: int) -> BranchedEnv:
    env = make_env(task, 1, 0, seed, threads=1, obs=obs)
    for _ in range(steps):
        env.restart(env.step(torch.zeros(1, 1, task.action_size)))
        env.observe()  # frames of a stack follow each other
    return env


def _newest(source: Tensor, task: Task, name: str) -> Tensor:
    """(3, h, w) uint8"""
    return colours(source, task.cameras[name])[-3:]
