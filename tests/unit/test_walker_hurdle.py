"""walker_hurdle: the track and what is scanned of it, rewards and limits worked out by hand, physics, the camera."""

import math

import mujoco
import numpy as np
import pytest
import torch
from helpers.hurdles import ended, ground_below, looks, model_of, physics, red_cells, terms, world, world_camera

from sdpg import presets
from sdpg.build import compile_scene, make_env
from sdpg.render.api import View
from sdpg.render.choose import make_renderer
from sdpg.rng import RowRng
from sdpg.tasks.hurdles import EGO, HURDLES, HurdleCfg
from sdpg.tasks.walker_hurdle import WalkerHurdle

X, HEIGHT, PITCH = 0, 1, 2


@pytest.fixture(scope="module")
def task() -> WalkerHurdle:
    return WalkerHurdle()


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return model_of(WalkerHurdle)


def test_declarations(task, model):
    assert (model.nq, model.nv, model.nu) == (9, 9, task.action_size)
    assert sum(task.state_parts.values()) == task.state_size
    observed = task.observe(physics(world(model, {})), {})
    assert {name: observed[name].shape[-1] for name in task.state_parts} == dict(task.state_parts)
    torch.testing.assert_close(observed["state"], torch.cat((observed["proprio"], observed["scan"]), dim=-1))
    for kind, sources in task.inputs.items():
        assert all(source in observed or source in task.cameras for source in sources), kind
        assert set(sources) <= set(task.encoders)
    assert task.state_encoders["scan"].widths == (128, 256) and not task.state_encoders["scan"].normalized
    assert model.opt.timestep * task.substeps == pytest.approx(0.01)


def test_ten_hurdles_that_rise(task):
    tops, (near, far) = task.track.tops, task.track.sides
    assert len(tops) == 10
    for level in range(5):
        least, most = 0.2 + 0.05 * level, 0.3 + 0.05 * level
        assert ((least - 1e-4 <= tops[2 * level : 2 * level + 2]) & (tops[2 * level : 2 * level + 2] <= most)).all()
    np.testing.assert_allclose(far - near, 0.25, atol=1e-5)  # four nodes of top, and a ramp of a cell on either side
    assert 2.2 < near[0] < 2.4 and (np.diff(near) > 2.3).all()
    assert (WalkerHurdle(HurdleCfg(track_seed=1)).track.tops != tops).any()


def test_starts_stand_before_the_first_hurdle(task, model):
    start = task.start(RowRng(0, torch.arange(500)), 500, None)
    assert start.qpos[:, X].abs().max() <= 0.05 < task.track.sides[0, 0]
    assert not task.track.height_at(torch.stack((start.qpos[:, X], torch.zeros(500)), dim=-1)).any()
    assert world(model, {}).ncon == 0


def test_scanned_heights_are_those_of_the_scene(task, model):
    for x in (0.0, 1.43, float(task.track.sides[0, 0]) + 0.02, 12.9, 24.4, -7.0, 60.0):
        data = world(model, {X: x, HEIGHT: 20.0})
        scan = task.observe(physics(data), {})["scan"][0, 0]
        ahead = x + torch.linspace(-2.0, 5.0, 36)
        expected = ground_below(data, torch.stack((ahead, torch.zeros(36)), dim=-1))
        torch.testing.assert_close(scan, expected.float(), atol=1e-4, rtol=0)
    assert scan.max() == 0.0  # far beyond the track: flat ground, without end


def test_rewards_by_hand(task, model):
    # 10 * 2 m/s, -0.1 * 6 * 0.5^2, and 1 for health
    got = terms(task, world(model, {}, {X: 2.0}), action=0.5)
    assert got == pytest.approx({"forward": 20.0, "effort": -0.15, "health": 1.0})


def test_limits_rise_with_the_hurdles(task, model):
    above = world(model, {HEIGHT: 0.72})
    assert ended(task, above)
    assert not ended(task, world(model, {HEIGHT: 0.68}))
    near, far = (float(side) for side in task.track.sides[:, 9])
    top = float(task.track.tops[9])
    for x in (near - 0.9, near, far, far + 0.9):
        assert not ended(task, world(model, {X: x, HEIGHT: 0.68 + top}))
        assert ended(task, world(model, {X: x, HEIGHT: 0.72 + top}))
    assert ended(task, world(model, {X: far + 1.1, HEIGHT: 0.68 + top}))
    assert ended(task, world(model, {HEIGHT: -0.52})) and not ended(task, world(model, {HEIGHT: -0.48}))
    assert ended(task, world(model, {PITCH: 1.02})) and ended(task, world(model, {PITCH: -1.02}))


def test_hurdles_cleared_are_counted(task, model):
    def measured(x: float) -> dict[str, float]:
        return {name: value.item() for name, value in task.measure(physics(world(model, {X: x})), {}).items()}

    far = task.track.sides[1]
    assert measured(0.0) == {"distance": 0.0, "hurdles_cleared": 0.0}
    assert measured(float(far[0]) + 0.45)["hurdles_cleared"] == 0.0  # not yet half a metre beyond
    assert measured(float(far[0]) + 0.55)["hurdles_cleared"] == 1.0
    assert measured(float(far[4]) + 0.55) == pytest.approx({"distance": far[4] + 0.55, "hurdles_cleared": 5.0})
    assert measured(40.0)["hurdles_cleared"] == 10.0


@pytest.mark.parametrize("x", [-6.0, 0.0, 3.5, 40.0])
def test_the_ground_carries_before_on_and_beyond_the_track(model, x):
    """Let fall, the robot comes to rest on the floor, and nothing of it is below."""
    data = world(model, {X: x})
    for _ in range(600):
        mujoco.mj_step(model, data)
    robot = model.geom_bodyid > 0
    reach = np.abs(data.geom_xmat[robot, 8]) * model.geom_size[robot, 1] + model.geom_size[robot, 0]  # capsules, down
    assert -0.01 < (data.geom_xpos[robot, 2] - reach).min() < 0.01


def test_hurdles_are_solid(task, model):
    """Feet that come down on a hurdle stop at its top; feet that are driven against it do not pass."""
    near, far = (float(side) for side in task.track.sides[:, 8])
    top = float(task.track.tops[8])
    data = world(model, {X: (near + far) / 2 - 0.06, HEIGHT: top + 0.02})
    lowest = []
    for _ in range(60):
        mujoco.mj_step(model, data)
        touching = {int(g) for contact in data.contact for g in contact.geom}
        if model.geom(HURDLES).id in touching:
            lowest.append(min(contact.pos[2] for contact in data.contact))
    assert lowest and abs(lowest[0] - top) < 0.01
    data = world(model, {X: near - 0.4}, {X: 3.0})
    for _ in range(100):
        mujoco.mj_step(model, data)
    assert data.geom("right_foot").xpos[0] < near + 0.05 and data.geom("left_foot").xpos[0] < near + 0.05


def test_a_robot_that_falls_ends_its_episode():
    env = make_env("walker_hurdle", 8, 0, 0, 1)
    fell = torch.zeros(8, dtype=torch.bool)
    for _ in range(200):
        fell |= env.step(torch.zeros(8, 1, 6)).terminated[:, 0]
    assert fell.all()


def test_the_camera_turns_with_the_torso_unless_told_otherwise(model):
    place, direction = looks(world(model, {X: 1.0}))
    np.testing.assert_allclose(place, (1.2, 0.0, 1.2), atol=1e-6)
    np.testing.assert_allclose(direction, np.array((3.0, 0.0, -1.0)) / math.sqrt(10), atol=1e-6)
    pitched = {X: 1.0, PITCH: 0.4}  # nose down
    _, turned = looks(world(model, pitched))
    assert math.atan2(-turned[2], turned[0]) == pytest.approx(math.atan2(1, 3) + 0.4, abs=1e-5)
    fixed = compile_scene(world_camera(WalkerHurdle))
    place, direction = looks(world(fixed, pitched))
    np.testing.assert_allclose(place, (1.2, 0.0, 1.2), atol=1e-6)
    np.testing.assert_allclose(direction, np.array((3.0, 0.0, -1.0)) / math.sqrt(10), atol=1e-6)


def test_hurdles_are_red_on_white_ground(task, model):
    red = red_cells(task)
    low = -task.hurdles.border
    centres = low + task.hurdles.cell * (np.arange(red.shape[1]) + 0.5)
    near, far = task.track.sides
    at_hurdle = ((centres[:, None] > near) & (centres[:, None] < far)).any(1)
    np.testing.assert_array_equal(red[red.shape[0] // 2], at_hurdle)
    assert not red[0].any() and not red[-1].any()
    data = world(model, {X: float(near[0]) - 1.0})
    image = make_renderer(model, 1, [View(EGO)]).render(physics(data).qpos[:, 0])[EGO].rgb[0].int()  # (3, H, W)
    reddish = (image[0] > image[1] + 60) & (image[0] > image[2] + 60)
    assert 0.02 < reddish.float().mean() < 0.6
    assert (image.amin(0) == 255).float().mean() > 0.1


def test_presets():
    state, pixels = (presets.resolve("walker_hurdle", "paper", obs) for obs in ("state", "pixels"))
    assert (state.iterations, pixels.iterations) == (5000, 10_000)
    for cfg, widths, lr in ((state, (256,), 2e-3), (pixels, (256, 128), 1e-3)):
        algo = cfg.algo
        assert (algo.actor_widths, algo.critic_widths, algo.actor_lr, algo.critic_lr) == (widths, (128,), lr, 2e-4)
        assert (cfg.num_nominal, cfg.num_auxiliary, algo.horizon, algo.target_decay) == (64, 63, 32, 0.01)
        assert not algo.entropy
