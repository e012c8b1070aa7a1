"""Watch a policy: a third-person view beside what the policy's own cameras see, as a video or as single pictures.

Drawn by the renderers of training, so it needs no OpenGL and no display; encoded by the ffmpeg that pip installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdpg import checkpoint
from sdpg.algos.api import Carry, Policy
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.folder import cfg_from_dict
from sdpg.policy import load_policy
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.rng import RowRng
from sdpg.sim.cpu import CpuSim
from sdpg.types import Camera, Step, Terms, Watch

MAX_FPS = 50  # of a video; faster control is shown at every second, third ... step


def open_run(run: Path, which: str | int, seed: int, task: str | None = None) -> tuple[Policy, BranchedEnv]:
    """A run's policy and one world of its task, which must be given if it is not registered by name."""
    saved = checkpoint.load(checkpoint.find(run, which))
    env = world_of(saved, seed, task)
    return load_policy(saved, env, task), env


def world_of(saved: checkpoint.Checkpoint, seed: int, task: str | None = None) -> BranchedEnv:
    """One world of a checkpoint's task, seen as its policy sees it."""
    cfg = cfg_from_dict(saved.cfg, task)
    return make_env(cfg.task, 1, 0, seed, threads=1, obs=cfg.obs)


def simple_policy(kind: str, task: str, seed: int) -> tuple[Policy, BranchedEnv]:
    """ "random" or "zero" actions, for a look at a task that nothing has been trained on."""
    env = make_env(task, 1, 0, seed, threads=1, obs="pixels")
    return SimplePolicy(kind, env.task.action_size, RowRng(seed, env.rows, stream=4)), env


class SimplePolicy(Policy):
    """Actions that depend on nothing: "zero", or "random" in [-1, 1]."""

    def __init__(self, kind: str, action_size: int, rng: RowRng):
        super().__init__()
        self.size, self.rng = action_size, rng
        self.scale = 0.0 if kind == "zero" else 1.0

    def forward(self, sources: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return self.scale * self.rng.uniform(-1.0, 1.0, self.size), carry


class Player:
    """A policy in its one world: steps it, counts its episode, and shows it.

    `draw` makes the third-person picture (3, S, S) uint8 of a state qpos (1, nq).
    """

    def __init__(self, policy: Policy, env: BranchedEnv, draw: Callable[[Tensor], Tensor]):
        self.env, self.draw = env, draw
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Let this policy play, from the beginning of an episode on."""
        self.policy, self.carry = policy, policy.carry(self.env.num_nominal)
        self.terms: Terms = {}  # of the last step's reward
        self.total, self.steps = 0.0, 0  # of the running episode

    def picture(self) -> np.ndarray:
        """(H, W, 3) uint8 of the state now: what `beside` puts together."""
        sources, cameras = self.env.observe().sources, self.env.task.cameras
        seen = [colours(view[0], cameras[name]) for name, view in sources.items() if name in cameras]
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


def frames(
    policy: Policy, env: BranchedEnv, episodes: int, size: int, summary: dict[str, Any], watch: Watch = iter
) -> Iterator[np.ndarray]:
    """Pictures (H, W, 3) uint8, every `stride`-th step; returns and lengths of the episodes go to `summary`."""
    sim = env.sim
    assert isinstance(sim, CpuSim)
    camera = env.task.camera
    renderer = make_renderer(sim.model, 1, [View(camera, size, size)], threads=1, params=env.task.params)

    def draw(qpos: Tensor) -> Tensor:
        rgb = renderer.render(qpos, env.looks(renderer.varied))[camera].rgb
        assert rgb is not None
        return rgb[0]

    player, stride = Player(policy, env, draw), frame_stride(env)
    finished: list[tuple[float, int]] = []
    for _ in watch(range(episodes * env.task.episode_steps)):
        if player.steps % stride == 0:
            yield player.picture()
        if (ended := player.step()) is not None:
            finished.append(ended)
            if len(finished) == episodes:
                break
    summary |= {"returns": [total for total, _ in finished], "lengths": [steps for _, steps in finished]}


def frame_stride(env: BranchedEnv) -> int:
    """Control steps from one picture to the next."""
    return max(1, round(1.0 / env.task.step_seconds / MAX_FPS))


def beside(view: Tensor, sources: list[Tensor]) -> np.ndarray:
    """The third-person picture (3, S, S), to its right the policy's frames (3 * stack, h, w) of each source, the newest
    on top: (H, W, 3) uint8."""
    size = view.shape[-1]
    columns = [view.cpu()]
    for source in sources:
        singles = source.cpu().unflatten(0, (-1, 3)).flip(0)  # (frames, 3, h, w)
        rows = [_resize(frame, size // len(singles)) for frame in singles]
        column = torch.cat(rows, dim=1)  # (3, at most S, s)
        columns.append(torch.nn.functional.pad(column, (4, 0, 0, size - column.shape[1])))
    picture = torch.cat(columns, dim=2).permute(1, 2, 0).numpy()
    return np.ascontiguousarray(picture[: size // 2 * 2, : picture.shape[1] // 2 * 2])  # ffmpeg wants even sides


def colours(source: Tensor, camera: Camera) -> Tensor:
    """(3 * stack, h, w) uint8 of what a camera shows; of metres (stack, h, w): near is bright."""
    if not camera.depth:
        return source
    bright = (255.0 * (1.0 - (source / camera.far).clamp(0.0, 1.0))).to(torch.uint8)
    return bright.repeat_interleave(3, dim=0)


def _resize(picture: Tensor, size: int) -> Tensor:
    """(3, h, w) -> (3, size, w / h * size), nearest: the policy's pixels are shown as they are."""
    _, height, width = picture.shape
    rows = torch.arange(size) * height // size
    columns = torch.arange(size * width // height) * height // size
    return picture[:, rows][:, :, columns]


def write_video(path: Path, pictures: Iterator[np.ndarray], fps: float) -> int:
    """H.264 in an mp4; the number of pictures. Written aside: an earlier film stays until this one is whole."""
    import imageio_ffmpeg

    if path.is_dir():
        raise SdpgError(
            f"'{path}' is a folder; give --video a file in it, such as {path / 'out.mp4'}, or --frames {path}"
        )
    first = next(pictures)
    aside = path.with_name(f".{path.name}")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = imageio_ffmpeg.write_frames(
            str(aside), first.shape[1::-1], fps=fps, macro_block_size=2, quality=7, ffmpeg_log_level="quiet"
        )
        with closing(writer):
            writer.send(None)
            for picture in chain([first], pictures):
                writer.send(picture)
                count += 1
        if _pictures_in(aside) != count:  # ffmpeg does not say that a disk was full
            raise OSError("pictures are missing")
        aside.replace(path)
    except OSError as error:
        raise SdpgError(f"the video '{path}' can't be written; give another --video, or --frames DIR") from error
    finally:
        with suppress(OSError):  # where nothing could be written, there is nothing to remove
            aside.unlink()
    return count


def _pictures_in(path: Path) -> int:
    """Of a film; none if it can't be read."""
    import imageio_ffmpeg

    try:
        return imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    except (OSError, RuntimeError):
        return 0


def write_frames(folder: Path, pictures: Iterator[np.ndarray]) -> int:
    """PNG files 00000.png, 00001.png ...; their number."""
    from PIL import Image

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SdpgError(f"'{folder}' is a file; give --frames a folder") from error
    count = 0
    for count, picture in enumerate(pictures, 1):
        Image.fromarray(picture).save(folder / f"{count - 1:05}.png")
    return count
