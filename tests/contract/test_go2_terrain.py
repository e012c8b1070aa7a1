"""Go2 on terrain: its physics is sane, what it is told and paid for is what is meant, and levels rise and fall."""

from __future__ import annotations

import math
import os

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.tasks import go2, menagerie
from sdpg.tasks.go2_terrain import FRAME, FRAMES, RANGES, WEIGHTS, Go2Terrain, Go2TerrainCfg
from sdpg.tasks.terms import yaw_of
from sdpg.types import Ended, Memory, Physics

CALM = Go2TerrainCfg(randomised=False, pushes=False)
STAIRS_DOWN = 8  # a column of kinds


@pytest.fixture(scope="module", autouse=True)
def _model() -> None:
    try:
        menagerie.folder("unitree_go2")
    except SdpgError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def calm() -> Go2Terrain:
    """Nothing is random but where it starts."""
    return Go2Terrain(CALM)


@pytest.fixture(scope="module")
def varied() -> Go2Terrain:
    return Go2Terrain()


def _rng(n: int, seed: int = 0) -> RowRng:
    return RowRng(seed, torch.arange(n))


def _at(task: Go2Terrain, qpos: Tensor, qvel: Tensor | None = None) -> tuple[Physics, Memory]:
    """(n, 19) -> physics and a fresh memory of n worlds with one branch each."""
    start = task.start(_rng(len(qpos)), len(qpos), None)
    memory = {name: values[:, None].clone() for name, values in start.memory.items()}
    qvel = torch.zeros(len(qpos), 18) if qvel is None else qvel
    return Physics(qpos[:, None], qvel[:, None]), memory


def _standing(task: Go2Terrain, xy: Tensor, yaw: Tensor, height: float = 0.31) -> Tensor:
    """(n, 2), (n,) -> (n, 19): upright in its stance, so high above the ground."""
    n, zero = len(xy), torch.zeros_like(yaw)
    z = task.ground.height_at(xy) + height
    quat = torch.stack(((yaw / 2).cos(), zero, zero, (yaw / 2).sin()), dim=-1)
    joints = go2.robot_order(torch.tensor(go2.STANCE).expand(n, 12))
    return torch.cat((xy, z[:, None], quat, joints), dim=-1)


def _place(env: BranchedEnv, level: int, kind: int) -> None:
    """Every world to the middle of a patch, in its stance, at rest."""
    task, n = env.task, env.num_nominal
    assert isinstance(task, Go2Terrain)
    xy = task.ground.spawn(torch.tensor(level), torch.tensor(kind))[:2].expand(n, 2)
    qpos = _standing(task, xy, torch.zeros(n))
    env.sim.write(torch.arange(n), qpos, torch.zeros(n, 18))


def _trot(time: float) -> Tensor:
    """(12,) actions of a trot without looking: two diagonal legs swing while the others push."""
    action = torch.zeros(4, 3)
    for leg, offset in enumerate((0.0, 0.5, 0.5, 0.0)):
        phase = 2.0 * math.pi * (1.5 * time + offset)
        swing = max(0.0, math.sin(phase))
        action[leg, 1] = min(1.0, time) * math.cos(phase) + 0.5 * swing - 0.4
        action[leg, 2] = 1.0 - 2.0 * swing
    return action.clamp(-1.0, 1.0).flatten()


def test_motors_and_joints_are_in_the_robots_order(calm: Go2Terrain) -> None:
    model, names = calm.model, calm.names
    order = [f"{leg}_{joint}" for leg in go2.LEGS for joint in go2.JOINTS]
    assert [model.actuator(i).name for i in range(12)] == order
    assert order[0] == "FR_hip" and order[3] == "FL_hip" and order[6] == "RR_hip" and order[9] == "RL_hip"
    places = torch.arange(19.0)[7:]
    assert torch.equal(go2.robot_order(places), torch.arange(19.0)[names.qpos(*(f"{name}_joint" for name in order))])
    assert torch.equal(go2.robot_order(go2.robot_order(places)), places)
    limits = [go2.TORQUE[name.split("_")[1]] for name in order]
    assert np.allclose(model.actuator_forcerange, np.stack((-np.array(limits), limits), axis=1))
    assert np.allclose(model.actuator_gainprm[:, 0], 30) and np.allclose(model.actuator_biasprm[:, 2], -1.5)
    low, high = calm.soft_limits
    assert torch.allclose(low[:3], torch.tensor((-0.94248, -1.31773, -2.62845)), atol=1e-4)
    assert torch.allclose(high[9:], torch.tensor((0.94248, 4.28483, -0.93201)), atol=1e-4)


def test_it_stands_5_s_under_zero_action(calm: Go2Terrain) -> None:
    env = make_env(calm, 20, 0, threads=1)
    origin = env.memory["origin"][:, 0]
    for _ in range(250):
        step = env.step(torch.zeros(20, 1, 12))
        assert not step.terminated.any()
    x = env.physics()
    height = x.qpos[:, 0, 2] - calm.ground.height_at(x.qpos[:, 0, :2])
    assert (height > 0.25).all() and (height < 0.35).all() and x.qvel.abs().max() < 0.2
    assert (x.qpos[:, 0, :2] - origin).norm(dim=-1).max() < 0.2
    feet = calm._feet(x.qpos)[:, 0]  # (n, 4, 3)
    assert (calm.ground.distance(feet) - go2.FOOT_RADIUS).abs().max() < 2e-3, "they stand on the field"
    assert torch.allclose(feet[..., 2] - go2.FOOT_RADIUS, calm.ground.height_at(feet[..., :2]), atol=2e-3)


def test_a_scripted_trot_takes_the_lowest_stairs(calm: Go2Terrain) -> None:
    env = make_env(calm, 1, 0, threads=1)
    _place(env, 0, STAIRS_DOWN)
    start, lowest = env.physics().qpos[0, 0, :3].clone(), math.inf
    for k in range(400):
        assert not env.step(_trot(0.02 * k).view(1, 1, 12)).terminated.any()
        feet = calm._feet(env.physics().qpos)
        lowest = min(lowest, float((calm.ground.distance(feet) - go2.FOOT_RADIUS).min()))
    moved = env.physics().qpos[0, 0, :3] - start
    assert moved[0] > 2.0 and -0.35 < moved[2] < -0.15, "several steps down"
    assert lowest > -0.015, "no foot goes through the field"


def test_where_it_touches_is_what_mujoco_says(calm: Go2Terrain) -> None:
    """Points of the legs by our own kinematics, and contact by the field, against MuJoCo's geoms and contact forces."""
    task = Go2Terrain(Go2TerrainCfg(randomised=False, pushes=False, first_levels=10))
    env, data = make_env(task, 16, 0, threads=1), mujoco.MjData(task.model)
    generator, counted, right = torch.Generator().manual_seed(0), 0, 0
    shapes = [*go2.LEGS, *(f"{leg}_{part}" for leg in go2.LEGS for part in ("thigh", "calf")), "trunk"]
    ids = [task.model.geom(name).id for name in shapes]
    for k in range(80):
        if k % 5 == 0:
            action = 2.0 * torch.rand(16, 1, 12, generator=generator) - 1.0
        env.step(action)  # no restarts: some of them fall
        if k % 8 != 7:
            continue
        x = env.physics()
        legs = go2.in_world(x.qpos, go2.legs(go2.robot_order(x.qpos[..., 7:])).flatten(-3, -2)).unflatten(-2, (4, -1))
        touching = (task.ground.distance(legs) < torch.tensor(go2.RADII))[:, 0]  # (16, 4, 6)
        parts = (touching[..., go2.THIGH].any(-1), touching[..., go2.CALF].any(-1))
        ours = torch.cat((touching[..., go2.FOOT], torch.stack(parts, dim=-1).flatten(1)), dim=-1)
        ours = torch.cat((ours, task._trunk_touches(x)), dim=-1)  # (16, 13)
        for i in range(16):
            data.qpos[:], data.qvel[:] = x.qpos[i, 0], x.qvel[i, 0]
            mujoco.mj_forward(task.model, data)
            feet = data.geom_xpos[ids[:4]]
            assert np.abs(feet - legs[i, 0, :, go2.FOOT].numpy()).max() < 1e-4
            force, one = np.zeros(task.model.ngeom), np.zeros(6)
            for c in range(data.ncon):
                mujoco.mj_contactForce(task.model, data, c, one)
                force[data.contact[c].geom] += one[0]
            theirs = force[ids] > 0.1
            counted, right = counted + theirs.size, right + int((ours[i].numpy() == theirs).sum())
    assert right >= 0.995 * counted


def test_heading_is_yaw_and_the_scan_turns_with_it(calm: Go2Terrain) -> None:
    yaw = torch.tensor((0.0, 0.5 * math.pi, 2.0, -1.0))
    middle = calm.ground.spawn(torch.tensor(9), torch.tensor(STAIRS_DOWN))[:2]
    xy = middle + torch.tensor(((1.3, 0.2), (1.3, 0.2), (-0.4, 1.4), (0.1, -1.5)))
    x, memory = _at(calm, _standing(calm, xy, yaw))
    assert torch.allclose(yaw_of(x.qpos[:, 0, 3:7]), yaw, atol=1e-5)
    observed = calm.observe(x, memory)
    scan = observed["scan"][:, 0].view(4, 9, 9)  # forward, left
    assert observed["state"].shape == (4, 1, 129) and torch.equal(observed["state"][:, 0, 48:], observed["scan"][:, 0])
    assert scan.std() > 0.1
    for row, forward, left in ((0, 0, 0), (1, 8, 0), (2, 3, 7), (3, 8, 8), (1, 4, 4)):
        angle, place = float(yaw[row]), (0.1 * forward - 0.4, 0.1 * left - 0.4)
        world = torch.tensor(
            (
                math.cos(angle) * place[0] - math.sin(angle) * place[1],
                math.sin(angle) * place[0] + math.cos(angle) * place[1],
            )
        )
        expected = 5.0 * (x.qpos[row, 0, 2] - 0.5 - calm.ground.height_at(xy[row] + world)).clamp(-1.0, 1.0)
        assert scan[row, forward, left].item() == pytest.approx(expected.item(), abs=1e-4)
    # Told to face -yaw, it turns the shorter way.
    memory["until_command"][:] = 5
    memory["heading"] = memory["heading"] * 0.0 + (yaw + torch.tensor((1.0, -1.0, 3.0, 3.0)))[:, None]
    memory["command"][..., :2] = 0.5
    after = calm.advance(x, memory, torch.zeros(4, 1, 12), _rng(4))
    assert torch.allclose(after["command"][:, 0, 2], torch.tensor((0.5, -0.5, 1.0, 1.0)), atol=1e-4)
    memory["command"][..., :2] = 0.0  # who stands does not turn either
    after = calm.advance(x, memory, torch.zeros(4, 1, 12), _rng(4))
    assert after["command"].abs().max() == 0.0


def test_commands_are_drawn_every_4_s_and_shared(varied: Go2Terrain) -> None:
    env = make_env(varied, 4, 1, threads=1)
    x, memory = env.physics(), env.memory
    seen = [memory["command"][:, 0, :2]]
    rng = _rng(4, seed=3)
    for k in range(401):
        memory = varied.advance(x, memory, torch.zeros(4, 2, 12), rng)
        assert memory["command"].eq(memory["command"][:, :1]).all()
        if not torch.equal(memory["command"][:, 0, :2], seen[-1]):
            seen.append(memory["command"][:, 0, :2].clone())
            assert (k + 1) % 200 == 0
    assert len(seen) == 3
    many = varied.start(_rng(3000), 3000, None).memory["command"]
    speed = many[:, :2].norm(dim=-1)
    assert ((speed == 0.0) | (speed > 0.2)).all() and 0.01 < (speed == 0.0).float().mean() < 0.06
    assert many[speed == 0.0].abs().max() == 0.0 and many.abs().max() <= 1.0 and many[:, :2].abs().max() > 0.95


def test_no_command_is_drawn_in_the_last_step(calm: Go2Terrain) -> None:
    """Levels are judged by it, and nobody could follow it."""
    env = make_env(calm, 4, 0, threads=1)
    x, memory = env.physics(), env.memory
    memory["until_command"][:] = 1
    for step, drawn in ((999, True), (1000, False)):
        memory["steps"][:] = step - 1.0
        after = calm.advance(x, memory, torch.zeros(4, 1, 12), _rng(4, seed=3))
        assert after["command"][..., :2].ne(memory["command"][..., :2]).any() == drawn


def test_the_history_begins_with_the_first_frame(calm: Go2Terrain) -> None:
    env = make_env(calm, 3, 1, threads=1)
    first = env.observe()
    history = first.sources["history"].view(3, FRAMES, FRAME)
    assert torch.equal(history, history[:, :1].expand_as(history)) and history.abs().max() > 0.1
    assert torch.allclose(history[:, -1], first.state[:, 0, :FRAME])
    assert torch.allclose(history[:, 0, 3:6].norm(dim=-1), torch.ones(3)) and (history[:, 0, 5] < -0.98).all()
    actions = [torch.full((3, 2, 12), value) for value in (0.1, -0.2)]
    for action in actions:
        env.step(action)
    later = env.observe()
    frames = later.sources["history"].view(3, FRAMES, FRAME)
    assert torch.equal(frames[:, :-2], history[:, 2:])
    assert torch.equal(frames[:, -2:, 33:], torch.stack([action[:, 0] for action in actions], dim=1))
    assert torch.allclose(frames[:, -1], later.state[:, 0, :FRAME])


def test_rewards_are_what_the_table_says(calm: Go2Terrain) -> None:
    xy = calm.ground.spawn(torch.tensor(0), torch.tensor(3))[:2].expand(3, 2)
    qvel = torch.zeros(3, 18)
    qvel[:, :2] = torch.tensor((0.0, 0.5))  # along world y
    qvel[:, 2:6] = torch.tensor((0.3, 0.1, -0.2, 0.4))
    x, memory = _at(calm, _standing(calm, xy, torch.full((3,), 0.5 * math.pi), height=0.5), qvel)
    memory["command"][:] = torch.tensor((0.5, 0.0, 0.4))  # faces world y
    memory["feet"] = calm._feet(x.qpos)[..., :2]
    memory["action_before"][:], memory["action"][:] = 0.1, 0.3
    memory["air_time"][:], memory["touched"][1] = 0.6, True  # all in the air; those of row 1 touched a step ago
    terms = calm.reward(x, memory, torch.full((3, 1, 12), 0.5))
    weighted = {name: value[:, 0] / (0.02 * WEIGHTS[name]) for name, value in terms.items()}
    assert weighted.keys() == WEIGHTS.keys()
    expected = {
        "tracking_lin_vel": 1.0,
        "tracking_ang_vel": 1.0,
        "lin_vel_z": 0.09,
        "ang_vel_xy": 0.05,
        "dof_acc": 0.0,
        "action_rate": 12 * 0.04,
        "action_smoothness": 0.0,  # 0.1, 0.3, 0.5
        "feet_contact_stand_still": 0.0,
        "feet_clearance": 1.0,  # none of them moves
        "hip_pos": 0.0,
        "dof_pos_limits": 0.0,
        "collision": 0.0,
    }
    for name, value in expected.items():
        assert torch.allclose(weighted[name], torch.tensor(value), atol=1e-3), name
    assert torch.allclose(weighted["feet_air_time"], torch.tensor((0.0, 4 * 0.37, 0.0)), atol=1e-3)  # 0.62 - 0.25
    after = calm.advance(x, memory, torch.full((3, 1, 12), 0.5), _rng(3))
    assert torch.allclose(after["air_time"][:, 0, 0], torch.tensor((0.62, 0.0, 0.62)))
    assert after["action_before"][0, 0, 0] == 0.3 and after["action"][0, 0, 0] == 0.5
    memory["action"][:] = 1.0
    memory["action_before"][:] = -1.0
    negative = sum(calm.reward(x, memory, torch.full((3, 1, 12), -1.0)).values())
    clipped = Go2Terrain(Go2TerrainCfg(only_positive=True)).reward(x, memory, torch.full((3, 1, 12), -1.0))
    memory["command"][:] = -1.0
    worse = Go2Terrain(Go2TerrainCfg(only_positive=True)).reward(x, memory, torch.full((3, 1, 12), -1.0))
    assert torch.allclose(sum(clipped.values()), negative.clamp(min=0.0), atol=1e-6)
    assert (sum(worse.values()) >= 0.0).all() and worse["only_positive"].max() > 0.0


def test_it_ends_by_tilt_beyond_the_grounds_or_off_the_map(calm: Go2Terrain) -> None:
    ground = calm.ground
    flat = ground.spawn(torch.tensor(9), torch.tensor(1))[:2]
    slope = flat + torch.tensor((2.2, 0.0))  # a steep one, which rises ahead
    edge = torch.tensor((ground.low[0] - 0.1, 0.0))
    for xy, pitch, ends in (
        (flat, 0.35, False),
        (flat, 0.45, True),
        (flat, -0.45, True),
        (slope, -0.6, False),  # nose up
        (slope, 0.3, False),
        (slope, 0.45, True),
        (slope, -0.85, True),
        (edge, 0.0, True),
    ):
        qpos = _standing(calm, xy[None], torch.zeros(1), height=0.45)
        qpos[:, 3:7] = torch.tensor((math.cos(pitch / 2), 0.0, math.sin(pitch / 2), 0.0))
        x, memory = _at(calm, qpos)
        assert bool(calm.terminated(x, memory)) == ends, (xy, pitch)
    low, memory = _at(calm, _standing(calm, flat[None], torch.zeros(1), height=0.05))
    assert calm.terminated(low, memory).all(), "its trunk is on the ground"
    assert calm.reward(low, memory, torch.zeros(1, 1, 12))["collision"] < 0.0


def test_levels_rise_and_fall(calm: Go2Terrain) -> None:
    n = 6
    first = calm.start(_rng(n), n, None)
    assert set(calm.start(_rng(200), 200, None).memory["level"].tolist()) == {0, 1}
    assert set(calm.start(_rng(200), 200, None).memory["kind"].tolist()) == set(range(10))
    memory = {name: values.clone() for name, values in first.memory.items()}
    memory["level"] = torch.tensor((3, 3, 3, 0, 9, 3))
    memory["distance"] = torch.tensor((4.1, 1.0, 3.0, 0.0, 5.0, 0.0))
    memory["command"][:] = torch.tensor((0.4, 0.0, 0.0))  # half of what was asked for: 4 m
    memory["command"][2, 0], memory["command"][5] = 0.25, 0.0
    none = torch.zeros(n, dtype=torch.bool)
    ended = Ended(memory, torch.full((n,), 1000), none, none)
    again = calm.start(_rng(n, seed=1), n, ended)
    level = again.memory["level"].tolist()
    assert level[:4] == [4, 2, 3, 0] and 0 <= level[4] <= 9 and level[5] == 3
    assert torch.equal(again.memory["kind"], memory["kind"])
    spawn = calm.ground.spawn(again.memory["level"], memory["kind"])
    assert (again.qpos[:, :2] - spawn[:, :2]).abs().max() <= 0.025
    assert ((again.qpos[:, 2] - spawn[:, 2] - 0.42).abs() <= 0.0251).all()
    fixed = Go2Terrain(Go2TerrainCfg(curriculum=False)).start(_rng(n, seed=1), n, ended)
    assert torch.equal(fixed.memory["level"], memory["level"])


def test_randomisation_is_of_the_right_parts_and_shared(varied: Go2Terrain) -> None:
    env, model = make_env(varied, 6, 2, threads=1), varied.model
    for name in RANGES.params:
        values = env.sim.params(name).unflatten(0, env.grid)
        assert values.eq(values[:, :1]).all(), f"{name}: branches share it"
        assert not values[0, 0].eq(values[1, 0]).all(), f"{name}: rows differ"
    drawn = varied.start(_rng(400), 400, None).params
    base, others = varied.names.body("base"), np.arange(model.nbody) != varied.names.body("base")
    payload = drawn["body_mass"][:, base] - float(model.body_mass[base])
    assert payload.min() >= -1.0 and payload.max() <= 3.0 and payload.max() > 2.8 and payload.min() < -0.8
    assert torch.equal(drawn["body_mass"][0, others], torch.tensor(model.body_mass[others]))
    feet = drawn["geom_friction"][:, varied.names.geom("FR"), 0]
    assert feet.min() < 0.25 and feet.max() > 1.4  # of a nominal 1, and the foot's is what counts
    assert model.geom("FR").priority[0] > model.geom("terrain").priority[0]
    stiffness = drawn["actuator_gainprm"][:, :, 0] / 30.0
    assert torch.equal(-drawn["actuator_biasprm"][:, :, 1], drawn["actuator_gainprm"][:, :, 0])
    assert 0.8 <= stiffness.min() < 0.82 and 1.18 < stiffness.max() <= 1.2


def test_pushes_are_drawn_every_10_s(varied: Go2Terrain) -> None:
    env = make_env(varied, 2, 1, threads=1)
    x, memory, rng = env.physics(), env.memory, _rng(2)
    when = []
    for k in range(1, 1001):
        memory = varied.ranges.advance(memory, torch.zeros(2, 2, 12), rng)
        if memory["push"].any():
            when.append(k)
            assert memory["push"].eq(memory["push"][:, :1]).all() and memory["push"].abs().max() <= 1.0
    assert when == [500, 1000]
    assert x.qpos.shape == (2, 2, 19)


def test_options_for_a_robot_that_is_late_and_measures_badly() -> None:
    task = Go2Terrain(Go2TerrainCfg(noise=True, latency=(1, 2), randomised=False, pushes=False))
    env = make_env(task, 3, 1, threads=1)
    env.step(torch.full((3, 2, 12), 0.4))
    obs, memory = env.observe(), env.memory
    off = obs.sources["history"].view(3, FRAMES, FRAME)[:, -1] - obs.state[:, 0, :FRAME]
    assert off[:, 6:9].eq(0).all() and off[:, 33:].eq(0).all()
    assert 0.0 < off[:, :3].abs().max() <= 0.025 and 0.0 < off[:, 21:33].abs().max() <= 0.0251
    ctrl = task.control(env.physics(), memory, torch.full((3, 2, 12), -1.0))
    late = memory["latency"][..., None]
    expected = torch.tensor(go2.STANCE) + torch.where(late == 1, 0.2, 0.0)
    assert torch.allclose(ctrl, expected.expand_as(ctrl))
    with pytest.raises(SdpgError, match="latency"):
        Go2TerrainCfg(latency=(3, 1)).ranges  # noqa: B018


@pytest.mark.parametrize("mode", ["base", "world"])
def test_the_depth_camera_sees_the_ground_ahead(mode: str) -> None:
    """Rigid on the base, or always along the world's +x; none of the robot's parts are in its view."""
    task = Go2Terrain(Go2TerrainCfg(camera=mode, randomised=False))  # type: ignore[arg-type]
    model, yaw = task.model, 1.2
    data = mujoco.MjData(model)
    data.qpos[:] = _standing(task, torch.tensor(((4.0, -4.0),)), torch.tensor((yaw,)))[0].numpy()
    mujoco.mj_forward(model, data)
    camera = model.camera("depth").id
    place, axes = data.cam_xpos[camera], data.cam_xmat[camera].reshape(3, 3)
    ahead, expected = -axes[:, 2], yaw if mode == "base" else 0.0
    assert math.atan2(ahead[1], ahead[0]) == pytest.approx(expected, abs=1e-6)
    assert math.degrees(math.asin(-ahead[2])) == pytest.approx(39.8, abs=0.1)
    assert axes[2, 0] == pytest.approx(0.0, abs=1e-9), "it is level"
    if mode == "base":
        fovy, hit = math.radians(model.cam_fovy[camera]), np.zeros(1, np.int32)
        for u in np.linspace(-1.0, 1.0, 7):
            for v in np.linspace(-1.0, 1.0, 5):
                up = math.tan(fovy / 2)
                ray = ahead + up * v * axes[:, 1] + up * 106 / 60 * u * axes[:, 0]
                distance = mujoco.mj_ray(model, data, place, ray / np.linalg.norm(ray), None, 1, -1, hit)
                assert distance > 0 and model.geom(int(hit[0])).name == "terrain"
