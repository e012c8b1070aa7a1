"""The Unitree Go2: its scene for fast contacts, the order of its joints, and where its legs are.

Joints, actions and controls are in the order of the robot's own protocol: FR, FL, RR, RL, each hip, thigh, calf.
"""

from __future__ import annotations

from typing import Any

import mujoco
import torch
from torch import Tensor

from sdpg.tasks.menagerie import model
from sdpg.tasks.terms import rotate

LEGS = ("FR", "FL", "RR", "RL")
JOINTS = ("hip", "thigh", "calf")
STANCE = (0.0, 0.8, -1.5, 0.0, 0.8, -1.5, 0.0, 1.0, -1.5, 0.0, 1.0, -1.5)  # radians: targets at action 0
KP, KD = 30.0, 1.5  # N m per radian and per radian a second; the joints have a damping of 2 beside it
TORQUE = {"hip": 23.7, "thigh": 23.7, "calf": 45.43}  # N m, either way

# Metres, in the frames of base, hip, thigh and calf.
_HIP = (0.1934, 0.0465)  # from the base to a hip: forward, to the side
_THIGH = 0.0955  # from there to its thigh, to the side
_LINK = 0.213  # of a thigh, and of a calf down to its foot
_TRUNK = ((-0.14, 0.28), 0.057)  # forward, radius of a capsule
_THIGH_SHAPE = ((0.05, 0.213), 0.02)  # down, radius
_CALF_SHAPE = ((0.03, 0.17), 0.013)
_CALF_FORWARD = 0.01  # of the calf's capsule before its axis
FOOT_RADIUS = 0.022
_FOOT_FORWARD = -0.002

# Along each shape: where contact with the ground is looked for.
_THIGH_POINTS, _CALF_POINTS, _TRUNK_POINTS = 2, 3, 6
RADII = (*[_THIGH_SHAPE[1]] * _THIGH_POINTS, *[_CALF_SHAPE[1]] * _CALF_POINTS, FOOT_RADIUS)  # of `legs`
THIGH, CALF, FOOT = slice(0, 2), slice(2, 5), 5  # their places there
TRUNK_RADIUS = _TRUNK[1]


def robot_order(joints: Tensor) -> Tensor:
    """The model has left legs before right ones, the robot right before left: (..., 12) -> (..., 12), either way."""
    return joints.unflatten(-1, (2, 2, 3)).flip(-2).flatten(-3)


def scene() -> mujoco.MjSpec:
    """The model of MuJoCo Menagerie with position actuators in the robot's order, and with a shape for its trunk and
    one for each thigh, calf and foot that touch the ground, but not each other."""
    spec = model("unitree_go2", "go2.xml")
    for part in (*spec.keys, *spec.actuators):
        spec.delete(part)
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    spec.option.impratio = 10.0  # feet creep a quarter as fast as at 1, for a twentieth of the time
    spec.option.iterations, spec.option.ls_iterations = 50, 50
    for leg in LEGS:
        for joint in JOINTS:
            actuator = spec.add_actuator(name=f"{leg}_{joint}", target=f"{leg}_{joint}_joint")
            actuator.trntype = mujoco.mjtTrn.mjTRN_JOINT
            actuator.set_to_position(kp=KP, kv=KD)
            actuator.forcelimited, actuator.forcerange = True, [-TORQUE[joint], TORQUE[joint]]
    _reshape(spec)
    return spec


def _reshape(spec: mujoco.MjSpec) -> None:
    shape: dict[str, Any] = {"contype": 1, "conaffinity": 0, "condim": 3, "margin": 0.0}
    shape |= {"solref": [0.01, 1.0], "solimp": [0.9, 0.95, 0.001, 0.5, 2.0]}
    for geom in spec.geoms:
        if geom.name in LEGS:
            for name, value in shape.items():
                setattr(geom, name, value)
            geom.friction[0] = 1.0  # and it counts, whatever the ground's: the foot has priority
        elif geom.group == 3:
            spec.delete(geom)
    capsule = shape | {"type": mujoco.mjtGeom.mjGEOM_CAPSULE, "group": 3, "mass": 0.0, "rgba": [0.3, 0.3, 0.35, 1.0]}
    (back, front), radius = _TRUNK
    spec.body("base").add_geom(name="trunk", fromto=[back, 0, 0, front, 0, 0], size=[radius, 0, 0], **capsule)
    for leg in LEGS:
        for part, ((top, bottom), radius), x in (
            ("thigh", _THIGH_SHAPE, 0.0),
            ("calf", _CALF_SHAPE, _CALF_FORWARD),
        ):
            name = f"{leg}_{part}"
            spec.body(name).add_geom(name=name, fromto=[x, 0, -top, x, 0, -bottom], size=[radius, 0, 0], **capsule)


def legs(joints: Tensor) -> Tensor:
    """Points along every leg, from the thigh down to the foot's centre, in the base's frame:
    (..., 12) -> (..., 4, 6, 3)."""
    hip, thigh, calf = joints.unflatten(-1, (4, 3))[..., None].unbind(-2)  # (..., 4, 1) each
    device = joints.device
    down = torch.linspace(*_THIGH_SHAPE[0], _THIGH_POINTS, device=device)
    low = torch.cat(
        (torch.linspace(*_CALF_SHAPE[0], _CALF_POINTS, device=device), torch.tensor((_LINK,), device=device))
    )
    ahead = torch.tensor((*[_CALF_FORWARD] * _CALF_POINTS, _FOOT_FORWARD), device=device)
    sin, cos, sin_calf, cos_calf = thigh.sin(), thigh.cos(), (thigh + calf).sin(), (thigh + calf).cos()
    # In the leg's plane: forward, up.
    x = torch.cat((-down * sin, -_LINK * sin + ahead * cos_calf - low * sin_calf), dim=-1)  # (..., 4, 6)
    z = torch.cat((-down * cos, -_LINK * cos - ahead * sin_calf - low * cos_calf), dim=-1)
    side = torch.tensor((-1.0, 1.0, -1.0, 1.0), device=device)[:, None]  # left is positive
    front = torch.tensor((1.0, 1.0, -1.0, -1.0), device=device)[:, None]
    y, sin, cos = _THIGH * side, hip.sin(), hip.cos()
    return torch.stack((x + _HIP[0] * front, y * cos - z * sin + _HIP[1] * side, y * sin + z * cos), dim=-1)


def trunk(like: Tensor) -> Tensor:
    """Points along the trunk, in the base's frame: (6, 3), on the device of `like`."""
    x = torch.linspace(*_TRUNK[0], _TRUNK_POINTS, device=like.device)
    return torch.stack((x, torch.zeros_like(x), torch.zeros_like(x)), dim=-1)


def in_world(qpos: Tensor, points: Tensor) -> Tensor:
    """Points (..., P, 3) of the base's frame, of robots at qpos (..., 19): (..., P, 3)."""
    quat = qpos[..., None, 3:7].expand(*qpos.shape[:-1], points.shape[-2], 4)
    return qpos[..., None, :3] + rotate(quat, points.expand(*quat.shape[:-1], 3))
