"""Scenes and what is seen of them, for the tests of renderers."""

from __future__ import annotations

import math
from functools import cache

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.build import compile_scene, make_env
from sdpg.render.api import Image, View
from sdpg.render.choose import Kind, choose, make_renderer
from sdpg.tasks.base import make_task

KINDS: tuple[Kind, ...] = ("raster", "warp")
FLOOR, ROBOT = (0,), (1,)  # geom groups in `suite`

SKY = '<texture name="sky" type="skybox" builtin="flat" width="8" height="48" rgb1=".2 .4 .6" rgb2=".2 .4 .6"/>'
FRONT = '<camera name="front" pos="0 -3 0" xyaxes="1 0 0 0 0 1" fovy="45"/>'
CHECKER = '<texture name="checker" type="2d" builtin="checker" width="32" height="32" rgb1=".1 .2 .3" rgb2=".9 .8 .7"/>'
SUN = '<light type="directional" dir=".3 .5 -1" diffuse=".6 .5 .4" specular=".3 .3 .3" ambient=".1 .1 .1"/>'


def scene(world: str, assets: str = SKY, head: str = "", camera: str = FRONT, light: str = SUN) -> mujoco.MjModel:
    """The extent is always the same: Warp compiles zfar, which is a multiple of it, into its code."""
    head = f"<statistic extent='1'/>{head}<asset>{assets}</asset>"
    return mujoco.MjModel.from_xml_string(f"<mujoco>{head}<worldbody>{camera}{light}{world}</worldbody></mujoco>")


def still(model: mujoco.MjModel, num: int = 1) -> Tensor:
    return torch.from_numpy(np.repeat(model.qpos0[None], num, axis=0))


def picture(model: mujoco.MjModel, kind: Kind, view: View, qpos: Tensor | None = None) -> Image:
    qpos = still(model) if qpos is None else qpos
    return make_renderer(model, len(qpos), [view], 1, kind).render(qpos)[view.camera]


def rgb_of(image: Image) -> Tensor:
    assert image.rgb is not None
    return image.rgb


def depth_of(image: Image) -> Tensor:
    assert image.depth is not None
    return image.depth


@cache
def suite(name: str) -> mujoco.MjModel:
    """A task's scene, its robot in a geom group of its own."""
    model = compile_scene(make_task(name))
    model.geom_group[model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE] = ROBOT[0]
    return model


def states(name: str, num: int, seed: int = 0) -> Tensor:
    """(num, nq) of different ages under random actions, as a policy comes across them."""
    env = make_env(name, 20, 0, seed, 1)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(math.ceil(num / 20)):
        for _ in range(9):
            env.restart(env.step(2 * torch.rand(20, 1, env.task.action_size, generator=generator) - 1))
        found.append(env.physics().qpos[:, 0].clone())
    return torch.cat(found)[:num]


def require_alike(model: mujoco.MjModel, view: View | None = None, qpos: Tensor | None = None) -> None:
    """Both renderers draw nearly every pixel the same."""
    view = view or View("front", 60, 50, depth=True)
    a, b = (picture(model, kind, view, qpos) for kind in KINDS)
    assert choose(model, [view])[0] == "raster"
    known = torch.isfinite(depth_of(b))
    edges = (torch.isfinite(depth_of(a)) != known).float().mean()
    assert edges < 0.002
    known &= torch.isfinite(depth_of(a))
    if known.any():
        off = ((depth_of(a) - depth_of(b)).abs() / depth_of(b))[known]
        assert (off < 1e-3).float().mean() > 0.995
    different = ((rgb_of(a).int() - rgb_of(b).int()).abs() > 2).any(dim=1).float().mean()
    assert different < 0.005
