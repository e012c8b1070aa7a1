"""Humanoid with 21 hinges: run along +x.

Numbers from the paper (reward and termination tables of the MuJoCo suite), the rest from its authors' released code.
Deviations:
1. The height term's positive branch is 10 D, which makes its maximum 1, as in the code; paper: D.
2. The up projection is (R e_z) . e_z as the paper says; the code takes the body's y axis, which sees no pure pitch.
3. Heading is the projection on the world's +x, as the paper says; the code aims at a point 200 m ahead.
4. The previous action in the state is the normalised one, in [-1, 1]; the code's is in N m.
5. Two physics substeps of 5 ms per control step instead of one of 10 ms.
6. The MJCF is our own, after the well-known humanoid of the DeepMind control suite.
7. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

from torch import Tensor

from sdpg.tasks import Memory, Physics, Terms
from sdpg.tasks.terms import FloatingRobot, effort, forward_projection, height_reward, up_projection

TARGET_HEIGHT = 0.84  # of the torso
HEIGHT_TOLERANCE = 0.1
HEIGHT_GAIN = 10.0  # paper: 1
UP_WEIGHT = 0.1
EFFORT_WEIGHT = 0.002
MIN_HEIGHT, MAX_HEIGHT = 0.74, 2.0


def upright_run(x: Physics, action: Tensor, height: Tensor, target_height: float) -> Terms:
    """What a humanoid's free-floating base is rewarded for."""
    quat = x.qpos[..., 3:7]
    return {
        "forward": x.qvel[..., 0].clone(),
        "height": height_reward(height, target_height, HEIGHT_TOLERANCE, HEIGHT_GAIN),
        "up": UP_WEIGHT * up_projection(quat),
        "heading": forward_projection(quat),
        "effort": -EFFORT_WEIGHT * effort(action),
    }


class Humanoid(FloatingRobot):
    """Action: abdomen y, z, x; per leg, right first: hip x, z, y, knee, ankle x, y; per arm: shoulder 1, 2, elbow.

    The state's joints are in the MJCF's order, in which each ankle's y comes before its x.
    """

    asset = "humanoid.xml"
    action_size = 21
    state_size = 76
    action_meaning = "torques of 21 hinges: abdomen, legs, arms"
    ends = "it is too low or too high"
    start_height = 1.35
    start_joints = (0.0,) * 21

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return upright_run(x, action, x.qpos[..., 2], TARGET_HEIGHT)

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        height = x.qpos[..., 2]
        return (height < MIN_HEIGHT) | (height > MAX_HEIGHT)
