"""ALOHA, two arms: lift a peg and a socket and put one into the other, seen by a camera at the table and two at wrists.

Robot: MuJoCo Menagerie's aloha. Numbers from the paper (list of rewards, terminations), the rest from its authors'
released code. Deviations:
1. The goal terms are of the peg's tip and the socket's entrance, as the paper says; the code's are of their centres.
2. The insertion term aims at the end of the socket's inside; the code's stops half way, although named rear. Its margin
   is 0.2 m in place of 0.1, so that it is felt where the goal terms bring the two, 0.19 m from there.
3. Contact of fingers and table is told by poses of the state after the step; the code's list of contacts may be stale.
4. Three cameras, as the paper's table and the code have; the paper speaks of four encoders, of which one is the
   proprioception's.
5. Fingers, grippers' bases, objects and table collide, by boxes and capsules, as in the code; arms do not.
6. The peg is to be reached 3 cm behind its middle; the code's reaching term is for the middle. Fingers reach 16 mm past
   the point between them and don't fit into the socket: held by its middle, the peg could go in by 32 mm, not half way.
7. A tip behind the socket's back is not in the socket, and does not pay.
8. Friction cones are elliptic, with an impratio of 10, as in the robot's own model; the code's simulator has pyramids.
9. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

from typing import Any

import mujoco
import torch
from torch import Tensor

from sdpg.tasks import Camera, Encoder, Ended, Memory, Physics, RowRng, Start, Task, Terms
from sdpg.tasks.menagerie import model
from sdpg.tasks.terms import ASSETS, moved_targets

# In qpos: per arm six joints, the driven finger, the one that follows it. Velocities: below.
PEG, SOCKET, LEFT, RIGHT = slice(0, 7), slice(7, 14), slice(14, 22), slice(22, 30)
OBJECT_VEL, LEFT_VEL, RIGHT_VEL = slice(0, 12), slice(12, 20), slice(20, 28)

ARM_LOW = (-3.14158, -1.85005, -1.76278, -3.14158, -1.8675, -3.14158)
ARM_HIGH = (3.14158, 1.25664, 1.6057, 3.14158, 2.23402, 3.14158)
LOW, HIGH = (*ARM_LOW, *ARM_LOW, 0.002, 0.002), (*ARM_HIGH, *ARM_HIGH, 0.037, 0.037)  # of targets: arms, grippers
STEP = 0.02  # radians, or metres of a gripper, that an action of 1 moves a target in a control step
START_LEFT = (0.083383, -0.122008, 0.950168, 0.108187, -0.869224, -0.0731298)
START_RIGHT = (-0.0862348, -0.109522, 0.949474, -0.113041, -0.887378, 0.0754333)
START_GRIPPER = 0.0305

TABLE = 0.0008  # height of its top
START_PEG, START_SOCKET = (0.136459, 0.0, TABLE + 0.015), (-0.146984, 0.0, TABLE + 0.022)
SPREAD = 0.1  # of both, in x and y
PEG_TIP, ENTRANCE, REAR = -0.048, 0.048, -0.04  # along the x axis of the peg, and of the socket
PEG_GRIP = 0.03  # where the peg is to be held, along its x axis
PEG_GOAL, SOCKET_GOAL = (0.05, 0.0, 0.15), (-0.05, 0.0, 0.15)

PAD_HALF = (0.018, 0.028, 0.006)  # of the box at a finger, in the finger's frame: it points along y, closes along z
PAD_X, PAD_Y, PAD_Z = 0.0176, 0.062, 0.021
GRIPPER_KP, GRIPPER_FORCE, DRIVEN_DAMPING = 1200.0, 80.0, 60.0
ARMATURE = 0.1  # of joints for which the model has none: waist, wrist_rotate

ON_AXIS = 0.005  # metres between the peg's tip and the socket's axis
INSERTED = 0.044  # metres of the tip behind the entrance: half of the socket's depth
BEHIND = 0.09  # the same of a tip that is not in the socket, but behind its back: inside it is 88 mm deep
REACHED = 0.03  # metres between a gripper's point and where its object is to be held
LIFTED = 0.05  # metres above where it started
WORKSPACE = 1.0

COLLISION: dict[str, Any] = {
    "group": 3,  # not seen
    "contype": 2,  # with table and objects
    "conaffinity": 0,
    "mass": 0.0,
    "friction": [4.0, 0.005, 0.0001],
    "solref": [0.005, 1.0],
}
FINGERS = [f"aloha/{side}/{finger}_finger_link" for side in ("left", "right") for finger in ("left", "right")]


class AlohaInsertion(Task):
    """Action: steps of the targets of the left arm's joints 6, of the right arm's 6, of the left and the right gripper.

    State: arm positions 12, driven fingers 2, other fingers 2, peg's position and quaternion 7, socket's 7, velocities
    16 in that order, linear and angular velocity of peg 6 and socket 6, targets 14, points between the fingertips 6,
    socket's entrance 3, peg's tip 3, world's up in the frame of the socket 3 and of the peg 3. Proprio: what of it is
    the robot's own.
    """

    action_size = 14
    robot = "aloha"
    action_meaning = (
        "steps of the targets of six joints of the left and right arm, and of both grippers, 0.02 rad or m at 1"
    )
    ends = "peg or socket is farther than 1 m away"
    state_size = 90
    timestep = 0.0025
    substeps = 4  # 100 Hz
    episode_steps = 250
    reads = ("xpos", "xmat", "site_xpos")
    camera = "front"
    cameras = {
        "table": Camera("table", 64, 64, stack=1),
        "wrist_left": Camera("aloha/left/wrist", 64, 64, stack=1),
        "wrist_right": Camera("aloha/right/wrist", 64, 64, stack=1),
    }
    inputs = {"state": ("state",), "pixels": ("proprio", "table", "wrist_left", "wrist_right")}
    encoders = {
        "proprio": Encoder(widths=(256,)),
        "table": Encoder(features=256),
        "wrist_left": Encoder(features=32),
        "wrist_right": Encoder(features=32),
    }

    def scene(self) -> mujoco.MjSpec:
        spec = mujoco.MjSpec.from_file(str(ASSETS / "aloha_insertion.xml"))
        spec.geom("floor").pos = [0.0, 0.0, -0.75]
        spec.attach(_aloha(), prefix="aloha/", frame=spec.worldbody.add_frame())
        return spec

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        def row(*values: float) -> Tensor:
            return torch.tensor(values, device=rng.rows.device).repeat(n, 1)

        peg, socket = row(*START_PEG, 1.0, 0.0, 0.0, 0.0), row(*START_SOCKET, 1.0, 0.0, 0.0, 0.0)
        for thing in (peg, socket):
            thing[:, :2] += rng.uniform(-SPREAD, SPREAD, 2)
        hand = (START_GRIPPER, START_GRIPPER)
        qpos = torch.cat((peg, socket, row(*START_LEFT, *hand, *START_RIGHT, *hand)), dim=-1)  # (n, 30)
        targets = row(*START_LEFT, *START_RIGHT, *hand)
        return Start(qpos, torch.zeros_like(qpos[:, 2:]), memory={"joint_targets": targets})

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        left, right, grippers = moved_targets(memory["joint_targets"], action, STEP, LOW, HIGH).split((6, 6, 2), dim=-1)
        return torch.cat((left, grippers[..., :1], right, grippers[..., 1:]), dim=-1)  # the model's order

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        socket = x.qpos[..., SOCKET]
        left, right = _grippers(x)
        tip, entrance, rear = _peg_at(x, PEG_TIP), _socket_at(x, ENTRANCE), _socket_at(x, REAR)
        socket_goal = _tolerance(_far(entrance, SOCKET_GOAL), 0.01, 0.15)
        peg_goal = _tolerance(_far(tip, PEG_GOAL), 0.01, 0.15)
        inserted = _tolerance((tip - rear).norm(dim=-1), 0.001, 0.2)
        return {
            "reach_socket": _tolerance((socket[..., :3] - left).norm(dim=-1), 0.001, 0.3),
            "reach_peg": _tolerance((_peg_at(x, PEG_GRIP) - right).norm(dim=-1), 0.001, 0.3),
            "posture_left": 0.3 * _gaussian(_far(x.qpos[..., LEFT][..., :6], START_LEFT), 0.01, 2.0),
            "posture_right": 0.3 * _gaussian(_far(x.qpos[..., RIGHT][..., :6], START_RIGHT), 0.01, 2.0),
            "no_table": 0.3 * (_lowest(x) > TABLE).float(),
            "socket_goal": 4.0 * socket_goal,
            "peg_goal": 4.0 * peg_goal,
            "socket_upright": 0.5 * socket_goal * _tolerance(1.0 - _up(x, "socket")[..., 2], 0.01, 0.03),
            "peg_upright": 0.5 * peg_goal * _tolerance(1.0 - _up(x, "peg")[..., 2], 0.01, 0.03),
            "insert": 8.0 * _tip_in_socket(x)[1].float() * inserted,
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return (x.qpos[..., :3].abs() > WORKSPACE).any(-1) | (x.qpos[..., 7:10].abs() > WORKSPACE).any(-1)

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        return {"joint_targets": moved_targets(memory["joint_targets"], action, STEP, LOW, HIGH)}

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        joints = _joints(x.qpos[..., LEFT], x.qpos[..., RIGHT])
        velocities = _joints(x.qvel[..., LEFT_VEL], x.qvel[..., RIGHT_VEL])
        robot = (memory["joint_targets"], *_grippers(x))
        state = (
            joints,
            x.qpos[..., :14],  # peg, socket
            velocities,
            x.qvel[..., OBJECT_VEL],
            *robot,
            _socket_at(x, ENTRANCE),
            _peg_at(x, PEG_TIP),
            _up(x, "socket"),
            _up(x, "peg"),
        )
        return {"state": torch.cat(state, dim=-1), "proprio": torch.cat((joints, velocities, *robot), dim=-1)}

    def measure(self, x: Physics, memory: Memory) -> Terms:
        depth, on_axis = _tip_in_socket(x)
        left, right = _grippers(x)
        peg, socket = x.qpos[..., PEG][..., :3], x.qpos[..., SOCKET][..., :3]
        return {
            "success": ((depth > INSERTED) & on_axis).float(),
            "peg_reached": ((_peg_at(x, PEG_GRIP) - right).norm(dim=-1) < REACHED).float(),
            "socket_reached": ((socket - left).norm(dim=-1) < REACHED).float(),
            "peg_lifted": (peg[..., 2] > START_PEG[2] + LIFTED).float(),
            "socket_lifted": (socket[..., 2] > START_SOCKET[2] + LIFTED).float(),
        }


def _far(point: Tensor, goal: tuple[float, ...]) -> Tensor:
    return (point - torch.tensor(goal, device=point.device)).norm(dim=-1)


def _tolerance(distance: Tensor, bound: float, margin: float) -> Tensor:
    """1 up to `bound`, then falling by 0.9 in a margin, to 0."""
    return (1.0 - 0.9 * (distance - bound).clamp(min=0.0) / margin).clamp(min=0.0)


def _gaussian(distance: Tensor, bound: float, margin: float) -> Tensor:
    """1 up to `bound`, 0.1 a margin beyond."""
    return 0.1 ** ((distance - bound).clamp(min=0.0) / margin).square()


def _joints(left: Tensor, right: Tensor) -> Tensor:
    """(..., 8) of each arm -> (..., 16): arms, driven fingers, the others."""
    parts = (left[..., :6], right[..., :6], left[..., 6:7], right[..., 6:7], left[..., 7:], right[..., 7:])
    return torch.cat(parts, dim=-1)


def _grippers(x: Physics) -> tuple[Tensor, Tensor]:
    """(N, K, 3) the points between the fingertips, left and right."""
    left, right = x.site("aloha/left/gripper", "aloha/right/gripper").xpos.unbind(-2)
    return left, right


def _peg_at(x: Physics, along: float) -> Tensor:
    """(N, K, 3) a point of its axis."""
    return x.qpos[..., PEG][..., :3] + along * x.body("peg").xmat[..., 0::3]


def _socket_at(x: Physics, along: float) -> Tensor:
    return x.qpos[..., SOCKET][..., :3] + along * x.body("socket").xmat[..., 0::3]


def _tip_in_socket(x: Physics) -> tuple[Tensor, Tensor]:
    """(N, K) how far the peg's tip is behind the entrance, along the socket's axis; and whether it is on that axis, in
    the socket or before it."""
    axis = x.body("socket").xmat[..., 0::3]
    from_entrance = _peg_at(x, PEG_TIP) - _socket_at(x, ENTRANCE)
    along = (from_entrance * axis).sum(-1)
    off_axis = (from_entrance - along[..., None] * axis).norm(dim=-1)
    return -along, (off_axis < ON_AXIS) & (-along < BEHIND)


def _up(x: Physics, thing: str) -> Tensor:
    """(N, K, 3) the world's up in its frame."""
    return x.body(thing).xmat[..., 6:]


def _lowest(x: Physics) -> Tensor:
    """(N, K) height of the lowest point of all fingers."""
    links = x.body(*FINGERS)
    up = links.xmat[..., 6:]  # (N, K, 4, 3) world z of each finger's axes
    centre = torch.tensor([[PAD_X, -PAD_Y, PAD_Z], [PAD_X, PAD_Y, PAD_Z]] * 2, device=up.device)  # (4, 3)
    half = torch.tensor(PAD_HALF, device=up.device)
    return (links.xpos[..., 2] + (up * centre).sum(-1) - (up.abs() * half).sum(-1)).amin(-1)


def _aloha() -> mujoco.MjSpec:
    """Menagerie's, with the paper's cameras, and with collision shapes of its grippers alone."""
    spec = model("aloha", "aloha.xml")
    solid = [geom for geom in spec.geoms if geom.contype or geom.conaffinity]
    in_the_way = [geom for geom in spec.geoms if geom.meshname == "d405_solid" and geom not in solid]  # cameras' cases
    for part in (*spec.keys, *spec.lights, *spec.cameras, *solid, *in_the_way):
        spec.delete(part)
    for side in ("left", "right"):
        _gripper(spec, side)
        for joint in ("waist", "wrist_rotate"):
            spec.joint(f"{side}/{joint}").armature = ARMATURE
    return spec


def _gripper(spec: mujoco.MjSpec, side: str) -> None:
    base = spec.body(f"{side}/gripper_base")
    base.add_geom(
        name=f"{side}/palm",
        type=mujoco.mjtGeom.mjGEOM_CAPSULE,
        fromto=[-0.055, 0.0, 0.015, 0.055, 0.0, 0.015],
        size=[0.03, 0.0, 0.0],
        **COLLISION,
    )
    for finger, sign in (("left", -1.0), ("right", 1.0)):
        spec.body(f"{side}/{finger}_finger_link").add_geom(
            name=f"{side}/{finger}_pad",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=[PAD_X, sign * PAD_Y, PAD_Z],
            size=PAD_HALF,
            **COLLISION,
        )
        spec.joint(f"{side}/{finger}_finger").actfrcrange = [-GRIPPER_FORCE, GRIPPER_FORCE]
    spec.joint(f"{side}/left_finger").damping[0] = DRIVEN_DAMPING
    actuator = spec.actuator(f"{side}/gripper")
    actuator.gainprm[0], actuator.biasprm[1], actuator.biasprm[2] = GRIPPER_KP, -GRIPPER_KP, 0.0
    view = spec.body(f"{side}/gripper_link").add_camera(name=f"{side}/wrist", pos=[0.0254, 0.0, 0.08247], fovy=60.0)
    view.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    view.alt.xyaxes = [0.0, -1.0, 0.0, 0.42261, 0.0, 0.90631]  # along the gripper, 25 degrees down
