"""Allegro hand: turn a cube to the orientation it is told, without dropping it.

Reward and termination from the paper, numbers from its authors' released code. The robot is MuJoCo Menagerie's, with
that code's limits and gains. Deviations:
1. The previous action is that of the last step; the code keeps the one that the episode began with.
2. The thumb's base starts at its lower limit, 0.2792 rad; the code's 0.263 is beyond it.
3. The cube's faces have six plain colours, as plates, which every renderer draws; the code has a texture with letters.
4. Contacts are those of Menagerie's boxes and capsules, the thumb's and the fingers' with each other included.
5. `--task.goals` gives an episode several goals, one after the other; the paper and the code have one. Reaching one
   then pays, because a reward that only falls with the angle to the goal would punish it with a new goal.
6. The drawn goal is the episode's first: nothing moves in a picture that physics does not move. It is outside of what
   the policy's camera sees, as in the code; the policy is told the current goal.
7. Joints have an armature of 0.001 kg m^2, by which fingers follow their targets without swinging. The code's simulator
   gives them 0.1 where nothing is said: a finger then overshoots by three quarters and swings once a second.
8. Encoders are as in the code, 1024-256 for numbers and 256 features of an image; the paper says 1024-128, and 128
   features for policies as small as this.
9. `--task.held` changes what a step pays; at 3, as in paper and code, a badly turned cube is worth dropping.
"""

from __future__ import annotations

import mujoco

from sdpg.tasks import menagerie
from sdpg.tasks.in_hand import InHand

STIFFNESS, DAMPING, ARMATURE = 3.0, 0.1, 0.001
FRICTION = 0.3
_SPREAD, _BENT = (-0.5585, 0.5585), (-0.2792, 1.7278)


class AllegroCube(InHand):
    """Joints: first, middle, ring finger and thumb, from the base to the tip of each."""

    action_size = 16
    robot = "wonik_allegro"
    state_size = 124
    timestep = 0.0075
    substeps = 4
    episode_steps = 333

    joints = {
        "ffj0": (*_SPREAD, 0.0),
        "ffj1": (*_BENT, 0.58058),
        "ffj2": (*_BENT, 0.701595),
        "ffj3": (*_BENT, 0.538675),
        "mfj0": (*_SPREAD, 0.0),
        "mfj1": (*_BENT, 0.60767),
        "mfj2": (*_BENT, 0.758085),
        "mfj3": (*_BENT, 0.741625),
        "rfj0": (*_SPREAD, 0.0),
        "rfj1": (*_BENT, 0.8876),
        "rfj2": (*_BENT, 0.720425),
        "rfj3": (*_BENT, 0.5848),
        "thj0": (0.2792, 1.5707, 0.2792),
        "thj1": (-0.3316, 1.1519, 0.32612),
        "thj2": (*_BENT, 1.08493),
        "thj3": (-0.2792, 1.7627, 0.806715),
    }
    fingertips = ("ff_tip", "mf_tip", "rf_tip", "th_tip")
    cube_density = 600.0
    cube_friction = FRICTION
    cube_start = (0.25, 0.0, 0.275)
    in_hand = (0.25, 0.0, 0.25)
    goal_place = (0.325, 0.3, 0.2475)
    palm_camera = (0.40, 0.05, 0.425)
    palm_target = (0.25, -0.10, 0.275)
    contact_time = 0.015

    def hand(self) -> mujoco.MjSpec:
        spec = menagerie.model("wonik_allegro", "right_hand.xml")
        palm = spec.body("palm")
        palm.pos, palm.quat = (0.25, 0.0, 0.2), (0.0, 1.0, 0.0, 0.7)
        for name, (low, high, _) in self.joints.items():
            joint, actuator = spec.joint(name), spec.actuator(name.replace("j", "a"))
            joint.range, joint.damping, joint.armature = (low, high), (DAMPING, 0.0, 0.0), ARMATURE
            actuator.ctrlrange = (low, high)
            actuator.set_to_position(kp=STIFFNESS)
        for geom in spec.geoms:
            geom.friction, geom.solref = (FRICTION, 0.005, 0.0001), (self.contact_time, 1.0)
        return spec
