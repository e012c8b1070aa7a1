"""The five tasks: sizes, starts, rewards worked out by hand, terminations, cameras."""

import math

import mujoco
import numpy as np
import pytest
import torch

from sdpg.build import compile_scene
from sdpg.rng import RowRng
from sdpg.tasks import terms
from sdpg.tasks.base import Task, make_task
from sdpg.tasks.terms import angle_of
from sdpg.types import Physics

SIZES = {  # of the suite: nq, nv, nu, D
    "cartpole": (2, 2, 1, 4),
    "hopper": (6, 6, 3, 11),
    "walker": (9, 9, 6, 17),
    "ant": (15, 14, 8, 37),
    "humanoid": (28, 27, 21, 76),
}
IDENTITY = (1.0, 0.0, 0.0, 0.0)


def quaternion(axis: tuple[float, float, float], angle: float) -> torch.Tensor:
    return torch.tensor((math.cos(angle / 2), *(math.sin(angle / 2) * a for a in axis)))


def physics(task: Task, qpos: dict[int, float] | None = None, qvel: dict[int, float] | None = None) -> Physics:
    """One world, all coordinates 0 (base upright) but those given by index."""
    nq, nv, _, _ = SIZES[type(task).__name__.lower()]
    x = Physics(torch.zeros(1, 1, nq), torch.zeros(1, 1, nv))
    if nq != nv:
        x.qpos[..., 3:7] = torch.tensor(IDENTITY)
    for values, given in ((x.qpos, qpos), (x.qvel, qvel)):
        for index, value in (given or {}).items():
            values[..., index] = value
    return x


def reward(task: Task, x: Physics, action: float = 0.0) -> dict[str, float]:
    memory = {"action": torch.zeros(1, 1, task.action_size)}
    return {k: v.item() for k, v in task.reward(x, memory, torch.full((1, 1, task.action_size), action)).items()}


def ended(task: Task, x: Physics) -> bool:
    return task.terminated(x, {}).item()


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    task = make_task(name)
    model = compile_scene(task)
    assert (model.nq, model.nv, model.nu, task.state_size) == SIZES[name]
    assert task.action_size == model.nu
    assert task.substeps * model.opt.timestep == task.step_seconds == (0.02 if name == "cartpole" else 0.01)
    assert model.opt.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert (model.actuator_ctrlrange == [-1.0, 1.0]).all()


@pytest.mark.parametrize("name", SIZES)
def test_robots_are_capsules_and_spheres_of_one_colour(name):
    model = compile_scene(make_task(name))
    robot = model.geom_bodyid > 0
    kinds = {mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_SPHERE}
    assert set(model.geom_type[robot]) <= {int(kind) for kind in kinds}
    np.testing.assert_allclose(model.mat_rgba[model.geom_matid[robot]], np.tile([1.0, 0.5, 0.0, 1.0], (robot.sum(), 1)))


@pytest.mark.parametrize("name", SIZES)
def test_spawn_pose_has_no_penetration(name):
    model = compile_scene(make_task(name))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert all(contact.dist > -1e-6 for contact in data.contact)


@pytest.mark.parametrize(
    ("name", "torques"),
    [
        ("hopper", [200] * 3),
        ("walker", [100, 50, 20] * 2),
        ("ant", [200] * 8),
        ("humanoid", [67.5] * 3 + [45, 45, 135, 90, 22.5, 22.5] * 2 + [67.5, 67.5, 45] * 2),
    ],
)
def test_torque_at_full_action(name, torques):
    np.testing.assert_allclose(compile_scene(make_task(name)).actuator_gear[:, 0], torques)


def test_armature():
    # The root's degrees of freedom have none.
    np.testing.assert_allclose(compile_scene(make_task("hopper")).dof_armature, [0] * 3 + [0.1] * 3)
    np.testing.assert_allclose(compile_scene(make_task("walker")).dof_armature, [0] * 3 + [0.01] * 6)
    np.testing.assert_allclose(compile_scene(make_task("ant")).dof_armature, [0] * 6 + [1] * 8)


def test_only_the_ants_feet_touch_only_the_floor():
    model = compile_scene(make_task("ant"))
    colliding = {model.geom(i).name for i in range(model.ngeom) if model.geom_contype[i] or model.geom_conaffinity[i]}
    assert colliding == {"floor", "foot1", "foot2", "foot3", "foot4"}
    feet = [model.geom(f"foot{i}").id for i in (1, 2, 3, 4)]
    assert not (model.geom_conaffinity[feet]).any()


def test_humanoid_weighs_what_a_small_person_does():
    assert 35.0 < compile_scene(make_task("humanoid")).body_mass.sum() < 45.0


def test_planar_starts():
    for name in ("hopper", "walker"):
        start = make_task(name).start(RowRng(0, torch.arange(2000)), 2000, None)
        assert start.qpos.abs().max() <= 0.05 and start.qpos.abs().amax(0).min() > 0.045
        assert not start.qvel.any()


@pytest.mark.parametrize("name", ["ant", "humanoid"])
def test_floating_starts(name):
    task = make_task(name)
    start = task.start(RowRng(0, torch.arange(2000)), 2000, None)
    centre = torch.tensor((0.0, 0.0, task.start_height, *task.start_joints))
    pose = torch.cat((start.qpos[:, :3], start.qpos[:, 7:]), dim=-1)
    assert (pose - centre).abs().max() <= 0.05 + 1e-6
    quat = start.qpos[:, 3:7]
    torch.testing.assert_close(quat.norm(dim=-1), torch.ones(2000))
    angle = 2.0 * torch.acos(quat[:, 0].clamp(max=1.0))
    assert math.radians(7.0) < angle.max() <= math.radians(7.5) + 1e-3
    assert not start.qvel.any() and not start.memory["action"].any()


def test_cartpole_starts():
    start = make_task("cartpole").start(RowRng(0, torch.arange(2000)), 2000, None)
    assert start.qpos[:, 0].abs().max() <= 0.3 and 0.3 < start.qpos[:, 1].abs().max() <= 0.35


def test_height_reward():
    # below: -200 * 0.1^2 = -2; the distance is clipped at 1: -200; above: gain * min(D, tolerance)
    height = torch.tensor([0.74, -5.0, 0.89, 3.0, 0.84])
    got = terms.height_reward(height, target=0.84, tolerance=0.1, gain=10.0)
    torch.testing.assert_close(got, torch.tensor([-2.0, -200.0, 0.5, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_wrap_angle():
    got = terms.wrap_angle(torch.tensor([0.5, 2 * math.pi + 0.5, -2 * math.pi - 0.5]))
    torch.testing.assert_close(got, torch.tensor([0.5, 0.5, -0.5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("axis", "angle", "up", "forward"),
    [
        ((1.0, 0.0, 0.0), 0.5, math.cos(0.5), 1.0),  # roll
        ((0.0, 1.0, 0.0), 0.5, math.cos(0.5), math.cos(0.5)),  # pitch
        ((0.0, 0.0, 1.0), 0.5, 1.0, math.cos(0.5)),  # yaw
        ((1.0, 0.0, 0.0), math.pi, -1.0, 1.0),  # upside down
    ],
)
def test_projections(axis, angle, up, forward):
    quat = quaternion(axis, angle)
    assert terms.up_projection(quat).item() == pytest.approx(up, abs=1e-6)
    assert terms.forward_projection(quat).item() == pytest.approx(forward, abs=1e-6)
    assert terms.rotate(quat, torch.tensor([0.0, 0.0, 1.0]))[2].item() == pytest.approx(up, abs=1e-6)
    assert terms.rotate(quat, torch.tensor([1.0, 0.0, 0.0]))[0].item() == pytest.approx(forward, abs=1e-6)


def test_rotate_agrees_with_mujoco():
    quat, vector, want = quaternion((0.6, 0.0, 0.8), 1.1), torch.tensor([0.3, -0.7, 0.2]), np.zeros(3)
    mujoco.mju_rotVecQuat(want, vector.double().numpy(), quat.double().numpy())
    np.testing.assert_allclose(terms.rotate(quat, vector).numpy(), want, atol=1e-6)


def test_cartpole_reward():
    task = make_task("cartpole")
    assert sum(reward(task, physics(task)).values()) == pytest.approx(1.0)  # the maximum: still, upright, centred
    # tilt 0.5 of 1: 0.6 * (1 - 0.25) = 0.45; shift 0.6 of 1.2: 0.3 * 0.75 = 0.225; action 0.5: 0.1 * 0.75 = 0.075
    got = reward(task, physics(task, qpos={0: 0.6, 1: 0.5}), action=0.5)
    assert got == pytest.approx({"upright": 0.45, "centre": 0.225, "calm": 0.075})


def test_hopper_reward():
    task = make_task("hopper")
    # v_x = 2; height 0.1 - (-0.3) = 0.4; pitch 1 - (pi/12 / (pi/6))^2 = 0.75; effort -0.1 * 3 * 0.5^2 = -0.075
    x = physics(task, qpos={1: 0.1, 2: math.pi / 12}, qvel={0: 2.0})
    want = {"forward": 2.0, "height": 0.4, "pitch": 0.75, "effort": -0.075}
    assert reward(task, x, action=0.5) == pytest.approx(want)
    # 0.1 below the target height: -200 * 0.01 = -2; a whole turn changes nothing
    low = reward(task, physics(task, qpos={1: -0.4, 2: 2 * math.pi}))
    assert (low["height"], low["pitch"]) == pytest.approx((-2.0, 1.0), abs=1e-4)


def test_walker_reward():
    task = make_task("walker")
    # v_x = 1.5; effort -0.01 * 6 * 1 = -0.06; health 0.1
    got = reward(task, physics(task, qvel={0: 1.5}), action=1.0)
    assert got == pytest.approx({"forward": 1.5, "effort": -0.06, "health": 0.1})


def test_ant_reward():
    task = make_task("ant")
    # v_x = 1; height 0.77 - 0.27 = 0.5; upright 0.1; facing x 1
    got = reward(task, physics(task, qpos={2: 0.77}, qvel={0: 1.0}), action=1.0)
    assert got == pytest.approx({"forward": 1.0, "height": 0.5, "up": 0.1, "heading": 1.0})
    x = physics(task)
    x.qpos[..., 3:7] = quaternion((0.0, 1.0, 0.0), math.pi / 3)  # nose down by 60 degrees: cos = 0.5
    got = reward(task, x)
    assert (got["up"], got["heading"]) == pytest.approx((0.05, 0.5))


def test_humanoid_reward():
    task = make_task("humanoid")
    # standing: the height term is clipped at 10 * 0.1 = 1; effort -0.002 * 21 * 0.5^2 = -0.0105
    got = reward(task, physics(task, qpos={2: 1.3}, qvel={0: 1.0}), action=0.5)
    want = {"forward": 1.0, "height": 1.0, "up": 0.1, "heading": 1.0, "effort": -0.0105}
    assert got == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "index", "inside", "outside"),
    [
        ("cartpole", 0, (-1.19, 1.19), (-1.21, 1.21)),
        ("cartpole", 1, (-0.99, 0.99), (-1.01, 1.01)),
        ("hopper", 1, (-0.449, 14.9), (-0.451, 15.1)),
        ("hopper", 2, (-3.0, 3.0), ()),  # pitch alone never ends it
        ("walker", 1, (-0.49, 0.69), (-0.51, 0.71)),
        ("walker", 2, (-0.99, 0.99), (-1.01, 1.01)),
        ("ant", 2, (0.271, 1.29), (0.269, 1.31)),
        ("humanoid", 2, (0.741, 1.99), (0.739, 2.01)),
    ],
)
def test_termination_boundaries(name, index, inside, outside):
    task = make_task(name)
    assert not any(ended(task, physics(task, qpos={index: value})) for value in inside)
    assert all(ended(task, physics(task, qpos={index: value})) for value in outside)


def test_hopper_ends_when_any_coordinate_is_too_fast():
    task = make_task("hopper")
    for index in range(6):
        assert not ended(task, physics(task, qvel={index: -99.0}))
        assert ended(task, physics(task, qvel={index: -101.0}))


def test_walker_state_order():
    task = make_task("walker")
    x = physics(task)
    x.qpos[0, 0], x.qvel[0, 0] = torch.arange(9.0), 10 + torch.arange(9.0)  # x, height, pitch, joints
    want = [2, 1, 3, 4, 5, 6, 7, 8, 10, 12, 11, 13, 14, 15, 16, 17, 18]
    assert task.observe(x, {})["state"][0, 0].tolist() == want


def test_ant_state_order():
    task = make_task("ant")
    x = physics(task, qpos={0: 5.0, 1: 6.0, 2: 0.75, 7: 0.3, 14: 0.4}, qvel={0: 1.0, 5: 2.0, 6: 3.0, 13: 4.0})
    state = task.observe(x, {"action": torch.full((1, 1, 8), 0.5)})["state"][0, 0]
    assert state[:5].tolist() == pytest.approx([0.75, *IDENTITY])
    assert (state[5].item(), state[10].item()) == (1.0, 2.0)  # base velocities 5..10
    assert (state[11].item(), state[18].item()) == pytest.approx((0.3, 0.4))  # joints 11..18
    assert (state[19].item(), state[26].item()) == pytest.approx((0.3, 0.4))  # 0.1 * joint velocities 19..26
    assert state[27:].tolist() == pytest.approx([1.0, 1.0] + [0.5] * 8)  # up, forward, previous action


def test_previous_action_is_remembered_within_bounds():
    task = make_task("humanoid")
    action = torch.full((1, 1, 21), 3.0)
    after = task.advance(physics(task), {"action": torch.zeros(1, 1, 21)}, action, RowRng(0, torch.arange(1)))
    assert after["action"].eq(1.0).all() and action.eq(3.0).all()


def project(model: mujoco.MjModel, data: mujoco.MjData, camera: str, point: np.ndarray) -> np.ndarray:
    """(right, up) in an image that spans [-1, 1] vertically."""
    cam = model.camera(camera).id
    right, up, back = data.cam_xmat[cam].reshape(3, 3).T
    offset = point - data.cam_xpos[cam]
    scale = -(offset @ back) * math.tan(math.radians(model.cam_fovy[cam]) / 2)
    return np.array([offset @ right, offset @ up]) / scale


@pytest.mark.parametrize(
    ("name", "offset", "pixel"),
    [
        # Side views look along +y from 0.5 below the torso: it is 0.5 / (distance * tan 30 deg) above the centre.
        ("hopper", (0.0, -2.0, -0.5), (0.0, 0.5 / (2.0 * math.tan(math.pi / 6)))),
        ("walker", (0.0, -1.8, -0.5), (0.0, 0.5 / (1.8 * math.tan(math.pi / 6)))),
        # Chase views look at the torso.
        ("ant", (0.5, -2.0, 1.0), (0.0, 0.0)),
        ("humanoid", (-3.0, 0.0, 1.0), (0.0, 0.0)),
    ],
)
def test_camera_follows_the_torso_without_turning(name, offset, pixel):
    task = make_task(name)
    model = compile_scene(task)
    data = mujoco.MjData(model)
    start = task.start(RowRng(3, torch.arange(1)), 1, None)
    data.qpos[:] = start.qpos[0]
    data.qpos[0] += 7.0  # far along the track
    mujoco.mj_forward(model, data)
    torso = data.body("torso").xpos
    np.testing.assert_allclose(data.camera("track").xpos - torso, offset, atol=1e-9)
    np.testing.assert_allclose(project(model, data, "track", torso), pixel, atol=1e-9)
    above = project(model, data, "track", torso + np.array([0, 0, 0.1])) - project(model, data, "track", torso)
    assert abs(above[0]) < 1e-9 and above[1] > 0  # world up is image up
    if name != "humanoid":
        assert project(model, data, "track", torso + np.array([0.1, 0, 0]))[0] > pixel[0]  # forward is to the right


def test_cartpole_camera_sees_the_whole_rail():
    model = compile_scene(make_task("cartpole"))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    for x in (-1.3, 1.3):  # the cart's end at the rail's end
        assert np.abs(project(model, data, "side", np.array([x, 0.0, 0.5]))).max() < 1.0
    assert np.abs(project(model, data, "side", np.array([0.0, 0.0, 1.3]))).max() < 1.0  # tip of the upright pole


def test_angles_are_those_of_atan2_wherever_they_lie():
    angle = torch.linspace(-math.pi, math.pi, 1001)[1:-1]
    x, y = 0.3 * angle.cos(), 0.3 * angle.sin()
    assert torch.allclose(angle_of(x, y), angle, atol=1e-5)
    axes = angle_of(torch.tensor((1.0, 0.0, -1.0, 0.0, 0.0)), torch.tensor((0.0, 1.0, 0.0, -1.0, 0.0)))
    assert torch.allclose(axes, torch.tensor((0.0, 0.5, 1.0, -0.5, 0.0)) * math.pi)
    same = angle_of(*(torch.full((39,), value) for value in (-0.37, 0.91)))
    assert same.eq(same[0]).all()
