"""A policy in its one world: stepped, counted and shown, a third-person image beside what its own cameras see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sdpg.algos.api import Policy
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.rng import RowRng
from sdpg.run import checkpoint
from sdpg.run.policy import SimplePolicy, load_policy
from sdpg.run.resume import cfg_from_dict
from sdpg.tasks.base import make_task
from sdpg.types import Camera, Step, Terms


def open_run(run: Path, which: str | int, seed: int, task: str | None = None) -> tuple[Policy, BranchedEnv]:
    """A run's policy and one world of its task, which must be given if it is not registered by name."""
    saved = checkpoint.load(checkpoint.find(run, which))
    env = world_of(saved, seed, task)
    return load_policy(saved, env, task), env


def world_of(saved: checkpoint.Checkpoint, seed: int, task: str | None = None) -> BranchedEnv:
    """One world of a checkpoint's task, seen as its policy sees it."""
    cfg = cfg_from_dict(saved.cfg, task)
    return make_env(make_task(cfg.task, cfg.task_cfg), 1, 0, seed, threads=1, obs=cfg.obs)


def simple_policy(kind: str, task: str, seed: int) -> tuple[Policy, BranchedEnv]:
    """ "random" or "zero" actions, for a look at a task that nothing has been trained on."""
    env = make_env(task, 1, 0, seed, threads=1, obs="pixels")
    return SimplePolicy(kind, env.task.action_size, RowRng(seed, env.rows, stream=4)), env


class Player:
    """A policy in its one world: steps it, counts its episode, and shows it.

    `draw` makes the third-person image (3, S, S) uint8 of a state qpos (1, nq).
    """

    def __init__(self, policy: Policy, env: BranchedEnv, draw: Callable[[Tensor], Tensor]):
        self.env, self.draw = env, draw
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Let this policy play, from the beginning of an episode on."""
        self.policy, self.carry = policy, policy.carry(self.env.num_nominal)
        self.terms: Terms = {}  # of the last step's reward
        self.total, self.steps = 0.0, 0  # of the running episode

    def image(self) -> np.ndarray:
        """(H, W, 3) uint8 of the state now: what `beside` puts together."""
        sources, cameras = self.env.observe().sources, self.env.task.cameras
        seen = [colours(source[0], cameras[name]) for name, source in sources.items() if name in cameras]
        return beside(self.draw(self.env.physics().qpos[:, 0]), seen)

    @torch.no_grad()
    def step(self) -> tuple[float, int] | None:
        """One control step; the return and length of the episode if it ended, and then a new one has begun."""
        action, self.carry = self.policy(self.env.observe().sources, self.carry)
        step = self.env.step(action[:, None])
        self.terms = step.terms
        self.total, self.steps = self.total + float(step.reward[0, 0]), self.steps + 1
        if not bool(self.env.restart(step)[0, 0]):
            return None
        ended = self.total, self.steps
        self.use(self.policy)
        return ended

    def restart(self) -> None:
        """Give the episode up and begin a new one."""
        state = self.env.observe().state  # (1, 1, D)
        no = torch.zeros(1, 1, dtype=torch.bool, device=state.device)
        self.env.restart(Step(torch.zeros_like(no, dtype=state.dtype), no, ~no, no, state))
        self.use(self.policy)


def beside(film: Tensor, sources: list[Tensor]) -> np.ndarray:
    """The third-person image (3, S, S), to its right the policy's frames (3 * stack, h, w) of each source, the newest
    on top: (H, W, 3) uint8."""
    size = film.shape[-1]
    columns = [film.cpu()]
    for source in sources:
        singles = source.cpu().unflatten(0, (-1, 3)).flip(0)  # (frames, 3, h, w)
        rows = [_resize(frame, size // len(singles)) for frame in singles]
        column = torch.cat(rows, dim=1)  # (3, at most S, s)
        columns.append(torch.nn.functional.pad(column, (4, 0, 0, size - column.shape[1])))
    image = torch.cat(columns, dim=2).permute(1, 2, 0).numpy()
    return np.ascontiguousarray(image[: size // 2 * 2, : image.shape[1] // 2 * 2])  # ffmpeg wants even sides


def colours(source: Tensor, camera: Camera) -> Tensor:
    """(3 * stack, h, w) uint8 of what a camera shows; of depths (stack, h, w): near is bright."""
    if not camera.depth:
        return source
    if camera.pipeline.depth == "bytes":
        bright = 255 - source
    else:
        share = source + 0.5 if camera.pipeline.depth == "centred" else source / camera.far
        bright = (255.0 * (1.0 - share.clamp(0.0, 1.0))).to(torch.uint8)
    return bright.repeat_interleave(3, dim=0)


def _resize(image: Tensor, size: int) -> Tensor:
    """(3, h, w) -> (3, size, w / h * size), nearest: the policy's pixels are shown as they are."""
    _, height, width = image.shape
    rows = torch.arange(size) * height // size
    columns = torch.arange(size * width // height) * height // size
    return image[:, rows][:, :, columns]
