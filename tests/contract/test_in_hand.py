"""The hands that turn a cube: what holds it, what is rewarded, told, seen and measured."""

import math
import os

import mujoco
import numpy as np
import pytest
import torch

from sdpg.build import compile_scene, make_env
from sdpg.check.checks import check_task
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.tasks import in_hand
from sdpg.tasks.allegro_cube import AllegroCube
from sdpg.tasks.base import make_task
from sdpg.tasks.chains import Chains, multiply
from sdpg.tasks.in_hand import FACES, GOAL_BONUS, InHand, InHandCfg, angle_between, inverse
from sdpg.tasks.menagerie import folder
from sdpg.tasks.shadow_cube import ShadowCube
from sdpg.tasks.terms import axes_of
from sdpg.types import Physics

SIZES = {"allegro_cube": (16, 16, 124, 107), "shadow_cube": (24, 20, 157, 140)}  # joints, A, D, actor's vector
_models: dict[str, mujoco.MjModel] = {}


@pytest.fixture(params=[AllegroCube, ShadowCube])
def task(request) -> InHand:
    try:
        folder({AllegroCube: "wonik_allegro", ShadowCube: "shadow_hand"}[request.param])
    except SdpgError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return request.param()


def name_of(task: InHand) -> str:
    return {AllegroCube: "allegro_cube", ShadowCube: "shadow_cube"}[type(task)]


def model_of(task: InHand) -> mujoco.MjModel:
    """Compiled once: meshes take their time."""
    name = name_of(task)
    if name not in _models:
        _models[name] = compile_scene(task)
    return _models[name]


def turned(axis: tuple[float, float, float], degrees: float) -> torch.Tensor:
    half = math.radians(degrees) / 2
    return torch.tensor((math.cos(half), *(math.sin(half) * a for a in axis)))


def physics(task: InHand, place: torch.Tensor, quat: torch.Tensor, velocity: float = 0.0) -> Physics:
    """One world: the hand as it starts, the cube by hand."""
    joints = torch.tensor([start for _, _, start in task.joints.values()])
    qvel = torch.cat((torch.zeros_like(joints), torch.full((6,), velocity)))
    return Physics(torch.cat((joints, place, quat))[None, None], qvel[None, None])


def memory_of(task: InHand, goal: torch.Tensor) -> dict[str, torch.Tensor]:
    zero = torch.zeros(1, 1)
    return {
        "action": torch.zeros(1, 1, task.action_size),
        "goal": goal[None, None],
        "reached": zero,
        "smallest": zero + 9.0,
        "next": multiply(turned((1, 0, 0), 80.0), goal)[None, None],
    }


X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def test_quaternions_by_hand():
    # 90 degrees about x, then 90 about z: y goes to z and stays, so z, x, y become y's, ... a third of a turn.
    both = multiply(turned(Z, 90.0), turned(X, 90.0))
    torch.testing.assert_close(both, torch.tensor([0.5, 0.5, 0.5, 0.5]))
    torch.testing.assert_close(multiply(both, inverse(both)), torch.tensor([1.0, 0.0, 0.0, 0.0]))
    one = turned(X, 0.0)
    assert angle_between(both, one).item() == pytest.approx(2.0 * math.pi / 3.0, abs=1e-6)
    assert angle_between(-both, one).item() == pytest.approx(2.0 * math.pi / 3.0, abs=1e-6)  # the same orientation
    assert angle_between(turned(Y, 70.0), turned(Y, -30.0)).item() == pytest.approx(math.radians(100.0), abs=1e-6)
    assert angle_between(turned(Y, 200.0), one).item() == pytest.approx(math.radians(160.0), abs=1e-6)
    assert angle_between(both, both).item() == pytest.approx(0.0, abs=1e-6)


def test_sizes_and_actuators(task):
    model = model_of(task)
    joints, actions, state, told = SIZES[name_of(task)]
    assert (
        (model.nq, model.nv, model.nu)
        == (joints + 7, joints + 6, actions)
        == (joints + 7, joints + 6, task.action_size)
    )
    assert [model.joint(i).name for i in range(joints)] == list(task.joints)
    limits = [limits[:2] for limits in task.joints.values()]
    np.testing.assert_allclose(model.jnt_range[:joints], limits)
    gain, damping = (3.0, 0.0) if joints == 16 else (100.0, 10.0)
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], gain)
    np.testing.assert_allclose(model.actuator_biasprm[:, 1:3], [[-gain, -damping]] * actions)
    np.testing.assert_allclose(model.dof_armature[:joints], 0.001 if joints == 16 else 0.1)
    if joints == 24:
        np.testing.assert_allclose(model.actuator_forcerange[:, 1], [10.0, 5.0] + [4.0] * 18)
    np.testing.assert_allclose(model.body("cube").mass, 0.06**3 * task.cube_density, rtol=1e-6)
    observed = task.observe(physics(task, torch.tensor(task.in_hand), turned(X, 0.0)), memory_of(task, turned(X, 90.0)))
    assert observed["state"].shape == (1, 1, state) == (1, 1, task.state_size)
    assert observed["proprio"].shape == (1, 1, told)
    assert task.step_seconds * task.episode_steps == pytest.approx(10.0, abs=0.02)


def test_actions_span_the_ranges_and_holding_is_where_the_joints_are(task):
    model, start = model_of(task), task.start(RowRng(0, torch.arange(3)), 3, None)
    for value, end in ((-1.0, 0), (1.0, 1)):
        controls = task.control(None, {}, torch.full((1, 1, task.action_size), value))
        np.testing.assert_allclose(controls[0, 0], model.actuator_ctrlrange[:, end], atol=1e-6)
    data = mujoco.MjData(model)
    for row in range(3):
        data.qpos[:] = start.qpos[row]
        mujoco.mj_forward(model, data)
        controls = task.control(None, {}, start.memory["action"][row])
        np.testing.assert_allclose(controls, data.actuator_length, atol=1e-5)


def test_fingers_follow_their_targets_without_swinging(task):
    """A step of 0.3 rad in one finger's bend, without gravity and cube: there within half a second, and it stays."""
    model = model_of(task).__copy__()
    model.opt.gravity[:] = 0.0
    data, joint = mujoco.MjData(model), {16: 1, 24: 3}[len(task.joints)]  # ffj1, rh_FFJ3
    data.qpos[:-7] = [start for _, _, start in task.joints.values()]
    data.qpos[-7:-4] = 5.0
    before = data.qpos[joint]
    mujoco.mj_forward(model, data)
    actuator = int(np.flatnonzero(model.actuator_trnid[:, 0] == joint)[0])
    data.ctrl[:] = data.actuator_length
    data.ctrl[actuator] += 0.3
    followed = []
    for _ in range(round(1.0 / model.opt.timestep)):
        mujoco.mj_step(model, data)
        followed.append(data.qpos[joint] - before)
    assert max(followed) < 0.36
    np.testing.assert_allclose(followed[len(followed) // 2 :], 0.3, atol=0.03)


def test_fingertips_are_where_the_engine_has_them(task):
    model, generator = model_of(task), np.random.default_rng(0)
    data, tips = mujoco.MjData(model), Chains(model, task.fingertips)
    for _ in range(5):
        data.qpos[:-7] = generator.uniform(*model.jnt_range[:-1].T)
        data.qvel[:] = generator.normal(size=model.nv)
        mujoco.mj_forward(model, data)
        qpos, qvel = torch.from_numpy(data.qpos).float(), torch.from_numpy(data.qvel).float()
        got = tips.motions(qpos, qvel)
        place, axes = tips.poses(qpos)
        torch.testing.assert_close(place, got[0])
        torch.testing.assert_close(axes, axes_of(got[1]))
        for f, name in enumerate(task.fingertips):
            velocity = np.zeros(6)  # angular, linear
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body(name).id, velocity, 0)
            wanted = data.body(name).xpos, data.body(name).xquat, velocity[3:], velocity[:3]
            for ours, engines in zip(got, wanted, strict=True):
                np.testing.assert_allclose(ours[f], engines, atol=1e-5)


def test_fingertips_of_other_chains_are_refused():
    spec = mujoco.MjSpec.from_string(
        "<mujoco><worldbody><body name='a'><joint type='slide'/><geom size='1'/></body></worldbody></mujoco>"
    )
    with pytest.raises(SdpgError, match="'a' is moved by other than one hinge"):
        Chains(spec.compile(), ("a",))


def test_starts(task):
    start = task.start(RowRng(0, torch.arange(500)), 500, None)
    low, high, rest = torch.tensor(tuple(task.joints.values())).T
    joints, place, quat = start.qpos[:, :-7], start.qpos[:, -7:-4], start.qpos[:, -4:]
    assert (joints >= low).all() and (joints <= high).all() and not start.qvel.any()
    assert ((joints - rest).abs() <= 0.1 * (high - low) + 1e-6).all()
    assert ((place - torch.tensor(task.cube_start)).abs() <= 0.01 + 1e-6).all() and place.std(0).min() > 0.005
    assert (quat == turned(X, 0.0)).all()


def test_goals_are_60_to_90_degrees_about_x_or_y(task):
    start = task.start(RowRng(0, torch.arange(500)), 500, None)
    goal = start.memory["goal"]
    angle = angle_between(goal, turned(X, 0.0))
    assert math.radians(60.0) <= angle.min() and angle.max() <= math.radians(90.0) + 1e-6
    assert angle.max() - angle.min() > math.radians(28.0)
    about_x = goal[:, 1] > 0
    assert 0.4 < about_x.float().mean() < 0.6 and not goal[about_x, 2].any() and (goal[~about_x, 2] > 0).all()
    assert not goal[:, 3].any() and not goal[~about_x, 1].any()
    torch.testing.assert_close(start.mocap_quat[:, 0], goal)  # told and drawn
    torch.testing.assert_close(start.memory["smallest"], angle)


def test_a_hand_holds_the_cube_for_a_second_where_it_starts(task):
    env = make_env(task, 16, 0, threads=1)
    hold, held = env.memory["action"].clone(), torch.ones(16, 1, dtype=torch.bool)
    for _ in range(math.ceil(1.0 / task.step_seconds)):
        step = env.step(hold)
        assert not step.failed.any()
        held &= ~step.terminated
    assert held.float().mean() >= 0.5
    distance = (env.physics().qpos[..., -7:-4] - torch.tensor(task.in_hand)).norm(dim=-1)
    assert distance[held].max() < 0.06  # in the hand, not on its way down


def test_reward_and_end_by_hand(task):
    home = torch.tensor(task.in_hand)
    x = physics(task, home + torch.tensor((0.03, 0.0, 0.04)), turned(Y, 60.0))
    memory, action = memory_of(task, turned(X, 60.0)), torch.full((1, 1, task.action_size), 0.5)
    terms = task.reward(x, memory, action)
    # R_y(60) R_x(-60): w = cos(30)^2 = 0.75, so phi = 2 acos(0.75).
    assert terms["angle"].item() == pytest.approx(-((2.0 * math.acos(0.75)) ** 2), abs=1e-5)
    assert terms["distance"].item() == pytest.approx(-0.5, abs=1e-5)
    assert terms["effort"].item() == pytest.approx(-2e-4 * 0.25 * task.action_size, abs=1e-7)
    assert terms["held"].item() == 3.0 and "goal" not in terms
    measured = task.measure(x, memory)
    assert measured["angle"].item() == pytest.approx(2.0 * math.acos(0.75), abs=1e-5)
    for distance, ends in ((0.19, False), (0.21, True)):
        x = physics(task, home - torch.tensor((0.0, 0.0, distance)), turned(X, 0.0))
        assert task.terminated(x, memory).item() is ends
        assert task.measure(x, memory)["dropped"].item() == float(ends)


def test_one_goal_is_kept_and_counted_once(task):
    memory, home = memory_of(task, turned(X, 60.0)), torch.tensor(task.in_hand)
    action = torch.zeros(1, 1, task.action_size)
    for degrees, reached, smallest in ((30.0, 0, 30.0), (40.0, 1, 20.0), (10.0, 1, 20.0), (60.0, 1, 0.0)):
        x = physics(task, home, turned(X, degrees))
        memory = task.advance(x, memory, action, RowRng(0, torch.arange(1)))
        assert memory["reached"].item() == reached  # 0.4 rad are 22.9 degrees
        assert memory["smallest"].item() == pytest.approx(math.radians(smallest), abs=1e-3)
        torch.testing.assert_close(memory["goal"][0, 0], turned(X, 60.0))
    assert task.measure(x, memory)["success"].item() == 1.0
    dropped = physics(task, home - torch.tensor((0.0, 0.0, 0.25)), turned(X, 60.0))
    assert task.measure(dropped, memory)["success"].item() == 0.0  # it has to be kept, too


@pytest.mark.parametrize("goals", [1, 3])
def test_a_goal_is_reached_in_the_hand_and_not_on_the_way_down(task, goals):
    task = type(task)(InHandCfg(goals=goals))
    memory, home = memory_of(task, turned(X, 60.0)), torch.tensor(task.in_hand)
    action = torch.zeros(1, 1, task.action_size)
    for below, reached in ((0.10, 0.0), (0.07, 1.0)):
        x = physics(task, home - torch.tensor((0.0, 0.0, below)), turned(X, 60.0))
        assert not task.terminated(x, memory).any()
        assert task.advance(x, memory, action, RowRng(0, torch.arange(1)))["reached"].item() == reached
        assert task.reward(x, memory, action).get("goal", torch.zeros(1)).item() == (GOAL_BONUS * reached) * (goals > 1)


def test_further_goals_follow_those_that_are_reached(task):
    task = type(task)(InHandCfg(goals=2))
    memory, home = memory_of(task, turned(X, 60.0)), torch.tensor(task.in_hand)
    action, rng = torch.zeros(1, 1, task.action_size), RowRng(0, torch.arange(1))
    at_first, at_second = (physics(task, home, turned(X, degrees)) for degrees in (60.0, 140.0))
    assert task.reward(at_second, memory, action)["goal"].item() == 0.0
    assert task.reward(at_first, memory, action)["goal"].item() == GOAL_BONUS
    memory = task.advance(at_first, memory, action, rng)
    torch.testing.assert_close(memory["goal"][0, 0], turned(X, 140.0))  # what was next
    farther = angle_between(memory["next"], memory["goal"]).item()
    assert math.radians(60.0) <= farther <= math.radians(90.0) + 1e-6
    assert task.reward(at_first, memory, action)["goal"].item() == 0.0
    assert task.reward(at_second, memory, action)["goal"].item() == GOAL_BONUS
    memory = task.advance(at_second, memory, action, rng)
    assert memory["reached"].item() == 2.0  # the last one stays, and pays no more
    torch.testing.assert_close(memory["goal"][0, 0], turned(X, 140.0))
    assert task.reward(at_second, memory, action)["goal"].item() == 0.0


def test_the_bonus_is_worth_more_than_the_next_goal_costs():
    """A cube that is just close enough to its goal, and the next one is farther on the same way."""
    cube, goal = turned(X, 0.0), turned(X, math.degrees(in_hand.REACHED))
    farther = multiply(turned(X, math.degrees(in_hand.GOAL_ANGLES[1])), goal)
    before, after = (angle_between(cube, there).item() for there in (goal, farther))
    assert (after**2 - before**2) / (1.0 - 0.99) == pytest.approx(372.0, abs=1.0)
    assert (after**2 - before**2) / (1.0 - 0.99) < GOAL_BONUS


def test_what_holding_pays_is_an_option(task):
    upside_down, action = turned(X, 180.0), torch.zeros(1, 1, task.action_size)
    x, memory = physics(task, torch.tensor(task.in_hand), upside_down), memory_of(task, turned(X, 0.0))
    paper, kept = (
        sum(type(task)(cfg).reward(x, memory, action).values()) for cfg in (InHandCfg(), InHandCfg(held=10.0))
    )
    assert paper.item() == pytest.approx(3.0 - math.pi**2, abs=1e-3) and kept.item() > 0.0


def test_options_are_checked():
    assert all(InHandCfg(goals=3).rules().values())
    assert list(InHandCfg(goals=0).rules().items()) == [("task.goals must be at least 1, not 0", False)]


def test_the_previous_action_is_real(task):
    env = make_env(task, 2, 1, threads=1)
    torch.testing.assert_close(env.memory["action"][:, 0], task.holding(env.physics().qpos[:, 0, :-7]))
    for value in (0.1, -0.3):
        env.step(torch.full((2, 2, task.action_size), value))
        assert (task.observe(env.physics(), env.memory)["proprio"][..., -task.action_size :] == value).all()
        assert (env.observe().state[..., -task.action_size :] == value).all()


def test_the_actor_is_not_told_where_the_cube_is(task):
    memory, home = memory_of(task, turned(X, 70.0)), torch.tensor(task.in_hand)
    here = task.observe(physics(task, home, turned(X, 0.0)), memory)
    there = task.observe(physics(task, home + 0.05, turned(Y, 50.0), velocity=1.0), memory)
    assert torch.equal(here["proprio"], there["proprio"])
    assert (here["state"] != there["state"]).sum() >= 13
    assert task.inputs["pixels"] == ("proprio", "pixels") and "cube" not in task.inputs
    elsewhere = task.observe(physics(task, home, turned(X, 0.0)), memory_of(task, turned(Y, 70.0)))
    assert (here["proprio"] != elsewhere["proprio"]).sum() == 2  # the goal is told


def test_six_faces_differ_and_touch_nothing(task):
    model = model_of(task)
    colours = torch.tensor(tuple(FACES.values()))
    apart = torch.cdist(colours, colours)
    assert apart[~torch.eye(6, dtype=torch.bool)].min() > 0.5 and len(FACES) == 6
    for body in ("cube", "goal"):
        plates = [
            i for i in range(model.ngeom) if model.geom_bodyid[i] == model.body(body).id and i != model.geom("cube").id
        ]
        assert not model.geom_contype[plates].any() and not model.geom_conaffinity[plates].any()
        outside = np.abs(model.geom_pos[plates]) + model.geom_size[plates]  # (6, 3)
        np.testing.assert_allclose(outside.max(1), 0.03, atol=1e-9)  # flush with the cube
        directions = [tuple(int(a) for a in np.sign(model.geom_pos[i])) for i in plates]
        assert set(directions) == set(FACES)
        np.testing.assert_allclose(model.geom_rgba[plates, :3], [FACES[axis] for axis in directions], atol=1e-6)


def sees(model: mujoco.MjModel, camera: str, point: tuple[float, float, float]) -> bool:
    """Of a fixed camera with a square picture."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    where = model.camera(camera).id
    right, up, back = data.cam_xmat[where].reshape(3, 3).T @ (np.array(point) - data.cam_xpos[where])
    edge = math.tan(math.radians(model.cam_fovy[where]) / 2)
    return bool(back < 0 and abs(right / back) < edge and abs(up / back) < edge)


def test_the_policys_camera_is_fixed_and_points_at_the_palm(task):
    model = model_of(task)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = model.camera("palm").id
    assert model.cam_bodyid[camera] == 0 and model.cam_fovy[camera] == 80.0
    axes = data.cam_xmat[camera].reshape(3, 3)
    aim = np.array(task.palm_target) - task.palm_camera
    np.testing.assert_allclose(-axes[:, 2], aim / np.linalg.norm(aim), atol=1e-6)
    assert axes[2, 1] > 0 and abs(axes[2, 0]) < 1e-9  # up is up
    assert sees(model, "palm", task.in_hand) and not sees(model, "palm", task.goal_place)


def test_films_show_cube_and_goal(task):
    model = model_of(task)
    assert task.camera == "view" and sees(model, "view", task.in_hand) and sees(model, "view", task.goal_place)


def test_the_tasks_are_registered():
    for name in SIZES:
        assert make_task(name).action_size == SIZES[name][1]


@pytest.mark.slow
def test_every_promise_is_kept_with_further_goals(task):
    findings = check_task(type(task)(InHandCfg(goals=3)))
    assert [finding.problem for finding in findings if not finding.passed] == []
