"""Scenes of robots made of meshes, with cameras as the tasks have them: for tests and measurements of renderers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from sdpg.errors import SdpgError
from sdpg.render.api import View
from sdpg.tasks import menagerie
from sdpg.tasks.terrain import Terrain, TerrainCfg

_TRACK = mujoco.mjtCamLight.mjCAMLIGHT_TRACK
_FORWARD = [0.9487, 0, -0.3162]  # 18.4 degrees downward, towards +x


@dataclass(frozen=True)
class RobotScene:
    model: mujoco.MjModel
    views: tuple[View, ...]
    things: tuple[int, ...]  # the geom group of what is looked at: the robot and what it handles
    states: Callable[[int, int], Tensor]  # number, seed -> (N, nq)


def _sunlit(spec: mujoco.MjSpec, ground: bool = True, sky: bool = False) -> mujoco.MjSpec:
    """As the tasks are lit: one light straight down, nothing glossy, tiles of one metre."""
    for light in list(spec.lights):
        spec.delete(light)
    spec.visual.headlight.ambient[:] = 0.4
    spec.visual.headlight.diffuse[:] = 0.2
    spec.visual.headlight.specular[:] = 0
    spec.worldbody.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0, 0, 5], dir=[0, 0, -1], diffuse=[0.8] * 3, specular=[0] * 3
    )
    if sky:
        spec.add_texture(
            name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
            rgb1=[0.4, 0.6, 0.8], rgb2=[0.1, 0.15, 0.2], width=64, height=384,
        )  # fmt: skip
    if ground:
        _material(spec, "tiles", builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER, repeat=1.0)
        spec.worldbody.add_geom(
            name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], material="tiles", group=0
        )
    spec.stat.extent = 1.0
    spec.visual.map.zfar = 10.0
    return spec


def _material(spec: mujoco.MjSpec, name: str, builtin: Any, repeat: float) -> None:
    spec.add_texture(
        name=name, type=mujoco.mjtTexture.mjTEXTURE_2D, builtin=builtin, rgb1=[0.3, 0.35, 0.4], rgb2=[0.5, 0.55, 0.6],
        width=128, height=128,
    )  # fmt: skip
    textures = [""] * int(mujoco.mjtTextureRole.mjNTEXROLE)
    textures[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = name
    spec.add_material(name=name, textures=textures, texrepeat=[repeat, repeat], texuniform=True, specular=0)


def _looking(direction: Any, up: Any = (0, 0, 1)) -> list[float]:
    """The frame of a camera that looks along `direction`, as a quaternion."""
    z = -np.asarray(direction, float) / np.linalg.norm(direction)
    x = np.cross(up, z)
    x /= np.linalg.norm(x)
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, np.stack([x, np.cross(z, x), z], axis=1).ravel())
    return quat.tolist()


def _about(model: mujoco.MjModel, base: np.ndarray, spread: float) -> Callable[[int, int], Tensor]:
    """States around `base`: hinges and slides anywhere near it within their ranges, bodies that float turned a bit."""

    def states(num: int, seed: int) -> Tensor:
        rng = np.random.default_rng(seed)
        qpos = np.repeat(base[None], num, axis=0)
        for joint in range(model.njnt):
            at, kind = int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
            if kind == mujoco.mjtJoint.mjJNT_FREE:
                qpos[:, at : at + 2] += rng.uniform(-0.05, 0.05, (num, 2))
                qpos[:, at + 3 : at + 7] += rng.normal(0, 0.15, (num, 4))
                qpos[:, at + 3 : at + 7] /= np.linalg.norm(qpos[:, at + 3 : at + 7], axis=1, keepdims=True)
            else:
                low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (-1.0, 1.0)
                qpos[:, at] = np.clip(qpos[:, at] + spread * (high - low) * rng.uniform(-0.5, 0.5, num), low, high)
        return torch.from_numpy(qpos)

    return states


def _key(model: mujoco.MjModel, name: str) -> np.ndarray:
    key = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, name)
    return model.key_qpos[key].copy() if key >= 0 else model.qpos0.copy()


def _terrain(spec: mujoco.MjSpec, cfg: TerrainCfg, rgba: tuple[float, ...] | None = None) -> Terrain:
    terrain = Terrain(cfg)
    geom = terrain.add_to(spec)
    geom.group = 0
    if rgba:
        geom.rgba = rgba
    else:  # white, and red where it is high
        high = terrain.heights[::-1] > 0.0  # the picture's first row is at the highest y
        pixels = np.where(high[..., None], np.uint8([220, 50, 50]), np.uint8([255, 255, 255])).astype(np.uint8)
        texture = spec.add_texture(name="heights", type=mujoco.mjtTexture.mjTEXTURE_2D, nchannel=3)
        texture.width, texture.height = high.shape[1], high.shape[0]
        texture.data = pixels.tobytes()
        textures = [""] * int(mujoco.mjtTextureRole.mjNTEXROLE)
        textures[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = "heights"
        spec.add_material(name="heights", textures=textures, specular=0)
        geom.material = "heights"
    return terrain


def _go2(kind: str) -> RobotScene:
    spec = _sunlit(menagerie.model("unitree_go2", "go2.xml"), ground=False)
    cfg = TerrainCfg(kinds=(kind,), levels=3, border=5.0)
    terrain = _terrain(spec, cfg, (0.6, 0.6, 0.6, 1))
    spec.body("base").add_camera(
        name="depth", mode=_TRACK, pos=[0.32, 0, 0.15], quat=_looking([0.18, 0, -0.15]), fovy=50.8
    )
    model = spec.compile()
    base = _key(model, "home")

    def states(num: int, seed: int) -> Tensor:
        qpos = _about(model, base, 0.2)(num, seed)
        generator = torch.Generator().manual_seed(seed)
        level = torch.randint(0, cfg.levels, (num,), generator=generator)
        places = terrain.spawn(level, torch.zeros(num, dtype=torch.long))
        places[:, :2] += 6 * torch.rand(num, 2, generator=generator) - 3
        places[:, 2] = terrain.height_at(places[:, :2])
        qpos[:, :2], qpos[:, 2] = places[:, :2].double(), places[:, 2].double() + 0.35
        return qpos

    return RobotScene(model, (View("depth", 106, 60, rgb=False, depth=True),), (2,), states)


def _g1() -> RobotScene:
    spec = _sunlit(menagerie.model("unitree_g1", "g1.xml"), ground=False, sky=True)
    cfg = TerrainCfg(
        kinds=("hurdles",), levels=10, length=4.5, width=5.0, cell=0.05, platform=0.0, border=5.0, hurdle=(0.1, 0.82)
    )
    terrain = _terrain(spec, cfg)
    # As the paper has it, rigid on the torso: hands and feet come into view.
    spec.body("torso_link").add_camera(name="head", pos=[0.2, 0, 0.1], quat=_looking(_FORWARD), fovy=80)
    model = spec.compile()
    base = _key(model, "stand")

    def states(num: int, seed: int) -> Tensor:
        qpos = _about(model, base, 0.25)(num, seed)
        rng = np.random.default_rng(seed + 1)
        qpos[:, 0] = torch.from_numpy(rng.uniform(0, 40, num))
        qpos[:, 2] = 0.8 + terrain.height_at(qpos[:, :2].float()).double()
        return qpos

    return RobotScene(model, (View("head", 84, 84),), (2,), states)


def _franka() -> RobotScene:
    spec = _sunlit(menagerie.model("franka_emika_panda", "panda.xml"))
    spec.body("hand").add_camera(
        name="hand", pos=[-0.2, 0, -0.05], quat=_looking([0.2, 0, 0.15], up=(1, 0, 0)), fovy=60
    )
    cube = spec.worldbody.add_body(name="cube", pos=[0.6, 0, 0.035])
    cube.add_freejoint()
    cube.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.03] * 3, rgba=[0.9, 0.3, 0.2, 1], group=2)
    for key in list(spec.keys):
        spec.delete(key)
    model = spec.compile()
    base = model.qpos0.copy()
    base[:9] = (0, 0.3, 0, -1.57079, 0, 2.0, -0.7853, 0.04, 0.04)
    return RobotScene(model, (View("hand", 84, 84),), (2,), _about(model, base, 0.1))


def _aloha() -> RobotScene:
    spec = _sunlit(menagerie.model("aloha", "scene.xml"), ground=False)
    for key in list(spec.keys):
        spec.delete(key)
    spec.worldbody.add_camera(name="table", pos=[0, -0.377167, 0.0316055], quat=[0.672659, 0.739953, 0, 0], fovy=80)
    cases = [geom for geom in spec.geoms if geom.meshname == "d405_solid" and not (geom.contype or geom.conaffinity)]
    for case in cases:  # of cameras: they would hide everything from these
        spec.delete(case)
    for side in ("left", "right"):
        spec.body(f"{side}/gripper_link").add_camera(
            name=f"wrist_{side}", pos=[0.0254, 0, 0.08247], quat=_looking([0.90631, 0, -0.42261]), fovy=60
        )
    for name, place, half, rgba in (
        ("peg", [0.136459, 0, 0.0157945], [0.048, 0.015, 0.015], [1, 0, 0, 1]),
        ("socket", [-0.146984, 0, 0.0227945], [0.048, 0.022, 0.022], [0, 0, 1, 1]),
    ):
        body = spec.worldbody.add_body(name=name, pos=place)
        body.add_freejoint()
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=half, rgba=rgba, group=2)
    model = spec.compile()
    base = model.qpos0.copy()
    arms = (0.083383, -0.122008, 0.950168, 0.108187, -0.869224, -0.0731298, 0.0305, 0.0305)
    base[:16] = (*arms, -0.0862348, -0.109522, 0.949474, -0.113041, -0.887378, 0.0754333, 0.0305, 0.0305)
    views = tuple(View(name, 64, 64) for name in ("table", "wrist_left", "wrist_right"))
    return RobotScene(model, views, (1, 2), _about(model, base, 0.1))


FACES = ((1, 0, 0), (0, 0.6, 0), (0, 0, 1), (1, 0.9, 0), (1, 0.5, 0), (0.9, 0.9, 0.9))  # colours of the cube's faces


def add_cube(spec: mujoco.MjSpec, place: list[float], half: float = 0.03) -> None:
    """A cube whose faces are parts of one picture."""
    side = 16
    strip = np.repeat((np.array(FACES) * 255).astype(np.uint8), side, axis=0)  # (6 * side, 3)
    pixels = np.repeat(strip[:, None], side, axis=1)  # (6 * side, side, 3)
    texture = spec.add_texture(name="faces", type=mujoco.mjtTexture.mjTEXTURE_2D, nchannel=3)
    texture.width, texture.height, texture.data = side, 6 * side, pixels.tobytes()
    textures = [""] * int(mujoco.mjtTextureRole.mjNTEXROLE)
    textures[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = "faces"
    spec.add_material(name="faces", textures=textures, specular=0)
    points, faces, places = [], [], []
    for number in range(6):
        axis, sign = number // 2, 1 - 2 * (number % 2)
        u, v = np.roll(np.eye(3), 0, axis=0)[(axis + 1) % 3], np.eye(3)[(axis + 2) % 3] * sign
        for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
            points.append((np.eye(3)[axis] * sign + a * u + b * v) * half)
            places.append(((a + 1) / 2, (number + (b + 1) / 2) / 6))
        faces += [[4 * number, 4 * number + 1, 4 * number + 2], [4 * number, 4 * number + 2, 4 * number + 3]]
    spec.add_mesh(
        name="cube", uservert=np.ravel(points), userface=np.ravel(faces), usertexcoord=np.ravel(places),
        userfacetexcoord=np.ravel(faces),
    )  # fmt: skip
    body = spec.worldbody.add_body(name="cube", pos=place)
    body.add_freejoint()
    body.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname="cube", material="faces", group=2)


def _allegro() -> RobotScene:
    spec = _sunlit(menagerie.model("wonik_allegro", "right_hand.xml"))
    spec.body("palm").pos = [0.25, 0, 0.2]
    spec.body("palm").quat = [0, 1, 0, 0.7]
    spec.worldbody.add_camera(name="hand", pos=[0.40, 0.05, 0.425], quat=_looking([-0.15, -0.15, -0.15]), fovy=80)
    add_cube(spec, [0.25, 0, 0.275])
    model = spec.compile()
    base = model.qpos0.copy()
    base[:16] = (0, 0.58, 0.7, 0.54, 0, 0.61, 0.76, 0.74, 0, 0.89, 0.72, 0.58, 0.28, 0.33, 1.08, 0.81)
    return RobotScene(model, (View("hand", 84, 84),), (2,), _tumbling(model, _about(model, base, 0.2)))


def _shadow() -> RobotScene:
    spec = _sunlit(menagerie.model("shadow_hand", "right_hand.xml"))
    forearm = spec.body("rh_forearm")
    forearm.pos, forearm.quat = [0, -0.247, 0.34], [0.5, -0.5, -0.5, -0.5]  # palm up, fingers along +y
    spec.worldbody.add_camera(name="hand", pos=[0.40, 0.05, 0.55], quat=_looking([-0.4, 0.05, -0.15]), fovy=80)
    add_cube(spec, [0, 0.1, 0.40])
    model = spec.compile()
    return RobotScene(model, (View("hand", 84, 84),), (2,), _tumbling(model, _about(model, model.qpos0.copy(), 0.2)))


def _tumbling(model: mujoco.MjModel, states: Callable[[int, int], Tensor]) -> Callable[[int, int], Tensor]:
    """The cube in any orientation."""

    def turned(num: int, seed: int) -> Tensor:
        qpos = states(num, seed)
        at = int(model.jnt_qposadr[model.body("cube").jntadr[0]]) + 3
        quat = torch.randn(num, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        qpos[:, at : at + 4] = quat / quat.norm(dim=1, keepdim=True)
        return qpos

    return turned


SCENES: dict[str, Callable[[], RobotScene]] = {
    "go2-stairs": lambda: _go2("stairs_up"),
    "go2-rough": lambda: _go2("rough"),
    "g1-hurdles": _g1,
    "franka-cube": _franka,
    "aloha": _aloha,
    "allegro-cube": _allegro,
    "shadow-cube": _shadow,
}


@cache
def robot_scene(name: str) -> RobotScene:
    """For a test: skips, or fails in CI, where the robot's model can't be had."""
    try:
        return SCENES[name]()
    except SdpgError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
