"""Shadow hand: turn a cube in the hand to a goal orientation.
"""

from __future__ import annotations

import mujoco

from sdpg.tasks import menagerie
from sdpg.tasks.in_hand import InHand

STIFFNESS, DAMPING, ARMATURE = 100.0, 10.0, 0.1
FORCES = {"rh_A_WRJ2": 10.0, "rh_A_WRJ1": 5.0}  # N m
FORCE = 4.0  # of the others
FRICTION = 1.0
_SIDEWAYS, _BENT = (-0.3491, 0.3491), (0.0, 1.5708)
_FINGERS = ("FF", "MF", "RF", "LF")


class ShadowCube(InHand):
    """Joints: wrist, first, middle, ring and little finger, thumb; in the action the thumb comes after the wrist."""

    action_size = 20
    state_size = 157
    timestep = 1.0 / 120.0
    substeps = 2
    episode_steps = 599

    joints = {
        "rh_WRJ2": (-0.5236, 0.1745, 0.0),
        "rh_WRJ1": (-0.6981, 0.4887, 0.0),
        "rh_FFJ4": (*_SIDEWAYS, 0.0),
        "rh_FFJ3": (*_BENT, 0.0),
        "rh_FFJ2": (*_BENT, 0.0),
        "rh_FFJ1": (*_BENT, 0.0),
        "rh_MFJ4": (*_SIDEWAYS, 0.0),
        "rh_MFJ3": (*_BENT, 0.0),
        "rh_MFJ2": (*_BENT, 0.0),
        "rh_MFJ1": (*_BENT, 0.0),
        "rh_RFJ4": (*_SIDEWAYS, 0.0),
        "rh_RFJ3": (*_BENT, 0.0),
        "rh_RFJ2": (*_BENT, 0.0),
        "rh_RFJ1": (*_BENT, 0.0),
        "rh_LFJ5": (0.0, 0.7854, 0.0),
        "rh_LFJ4": (*_SIDEWAYS, 0.0),
        "rh_LFJ3": (*_BENT, 0.0),
        "rh_LFJ2": (*_BENT, 0.0),
        "rh_LFJ1": (*_BENT, 0.0),
        "rh_THJ5": (-1.0472, 1.0472, 0.0),
        "rh_THJ4": (0.0, 1.2217, 0.0),
        "rh_THJ3": (-0.2094, 0.2094, 0.0),
        "rh_THJ2": (-0.6981, 0.6981, 0.0),
        "rh_THJ1": (*_BENT, 0.0),
    }
    fingertips = ("rh_thdistal", "rh_ffdistal", "rh_mfdistal", "rh_rfdistal", "rh_lfdistal")
    cube_density = 567.0
    cube_friction = FRICTION
    cube_start = (0.0, 0.1, 0.42)
    in_hand = (0.0, 0.1, 0.40)
    goal_place = (0.0, -0.3, 0.55)
    palm_camera = (0.40, 0.05, 0.55)
    palm_target = (0.0, 0.1, 0.40)
    contact_time = 1.0 / 60.0

    def hand(self) -> mujoco.MjSpec:
        spec = menagerie.model("shadow_hand", "right_hand.xml")
        forearm = spec.body("rh_forearm")
        forearm.pos, forearm.quat = (0.0, -0.247, 0.34), (0.5, -0.5, -0.5, -0.5)  # palm up, fingers along +y
        for name, (low, high, _) in self.joints.items():
            joint = spec.joint(name)
            joint.range, joint.armature, joint.frictionloss = (low, high), ARMATURE, 0.0
        for actuator in spec.actuators:
            most = FORCES.get(actuator.name, FORCE)
            actuator.forcerange = (-most, most)
            actuator.set_to_position(kp=STIFFNESS, kv=DAMPING)
            if actuator.target in self.joints:
                actuator.ctrlrange = self.joints[actuator.target][:2]
        for geom in spec.geoms:
            geom.friction, geom.solref = (FRICTION, 0.005, 0.0001), (self.contact_time, 1.0)
            if geom.parent.name in ("rh_forearm", "rh_wrist"):
                geom.contype, geom.conaffinity = 0, 0  # a cube that comes there has fallen
            elif geom.type == mujoco.mjtGeom.mjGEOM_MESH and geom.contype:  # a fingertip
                geom.type, geom.meshname = mujoco.mjtGeom.mjGEOM_CAPSULE, ""
                geom.size, geom.pos = (0.008, 0.009, 0.0), (0.0, 0.0, 0.014)
        return spec
