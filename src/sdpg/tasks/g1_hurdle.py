"""Unitree G1 over hurdles: run along +x, guided by a camera or a height scan.

The paper's G1Hurtle: rewards and terminations from the paper, the rest from its authors' released code. Deviations:
1. The robot is MuJoCo Menagerie's (33 kg, 29 joints) with waist roll and pitch and wrist pitch and yaw locked; the code
   has Unitree's model of 23 joints (32 kg).
2. Motors have the robot's torque limits (25 to 139 N m), the same both ways; the code's have none.
3. Ankles have kp 150 and kd 5: with the code's 20 and 2, less than gravity pulls, it falls when it should only stand.
4. The base has no armature; the code's simulator gives it 0.1, like the joints.
5. Beside the soles' spheres, links collide as capsules instead of convex hulls: with the ground, legs and arms with the
   other leg. Thin soles alone would let a hurdle's edge through. The cameras see capsules, too, films see the meshes.
6. Hurdles are 0.10 to 0.47 m high, rising by 4 cm every two; the code's, 0.10 to 0.82 m. At the ground they are 20 cm
   thick instead of 15 cm, so that the scan, whose points are 20 cm apart, misses none.
7. The upper limit of the height rises by a hurdle's own height within 1 m of it; the code's is the same everywhere.
8. The camera turns with the torso, as the paper says; the code's keeps the world's directions (--task.camera world).
9. Flat ground goes on before and behind the track; the code's robots fall off its edge.
10. Scanned heights are those of the ground's triangles at the present position; the code takes the least of three
    nodes, and a branch keeps a stale scan until its first step.
11. Heading is the projection on the world's +x; the code aims at a point 200 m ahead.
12. Depth is measured up to 5 m; the code's range of 100 m leaves it almost without contrast.
13. Height that pays, above 0.7 m, is that above the ground below, so that to stand on a hurdle is worth no more than to
    stand beside it; the code's is above the floor. Height that costs is above the floor, as in the code: a hurdle below
    a pelvis must not make it too low, or to step over one would cost up to 30 a step.
14. Joints have no dry friction; Menagerie's have 0.3 N m.
15. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import mujoco
import torch
from torch import Tensor

from sdpg.rng import RowRng
from sdpg.tasks import Ended, Memory, Physics, Start, Terms, menagerie
from sdpg.tasks.humanoid import upright_run
from sdpg.tasks.hurdles import HurdleTask
from sdpg.tasks.terms import ASSETS, START_NOISE, START_TILT, down_direction, random_tilt
from sdpg.tasks.terrain import TerrainCfg

# joint: angle at rest, what an action of 1 adds to it (rad), kp (N m / rad), kd (N m s / rad)
LEG = {
    "hip_pitch": (-0.312, 1.5533, 200.0, 5.0),
    "hip_roll": (0.0, 0.698, 150.0, 5.0),
    "hip_yaw": (0.0, 0.157, 150.0, 5.0),
    "knee": (0.669, 1.1694, 200.0, 5.0),
    "ankle_pitch": (-0.363, 0.255, 150.0, 5.0),
    "ankle_roll": (0.0, 0.0524, 150.0, 5.0),
}
WAIST = {"waist_yaw": (0.0, 0.262, 200.0, 5.0)}
ARM = {
    "shoulder_pitch": (0.2, 1.0997, 40.0, 10.0),
    "shoulder_roll": (0.2, 0.894, 40.0, 10.0),  # at rest: of the left, the right is its mirror image
    "shoulder_yaw": (0.0, 0.314, 40.0, 10.0),
    "elbow": (0.6, 0.747, 40.0, 10.0),
    "wrist_roll": (0.0, 0.493, 40.0, 10.0),
}
JOINTS = (
    {f"{side}_{name}": numbers for side in ("left", "right") for name, numbers in LEG.items()}
    | WAIST
    | {f"{side}_{name}": numbers for side in ("left", "right") for name, numbers in ARM.items()}
)
JOINTS["right_shoulder_roll"] = (-0.2, *ARM["shoulder_roll"][1:])
LOCKED = (
    "waist_roll",
    "waist_pitch",
    *(f"{side}_wrist_{axis}" for side in ("left", "right") for axis in ("pitch", "yaw")),
)
ARMATURE = 0.1
SOLID = 3  # the geom group of what collides

# What collides beside the four spheres of each sole: capsules from ... to, radius. Metres, in the frame of the body.
SHAPES = {
    "pelvis": ((-0.01, -0.03, -0.08, -0.01, 0.03, -0.08), 0.07),
    "torso_link": ((0.0, 0.0, 0.1, 0.0, 0.0, 0.4), 0.1),
    "hip_yaw_link": ((-0.01, 0.0, -0.05, -0.07, 0.0, -0.18), 0.05),  # thigh
    "knee_link": ((0.01, 0.0, 0.0, 0.0, 0.0, -0.28), 0.04),  # shin
    "ankle_roll_link": ((-0.05, 0.0, -0.015, 0.125, 0.0, -0.015), 0.015),  # foot
    "elbow_link": ((0.0, 0.0, -0.005, 0.3, 0.0, -0.01), 0.035),  # forearm and hand
}
# contype, conaffinity: all touch the ground (1); the left leg the right one (2); arms touch legs (2, 4).
MASKS = {"trunk": (1, 0), "left_leg": (3, 4), "right_leg": (1, 2), "arm": (7, 0)}

TARGET_HEIGHT = 0.7  # of the pelvis
MIN_HEIGHT, MAX_HEIGHT = 0.6, 1.0  # of the pelvis
MAX_ASIDE = 2.5  # metres from the track's middle
START = (0.2, 0.0, 0.8)
SCAN_AHEAD, SCAN_ASIDE = (-0.8, 2.0, 15), (-0.4, 0.4, 9)  # metres from the pelvis: first, last, how many


class G1Hurdle(HurdleTask):
    """Action: joint targets around the pose at rest; left leg (hip pitch, roll, yaw, knee, ankle pitch, roll), right
    leg, waist, left arm (shoulder pitch, roll, yaw, elbow, wrist), right arm. Proprioception (56): height, gravity in
    the body's frame, linear (world) and angular (body) velocity, joint angles and velocities. Scan (135): heights of
    the ground from 0.8 m behind to 2 m ahead and 0.4 m to either side, turning with the robot."""

    action_size = 23
    robot = "unitree_g1"
    action_meaning = "targets of 23 joints around a stance: legs, waist, arms; PD motors follow them"
    ends = "it is too low, too high above the ground or a hurdle, or beside the track"
    state_size = 191
    state_parts = {"proprio": 56, "scan": 135}
    timestep = 0.005
    substeps = 4
    cameras = {source: replace(camera, groups=(0, SOLID)) for source, camera in HurdleTask.cameras.items()}
    hurdles = TerrainCfg(
        levels=10,
        length=4.5,
        width=5.0,
        cell=0.05,
        border=0.5,
        hurdle=(0.1, 0.46),
        hurdle_spread=(0.01, 0.01),
        hurdle_spacing=(1.8, 2.15),
        hurdle_thickness=0.1,
    )

    def scene(self) -> mujoco.MjSpec:
        spec = mujoco.MjSpec.from_file(str(ASSETS / "common.xml"))
        spec.attach(_robot(), prefix="g1/", frame=spec.worldbody.add_frame())
        self.track.add_to(spec)
        torso = spec.body("g1/torso_link")
        self.add_camera(torso)
        side = torso.add_camera(name="track", pos=[0.5, -3.0, 0.0], mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACK)
        side.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
        side.alt.xyaxes = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
        return spec

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        pose = torch.cat((torch.tensor(START, device=rng.rows.device), _rest_and_reach(rng.rows.device)[0]))
        pose = pose + rng.uniform(-START_NOISE, START_NOISE, len(pose))  # (n, 3 + A)
        qpos = torch.cat((pose[:, :3], random_tilt(rng, START_TILT), pose[:, 3:]), dim=-1)
        return Start(qpos, torch.zeros_like(qpos[:, 1:]))

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        rest, reach = _rest_and_reach(action.device)
        return rest + reach * action.clamp(-1.0, 1.0)  # the actuators keep to the joints' limits

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        height = x.qpos[..., 2]
        above_ground = height - self.track.height_at(x.qpos[..., :2])
        counted = torch.maximum(above_ground, height.clamp(max=TARGET_HEIGHT))  # a hurdle makes nobody too low
        return upright_run(x, action, counted, TARGET_HEIGHT)

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        forward, aside, height = x.qpos[..., :3].unbind(-1)
        too_high = height > MAX_HEIGHT + self.track.ceiling(forward)
        return (height < MIN_HEIGHT) | too_high | (aside.abs() > MAX_ASIDE)

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        quat = x.qpos[..., 3:7]
        proprio = torch.cat(
            (x.qpos[..., 2:3], down_direction(quat), x.qvel[..., :6], x.qpos[..., 7:], x.qvel[..., 6:]), dim=-1
        )
        ahead, aside = (torch.linspace(*axis, device=quat.device) for axis in (SCAN_AHEAD, SCAN_ASIDE))
        scan = self.track.scan(x.qpos[..., :2], quat, torch.cartesian_prod(ahead, aside))
        return self.sources(proprio, scan)


@functools.cache
def _rest_and_reach(device: torch.device) -> tuple[Tensor, Tensor]:
    """(A,), (A,): joint angles at rest, and what an action of 1 adds."""
    numbers = torch.tensor(list(JOINTS.values()), device=device)  # (A, 4)
    return numbers[:, 0], numbers[:, 1]


def _robot() -> mujoco.MjSpec:
    """Menagerie's G1 with the joints, motors and collision shapes of this task."""
    spec = menagerie.model("unitree_g1", "g1.xml")
    for part in (*spec.keys, *spec.sensors, *spec.lights):
        spec.delete(part)
    for name in LOCKED:
        spec.delete(spec.actuator(f"{name}_joint"))
        spec.delete(spec.joint(f"{name}_joint"))
    for name, (_, _, kp, kd) in JOINTS.items():
        joint, motor = spec.joint(f"{name}_joint"), spec.actuator(f"{name}_joint")
        joint.armature, joint.frictionloss = ARMATURE, 0.0
        motor.gainprm[0], motor.biasprm[1], motor.biasprm[2] = kp, -kp, -kd
    for geom in list(spec.geoms):
        if geom.type == mujoco.mjtGeom.mjGEOM_SPHERE:
            _make_solid(geom, "trunk")  # soles
        elif geom.group == SOLID:
            spec.delete(geom)
    for link, (ends, radius) in SHAPES.items():
        for side in ("",) if link in ("pelvis", "torso_link") else ("left_", "right_"):
            capsule = spec.body(side + link).add_geom(
                type=mujoco.mjtGeom.mjGEOM_CAPSULE, fromto=ends, size=[radius, 0.0, 0.0], mass=0.0, material="metal"
            )
            part = "arm" if link == "elbow_link" else f"{side}leg"
            _make_solid(capsule, part if side else "trunk")
    return spec


def _make_solid(geom: mujoco.MjsGeom, part: str) -> None:
    """The robot's own friction and stiffness count in all of its contacts."""
    geom.contype, geom.conaffinity = MASKS[part]
    geom.group, geom.priority, geom.condim = SOLID, 1, 3
    geom.friction[0] = 1.0
    geom.solref = [0.01, 1.0]
