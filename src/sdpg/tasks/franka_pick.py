"""Franka Panda: pick up a cube and hold it at a target in the air, seen by a camera at the hand.

Robot: MuJoCo Menagerie's franka_emika_panda. Numbers from the paper (list of rewards, terminations), the rest from its
authors' released code. Deviations:
1. The object is 4 x 4 x 6 cm, as in MuJoCo Playground; the code's 8 cm cube is as wide as the open gripper, so that it
   can't be grasped. Its density is the code's.
2. It starts on the floor, and ranges are counted from there; the code's starts 5 mm inside the floor. It is lifted when
   it is 3.5 cm higher, as in the code, whose object is larger.
3. The grasp term pays while closed fingers touch the object, both of them; the code's can pay only for a gripper that
   is closed on nothing.
4. The target is a part of what the actor is told, as the paper says, and is drawn; the code's actor can't know it.
5. "The end-effector dips below the floor", as the paper says, by the lowest points of fingers and hand; the code ends
   episodes when a bounding box is within 1 mm of the floor. So fingers and floor need not collide.
6. The camera is tilted to (0, 0, 0.27) in place of (0, 0, 0.1) of the hand's frame, where it sees fingertips and every
   object from the start pose; the code's does not see objects in the nearer half.
7. Hand, fingers, object and floor collide, by boxes and a capsule; the links of the arm collide with nothing.
8. Whether the object was reached opens the gripper to the policy, as in the code; with --task.free-gripper it is the
   policy's from the beginning, as on a robot, which can't know. Rewards depend on it, too, so that it is in the state;
   the code's critic does not know it.
9. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import mujoco
import torch
from torch import Tensor

from sdpg.tasks import Camera, Encoder, Ended, Memory, Physics, RowRng, Start, Task, TaskCfg, Terms
from sdpg.tasks.chains import Chains
from sdpg.tasks.menagerie import model
from sdpg.tasks.terms import ASSETS, axes_of, effort, moved_targets

ARM, FINGERS, CUBE = slice(7, 14), slice(14, 16), slice(0, 7)  # in qpos
ROBOT_VEL, CUBE_VEL = slice(6, 15), slice(0, 6)  # in qvel
HAND = "panda/hand"
START_ARM = (0.0, 0.3, 0.0, -1.57079, 0.0, 2.0, -0.7853)
LOW = (-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973, 0.0)  # of targets: joints, finger
HIGH = (2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973, 0.04)
STEP = 0.04  # radians, or metres of the finger, that an action of 1 moves a target in a control step
OPEN, CLOSED, SWITCH = 0.04, 0.0, 0.02  # of a finger; its target is one of the first two, by a threshold

CUBE_HALF = (0.02, 0.02, 0.03)
CENTRE = (0.6, 0.0, CUBE_HALF[2])
SPREAD = 0.1  # of object and target, in x and y
TARGET_HEIGHT = (0.2, 0.4)  # above where the object starts

# In the hand's frame, in which fingers point along z and close along y.
FINGER_Z = 0.0584  # of the fingers' origins
POINT_Z = FINGER_Z + 0.05  # of the point between the fingertips that is to reach the object
PAD_HALF = (0.0085, 0.004, 0.0085)  # of the boxes at the fingertips, whose inner faces meet at joint position 0
PAD_Z = FINGER_Z + 0.0445
COLLISION: dict[str, Any] = {
    "group": 3,  # not seen
    "contype": 2,  # with the object alone
    "conaffinity": 0,
    "density": 0.0,
    "friction": [1.0, 0.005, 0.0001],
    "solref": [0.01, 1.0],
}
PALM_Z, PALM_LENGTH, PALM_RADIUS = 0.03, 0.06, 0.04  # a capsule along y

REACHED = 0.02  # metres between that point and the object
CLOSED_SUM = 0.045  # of both fingers' positions: what holds the object by its narrow sides is less open
TOUCH = 0.0015  # metres between a finger and the object that count as touching
FLOOR_CONTACT = 0.001
LIFTED = CUBE_HALF[2] + 0.035  # height of the object
AT_TARGET = 0.05
WORKSPACE = 1.0


class Hand(NamedTuple):
    place: Tensor  # (N, K, 3)
    axes: Tensor  # (N, K, 3, 3) columns


@dataclass(frozen=True)
class FrankaPickCfg(TaskCfg):
    free_gripper: bool = False
    """The gripper is the policy's from the beginning; else it stays open until the object has been reached."""


class FrankaPick(Task):
    """Action: steps of the targets of seven joints and of the gripper, which opens or closes as a whole.

    State: arm positions 7, fingers 2, object's position 3 and quaternion 4, arm velocities 7, fingers 2, object's
    linear and angular velocity 6, point between the fingertips 3, last two rows of the hand's rotation 6 and of the
    object's 6, object from that point 3, target from the object 3, first two rows of the target's rotation minus the
    object's 6, targets of the joints minus positions 8, whether the object was reached 1. Proprio: what of it is the
    robot's own, and the target 3.
    """

    Cfg = FrankaPickCfg
    cfg: FrankaPickCfg
    action_size = 8
    robot = "franka_emika_panda"
    action_meaning = "steps of the targets of seven joints and the gripper, 0.04 rad or m at 1"
    ends = "the object has left the table, or the hand touches the floor"
    state_size = 67
    timestep = 0.005
    substeps = 2  # 100 Hz
    episode_steps = 300
    camera = "front"
    cameras = {"pixels": Camera(HAND, stack=1)}
    inputs = {"state": ("state",), "pixels": ("proprio", "pixels")}
    encoders = {"proprio": Encoder(widths=(1024, 128)), "pixels": Encoder(features=256)}

    def scene(self) -> mujoco.MjSpec:
        spec = mujoco.MjSpec.from_file(str(ASSETS / "franka_pick.xml"))
        spec.attach(_panda(), prefix="panda/", frame=spec.worldbody.add_frame())
        return spec

    @functools.cached_property
    def _chain(self) -> Chains:
        return Chains(self.scene().compile(), (HAND,))

    def hand(self, x: Physics) -> Hand:
        place, axes = self._chain.poses(x.qpos)
        return Hand(place[..., 0, :], axes[..., 0, :, :])

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        device = rng.rows.device
        arm = torch.tensor((*START_ARM, OPEN, OPEN), device=device).repeat(n, 1)  # (n, 9)
        centre = torch.tensor(CENTRE, device=device)
        cube, target = centre.repeat(n, 1), centre.repeat(n, 1)  # (n, 3)
        cube[:, :2] += rng.uniform(-SPREAD, SPREAD, 2)
        target[:, :2] += rng.uniform(-SPREAD, SPREAD, 2)
        target[:, 2:] += rng.uniform(*TARGET_HEIGHT, 1)
        upright = torch.tensor((1.0, 0.0, 0.0, 0.0), device=device).repeat(n, 1)
        memory = {
            "joint_targets": arm[:, :8].clone(),
            "target": target,
            "reached": torch.zeros(n, dtype=torch.bool, device=device),
        }
        qpos = torch.cat((cube, upright, arm), dim=-1)
        return Start(qpos, torch.zeros_like(qpos[:, 1:]), memory, mocap_pos=target[:, None])

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        targets = moved_targets(memory["joint_targets"], action, STEP, LOW, HIGH)
        close = targets[..., 7:] < SWITCH
        if not self.cfg.free_gripper:
            close = close & memory["reached"][..., None]
        return torch.cat((targets[..., :7], torch.where(close, CLOSED, OPEN)), dim=-1)

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        hand, cube, target = self.hand(x), x.qpos[..., CUBE][..., :3], memory["target"]
        from_point = (cube - _point(x, hand)).norm(dim=-1)
        from_target = (target - cube).norm(dim=-1)
        turned = _turn_to_target(x).norm(dim=-1)
        reached = (memory["reached"] | (from_point < REACHED)).float()
        lifted = (cube[..., 2] > LIFTED).float()
        start = torch.tensor(START_ARM, device=x.qpos.device)
        return {
            "reach": 4.0 * _near(5.0 * from_point),
            "track": 8.0 * reached * _near(5.0 * (0.9 * from_target + 0.1 * turned)),
            "no_floor": 0.25 * (_lowest(x, hand) > FLOOR_CONTACT).float(),
            "posture": 0.3 * _near((x.qpos[..., ARM] - start).norm(dim=-1)),
            "grasp": held(x, hand).float(),
            "lift": 3.0 * lifted,
            "lifted_near": 16.0 * lifted * _near(from_target / 0.3),
            "lifted_at": 5.0 * lifted * _near(from_target / 0.1),
            "effort": -0.01 * effort(action),
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        cube = x.qpos[..., CUBE][..., :3]
        return (cube.abs() > WORKSPACE).any(-1) | (cube[..., 2] < 0.0) | (_lowest(x, self.hand(x)) < 0.0)

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        from_point = (x.qpos[..., CUBE][..., :3] - _point(x, self.hand(x))).norm(dim=-1)
        return {
            "joint_targets": moved_targets(memory["joint_targets"], action, STEP, LOW, HIGH),
            "target": memory["target"],
            "reached": memory["reached"] | (from_point < REACHED),
        }

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        joints = torch.cat((x.qpos[..., ARM], x.qpos[..., FINGERS]), dim=-1)
        hand, velocities, cube = self.hand(x), x.qvel[..., ROBOT_VEL], x.qpos[..., CUBE]
        point, hand_rows = _point(x, hand), hand.axes.flatten(-2)[..., 3:]
        error = memory["joint_targets"] - joints[..., :8]
        state = (
            joints,
            cube,
            velocities,
            x.qvel[..., CUBE_VEL],
            point,
            hand_rows,
            axes_of(cube[..., 3:]).flatten(-2)[..., 3:],
            cube[..., :3] - point,
            memory["target"] - cube[..., :3],
            _turn_to_target(x),
            error,
            memory["reached"][..., None].float(),
        )
        robot = (joints, velocities, point, hand_rows, error)
        return {"state": torch.cat(state, dim=-1), "proprio": torch.cat((*robot, memory["target"]), dim=-1)}

    def measure(self, x: Physics, memory: Memory) -> Terms:
        cube = x.qpos[..., CUBE][..., :3]
        from_target = (memory["target"] - cube).norm(dim=-1)
        return {
            "success": (from_target < AT_TARGET).float(),
            "lifted": (cube[..., 2] > LIFTED).float(),
            "reached": memory["reached"].float(),
            "target_distance": from_target,
        }


def held(x: Physics, hand: Hand) -> Tensor:
    """(N, K) bool: closed fingers, both of which touch the object. Told by poses: contact sensors would cost a solver's
    pass a step."""
    place = _in_frame(hand.axes, x.qpos[..., CUBE][..., :3] - hand.place)  # (N, K, 3)
    half = torch.tensor(CUBE_HALF, device=place.device)
    # Half of the object's extent along each axis of the hand.
    cube = axes_of(x.qpos[..., CUBE][..., 3:])
    turned = (hand.axes[..., :, :, None] * cube[..., :, None, :]).sum(-3)  # (N, K, 3, 3) the cube's axes in the hand's
    extent = (turned.abs() * half).sum(-1)  # (N, K, 3)
    side = torch.stack((place[..., 1], -place[..., 1]), dim=-1)  # (N, K, 2): towards either finger
    gap = x.qpos[..., FINGERS] - side - extent[..., 1:2]
    between = (place[..., 0].abs() < CUBE_HALF[0]) & ((place[..., 2] - PAD_Z).abs() < CUBE_HALF[2])
    closed = x.qpos[..., FINGERS].sum(-1) < CLOSED_SUM
    return closed & between & (gap < TOUCH).all(-1)


def _near(distance: Tensor) -> Tensor:
    return 1.0 - distance.tanh()


def _in_frame(axes: Tensor, vector: Tensor) -> Tensor:
    """World -> the frame whose axes are the columns of (..., 3, 3)."""
    return (axes * vector[..., :, None]).sum(-2)


def _point(x: Physics, hand: Hand) -> Tensor:
    """(N, K, 3) between the fingertips."""
    fingers = x.qpos[..., FINGERS]
    middle = (fingers[..., :1] - fingers[..., 1:]) / 2.0
    return hand.place + middle * hand.axes[..., 1] + POINT_Z * hand.axes[..., 2]


def _lowest(x: Physics, hand: Hand) -> Tensor:
    """(N, K) height of the lowest point of fingers and hand."""
    fingers = x.qpos[..., FINGERS]
    up = hand.axes[..., 2, :]  # (N, K, 3) world z of the hand's axes
    height = hand.place[..., 2]
    extent = (up.abs() * torch.tensor(PAD_HALF, device=up.device)).sum(-1)
    left = up[..., 1] * (fingers[..., 0] + PAD_HALF[1])
    right = -up[..., 1] * (fingers[..., 1] + PAD_HALF[1])
    pads = height + PAD_Z * up[..., 2] + torch.minimum(left, right) - extent
    palm = height + PALM_Z * up[..., 2] - PALM_LENGTH * up[..., 1].abs() - PALM_RADIUS
    return torch.minimum(pads, palm)


def _turn_to_target(x: Physics) -> Tensor:
    """(N, K, 6) first two rows of the target's rotation, which is none, minus those of the object's."""
    rows = torch.tensor((1.0, 0.0, 0.0, 0.0, 1.0, 0.0), device=x.qpos.device)
    return rows - axes_of(x.qpos[..., CUBE][..., 3:]).flatten(-2)[..., :6]


def _panda() -> mujoco.MjSpec:
    """Menagerie's, with a camera at the hand, and with collision shapes of its hand and fingertips alone."""
    spec = model("franka_emika_panda", "panda.xml")
    for part in (*spec.keys, *spec.lights, *(geom for geom in spec.geoms if geom.contype or geom.conaffinity)):
        spec.delete(part)
    hand = spec.body("hand")
    hand.add_geom(
        name="palm",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[0.0, -PALM_LENGTH, PALM_Z, 0.0, PALM_LENGTH, PALM_Z],
        size=[PALM_RADIUS, 0.0, 0.0],
        **COLLISION,
    )
    for side in ("left", "right"):
        spec.body(f"{side}_finger").add_geom(
            name=f"{side}_pad",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=[0.0, PAD_HALF[1], PAD_Z - FINGER_Z],
            size=PAD_HALF,
            **COLLISION,
        )
    view = hand.add_camera(name="hand", pos=[-0.2, 0.0, -0.05], fovy=60.0)
    view.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    view.alt.xyaxes = [0.0, 1.0, 0.0, 0.848, 0.0, -0.53]  # towards (0, 0, 0.27), the hand's x up
    gripper = spec.actuator("actuator8")  # Menagerie's takes 0 to 255
    gripper.ctrlrange = [CLOSED, OPEN]
    gripper.gainprm[0] = -gripper.biasprm[1]
    return spec
