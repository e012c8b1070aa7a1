"""Shared by the hands that turn a cube: the cube with its six faces, goals, rewards, what is seen and measured."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import numpy as np
import torch
from torch import Tensor

from sdpg.rng import RowRng
from sdpg.tasks.base import Task, TaskCfg
from sdpg.tasks.chains import Chains, multiply
from sdpg.tasks.terms import angle_of, effort
from sdpg.types import Camera, Encoder, Ended, Memory, Physics, Start, Terms

Place = tuple[float, float, float]

CUBE_SIDE = 0.06  # metres
FACES = {  # where a face of the cube points to -> its colour
    (1, 0, 0): (0.9, 0.1, 0.1),  # red
    (-1, 0, 0): (0.7, 0.1, 0.8),  # purple
    (0, 1, 0): (0.1, 0.7, 0.1),  # green
    (0, -1, 0): (0.1, 0.3, 0.9),  # blue
    (0, 0, 1): (1.0, 1.0, 1.0),  # white
    (0, 0, -1): (1.0, 0.9, 0.0),  # yellow
}
START_OFFSET = 0.01  # metres, uniform, of the cube
START_SPREAD = 0.1  # of a joint's range, uniform
GOAL_ANGLES = (math.radians(60.0), math.radians(90.0))  # from where the cube is, or the last goal
REACHED = 0.4  # rad
IN_HAND = 0.08  # metres from where the cube shall stay: at rest it is within 0.04, moved about by fingers mostly 0.07

DISTANCE_WEIGHT = 10.0
EFFORT_WEIGHT = 2e-4
# A new goal is up to 1.57 rad farther, and costs who never turns the cube again (1.97^2 - 0.4^2) / (1 - gamma) = 372.
GOAL_BONUS = 400.0
VELOCITY_SCALE = 0.2  # of joints and of the cube's rotation, in what networks see


@dataclass(frozen=True)
class InHandCfg(TaskCfg):
    goals: int = 1
    """Goals of an episode: when one is reached, the next is 60 to 90 degrees farther, and reaching one pays 400."""
    held: float = 3.0
    """What a step pays, less the square of the cube's angle to the goal and ten times its distance. At 3, the paper's,
    a badly turned cube is worth dropping: beyond 1.7 rad a step costs. At 10 (> pi^2) it is always worth holding, where
    it shall stay."""

    def rules(self) -> dict[str, bool]:
        return {f"task.goals must be at least 1, not {self.goals}": self.goals >= 1}


def inverse(quat: Tensor) -> Tensor:
    """Of a unit quaternion: (..., 4) -> (..., 4)."""
    return torch.cat((quat[..., :1], -quat[..., 1:]), dim=-1)


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """Radians in [0, pi] that lead from one orientation to the other: (..., 4), (..., 4) -> (...)."""
    relative = multiply(a, inverse(b))
    return 2.0 * angle_of(relative[..., 0].abs(), relative[..., 1:].norm(dim=-1))


def random_turn(rng: RowRng) -> Tensor:
    """(n, 4): by one of GOAL_ANGLES about the world's +x or +y."""
    half = rng.uniform(*GOAL_ANGLES, 1) / 2.0
    about_x = (rng.integers(2, 1) == 0).float()
    sine = half.sin()
    return torch.cat((half.cos(), sine * about_x, sine * (1.0 - about_x), torch.zeros_like(half)), dim=-1)


def look_at(camera: mujoco.MjsCamera, target: Place | np.ndarray) -> None:
    """Turns a camera towards a point; the world's z is up in its picture."""
    back = np.asarray(camera.pos) - target
    right = np.cross((0.0, 0.0, 1.0), back)
    axes = np.stack([axis / np.linalg.norm(axis) for axis in (right, np.cross(back, right), back)], axis=1)  # (3, 3)
    mujoco.mju_mat2Quat(quat := np.zeros(4), axes.ravel())
    camera.quat = quat


def add_faces(body: mujoco.MjsBody, name: str) -> None:
    """Six plates that nothing touches: any renderer draws them."""
    half, thin = CUBE_SIDE / 2.0, 0.0005
    for axis, colour in FACES.items():
        body.add_geom(
            name=f"{name}_{'xyz'[[abs(a) for a in axis].index(1)]}{'+' if sum(axis) > 0 else '-'}",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[thin if a else half for a in axis],
            pos=[a * (half - thin) for a in axis],
            rgba=[*colour, 1.0],
            contype=0,
            conaffinity=0,
            mass=0.0,
        )


class InHand(Task):
    """A hand that turns a cube to the goal's orientation and keeps it where it is.

    Action: where the position actuators shall be, from the lower to the upper end of their ranges.

    Actor's vector, "proprio": joint positions (-1 and 1 are the limits), 0.2 * joint velocities, in-hand position 3,
    goal quaternion 4, fingertips (positions, quaternions, linear and angular velocities; world), previous action.
    State: joint positions and velocities, cube position 3, quaternion 4, linear velocity 3 (world), 0.2 * angular
    velocity 3 (body), in-hand position 3, goal quaternion 4, rotation from the goal to the cube 4, fingertips, previous
    action.
    """

    Cfg = InHandCfg
    cfg: InHandCfg
    camera = "view"
    action_meaning = "where position motors shall be, from the lower to the upper end of their ranges"
    ends = "the cube has left the hand"
    cameras: ClassVar[Mapping[str, Camera]] = {"pixels": Camera("palm")}
    inputs: ClassVar[Mapping[str, tuple[str, ...]]] = {"state": ("state",), "pixels": ("proprio", "pixels")}
    encoders: ClassVar[Mapping[str, Encoder]] = {
        "proprio": Encoder(widths=(1024, 256)),
        "pixels": Encoder(features=256),
    }

    joints: ClassVar[Mapping[str, tuple[float, float, float]]]  # name -> lower limit, upper limit, start; in qpos order
    fingertips: ClassVar[tuple[str, ...]]  # bodies
    cube_density: ClassVar[float]
    cube_friction: ClassVar[float]
    cube_start: ClassVar[Place]
    in_hand: ClassVar[Place]  # where the cube shall stay
    goal_place: ClassVar[Place]  # where the goal is drawn
    palm_camera: ClassVar[Place]
    palm_target: ClassVar[Place]
    contact_time: ClassVar[float]  # seconds: solref
    fall_distance: ClassVar[float] = 0.2  # from where the cube shall stay

    @abstractmethod
    def hand(self) -> mujoco.MjSpec:
        """The robot in its place, with its limits, gains and contacts; all its joints are in `joints`."""

    def scene(self) -> mujoco.MjSpec:
        spec = self.hand()
        option = spec.option
        option.integrator, option.cone = mujoco.mjtIntegrator.mjINT_IMPLICITFAST, mujoco.mjtCone.mjCONE_PYRAMIDAL
        option.impratio, option.iterations, option.tolerance = 1.0, 50, 1e-6
        spec.visual.headlight.ambient = [0.3, 0.3, 0.3]  # faces have a colour where the light does not reach them, too
        world = spec.worldbody
        world.add_light(
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, dir=[0, 0, -1], diffuse=[0.8, 0.8, 0.8], castshadow=False
        )
        look_at(world.add_camera(name="palm", pos=self.palm_camera, fovy=80.0), self.palm_target)
        middle = np.add(self.in_hand, self.goal_place) / 2.0  # films show cube and goal
        look_at(world.add_camera(name="view", pos=middle + (0.6, 0.0, 0.3), fovy=50.0), middle)
        cube = world.add_body(name="cube", pos=self.cube_start)
        cube.add_freejoint(name="cube")
        cube.add_geom(
            name="cube",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[CUBE_SIDE / 2.0] * 3,
            density=self.cube_density,
            friction=[self.cube_friction, 0.005, 0.0001],
            solref=[self.contact_time, 1.0],
            group=3,
        )
        add_faces(cube, "face")
        add_faces(world.add_body(name="goal", pos=self.goal_place, mocap=True), "goal")
        return spec

    @functools.cached_property
    def _joint_numbers(self) -> Tensor:
        return torch.tensor(tuple(self.joints.values())).T  # (3, joints): lower and upper limits, start

    @functools.cached_property
    def _fingertips(self) -> Chains:
        return Chains(self.scene().compile(), self.fingertips)

    @functools.cached_property
    def _actuators(self) -> tuple[Tensor, Tensor]:
        """Lower and upper ends of their ranges (2, A), and what each joint adds to their lengths (joints, A)."""
        model = self.scene().compile()
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        moments = np.zeros((model.nu, model.nv))
        mujoco.mju_sparse2dense(
            moments, data.actuator_moment, data.moment_rownnz, data.moment_rowadr, data.moment_colind
        )
        return torch.from_numpy(model.actuator_ctrlrange.T).float(), torch.from_numpy(moments[:, :-6].T).float()

    def holding(self, joints: Tensor) -> Tensor:
        """The action that keeps the joints where they are: (..., joints) -> (..., A)."""
        (low, high), moments = (values.to(joints.device) for values in self._actuators)
        return 2.0 * (joints @ moments - low) / (high - low) - 1.0

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        device = rng.rows.device
        low, high, rest = self._joint_numbers.to(device)
        spread = rng.uniform(-START_SPREAD, START_SPREAD, len(rest)) * (high - low)
        joints = torch.clamp(rest + spread, low, high)  # (n, joints)
        place = torch.tensor(self.cube_start, device=device) + rng.uniform(-START_OFFSET, START_OFFSET, 3)
        upright = torch.tensor((1.0, 0.0, 0.0, 0.0), device=device).expand(n, 4)
        qpos = torch.cat((joints, place, upright), dim=-1)
        goal = random_turn(rng)  # (n, 4)
        memory = {
            "action": self.holding(joints),
            "goal": goal,
            "reached": torch.zeros(n, device=device),  # goals
            "smallest": angle_between(goal, upright),
        }
        if self.cfg.goals > 1:
            memory["next"] = multiply(random_turn(rng), goal)
        return Start(qpos, torch.zeros_like(qpos[:, 1:]), memory, mocap_quat=goal[:, None].clone())

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        low, high = self._actuators[0].to(action.device)
        return low + (action.clamp(-1.0, 1.0) + 1.0) / 2.0 * (high - low)

    def _cube(self, x: Physics) -> tuple[Tensor, Tensor]:
        """Its position (..., 3) and quaternion (..., 4)."""
        return x.qpos[..., -7:-4], x.qpos[..., -4:]

    def _distance(self, x: Physics) -> Tensor:
        """(...) of the cube from where it shall stay."""
        return (self._cube(x)[0] - torch.tensor(self.in_hand, device=x.qpos.device)).norm(dim=-1)

    def _reaches(self, x: Physics, angle: Tensor, memory: Memory) -> Tensor:
        """(...) bool: a goal that was still to be reached, by a cube in the hand. One that falls passes many angles."""
        return (angle < REACHED) & (self._distance(x) < IN_HAND) & (memory["reached"] < self.cfg.goals)

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        angle = angle_between(self._cube(x)[1], memory["goal"])
        terms = {
            "distance": -DISTANCE_WEIGHT * self._distance(x),
            "angle": -angle.square(),
            "effort": -EFFORT_WEIGHT * effort(action),
            "held": torch.full_like(angle, self.cfg.held),
        }
        if self.cfg.goals > 1:
            terms["goal"] = GOAL_BONUS * self._reaches(x, angle, memory).float()
        return terms

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return self._distance(x) > self.fall_distance

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        angle = angle_between(self._cube(x)[1], memory["goal"])
        reached = memory["reached"] + self._reaches(x, angle, memory).float()
        after = memory | {
            "action": action.clamp(-1.0, 1.0),
            "reached": reached,
            "smallest": torch.minimum(memory["smallest"], angle),
        }
        if self.cfg.goals > 1:
            takes = ((reached > memory["reached"]) & (reached < self.cfg.goals))[..., None]
            farther = multiply(random_turn(rng)[:, None], memory["next"])
            after["goal"] = torch.where(takes, memory["next"], memory["goal"])
            after["next"] = torch.where(takes, farther, memory["next"])
        return after

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        place, quat = self._cube(x)
        low, high, _ = self._joint_numbers.to(x.qpos.device)
        moving = (2.0 * (x.qpos[..., :-7] - low) / (high - low) - 1.0, VELOCITY_SCALE * x.qvel[..., :-6])
        cube = (place, quat, x.qvel[..., -6:-3], VELOCITY_SCALE * x.qvel[..., -3:])
        target = (torch.tensor(self.in_hand, device=place.device).expand_as(place), memory["goal"])
        turn = multiply(quat, inverse(memory["goal"]))
        tips = (numbers.flatten(-2) for numbers in self._fingertips.motions(x.qpos, x.qvel))
        rest = (*tips, memory["action"])
        return {
            "state": torch.cat((*moving, *cube, *target, turn, *rest), dim=-1),
            "proprio": torch.cat((*moving, *target, *rest), dim=-1),
        }

    def measure(self, x: Physics, memory: Memory) -> Terms:
        dropped = self.terminated(x, memory)
        return {
            "angle": angle_between(self._cube(x)[1], memory["goal"]),
            "smallest_angle": memory["smallest"].clone(),
            "goals": memory["reached"].clone(),
            "success": ((memory["reached"] >= 1.0) & ~dropped).float(),
            "dropped": dropped.float(),
        }
