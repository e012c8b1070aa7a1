"""A Unitree Go2 follows velocity commands over slopes, rough ground and stairs that get steeper as it gets better."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import mujoco
import torch
from torch import Tensor

from sdpg.names import Names
from sdpg.rng import RowRng
from sdpg.tasks import go2
from sdpg.tasks.base import Task, TaskCfg
from sdpg.tasks.randomise import Randomise, delayed, noisy, offset_control, pushed
from sdpg.tasks.terms import angle_of, down_direction, random_tilt, up_projection, wrap_angle, yaw_of
from sdpg.tasks.terrain import Terrain, TerrainCfg
from sdpg.types import (
    ActionLayout,
    Camera,
    Encoder,
    Ended,
    Memory,
    ObservedTerm,
    Physics,
    Pipeline,
    Start,
    Terms,
    VectorLayout,
)

FRAMES, FRAME = 20, 45  # of the history
SCALES = {"turn": 0.25, "velocity": 2.0, "joint_velocity": 0.05}  # of numbers that are observed
NOISE = (*[0.1 * SCALES["turn"]] * 3, *[0.02] * 3, *[0.0] * 3, *[0.01] * 12)
NOISE = (*NOISE, *[0.5 * SCALES["joint_velocity"]] * 12, *[0.0] * 12)  # uniform, plus and minus, of a frame
RANGES = Randomise(
    base="base",
    friction=(0.2, 1.5),
    payload=(-1.0, 3.0),
    centre=(-0.01, 0.01),
    stiffness=(0.8, 1.2),
    damping=(0.8, 1.2),
    offset=(-0.02, 0.02),
    push_every=(500, 500),
    push=(-1.0, 1.0),
)
GROUND = TerrainCfg(
    kinds=tuple(
        "slope_up slope_up slope_down rough rough stairs_up stairs_up stairs_up stairs_down stairs_down".split()
    ),
    border=20.0,
    rough=(0.05, 0.05),
)
WEIGHTS = {
    "tracking_lin_vel": 5.0,
    "tracking_ang_vel": 1.5,
    "lin_vel_z": -2.0,
    "ang_vel_xy": -0.05,
    "dof_acc": -2.5e-7,
    "action_rate": -0.01,
    "action_smoothness": -0.01,
    "feet_air_time": 1.0,
    "feet_contact_stand_still": 0.5,
    "feet_clearance": 0.2,
    "hip_pos": -0.05,
    "dof_pos_limits": -2.0,
    "collision": -1.0,
}

DEPTH = Pipeline(crop=(0, 2, 4, 4), limit=(0.0, 2.0), width=87, height=58, resize="bicubic", depth="centred")

ACTION_RADIANS = 0.5  # of a target, at action 1
START_HEIGHT, START_PLACE, START_TILT, START_JOINTS = 0.42, 0.025, math.radians(7.5), 0.5
COMMAND_STEPS = 200
COMMAND_SPEED = 1.0  # metres a second at most, forward and to the side
COMMAND_LEAST = 0.2  # less means: stand still
FOOT_CLEARANCE = 0.09  # metres above the ground around it, of a foot that moves
AIR_TIME = 0.25  # seconds from which on a step pays
MAX_TILT = 0.4  # radians of roll and pitch beyond those of the ground
STANDS = ((0.2, 0.15), (0.2, -0.15), (-0.2, 0.15), (-0.2, -0.15))  # where the ground's own tilt is looked up

MOTORS = tuple(f"{leg}_{joint}" for leg in go2.LEGS for joint in go2.JOINTS)
XYZ = ("x", "y", "z")
_TELLS = (  # a frame of the history
    ObservedTerm("base_ang_vel", 3, "rad/s", "angular velocity in the base's frame", XYZ, SCALES["turn"]),
    ObservedTerm("projected_gravity", 3, "1", "where down is, in the base's frame: (0, 0, -1) when level", XYZ),
    ObservedTerm(
        "command", 3, "m/s, m/s, rad/s", "velocity forward and to the left in the heading's frame, turning rate",
        ("forward", "left", "turn"), (SCALES["velocity"], SCALES["velocity"], SCALES["turn"]), command=True,
    ),
    ObservedTerm("joint_pos", 12, "rad", "joint positions", MOTORS, offset=go2.STANCE),
    ObservedTerm("joint_vel", 12, "rad/s", "joint velocities", MOTORS, SCALES["joint_velocity"]),
    ObservedTerm("last_action", 12, "1", "the policy's previous action; 0 before the first", MOTORS),
)  # fmt: skip


@functools.lru_cache(maxsize=4)
def ground(seed: int) -> Terrain:
    return Terrain(replace(GROUND, seed=seed))


@dataclass(frozen=True)
class Go2TerrainCfg(TaskCfg):
    """Of the ground, of what is random, and of where the task departs from the paper."""

    terrain_seed: int = 0
    first_levels: int = 2
    """Robots begin on one of the lowest so many levels of the ground."""
    curriculum: bool = True
    """Levels rise and fall with how far robots get; off: they stay."""
    randomised: bool = True
    """Friction, payload, centre of mass, gains and offsets of motors differ from episode to episode."""
    pushes: bool = True
    noise: bool = False
    """Of what the policy observes."""
    latency: tuple[int, int] = (0, 0)
    """Control steps by which actions come late: at least, at most."""
    only_positive: bool = False
    """Sums of reward terms below 0 count as 0."""
    camera: Literal["base", "world"] = "base"
    """Cameras turn with the robot, or always look along the world's +x from where it is."""

    def rules(self) -> dict[str, bool]:
        least, most = self.latency
        return {
            f"task.terrain-seed must be at least 0, not {self.terrain_seed}": self.terrain_seed >= 0,
            f"task.first-levels must be between 1 and {GROUND.levels}, not {self.first_levels}": (
                1 <= self.first_levels <= GROUND.levels
            ),
            f"task.latency must be at least 0 and rising, not {least} {most}": 0 <= least <= most,
        }

    @property
    def ranges(self) -> Randomise:
        """What is drawn."""
        kept = RANGES if self.randomised else Randomise(push=RANGES.push, push_every=RANGES.push_every)
        if not self.pushes:
            kept = replace(kept, push=None, push_every=None)
        return replace(kept, noise=NOISE if self.noise else (), latency=self.latency if any(self.latency) else None)


class Go2Terrain(Task):
    """Actions are offsets of the joints' targets, 0.5 rad at 1, from a stance; order FR, FL, RR, RL x hip, thigh, calf.

    Commands: forward and sideways velocity, U[-1, 1] m/s each, and a heading; new ones every 4 s. The policy is told
    the turning rate that leads to the heading.
    A frame (45): 0.25 angular velocity 3, gravity in the body's frame 3, command 3 (scaled by 2, 2, 0.25), joint
    positions less the stance 12, 0.05 joint velocities 12, previous action 12. The history has the last 20.
    State (129): the frame without noise 45, 2 x velocity in the heading's frame 3; height scan 81.
    A scan: 5 clip(base height - 0.5 - ground height, -1, 1) on 9 x 9 points 0.1 m apart, which turn with the heading.

    What differs from the authors' code, which is meant to do the same:

    1. Heading is yaw, and the scan turns with it (there: roll, and no rotation).
    2. The camera is fixed to the base, as the paper says (there: always looks along the world's +x;
       `--task.camera world`); it is 106 wide and 60 high, with 80 degrees horizontally (there: upright).
    3. Torque limits are symmetric (there: none below); the free base has no damping, friction or armature.
    4. Air time counts once a step, and a step pays from 0.25 s in the air on (there: 0.5 s, counted twice a step, and
       paid twice what is beyond); the second difference of actions is one; foot clearance is above the ground now.
    5. Who stands still is told neither to move nor to turn: velocity commands below 0.2 m/s (there: the turning rate
       came back in the next step).
    6. A fresh history is filled with the first frame (there: zeros).
    7. Levels begin as drawn (there: one up, by a first reset that counts as far away).
    8. Randomisation is that of the authors' configuration, applied: friction of the feet on any ground, base mass and
       centre, gains, offsets and pushes; drawn per episode and shared by branches (there: mostly without effect).
    9. Rewards below 0 count (there: 0, which makes whole regions flat; `--task.only-positive`).
    10. Roll and pitch are limited to 0.4 rad beyond the tilt of the ground, so that steep rows can be walked.
    11. A part touches the ground where its shape reaches below it, along points of its axis (there: by contact forces,
        which would cost a fifth of the physics). Legs do not collide with each other.
    12. Feet's velocities are those between two control steps.
    13. Heights are those of the triangles that feet stand on (there: the lowest of three nodes); who leaves the map is
        stopped.
    14. Rough patches have a flat platform in the middle, like the others (there: none); slopes are pyramids with four
        even sides (there: products of two ramps); heights are not rounded to 5 mm.
    15. Feet have a friction of 1.0, whatever the ground's (there: 0.8, but the larger of the two counts, the ground's
        1.0), and an impratio of 10, so that they creep less (there: none).
    16. No command is drawn in an episode's last step: levels are judged by the last one that was followed (there: by
        the new one).
    """

    Cfg = Go2TerrainCfg
    cfg: Go2TerrainCfg
    action_size = 12
    robot = "unitree_go2"
    ends = "the trunk touches the ground, it tilts too far, or leaves the map"
    randomised = RANGES
    state_size = 129
    timestep, substeps, episode_steps = 0.005, 4, 1000
    params = RANGES.params
    camera = "track"
    cameras = {
        # None of the robot's own parts are in the depth camera's view.
        "depth": Camera("depth", depth=True, width=106, height=60, stack=1, groups=(0,), pipeline=DEPTH),
        "pixels": Camera("eye", stack=1, groups=(0, 3)),
    }
    inputs = {
        "state": ("history",),
        "scan": ("history", "scan"),
        "privileged": ("state",),  # of a teacher: its velocity, and the ground around it
        "depth": ("history", "depth"),
        "pixels": ("history", "pixels"),
    }
    encoders = {
        "history": Encoder(widths=(256, 128), normalized=False),
        "scan": Encoder(widths=(128, 256)),
        "depth": Encoder(features=32),
        "pixels": Encoder(features=256),
    }
    layouts = {"history": VectorLayout(_TELLS, history=FRAMES, clip=(-100.0, 100.0))}
    action_layout = ActionLayout("rad", MOTORS, ACTION_RADIANS, go2.STANCE)
    action_meaning = "offsets of the joints' targets from a stance, 0.5 rad at 1; FR, FL, RR, RL x hip, thigh, calf"
    state_parts = {"privileged": 48, "scan": 81}
    state_encoders = {"privileged": Encoder(widths=(), normalized=False), "scan": Encoder(widths=(128, 256))}

    @functools.cached_property
    def ground(self) -> Terrain:
        return ground(self.cfg.terrain_seed)

    @functools.cached_property
    def ranges(self) -> Randomise:
        return self.cfg.ranges

    @property
    def action_latency(self) -> tuple[int, int]:
        return self.cfg.latency

    @functools.cached_property
    def model(self) -> mujoco.MjModel:
        return self.scene().compile()

    @functools.cached_property
    def names(self) -> Names:
        return Names(self.model)

    @functools.cached_property
    def soft_limits(self) -> tuple[Tensor, Tensor]:
        """(12,) each, in the robot's order: 90 % of the joints' ranges."""
        low, high = go2.robot_order(torch.tensor(self.model.jnt_range[1:].T, dtype=torch.float32))
        middle, half = (low + high) / 2, 0.9 * (high - low) / 2
        return middle - half, middle + half

    def scene(self) -> mujoco.MjSpec:
        spec = go2.scene()
        spec.stat.extent, spec.visual.map.zfar = 1.0, 10.0  # metres that are drawn: the map is 120 m wide
        geom = self.ground.add_to(spec)
        geom.contype, geom.conaffinity, geom.rgba = 0, 1, [0.55, 0.52, 0.48, 1.0]
        spec.worldbody.add_light(
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, dir=[0, 0, -1], diffuse=[0.8] * 3, castshadow=False
        )
        base = spec.body("base")
        fixed = mujoco.mjtCamLight.mjCAMLIGHT_FIXED
        mode = fixed if self.cfg.camera == "base" else mujoco.mjtCamLight.mjCAMLIGHT_TRACK
        upright = math.degrees(2 * math.atan(math.tan(math.radians(40)) * 60 / 106))  # of 80 degrees horizontally
        base.add_camera(name="depth", mode=mode, fovy=upright, pos=[0.32, 0, 0.15], quat=_look([0.18, 0, -0.15]))
        base.add_camera(name="eye", mode=mode, fovy=80, pos=[0.2, 0, 0.2], quat=_look([0.6, 0, -0.2]))
        track = mujoco.mjtCamLight.mjCAMLIGHT_TRACK
        base.add_camera(name="track", mode=track, fovy=45, pos=[-1.6, -1.6, 1.0], quat=_look([1.0, 1.0, -0.62]))
        return spec

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        kinds = len(self.ground.cfg.kinds)
        drawn_level, drawn_kind = rng.integers(self.cfg.first_levels, 1)[:, 0], rng.integers(kinds, 1)[:, 0]
        anywhere = rng.integers(self.ground.cfg.levels, 1)[:, 0]
        level, kind = drawn_level, drawn_kind
        if ended is not None:
            level, kind = ended.memory["level"], ended.memory["kind"]
            if self.cfg.curriculum:
                level = self._next_level(ended.memory, anywhere)
        origin = self.ground.spawn(level, kind)  # (n, 3)
        stance = torch.tensor(go2.STANCE, device=origin.device)
        place = origin + rng.uniform(-START_PLACE, START_PLACE, 3)
        place[:, 2] += START_HEIGHT
        joints = stance + rng.uniform(-START_JOINTS, START_JOINTS, 12)
        qpos = torch.cat((place, random_tilt(rng, START_TILT), go2.robot_order(joints)), dim=-1)
        qvel = torch.zeros_like(qpos[:, 1:])
        drawn = self.ranges.draw(rng, n, self.model)
        velocity, heading = _draw_command(rng)
        command = _command(velocity, heading, qpos)
        zeros = torch.zeros_like(joints)
        frame = noisy(drawn.memory, self._frame(qpos, qvel, command, zeros))
        memory = {
            "action": zeros,
            "action_before": zeros,
            "joint_velocity": zeros,
            "feet": self._feet(qpos)[..., :2],
            "touched": torch.zeros_like(zeros[:, :4], dtype=torch.bool),
            "air_time": torch.zeros_like(zeros[:, :4]),
            "command": command,
            "heading": heading,
            "until_command": torch.full_like(level, COMMAND_STEPS),
            "history": frame[:, None].expand(n, FRAMES, FRAME),
            "level": level,
            "kind": kind,
            "origin": origin[:, :2],
            "distance": torch.zeros_like(heading),
            "errors": torch.zeros_like(zeros[:, :2]),
            "steps": torch.zeros_like(heading),
        }
        return Start(qpos, qvel, memory | drawn.memory, drawn.params)

    def _next_level(self, memory: Memory, anywhere: Tensor) -> Tensor:
        """(n,) one up for who got out of its patch; one down for who did not get half as far as it was told to. After
        the last level: any."""
        level, distance = memory["level"], memory["distance"]
        far = distance > self.ground.cfg.length / 2
        asked = memory["command"][:, :2].norm(dim=-1) * self.episode_steps * self.step_seconds
        near = ~far & (distance < 0.5 * asked)
        level = (level + far.long() - near.long()).clamp(min=0)
        return torch.where(level < self.ground.cfg.levels, level, anywhere)

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        stance = torch.tensor(go2.STANCE, device=action.device)
        return offset_control(memory, stance + ACTION_RADIANS * delayed(memory, action))

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        joints, joint_velocity = go2.robot_order(x.qpos[..., 7:]), go2.robot_order(x.qvel[..., 6:])
        off = joints - torch.tensor(go2.STANCE, device=joints.device)
        low, high = (limit.to(joints.device) for limit in self.soft_limits)
        command, velocity, turn = memory["command"], _heading_velocity(x.qpos, x.qvel), x.qvel[..., 3:6]
        rate = action - memory["action"]
        legs = go2.in_world(x.qpos, go2.legs(joints).flatten(-3, -2)).unflatten(-2, (4, -1))  # (N, K, 4, 6, 3)
        touching = self.ground.distance(legs) < torch.tensor(go2.RADII, device=legs.device)  # (N, K, 4, 6)
        feet, touched = legs[..., go2.FOOT, :], touching[..., go2.FOOT]
        landed = (memory["air_time"] > 0.0) & (touched | memory["touched"])
        air_time = memory["air_time"] + self.step_seconds
        moving, standing = command[..., :2].norm(dim=-1) > 0.1, command.norm(dim=-1) < 0.01
        parts = touching[..., go2.THIGH].any(-1).sum(-1) + touching[..., go2.CALF].any(-1).sum(-1)
        values = {
            "tracking_lin_vel": _near((command - velocity)[..., :2].square().sum(-1)),
            "tracking_ang_vel": _near((command[..., 2] - turn[..., 2]).square()),
            "lin_vel_z": velocity[..., 2].square(),
            "ang_vel_xy": turn[..., :2].square().sum(-1),
            "dof_acc": ((joint_velocity - memory["joint_velocity"]) / self.step_seconds).square().sum(-1),
            "action_rate": rate.square().sum(-1),
            "action_smoothness": (rate - memory["action"] + memory["action_before"]).square().sum(-1),
            "feet_air_time": ((air_time - AIR_TIME) * landed).sum(-1) * moving,
            "feet_contact_stand_still": (touched.all(-1) & standing).float(),
            "feet_clearance": self._clearance(feet, memory),
            "hip_pos": off[..., ::3].square().sum(-1),
            "dof_pos_limits": ((low - joints).clamp(min=0.0) + (joints - high).clamp(min=0.0)).sum(-1),
            "collision": (parts + self._trunk_touches(x)).float(),
        }
        terms = {name: self.step_seconds * WEIGHTS[name] * value for name, value in values.items()}
        if self.cfg.only_positive:
            terms["only_positive"] = (-functools.reduce(torch.add, terms.values())).clamp(min=0.0)
        return terms

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        tilt, ground = _roll_pitch(x.qpos[..., 3:7]), self._ground_tilt(x.qpos)  # (N, K, 2)
        beyond = tilt - torch.maximum(torch.minimum(tilt, ground.clamp(min=0.0)), ground.clamp(max=0.0))
        fallen = (beyond.abs() > MAX_TILT).any(-1) | (up_projection(x.qpos[..., 3:7]) < 0.0)
        return fallen | self._trunk_touches(x) | self.ground.left(x.qpos[..., :2])

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        disturbed = self.ranges.advance(memory, action, rng)
        velocity, heading = (fresh[:, None] for fresh in _draw_command(rng))  # (N, 1, 2), (N, 1)
        left = memory["until_command"] - 1  # (N, K)
        # Not in the last step: levels are judged by the command that was followed.
        due = (left <= 0) & (memory["steps"] + 1.0 != self.episode_steps)
        heading = torch.where(due, heading, memory["heading"])
        velocity = torch.where(due[..., None], velocity, memory["command"][..., :2])
        command = _command(velocity, heading, x.qpos)
        frame = noisy(disturbed, self._frame(x.qpos, x.qvel, command, action))
        feet = self._feet(x.qpos)
        touched = self.ground.distance(feet) < go2.FOOT_RADIUS  # (N, K, 4)
        error = memory["command"] - torch.cat((_heading_velocity(x.qpos, x.qvel)[..., :2], x.qvel[..., 5:6]), dim=-1)
        errors = torch.stack((error[..., :2].norm(dim=-1), error[..., 2].abs()), dim=-1)
        return disturbed | {
            "action": action.clone(),
            "action_before": memory["action"],
            "joint_velocity": go2.robot_order(x.qvel[..., 6:]),
            "feet": feet[..., :2].contiguous(),
            "touched": touched,
            "air_time": torch.where(touched | memory["touched"], 0.0, memory["air_time"] + self.step_seconds),
            "command": command,
            "heading": heading,
            "until_command": torch.where(due, COMMAND_STEPS, left),
            "history": torch.cat((memory["history"][..., 1:, :], frame[..., None, :]), dim=-2),
            "level": memory["level"],
            "kind": memory["kind"],
            "origin": memory["origin"],
            "distance": (x.qpos[..., :2] - memory["origin"]).norm(dim=-1),
            "errors": memory["errors"] + errors,
            "steps": memory["steps"] + 1.0,
        }

    def push(self, x: Physics, memory: Memory) -> Tensor | None:
        return pushed(x, memory)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        velocity = SCALES["velocity"] * _heading_velocity(x.qpos, x.qvel)
        frame = self._frame(x.qpos, x.qvel, memory["command"], memory["action"])
        line = torch.linspace(-0.4, 0.4, 9, device=velocity.device)
        places = torch.cartesian_prod(line, line)  # (81, 2)
        heights = self.ground.height_scan(x.qpos[..., :2], yaw_of(x.qpos[..., 3:7]), places)  # (N, K, 81)
        scan = 5.0 * (x.qpos[..., 2:3] - 0.5 - heights).clamp(-1.0, 1.0)
        return {
            "state": torch.cat((frame, velocity, scan), dim=-1),
            "history": memory["history"].flatten(-2),  # oldest first
            "scan": scan,
        }

    def measure(self, x: Physics, memory: Memory) -> Terms:
        errors = memory["errors"] / memory["steps"].clamp(min=1.0)[..., None]
        return {
            "velocity_error": errors[..., 0],  # metres a second, mean over the episode
            "turn_error": errors[..., 1],  # radians a second
            "level": memory["level"].float(),
            "distance": memory["distance"],
        }

    def _frame(self, qpos: Tensor, qvel: Tensor, command: Tensor, action: Tensor) -> Tensor:
        """(..., 45) what the robot's own sensors tell, and what it was told and did."""
        turn, velocity = SCALES["turn"], SCALES["velocity"]
        told = command * torch.tensor((velocity, velocity, turn), device=command.device)
        joints = go2.robot_order(qpos[..., 7:]) - torch.tensor(go2.STANCE, device=qpos.device)
        joint_velocity = SCALES["joint_velocity"] * go2.robot_order(qvel[..., 6:])
        parts = (turn * qvel[..., 3:6], down_direction(qpos[..., 3:7]), told, joints, joint_velocity, action)
        return torch.cat(parts, dim=-1).clamp(-100.0, 100.0)

    def _feet(self, qpos: Tensor) -> Tensor:
        """(..., 4, 3) their centres."""
        return go2.in_world(qpos, go2.legs(go2.robot_order(qpos[..., 7:]))[..., go2.FOOT, :])

    def _trunk_touches(self, x: Physics) -> Tensor:
        """(N, K) bool."""
        return (self.ground.distance(go2.in_world(x.qpos, go2.trunk(x.qpos))) < go2.TRUNK_RADIUS).any(-1)

    def _clearance(self, feet: Tensor, memory: Memory) -> Tensor:
        """(N, K): 1 if feet (N, K, 4, 3) are as high above the ground around them as they should be, or rest."""
        line = torch.arange(-1, 2, device=feet.device) * self.ground.cfg.cell
        around = feet[..., None, :2] + torch.cartesian_prod(line, line)  # (N, K, 4, 9, 2)
        wrong = feet[..., 2] - self.ground.height_at(around).mean(-1) - FOOT_CLEARANCE - go2.FOOT_RADIUS
        speed = (feet[..., :2] - memory["feet"]).norm(dim=-1) / self.step_seconds
        return (-100.0 * (speed * wrong.square()).sum(-1)).exp()

    def _ground_tilt(self, qpos: Tensor) -> Tensor:
        """(..., 2) roll and pitch of a robot that stands on the ground here."""
        places = torch.tensor(STANDS, device=qpos.device)
        heights = self.ground.height_scan(qpos[..., :2], yaw_of(qpos[..., 3:7]), places)  # front left, front right, ...
        to_left = (heights[..., ::2] - heights[..., 1::2]).mean(-1) / (places[0, 1] - places[1, 1])
        ahead = (heights[..., :2] - heights[..., 2:]).mean(-1) / (places[0, 0] - places[2, 0])
        return torch.stack((to_left, -ahead), dim=-1).atan()


def _near(squared_error: Tensor) -> Tensor:
    return (-squared_error / 0.25).exp()


def _draw_command(rng: RowRng) -> tuple[Tensor, Tensor]:
    """(n, 2) velocity in the heading's frame, (n,) heading."""
    velocity = rng.uniform(-COMMAND_SPEED, COMMAND_SPEED, 2)
    velocity = torch.where(velocity.norm(dim=-1, keepdim=True) > COMMAND_LEAST, velocity, 0.0)
    return velocity, rng.uniform(-math.pi, math.pi, 1)[:, 0]


def _command(velocity: Tensor, heading: Tensor, qpos: Tensor) -> Tensor:
    """(..., 3) as it is told: the velocity (..., 2), and the turning rate towards the heading (...)."""
    rate = (0.5 * wrap_angle(heading - yaw_of(qpos[..., 3:7]))).clamp(-1.0, 1.0)
    rate = torch.where((velocity != 0.0).any(-1), rate, 0.0)
    return torch.cat((velocity, rate[..., None]), dim=-1)


def _heading_velocity(qpos: Tensor, qvel: Tensor) -> Tensor:
    """(..., 3) of the base: forward, left, up, as its heading goes."""
    yaw, (x, y, up) = yaw_of(qpos[..., 3:7]), qvel[..., :3].unbind(-1)
    cos, sin = yaw.cos(), yaw.sin()
    return torch.stack((cos * x + sin * y, cos * y - sin * x, up), dim=-1)


def _roll_pitch(quat: Tensor) -> Tensor:
    """(..., 4) -> (..., 2)"""
    w, x, y, z = quat.unbind(-1)
    roll = angle_of(1.0 - 2.0 * (x * x + y * y), 2.0 * (w * x + y * z))
    pitch = torch.asin((2.0 * (w * y - z * x)).clamp(-1.0, 1.0))
    return torch.stack((roll, pitch), dim=-1)


def _look(direction: list[float]) -> list[float]:
    """The quaternion of a camera that looks there and is upright."""
    z = torch.nn.functional.normalize(-torch.tensor(direction, dtype=torch.float64), dim=0)
    x = torch.nn.functional.normalize(torch.linalg.cross(z.new_tensor((0.0, 0.0, 1.0)), z), dim=0)
    matrix, quat = torch.stack((x, torch.linalg.cross(z, x), z), dim=1), torch.zeros(4, dtype=torch.float64)
    mujoco.mju_mat2Quat(quat.numpy(), matrix.flatten().numpy())
    return quat.tolist()
