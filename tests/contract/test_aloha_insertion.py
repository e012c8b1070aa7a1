"""aloha_insertion: both arms hold their pose, the peg fits the socket, and rewards say what they are named."""

import math
from collections.abc import Sequence

import mujoco
import numpy as np
import pytest
import torch
from helpers.arms import joints_for, model_of, need_model, physics_of, terms_of

from sdpg import presets
from sdpg.build import make_env
from sdpg.rng import RowRng
from sdpg.tasks import aloha_insertion
from sdpg.tasks.aloha_insertion import (
    HIGH,
    INSERTED,
    LEFT,
    LOW,
    PEG_GRIP,
    PEG_TIP,
    RIGHT,
    START_LEFT,
    START_PEG,
    START_RIGHT,
    START_SOCKET,
    STEP,
    TABLE,
    AlohaInsertion,
)
from sdpg.types import Ended, Start

need_model("aloha")
JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
UPRIGHT = (1.0, 0.0, 0.0, 0.0)
GRIPPER = (0.0305, 0.0305)
TARGETS = torch.tensor((*START_LEFT, *START_RIGHT, *GRIPPER))
POINT = (0.13, 0.0, -0.003)  # between the fingertips, in the gripper's frame
AXES = {"left": np.eye(3), "right": np.diag([-1.0, -1.0, 1.0])}  # horizontal, each towards the other
PALM_GAP = 0.0078  # a gripper's joint position at which its pads meet


@pytest.fixture(scope="module")
def task() -> AlohaInsertion:
    return AlohaInsertion()


def at_start(peg: Sequence[float] = START_PEG, socket: Sequence[float] = START_SOCKET) -> torch.Tensor:
    return torch.tensor((*peg, *UPRIGHT, *socket, *UPRIGHT, *START_LEFT, *GRIPPER, *START_RIGHT, *GRIPPER))


def memory() -> dict[str, torch.Tensor]:
    return {"joint_targets": TARGETS[None, None]}


def test_scene(task):
    model = model_of(type(task))
    assert (model.nq, model.nv, model.nu) == (30, 28, 14)
    gains = [43, 265, 227, 78, 37, 10.4, 1200] * 2
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], gains)
    np.testing.assert_allclose(model.actuator_biasprm[:, :3], np.array([[0, -kp, 0] for kp in gains]))
    arm = {name: slice(begin, begin + 8) for name, begin in (("left", 12), ("right", 20))}
    for dofs in arm.values():
        np.testing.assert_allclose(model.dof_damping[dofs], [5.76, 20, 18.49, 6.78, 6.28, 1.2, 60, 40])
        np.testing.assert_allclose(model.dof_armature[dofs], [0.1, 0.395, 0.383, 0.14, 0.008, 0.1, 0.243, 0.243])
        np.testing.assert_allclose(model.dof_frictionloss[dofs], [0, 2, 1.15, 0, 0, 0, 0, 0])
    limits = model.jnt_actfrcrange[2:]
    np.testing.assert_allclose(limits, np.array([35, 144, 59, 22, 35, 35, 80, 80] * 2)[:, None] * [-1, 1])
    colliding = [model.geom(i).name for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]]
    assert len(colliding) == 2 + 6 + 6 and sum("pad" in name for name in colliding) == 4


def test_starts(task):
    start = task.start(RowRng(0, torch.arange(2000)), 2000, None)
    for first, centre in ((0, START_PEG), (7, START_SOCKET)):
        off = start.qpos[:, first : first + 3] - torch.tensor(centre)
        assert off[:, :2].abs().max() <= 0.1 and off[:, :2].std(0).min() > 0.05 and not off[:, 2].any()
    assert torch.corrcoef(start.qpos[:, [0, 1, 7, 8]].T).fill_diagonal_(0.0).abs().max() < 0.1  # independently
    x = physics_of(task, start.qpos[0])
    assert aloha_insertion._lowest(x) > 0.1 and not task.terminated(x, memory()).any()


def test_zero_action_keeps_the_arms_up_and_leaves_the_objects_alone(task):
    env = make_env(task, 2, 0, seed=1, threads=1)
    begin = env.physics().qpos.clone()
    for _ in range(249):
        step = env.step(torch.zeros(2, 1, 14))
        assert not step.terminated.any()
    moved = (env.physics().qpos - begin).abs()
    assert moved[..., 14:].max() < 0.1  # radians: the gains are low, and carry the arms
    assert moved[..., :14].max() < 1e-3
    assert step.terms["no_table"].min() > 0.0
    assert not any(value.any() for value in task.measure(env.physics(), env.memory).values())


def test_actions_move_targets_within_the_limits(task):
    x, one = physics_of(task, at_start()), torch.zeros(1, 1, 14)
    one[..., 0], one[..., 6], one[..., 12], one[..., 13] = 1.0, -1.0, 0.1, -0.1
    ctrl = task.control(x, memory(), one)[0, 0]  # left arm, left gripper, right arm, right gripper
    assert ctrl[0].item() == pytest.approx(START_LEFT[0] + STEP)
    assert ctrl[7].item() == pytest.approx(START_RIGHT[0] - STEP)
    assert (ctrl[6].item(), ctrl[13].item()) == (pytest.approx(0.0325), pytest.approx(0.0285))
    after = memory()
    for sign, limit in ((1.0, HIGH), (-1.0, LOW)):
        for _ in range(400):
            after = task.advance(x, after, torch.full((1, 1, 14), sign), RowRng(0, torch.arange(1)))
        torch.testing.assert_close(after["joint_targets"][0, 0], torch.tensor(limit))


def test_rewards_of_the_start_pose(task):
    x = physics_of(task, at_start())
    left, right = (point[0, 0].tolist() for point in aloha_insertion._grippers(x))
    terms = terms_of(task, x, memory())
    grip = (START_PEG[0] + PEG_GRIP, *START_PEG[1:])
    for name, hand, thing in (("reach_socket", left, START_SOCKET), ("reach_peg", right, grip)):
        assert terms[name] == pytest.approx(1 - 0.9 * (math.dist(hand, thing) - 0.001) / 0.3, abs=1e-4)
    assert (terms["posture_left"], terms["posture_right"], terms["no_table"]) == pytest.approx((0.3, 0.3, 0.3))
    entrance = (START_SOCKET[0] + 0.048, 0.0, START_SOCKET[2])
    goal = max(0.0, 1 - 0.9 * (math.dist(entrance, (-0.05, 0.0, 0.15)) - 0.01) / 0.15)
    assert terms["socket_goal"] == pytest.approx(4 * goal, abs=1e-4)
    assert terms["socket_upright"] == pytest.approx(0.5 * goal, abs=1e-4)
    assert terms["insert"] == 0.0  # they lie at different heights
    bent = at_start()
    bent[LEFT][:1] += 1.01
    assert terms_of(task, physics_of(task, bent), memory())["posture_left"] == pytest.approx(0.3 * 0.1**0.25, abs=1e-4)


def test_rewards_at_the_goals_and_inside(task):
    """The tip at (.05, 0, .15) and the entrance at (-.05, 0, .15); then the peg 40 mm deep; then to the end."""
    terms = terms_of(task, physics_of(task, at_start(peg=(0.098, 0.0, 0.15), socket=(-0.098, 0.0, 0.15))), memory())
    assert (terms["socket_goal"], terms["peg_goal"]) == pytest.approx((4.0, 4.0))
    assert (terms["socket_upright"], terms["peg_upright"]) == pytest.approx((0.5, 0.5))
    assert terms["insert"] == pytest.approx(8 * (1 - 0.9 * 0.187 / 0.2), abs=1e-3)

    def deep(depth: float, off: float = 0.0) -> torch.Tensor:
        return at_start(peg=(0.096 - depth, off, 0.15), socket=(0.0, 0.0, 0.15))

    inside = physics_of(task, deep(0.040))
    assert terms_of(task, inside, memory())["insert"] == pytest.approx(8 * (1 - 0.9 * 0.047 / 0.2), abs=1e-3)
    assert task.measure(inside, memory())["success"].item() == 0.0  # less than half way
    end = physics_of(task, deep(0.088))
    assert terms_of(task, end, memory())["insert"] == pytest.approx(8.0, abs=1e-3)
    assert all(task.measure(end, memory())[name].item() == 1.0 for name in ("success", "peg_lifted", "socket_lifted"))
    beside = physics_of(task, deep(0.088, off=0.05))
    assert terms_of(task, beside, memory())["insert"] == 0.0 and task.measure(beside, memory())["success"].item() == 0.0


def test_a_tip_behind_the_socket_is_not_in_it(task):
    """The peg turned round, on the socket's axis, its tip 4 mm behind the socket's back."""
    qpos = at_start(peg=(-0.1, 0.0, 0.15), socket=(0.0, 0.0, 0.15))
    qpos[3:7] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    x = physics_of(task, qpos)
    assert aloha_insertion._tip_in_socket(x)[0].item() == pytest.approx(0.1, abs=1e-6)
    assert terms_of(task, x, memory())["insert"] == 0.0 and task.measure(x, memory())["success"].item() == 0.0


def test_held_where_it_is_to_be_reached_the_peg_can_go_in_far_enough(task):
    """Fingers are too wide for the socket: what is before them goes in."""
    model, data = model_of(type(task)), mujoco.MjData(model_of(type(task)))
    qpos = at_start()
    qpos[RIGHT][:6] = torch.from_numpy(pose(task, "right", np.array([0.1, 0.0, 0.25]), qpos.numpy())[0])
    qpos[RIGHT][6:] = PALM_GAP + 0.015  # around the peg
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    pads = [data.geom(f"aloha/right/{finger}_pad") for finger in ("left", "right")]
    half = model.geom("aloha/right/left_pad").size
    front = min(pad.xpos[0] - np.abs(pad.xmat.reshape(3, 3)[0]) @ half for pad in pads)  # the right hand points to -x
    outside = [abs(pad.xpos[1]) + np.abs(pad.xmat.reshape(3, 3)[1]) @ half for pad in pads]
    assert min(outside) > 0.022 + 0.002, "a pad is wider than the socket"
    site, free, reached = data.site("aloha/right/gripper").xpos, {}, []
    for along in np.arange(-0.04, 0.0401, 0.01):  # of the peg, between the fingertips
        qpos[:3] = torch.tensor((site[0] - along, site[1], site[2]))
        x = physics_of(task, qpos)
        free[terms_of(task, x, memory())["reach_peg"]] = front - (qpos[0].item() + PEG_TIP)
        reached.append(task.measure(x, memory())["peg_reached"].item())
    assert max(free) == pytest.approx(1.0, abs=1e-2) and free[max(free)] > INSERTED + 0.01
    assert reached[-2] == 1.0 and reached[4] == 0.0  # 3 cm behind the middle; at the middle


def test_lying_on_its_side_pays_nothing_for_upright(task):
    qpos = at_start(peg=(0.098, 0.0, 0.15))
    qpos[3:7] = torch.tensor([math.cos(0.3), math.sin(0.3), 0.0, 0.0])  # rolled by 0.6 rad about its axis
    terms = terms_of(task, physics_of(task, qpos), memory())
    assert terms["peg_goal"] == pytest.approx(4.0) and terms["peg_upright"] == 0.0


def test_lowest_point_is_that_of_the_pads_and_touches_the_table_with_them(task):
    model = model_of(type(task))
    data = mujoco.MjData(model)
    for lean in (0.0, 0.3, 0.6):
        qpos = at_start()
        qpos[LEFT][1] += lean
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        pads = [geom for geom in range(model.ngeom) if "pad" in model.geom(geom).name]
        lowest = min(
            data.geom_xpos[geom][2] - np.abs(data.geom_xmat[geom].reshape(3, 3)[2]) @ model.geom_size[geom]
            for geom in pads
        )
        x = physics_of(task, qpos)
        assert aloha_insertion._lowest(x).item() == pytest.approx(lowest, abs=1e-5)
        touching = any({*contact.geom} & {*pads} for contact in data.contact)
        assert (terms_of(task, x, memory())["no_table"] == 0.0) == touching == (lowest < TABLE)
    assert touching


def test_terminations(task):
    for peg, socket, ends in (
        (START_PEG, START_SOCKET, False),
        ((0.0, 1.01, 0.0), START_SOCKET, True),
        (START_PEG, (0.0, 0.0, -1.01), True),
    ):
        assert task.terminated(physics_of(task, at_start(peg, socket)), memory()).item() == ends


def test_the_actor_does_not_see_the_objects(task):
    here, there = physics_of(task, at_start()), physics_of(task, at_start(peg=(0.2, 0.1, 0.3), socket=(0.0, 0.1, 0.2)))
    there.qvel[..., :12] = 1.0
    seen, other = (task.observe(x, memory()) for x in (here, there))
    assert seen["proprio"].shape[-1] == 52 and seen["state"].shape[-1] == 90
    assert torch.equal(seen["proprio"], other["proprio"]) and not torch.equal(seen["state"], other["state"])
    assert task.inputs["pixels"] == ("proprio", "table", "wrist_left", "wrist_right")


class InHand(AlohaInsertion):
    """Begins with the objects between the fingers, 25 cm above the table and 74 mm apart. The peg is held 3 cm behind
    its middle: fingers don't go into the socket."""

    places = {"left": np.array([-0.1, 0.0, 0.25]), "right": np.array([0.1, 0.0, 0.25])}

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        qpos = at_start(peg=[0.07, 0.0, 0.25], socket=self.places["left"].tolist())
        for side, arm in (("left", LEFT), ("right", RIGHT)):
            qpos[arm][:6] = torch.from_numpy(pose(self, side, self.places[side], qpos.numpy())[0])
        qpos[LEFT][6:], qpos[RIGHT][6:] = PALM_GAP + 0.022, PALM_GAP + 0.015
        targets = torch.cat((qpos[LEFT][:6], qpos[RIGHT][:6], torch.tensor([0.002, 0.002])))
        return Start(qpos.repeat(n, 1), torch.zeros(n, 28), {"joint_targets": targets.repeat(n, 1)})


def pose(task: AlohaInsertion, side: str, place: np.ndarray, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An arm's joints for the point between its fingertips, and the targets that hold them there: (6,), (6,)."""
    names, body = [f"aloha/{side}/{joint}" for joint in JOINTS], f"aloha/{side}/gripper_link"
    return joints_for(model_of(type(task)), qpos, body, POINT, place, AXES[side], names)


def test_the_peg_fits_the_socket_when_driven_there():
    """Both arms, through the task's own actions, bring what they hold together; targets are corrected by what the arms
    lag behind. Geometry, friction and contact are those of the scene."""
    task = InHand()
    env = make_env(task, 1, 0, seed=0, threads=1)
    qpos = env.physics().qpos[0, 0].double().numpy().copy()
    lag = np.zeros(12)
    depths = []
    for move in np.linspace(0.0, 0.066, 36):  # metres of either hand
        ways = [
            pose(task, side, task.places[side] + np.array([sign * move, 0.0, 0.0]), qpos)
            for side, sign in (("left", 1.0), ("right", -1.0))
        ]
        joints, targets = (np.concatenate([way[i] for way in ways]) for i in (0, 1))
        qpos[LEFT][:6], qpos[RIGHT][:6] = joints[:6], joints[6:]
        for _ in range(5):
            now = env.physics().qpos[0, 0].double().numpy()
            lag += 0.05 * (joints - np.concatenate((now[LEFT][:6], now[RIGHT][:6])))
            wanted = torch.from_numpy(np.concatenate((targets + lag, [0.002, 0.002]))).float()
            step = env.step((wanted - env.memory["joint_targets"]) / STEP)
            assert not step.terminated.any() and not step.failed.any()
        depths.append(aloha_insertion._tip_in_socket(env.physics())[0].item())
    measures = task.measure(env.physics(), env.memory)
    assert depths[0] < 0.0 < depths[-1]
    assert all(measures[name].item() == 1.0 for name in ("success", "peg_lifted", "socket_lifted")), (measures, depths)
    assert step.terms["insert"].item() > 6.0
    assert step.terms["reach_peg"].item() > 0.95 and measures["peg_reached"].item() == 1.0


def test_presets():
    paper, pixels = (presets.resolve("aloha_insertion", "paper", obs) for obs in ("state", "pixels"))
    assert (paper.algo.horizon, paper.algo.critic_lr, paper.algo.target_decay) == (32, 2e-3, 0.2)
    assert (pixels.num_nominal, pixels.algo.horizon) == (48, 64)
    assert paper.algo.actor_widths == paper.algo.critic_widths == pixels.algo.actor_widths == (512, 256, 128)
