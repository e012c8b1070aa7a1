"""Four-legged ant: run along +x.

Numbers from the paper (reward and termination tables of the MuJoCo suite), the rest from its authors' released code.
Deviations:
1. The up projection is (R e_z) . e_z as the paper says; the code takes the body's y axis, which sees no pure pitch.
2. Heading is the projection on the world's +x, as the paper says; the code aims at a point 10 km ahead.
3. The previous action in the state is the normalised one, in [-1, 1]; the code's is in N m.
4. Torques are symmetric; the code's reach -200 but only +150 N m.
5. Two physics substeps of 5 ms per control step instead of one of 10 ms.
6. The solver makes at most 20 iterations a physics step; the code's, 50.
"""

from __future__ import annotations

from torch import Tensor

from sdpg.tasks import Memory, Physics, Terms
from sdpg.tasks.terms import FloatingRobot, forward_projection, up_projection

MIN_HEIGHT, MAX_HEIGHT = 0.27, 1.3  # of the torso
UP_WEIGHT = 0.1


class Ant(FloatingRobot):
    """Action: hip and ankle of legs 1 to 4 (front left, back left, back right, front right), 200 N m each."""

    asset = "ant.xml"
    action_size = 8
    state_size = 37
    action_meaning = "torques of hip and ankle of legs 1 to 4, up to 200 N m"
    ends = "it is too low or too high"
    start_height = 0.75
    start_joints = (0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0, 1.0)

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        quat = x.qpos[..., 3:7]
        return {
            "forward": x.qvel[..., 0].clone(),
            "height": x.qpos[..., 2] - MIN_HEIGHT,
            "up": UP_WEIGHT * up_projection(quat),
            "heading": forward_projection(quat),
        }

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        height = x.qpos[..., 2]
        return (height < MIN_HEIGHT) | (height > MAX_HEIGHT)
