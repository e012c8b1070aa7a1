"""Shadow hand: turn a cube to the orientation it is told, without dropping it.

Reward and termination from the paper, numbers from its authors' released code. Deviations:
1. The robot is MuJoCo Menagerie's, with the code's limits and gains, Menagerie's masses, and no dry friction in the
   joints. The last two joints of each finger hang on one tendon, so actions are 20; the code has 24 joints apart.
2. The forearm is 1 cm lower, because this palm lies 1 cm above its axis, and the cube starts 2 cm higher, above the
   hand: at the code's height most starts have it within the palm.
3. Fingertips collide as capsules; forearm and wrist do not collide: a cube that comes there has fallen.
4. An episode ends when the cube is 0.2 m from where it shall stay, as the paper says; code: 0.24 m.
5. The cube's faces have six plain colours, as plates, which every renderer draws; the code has a texture with letters.
6. `--task.goals` gives an episode several goals, one after the other; the paper and the code have one. Reaching one
   then pays, because a reward that only falls with the angle to the goal would punish it with a new goal.
7. The drawn goal is the episode's first: nothing moves in a picture that physics does not move. It is outside of what
   the policy's camera sees, as in the code; the policy is told the current goal.
8. Encoders are as in the code, with 256 features of an image; the paper says 128 for policies as small as this.
9. `--task.held` changes what a step pays; at 3, as in paper and code, a badly turned cube is worth dropping.
"""

from __future__ import annotations

import mujoco

from sdpg.tasks import menagerie
from sdpg.tasks.in_hand import InHand

STIFFNESS, DAMPING, ARMATURE = 100.0, 10.0, 0.1
FORCES = {"rh_A_WRJ2": 10.0, "rh_A_WRJ1": 5.0}  # N m
FORCE = 4.0  # of the others
FRICTION = 1.0
FINGERTIP, THUMB_TIP = (0.008, 0.0085, 0.0155), (0.0098, 0.007, 0.0182)  # capsules: radius, half length, middle
_SIDEWAYS, _BENT = (-0.3491, 0.3491), (0.0, 1.5708)


class ShadowCube(InHand):
    """Joints: wrist, first, middle, ring and little finger, thumb; in the action the thumb comes after the wrist."""

    action_size = 20
    robot = "shadow_hand"
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
        for geom in list(spec.geoms):
            geom.friction, geom.solref = (FRICTION, 0.005, 0.0001), (self.contact_time, 1.0)
            if geom.contype and geom.parent.name in ("rh_forearm", "rh_wrist"):
                spec.delete(geom)
            elif geom.contype and geom.type == mujoco.mjtGeom.mjGEOM_MESH:
                radius, half_length, middle = THUMB_TIP if geom.parent.name == "rh_thdistal" else FINGERTIP
                geom.type, geom.meshname = mujoco.mjtGeom.mjGEOM_CAPSULE, ""
                geom.size, geom.pos = (radius, half_length, 0.0), (0.0, 0.0, middle)
        return spec
