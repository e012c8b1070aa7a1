"""Shared by the hurdle tasks: a straight track along +x whose hurdles get higher, and a camera that looks ahead.

The ground is an endless plane at height 0. It carries robots before, between, beside and beyond the hurdles, so nobody
can fall off the map. The hurdles are a height field that lies below the plane elsewhere: feet touch it at hurdles only.
Standing on the field itself gives several contacts per foot, takes twice the time, and differs between engines.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.tasks.base import Task, TaskCfg
from sdpg.tasks.terrain import Terrain, TerrainCfg
from sdpg.types import Camera, Encoder, Memory, Physics, Pipeline, Terms

HURDLES = "hurdles"  # the name of the height field's geom, and the terrain's kind
EGO = "ego"  # the name of the robot's own camera
GROUND_COLOUR, HURDLE_COLOUR = (255, 255, 255), (220, 50, 50)

_SUNK = 0.05  # metres from the plane down to the field between hurdles
_NEAR = 1.0  # metres ahead and behind in which a hurdle lifts the ceiling
_CLEARED = 0.5  # metres that a robot's base must be beyond a hurdle


class Track(Terrain):
    """Hurdles on flat ground. Everything about it is a function of the position: nothing is ever out of date."""

    def __init__(self, cfg: TerrainCfg):
        super().__init__(replace(cfg, kinds=(HURDLES,), platform=0.0))
        raised = np.pad(self.heights > 0.0, 1)  # (nodes along y, nodes along x), and one more on every side
        rows, columns = self.heights.shape
        beside = [raised[j : j + rows, i : i + columns] for j in range(3) for i in range(3)]
        self.heights = np.where(np.any(beside, axis=0), self.heights, -_SUNK).astype(np.float32)
        profile = self.heights[rows // 2]  # (nodes along x) along y = 0
        steps = np.diff(raised[1 + rows // 2].astype(int))  # from node i - 1 to node i
        first, behind = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)  # nodes of each hurdle's top
        self.tops = profile[first]  # (hurdles,) metres above the ground
        self.sides = self.low[0] + cfg.cell * np.stack((first - 1, behind))  # (2, hurdles) x: near, far
        self._hurdles_on: dict[torch.device, tuple[Tensor, Tensor]] = {}  # the same two on devices that asked

    def add_to(self, spec: mujoco.MjSpec, name: str = HURDLES) -> mujoco.MjsGeom:
        """Into a scene whose floor is the plane `floor`."""
        white = [value / 255.0 for value in GROUND_COLOUR]
        spec.add_material(name="ground", rgba=[*white, 1.0], specular=0.0, shininess=0.0)
        spec.geom("floor").material = "ground"
        colours = self._colours()
        high, wide, channels = colours.shape
        texture = spec.add_texture(name=name, type=mujoco.mjtTexture.mjTEXTURE_2D, nchannel=channels)
        texture.height, texture.width, texture.data = high, wide, colours.tobytes()
        painted = spec.add_material(name=name, specular=0.0, shininess=0.0)
        painted.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
        field = super().add_to(spec, name)
        field.material = name
        field.friction = spec.geom("floor").friction
        return field

    def height_at(self, xy: Tensor) -> Tensor:
        """Of the ground, which is nowhere below 0: (..., 2) -> (...)."""
        return super().height_at(xy).clamp(min=0.0)

    def scan(self, xy: Tensor, quat: Tensor, offsets: Tensor) -> Tensor:
        """Heights of the ground at `offsets` (P, 2), forward and left, of robots at xy (..., 2) whose x axis, seen from
        above, quat (..., 4) turns: (..., P).

        No angles: sines of one number may differ in the last bit, by its place in a tensor. Branches must not."""
        w, x, y, z = quat.unbind(-1)
        cos, sin = 1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)
        length = (cos * cos + sin * sin).sqrt().clamp(min=1e-6)  # 0 where the axis is upright
        cos, sin = (cos / length)[..., None], (sin / length)[..., None]
        forward, left = offsets.unbind(-1)  # (P,)
        turned = torch.stack((cos * forward - sin * left, sin * forward + cos * left), dim=-1)  # (..., P, 2)
        return self.height_at(xy[..., None, :] + turned)

    def ceiling(self, x: Tensor) -> Tensor:
        """How much higher than on flat ground a robot at x may be: the highest ground near it. (...) -> (...)"""
        tops, (near, far) = self._hurdles(x.device)
        at = x[..., None]  # (..., 1)
        return torch.where((at > near - _NEAR) & (at < far + _NEAR), tops, 0.0).amax(-1)

    def cleared(self, x: Tensor) -> Tensor:
        """How many hurdles a robot at x has behind it. (...) -> (...)"""
        _, (_, far) = self._hurdles(x.device)
        return (x[..., None] > far + _CLEARED).sum(-1).float()

    def _hurdles(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._hurdles_on:
            tops, sides = (
                torch.tensor(values, dtype=torch.float32, device=device) for values in (self.tops, self.sides)
            )
            self._hurdles_on[device] = (tops, sides)
        return self._hurdles_on[device]

    def _colours(self) -> np.ndarray:
        """(cells along y, cells along x, 3) uint8, from high y to low y: a cell that rises is part of a hurdle."""
        raised = self.heights > 0.0
        hurdle = raised[1:, 1:] | raised[:-1, 1:] | raised[1:, :-1] | raised[:-1, :-1]
        return np.where(hurdle[::-1, :, None], HURDLE_COLOUR, GROUND_COLOUR).astype(np.uint8)


@dataclass(frozen=True)
class HurdleCfg(TaskCfg):
    camera: Literal["rigid", "world"] = "rigid"
    """How the robot's camera is mounted: it turns with its link, as on a robot, or keeps the world's directions."""
    track_seed: int = 0
    """Of the hurdles' places and heights."""


DEPTH = Pipeline(limit=(0.01, 5.0), depth="bytes")  # metres as bytes, which go through the encoder of colours


class HurdleTask(Task):
    """What both share: the track, the camera, what is seen, and what is measured. Their state is the proprioception,
    then the height scan."""

    Cfg: ClassVar[type[TaskCfg]] = HurdleCfg
    cfg: HurdleCfg
    hurdles: ClassVar[TerrainCfg]
    cameras = {"pixels": Camera(EGO), "depth": Camera(EGO, depth=True, pipeline=DEPTH)}
    inputs = {"state": ("proprio", "scan"), "pixels": ("proprio", "pixels"), "depth": ("proprio", "depth")}
    state_encoders = {"proprio": Encoder(widths=(256,)), "scan": Encoder(widths=(128, 256), normalized=False)}
    encoders = {**state_encoders, "pixels": Encoder(features=256), "depth": Encoder(features=256)}

    @functools.cached_property
    def track(self) -> Track:
        return Track(replace(self.hurdles, seed=self.cfg.track_seed))

    def add_camera(self, body: mujoco.MjsBody) -> None:
        """20 cm before the body's origin and 10 cm below it, looking along its x axis and 18.4 degrees down."""
        camera = body.add_camera(name=EGO, pos=[0.2, 0.0, -0.1], fovy=80.0)
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
        camera.alt.xyaxes = [0.0, -1.0, 0.0, 0.2, 0.0, 0.6]  # right, up; it looks along (0.6, 0, -0.2)
        if self.cfg.camera == "world":
            camera.mode = mujoco.mjtCamLight.mjCAMLIGHT_TRACK

    def sources(self, proprio: Tensor, scan: Tensor) -> dict[str, Tensor]:
        return {"state": torch.cat((proprio, scan), dim=-1), "proprio": proprio, "scan": scan}

    def measure(self, x: Physics, memory: Memory) -> Terms:
        forward = x.qpos[..., 0]  # both robots' first coordinate; the track begins at 0
        return {"distance": forward.clone(), "hurdles_cleared": self.track.cleared(forward)}
