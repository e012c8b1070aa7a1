"""franka_pick: the Panda holds its pose, its cube can be grasped and lifted, and rewards say what they are named."""

import math

import mujoco
import numpy as np
import pytest
import torch
from helpers.arms import joints_for, model_of, need_model, physics_of, terms_of

from sdpg import presets
from sdpg.build import make_env
from sdpg.rng import RowRng
from sdpg.tasks import franka_pick
from sdpg.tasks.franka_pick import CUBE, CUBE_HALF, FINGERS, HAND, POINT_Z, START_ARM, FrankaPick, FrankaPickCfg
from sdpg.tasks.terms import axes_of
from sdpg.types import Physics

need_model("franka_emika_panda")
ARM_JOINTS = [f"panda/joint{i}" for i in range(1, 8)]
DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])  # fingers point down and close along world x
TARGET = (0.6, 0.1, 0.33)


@pytest.fixture(scope="module")
def task() -> FrankaPick:
    return FrankaPick()


def at_start(cube: tuple[float, ...] = (0.6, 0.0, 0.03), fingers: float = 0.04) -> torch.Tensor:
    return torch.tensor((*cube, 1.0, 0.0, 0.0, 0.0, *START_ARM, fingers, fingers))


def memory(reached: bool = False) -> dict[str, torch.Tensor]:
    joints = torch.tensor((*START_ARM, 0.04))[None, None]
    return {"joint_targets": joints, "target": torch.tensor(TARGET)[None, None], "reached": torch.tensor([[reached]])}


def between_the_fingers(task: FrankaPick, fingers: float, shift: float = 0.0, roll: float = 0.0) -> Physics:
    """The cube at the point between the fingertips, `shift` metres along the hand's y, turned like the hand, and about
    its x axis by `roll`."""
    hand = task.hand(physics_of(task, at_start()))
    axes = hand.axes[0, 0]
    place = hand.place[0, 0] + shift * axes[:, 1] + POINT_Z * axes[:, 2]
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, axes.double().flatten().numpy())
    mujoco.mju_mulQuat(quat, quat.copy(), np.array([math.cos(roll / 2), math.sin(roll / 2), 0.0, 0.0]))
    qpos = at_start(fingers=fingers)
    qpos[CUBE] = torch.cat((place, torch.from_numpy(quat).float()))
    return physics_of(task, qpos)


def test_scene(task):
    model = model_of(type(task))
    assert (model.nq, model.nv, model.nu) == (16, 15, 8)
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], [4500, 4500, 3500, 3500, 2000, 2000, 2000, 100])
    np.testing.assert_allclose(-model.actuator_biasprm[:, 2], [450, 450, 350, 350, 200, 200, 200, 10])
    np.testing.assert_allclose(model.actuator_forcerange, np.array([87] * 4 + [12] * 3 + [100])[:, None] * [-1, 1])
    low, high = model.actuator_ctrlrange.T
    np.testing.assert_allclose(low, franka_pick.LOW)
    np.testing.assert_allclose(high, franka_pick.HIGH)
    np.testing.assert_allclose(model.geom("cube").size, CUBE_HALF)
    colliding = {model.geom(i).name for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]}
    assert colliding == {"floor", "cube", "panda/palm", "panda/left_pad", "panda/right_pad"}


def test_the_hand_is_where_the_engine_has_it(task):
    model, generator = model_of(type(task)), np.random.default_rng(0)
    data = mujoco.MjData(model)
    for _ in range(5):
        data.qpos[CUBE] = generator.normal(size=7)
        data.qpos[7:] = generator.uniform(*model.jnt_range[1:].T)
        mujoco.mj_kinematics(model, data)
        qpos = torch.from_numpy(data.qpos).float()
        hand = task.hand(Physics(qpos[None, None], torch.zeros(1, 1, model.nv)))
        np.testing.assert_allclose(hand.place[0, 0], data.body(HAND).xpos, atol=1e-5)
        np.testing.assert_allclose(hand.axes[0, 0], data.body(HAND).xmat.reshape(3, 3), atol=1e-5)
        np.testing.assert_allclose(axes_of(qpos[3:7]), data.body("cube").xmat.reshape(3, 3), atol=1e-5)


def test_starts(task):
    start = task.start(RowRng(0, torch.arange(2000)), 2000, None)
    cube, target = start.qpos[:, CUBE][:, :3], start.memory["target"]
    for place in (cube, target):
        assert (place[:, 0] - 0.6).abs().max() <= 0.1 and place[:, 1].abs().max() <= 0.1
        assert place[:, :2].std(0).min() > 0.05  # of a uniform spread: 0.058
    assert (cube[:, 2] == CUBE_HALF[2]).all()  # on the floor, not in it
    assert 0.229 < target[:, 2].min() < 0.24 and 0.42 < target[:, 2].max() < 0.4301
    assert torch.equal(start.mocap_pos[:, 0], target)
    x = physics_of(task, start.qpos[0])
    assert franka_pick._lowest(x, task.hand(x)) > 0.3 and not task.terminated(x, memory()).any()


def test_the_camera_sees_every_cube_and_the_fingertips_from_the_start(task):
    model = model_of(type(task))
    data = mujoco.MjData(model)
    start = task.start(RowRng(0, torch.arange(500)), 500, None)
    data.qpos[:] = start.qpos[0]
    mujoco.mj_forward(model, data)
    x = physics_of(task, start.qpos[0])
    camera, point = data.camera(HAND), franka_pick._point(x, task.hand(x))[0]
    places = torch.cat((start.qpos[:, :3], point)).double().numpy()  # (501, 3)
    x, y, z = ((places - camera.xpos) @ camera.xmat.reshape(3, 3)).T
    edge = math.tan(math.radians(model.cam_fovy[camera.id] / 2))
    assert (z < 0.0).all() and (np.abs(x / z) < edge).all() and (np.abs(y / z) < edge).all()


def test_zero_action_holds_the_start_pose_and_leaves_the_cube_alone(task):
    env = make_env(task, 4, 0, seed=1, threads=1)
    begin = env.physics().qpos.clone()
    for _ in range(299):
        step = env.step(torch.zeros(4, 1, 8))
        assert not step.terminated.any()
    moved = (env.physics().qpos - begin).abs()
    assert moved[..., 7:].max() < 0.01  # radians that the weight of the arm costs; metres of the fingers
    assert moved[..., CUBE].max() < 1e-3
    assert not any(env.task.measure(env.physics(), env.memory)[name].any() for name in ("success", "lifted", "reached"))


def test_actions_move_targets_within_the_limits(task):
    x = physics_of(task, at_start())
    full = task.control(x, memory(), torch.ones(1, 1, 8))[0, 0]
    np.testing.assert_allclose(full[:7], np.array(START_ARM) + 0.04, atol=1e-6)
    held = memory(reached=True)
    for _ in range(200):
        held = task.advance(x, held, torch.full((1, 1, 8), -5.0), RowRng(0, torch.arange(1)))
    torch.testing.assert_close(held["joint_targets"][0, 0], torch.tensor(franka_pick.LOW))


def test_gripper_stays_open_until_the_cube_is_reached_unless_it_is_free(task):
    x, close = physics_of(task, at_start()), -torch.ones(1, 1, 8)
    assert task.control(x, memory(False), close)[0, 0, 7].item() == pytest.approx(0.04)
    assert task.control(x, memory(True), close)[0, 0, 7].item() == 0.0
    free = FrankaPick(FrankaPickCfg(free_gripper=True))
    assert free.control(x, memory(False), close)[0, 0, 7].item() == 0.0
    assert free.control(x, memory(False), 0.4 * close)[0, 0, 7].item() == pytest.approx(0.04)


def test_rewards_of_the_start_pose(task):
    x = physics_of(task, at_start())
    point = franka_pick._point(x, task.hand(x))[0, 0]
    np.testing.assert_allclose(point, [0.67845, 0.0, 0.37358], atol=1e-4)
    terms = terms_of(task, x, memory(), action=0.5)
    distance = math.dist(point.tolist(), (0.6, 0.0, 0.03))
    assert terms["reach"] == pytest.approx(4 * (1 - math.tanh(5 * distance)), abs=1e-5)
    assert terms["no_floor"] == 0.25
    assert terms["posture"] == pytest.approx(0.3)
    assert terms["effort"] == pytest.approx(-0.01 * 8 * 0.25)
    assert all(terms[name] == 0 for name in ("track", "grasp", "lift", "lifted_near", "lifted_at"))


def test_rewards_of_a_lifted_cube(task):
    x = physics_of(task, at_start(cube=(0.6, 0.0, 0.33)))
    terms = terms_of(task, x, memory(reached=True))
    assert terms["track"] == pytest.approx(8 * (1 - math.tanh(5 * 0.9 * 0.1)), abs=1e-4)
    assert terms["lift"] == 3.0
    assert terms["lifted_near"] == pytest.approx(16 * (1 - math.tanh(0.1 / 0.3)), abs=1e-4)
    assert terms["lifted_at"] == pytest.approx(5 * (1 - math.tanh(1.0)), abs=1e-4)
    measures = task.measure(physics_of(task, at_start(cube=(0.6, 0.06, 0.33))), memory())
    assert measures["success"].item() == 1.0 and measures["lifted"].item() == 1.0
    assert task.measure(x, memory())["success"].item() == 0.0  # 10 cm off


def test_grasp_pays_for_a_held_cube_only(task):
    assert terms_of(task, between_the_fingers(task, fingers=0.02), memory())["grasp"] == 1.0
    assert terms_of(task, between_the_fingers(task, fingers=0.03), memory())["grasp"] == 0.0  # not closed yet
    assert terms_of(task, between_the_fingers(task, 0.025, shift=0.005), memory())["grasp"] == 0.0  # one finger touches
    assert terms_of(task, physics_of(task, at_start(fingers=0.0)), memory(True))["grasp"] == 0.0  # closed on nothing
    assert terms_of(task, between_the_fingers(task, 0.035, roll=math.pi / 4), memory())["grasp"] == 0.0  # open, aslant


def test_terminations(task):
    def ends(qpos: torch.Tensor) -> bool:
        return task.terminated(physics_of(task, qpos), memory()).item()

    assert not ends(at_start())
    assert ends(at_start(cube=(1.01, 0.0, 0.03))) and ends(at_start(cube=(0.6, 0.0, -0.01)))
    low = at_start()
    low[7:14] = torch.tensor([0.0, 1.0, 0.0, -1.57, 0.0, 2.57, -0.7853])  # the shoulder leans forward
    x = physics_of(task, low)
    assert franka_pick._lowest(x, task.hand(x)) < 0.0 and ends(low)
    assert terms_of(task, x, memory())["no_floor"] == 0.0


def test_lowest_point_is_that_of_the_collision_shapes(task):
    model = model_of(type(task))
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        qpos = at_start()
        qpos[7:14] += 0.6 * torch.randn(7, generator=generator)
        qpos[FINGERS] = 0.04 * torch.rand(1, generator=generator)
        data = mujoco.MjData(model)
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        lowest = []
        for name in ("panda/left_pad", "panda/right_pad", "panda/palm"):
            geom, half = data.geom(name), model.geom(name).size
            up = np.abs(geom.xmat.reshape(3, 3)[2])
            lowest.append(geom.xpos[2] - (up @ half if "pad" in name else up[2] * half[1] + half[0]))
        x = physics_of(task, qpos)
        assert franka_pick._lowest(x, task.hand(x)).item() == pytest.approx(min(lowest), abs=1e-5)


def test_the_actor_is_told_the_target_but_not_the_cube(task):
    here, there = (physics_of(task, at_start(cube=cube)) for cube in ((0.6, 0.0, 0.03), (0.5, 0.1, 0.3)))
    there.qvel[..., :6] = 1.0
    seen, other = (task.observe(x, memory()) for x in (here, there))
    assert seen["proprio"].shape[-1] == 38 and seen["state"].shape[-1] == 67
    assert torch.equal(seen["proprio"], other["proprio"]) and not torch.equal(seen["state"], other["state"])
    np.testing.assert_allclose(seen["proprio"][0, 0, -3:], TARGET)
    assert task.inputs["pixels"] == ("proprio", "pixels")


def test_the_critic_knows_whether_the_cube_was_reached_and_the_actor_does_not(task):
    x = physics_of(task, at_start())
    before, after = (task.observe(x, memory(reached)) for reached in (False, True))
    assert torch.equal(before["proprio"], after["proprio"])
    assert torch.equal(before["state"][..., :-1], after["state"][..., :-1])
    assert (before["state"][..., -1].item(), after["state"][..., -1].item()) == (0.0, 1.0)


def test_lifted_is_three_and_a_half_centimetres_up(task):
    for height, lifted in ((0.03 + 0.034, 0.0), (0.03 + 0.036, 1.0)):
        x = physics_of(task, at_start(cube=(0.6, 0.0, height)))
        assert task.measure(x, memory())["lifted"].item() == lifted
        assert terms_of(task, x, memory())["lift"] == 3.0 * lifted


def test_a_scripted_grasp_lifts_the_cube_to_the_target(task):
    """Four rows, through the task's own actions: above the cube, down, close, and to the target."""
    env = make_env(task, 4, 0, seed=3, threads=1)
    model = env.sim.model
    x = env.physics()
    cubes, targets = x.qpos[:, 0, :3].double().numpy(), env.memory["target"][:, 0].double().numpy()
    shift = [np.array([0.0, 0.0, z]) for z in (0.1, 0.0)]
    plan = [
        (60, cubes + shift[0], 1.0),
        (50, cubes + shift[1], 1.0),
        (40, cubes + shift[1], -1.0),
        (120, targets, -1.0),
    ]
    grasped = []
    qpos = x.qpos[:, 0].double().numpy().copy()
    for steps, points, gripper in plan:
        goal = np.stack(
            [
                joints_for(model, q, HAND, (0, 0, POINT_Z), p, DOWN, ARM_JOINTS)[1]
                for q, p in zip(qpos, points, strict=True)
            ]
        )  # (4, 7)
        begin = env.memory["joint_targets"][:, 0, :7].double().numpy()
        for k in range(steps):
            wanted = begin + (goal - begin) * min(1.0, (k + 1) / (0.7 * steps))
            move = torch.from_numpy(wanted).float() - env.memory["joint_targets"][:, 0, :7]
            action = torch.cat((move / franka_pick.STEP, torch.full((4, 1), gripper)), dim=-1)
            step = env.step(action[:, None])
            assert not step.terminated.any() and not step.failed.any()
        grasped.append(step.terms["grasp"][:, 0])
        qpos = env.physics().qpos[:, 0].double().numpy().copy()
    assert not grasped[1].any()  # around it, still open
    assert grasped[2].all() and grasped[3].all()
    measures = task.measure(env.physics(), env.memory)
    assert all(measures[name].all() for name in ("reached", "lifted", "success")), measures


def test_presets():
    paper, pixels = (presets.resolve("franka_pick", "paper", obs).algo for obs in ("state", "pixels"))
    assert (paper.horizon, paper.critic_lr, paper.target_decay) == (32, 5e-4, 0.2)
    assert paper.actor_widths == paper.critic_widths == (512, 256, 128)
    assert pixels.horizon == 64 and pixels.actor_widths == pixels.critic_widths == (1024, 512, 256, 128)
