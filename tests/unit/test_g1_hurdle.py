"""g1_hurdle: the robot's joints and motors, standing and falling, what it observes, rewards and limits by hand."""

import math
import os

import mujoco
import numpy as np
import pytest
import torch
from helpers.hurdles import ended, ground_below, looks, model_of, physics, red_cells, terms, world, world_camera

from sdpg import presets
from sdpg.build import compile_scene, make_env
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.tasks.g1_hurdle import JOINTS, G1Hurdle
from sdpg.tasks.hurdles import HURDLES
from sdpg.tasks.menagerie import folder

try:
    folder("unitree_g1")
except SdpgError as error:
    if os.environ.get("CI"):
        raise
    pytest.skip(str(error), allow_module_level=True)

X, Y, Z, QUAT = 0, 1, 2, 3
STANDING = 0.757  # height of the pelvis at rest, the soles on the floor


@pytest.fixture(scope="module")
def task() -> G1Hurdle:
    return G1Hurdle()


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return model_of(G1Hurdle)


def standing(x: float = 0.2, z: float = STANDING) -> dict[int, float]:
    rest = {7 + i: numbers[0] for i, numbers in enumerate(JOINTS.values())}
    return {X: x, Z: z} | rest


def turned(axis: tuple[float, float, float], angle: float) -> dict[int, float]:
    """The base's quaternion."""
    quat = (math.cos(angle / 2), *(math.sin(angle / 2) * a for a in axis))
    return {QUAT + i: value for i, value in enumerate(quat)}


def test_declarations(task, model):
    assert (model.nq, model.nv, model.nu) == (30, 29, task.action_size)
    assert sum(task.state_parts.values()) == task.state_size
    observed = task.observe(physics(world(model, standing())), {})
    assert {name: observed[name].shape[-1] for name in task.state_parts} == dict(task.state_parts)
    torch.testing.assert_close(observed["state"], torch.cat((observed["proprio"], observed["scan"]), dim=-1))
    for kind, sources in task.inputs.items():
        assert all(source in observed or source in task.cameras for source in sources), kind
        assert set(sources) <= set(task.encoders)
    assert model.opt.timestep * task.substeps == pytest.approx(0.02)


def test_joints_motors_and_their_limits(model):
    names = [f"g1/{name}_joint" for name in JOINTS]
    assert [model.joint(i + 1).name for i in range(23)] == names
    assert [model.actuator(i).name for i in range(23)] == names
    kp, kd = np.array([numbers[2:] for numbers in JOINTS.values()]).T
    np.testing.assert_allclose(model.actuator_gainprm[:, 0], kp)
    np.testing.assert_allclose(model.actuator_biasprm[:, :3], np.stack((0 * kp, -kp, -kd), axis=1))
    np.testing.assert_allclose(model.actuator_ctrlrange, model.jnt_range[1:])
    force = model.jnt_actfrcrange[1:]
    assert model.jnt_actfrclimited[1:].all()
    np.testing.assert_allclose(force[:, 0], -force[:, 1])
    np.testing.assert_allclose(force[:6, 1], [88, 139, 88, 139, 50, 50])
    np.testing.assert_allclose(model.dof_armature, [0.0] * 6 + [0.1] * 23)
    rest, (low, high) = np.array([numbers[0] for numbers in JOINTS.values()]), model.jnt_range[1:].T
    assert ((low < rest) & (rest < high)).all()
    assert 30.0 < model.body_mass.sum() < 35.0


def test_actions_are_targets_around_the_pose_at_rest(task):
    action = torch.zeros(1, 1, 23)
    action[..., 3], action[..., 13] = 1.0, -3.0  # left knee; left shoulder pitch, beyond what an action may be
    control = task.control(None, {}, action)[0, 0]
    assert control[3].item() == pytest.approx(0.669 + 1.1694)
    assert control[13].item() == pytest.approx(0.2 - 1.0997)
    assert control[18].item() == pytest.approx(0.2) and control[19].item() == pytest.approx(-0.2)  # right shoulder


def test_it_stands_for_five_seconds(task, model):
    data = world(model, standing())
    data.ctrl[:] = task.control(None, {}, torch.zeros(1, 1, 23))[0, 0].numpy()
    lowest, highest = 1.0, 0.0
    for _ in range(1000):
        mujoco.mj_step(model, data)
        lowest, highest = min(lowest, data.qpos[Z]), max(highest, data.qpos[Z])
    assert lowest > 0.74 and highest < 0.76
    assert np.abs(data.qvel).max() < 0.05
    assert data.ncon == 8  # on the four spheres of each sole, and on nothing else
    assert {model.geom(int(contact.geom[0])).name for contact in data.contact} == {"floor"}


def test_it_stands_from_most_starts_and_ends_where_it_falls():
    env = make_env("g1_hurdle", 16, 0, 0, 1)
    standing = torch.ones(16, dtype=torch.bool)
    for _ in range(100):
        standing &= ~env.step(torch.zeros(16, 1, 23)).terminated[:, 0]
    assert standing.float().mean() > 0.7
    crouch = torch.zeros(16, 1, 23)
    crouch[..., (0, 6)] = 1.0  # hips stretched: it falls on its back
    fell = torch.zeros(16, dtype=torch.bool)
    for _ in range(100):
        fell |= env.step(crouch).terminated[:, 0]
    assert fell.all()


def test_starts(task):
    start = task.start(RowRng(0, torch.arange(1000)), 1000, None)
    assert ((start.qpos[:, :3] - torch.tensor((0.2, 0.0, 0.8))).abs() <= 0.05 + 1e-6).all()
    angle = 2.0 * torch.acos(start.qpos[:, QUAT].clamp(max=1.0))
    assert math.radians(7.0) < angle.max() <= math.radians(7.5) + 1e-3
    rest = torch.tensor([numbers[0] for numbers in JOINTS.values()])
    assert (start.qpos[:, 7:] - rest).abs().max() <= 0.05 + 1e-6
    assert not start.qvel.any()


def test_proprioception_by_hand(task, model):
    data = world(model, standing() | turned((0.0, 1.0, 0.0), 0.3), {0: 1.5, 2: -0.5, 4: 0.7, 6 + 3: 2.0})
    proprio = task.observe(physics(data), {})["proprio"][0, 0]
    expected = [
        STANDING,
        math.sin(0.3),
        0.0,
        -math.cos(0.3),
        1.5,
        0.0,
        -0.5,
        0.0,
        0.7,
        0.0,
    ]  # nose down: gravity along +x
    torch.testing.assert_close(proprio[:10], torch.tensor(expected))
    leant = task.observe(physics(world(model, standing() | turned((0.6, 0.0, 0.8), 0.5))), {})["proprio"][0, 0, 1:4]
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, np.array(list(turned((0.6, 0.0, 0.8), 0.5).values())))
    np.testing.assert_allclose(leant, rotation.reshape(3, 3).T @ (0.0, 0.0, -1.0), atol=1e-6)
    assert proprio[10 + 3].item() == pytest.approx(0.669) and proprio[10 + 23 + 3].item() == pytest.approx(2.0)


@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.0])
def test_scanned_heights_are_those_of_the_scene_and_turn_with_the_robot(task, model, yaw):
    x, y = float(task.track.sides[0, 4]) - 0.43, 0.3
    data = world(model, standing(x, 20.0) | {Y: y} | turned((0.0, 0.0, 1.0), yaw))
    scan = task.observe(physics(data), {})["scan"][0, 0]
    points = [
        (x + math.cos(yaw) * a - math.sin(yaw) * b, y + math.sin(yaw) * a + math.cos(yaw) * b)
        for a in np.linspace(-0.8, 2.0, 15)
        for b in np.linspace(-0.4, 0.4, 9)
    ]
    expected = ground_below(data, torch.tensor(points))
    torch.testing.assert_close(scan, expected.float(), atol=2e-4, rtol=0)
    assert scan.max() > 0.05


def test_twenty_hurdles_that_rise(task):
    tops, (near, far) = task.track.tops, task.track.sides
    assert len(tops) == 20
    least = np.repeat(np.linspace(0.1, 0.46, 10), 2)
    assert ((least - 1e-4 <= tops) & (tops <= least + 0.0101)).all()
    np.testing.assert_allclose(far - near, 0.2, atol=1e-5)  # as long as a step of the scan, which so misses none
    assert 1.7 < near[0] < 2.2 and (np.diff(near) >= 1.75).all()
    red = red_cells(task)
    assert red[red.shape[0] // 2].sum() == 20 * 4 and not red[0].any()


def test_rewards_by_hand(task, model):
    # 2 m/s; 10 * (0.757 - 0.7); 0.1 * cos 0.3 for up; cos 0.3 for heading; -0.002 * 23 * 0.5^2
    data = world(model, standing() | turned((0.0, 1.0, 0.0), 0.3), {0: 2.0})
    expected = {"forward": 2.0, "height": 0.57, "up": 0.1 * math.cos(0.3), "heading": math.cos(0.3), "effort": -0.0115}
    assert terms(task, data, action=0.5) == pytest.approx(expected, abs=1e-5)
    low = terms(task, world(model, standing(z=0.65)))  # -200 * 0.05^2
    assert low["height"] == pytest.approx(-0.5, abs=1e-4)
    aside = terms(task, world(model, standing() | turned((0.0, 0.0, 1.0), 0.3)))
    assert aside["heading"] == pytest.approx(math.cos(0.3)) and aside["up"] == pytest.approx(0.1)


def test_standing_on_a_hurdle_pays_no_more_than_beside_it(task, model):
    top, middle = float(task.track.tops[4]), float(task.track.sides[:, 4].mean())
    on_floor, on_hurdle, over_hurdle, low = (
        terms(task, world(model, standing(x, z)))["height"]
        for x, z in ((0.2, 0.757), (middle, 0.757 + top), (middle, 0.757), (middle, 0.65))
    )
    assert on_floor == pytest.approx(0.57, abs=1e-4) and on_hurdle == pytest.approx(on_floor, abs=1e-4)
    assert over_hurdle == pytest.approx(0.0, abs=1e-6)  # to step over one costs nothing
    assert low == pytest.approx(-0.5, abs=1e-4)  # 5 cm too low, whatever is below


def test_limits(task, model):
    for height, over in ((0.59, True), (0.61, False), (0.99, False), (1.01, True)):
        assert ended(task, world(model, standing(z=height))) == over
    assert ended(task, world(model, standing() | {Y: 2.51})) and ended(task, world(model, standing() | {Y: -2.51}))
    near, top = float(task.track.sides[0, 19]), float(task.track.tops[19])
    assert not ended(task, world(model, standing(near, 0.99 + top)))
    assert ended(task, world(model, standing(near, 1.01 + top)))


def test_distance_and_hurdles_cleared(task, model):
    data = world(model, standing(float(task.track.sides[1, 6]) + 0.55))
    measured = {name: value.item() for name, value in task.measure(physics(data), {}).items()}
    assert measured == pytest.approx({"distance": data.qpos[X], "hurdles_cleared": 7.0})


def test_feet_stop_at_a_hurdles_top(task, model):
    near, far = (float(side) for side in task.track.sides[:, 10])
    top = float(task.track.tops[10])
    data = world(model, standing((near + far) / 2 - 0.05, STANDING + top + 0.01))
    for _ in range(40):
        mujoco.mj_step(model, data)
        touching = {int(geom) for contact in data.contact for geom in contact.geom}
        if model.geom(HURDLES).id in touching:
            break
    contact = data.contact[0]
    assert model.geom(HURDLES).id in contact.geom and abs(contact.pos[2] - top) < 0.01


def test_legs_do_not_pass_through_each_other(task, model):
    crossed = standing(z=1.5) | {7 + 1: -0.4, 13 + 1: 0.4}  # hip rolls inwards
    pairs = {
        frozenset(model.body(model.geom_bodyid[g]).name for g in contact.geom)
        for contact in world(model, crossed).contact
    }
    assert any({"left", "right"} == {name.removeprefix("g1/").split("_")[0] for name in pair} for pair in pairs)
    assert world(model, standing(z=1.5)).ncon == 0  # and at rest nothing touches


def test_the_camera_is_on_the_torso(model):
    torso = world(model, standing()).body("g1/torso_link").xpos
    place, direction = looks(world(model, standing()))
    np.testing.assert_allclose(place - torso, (0.2, 0.0, -0.1), atol=1e-6)
    np.testing.assert_allclose(direction, np.array((3.0, 0.0, -1.0)) / math.sqrt(10), atol=1e-6)
    tilted = standing() | turned((0.0, 1.0, 0.0), 0.4)
    _, rigid = looks(world(model, tilted))
    assert math.atan2(-rigid[2], rigid[0]) == pytest.approx(math.atan2(1, 3) + 0.4, abs=1e-5)
    _, fixed = looks(world(compile_scene(world_camera(G1Hurdle)), tilted))
    np.testing.assert_allclose(fixed, direction, atol=1e-6)


def test_presets():
    state, pixels = (presets.resolve("g1_hurdle", "paper", obs) for obs in ("state", "pixels"))
    for cfg, lr in ((state, 2e-3), (pixels, 1e-3)):
        algo = cfg.algo
        assert (algo.actor_widths, algo.critic_widths, algo.actor_lr, algo.critic_lr) == ((256, 128), (128,), lr, 5e-4)
        assert (cfg.iterations, cfg.num_auxiliary, algo.horizon, algo.target_decay) == (100_000, 63, 16, 0.2)
        assert algo.entropy and algo.auto_temperature and algo.critic_schedule == "linear"
