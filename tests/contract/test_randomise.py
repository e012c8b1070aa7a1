"""What is drawn: within its ranges, by the row alone, the same for all branches of a row."""

from __future__ import annotations

import functools

import mujoco
import pytest
import torch
from torch import Tensor

from sdpg.build import make_env
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.tasks import Camera, Ended, Memory, Physics, Start, Task, Terms
from sdpg.tasks.randomise import Randomise, delayed, noisy, offset_control, pushed

SCENE = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1" diffuse=".5 .5 .5"/>
    <camera name="side" pos="0 -3 1" xyaxes="1 0 0 0 0 1"/>
    <geom name="floor" type="plane" size="3 3 .1" rgba=".3 .4 .5 1"/>
    <body name="cart" pos="0 0 .12">
      <joint name="slide" type="slide" axis="1 0 0" damping="1"/><joint name="fall" type="slide" axis="0 0 1"/>
      <geom name="box" type="box" size=".1 .1 .1" mass="2" rgba=".5 .2 .1 1"/>
      <body name="arm" pos="0 0 .1">
        <joint name="hinge" axis="0 1 0"/><geom type="capsule" fromto="0 0 .05 0 0 .4" size=".03" mass=".5"/>
      </body>
    </body>
  </worldbody>
  <actuator><position joint="slide" kp="40" kv="3"/><position joint="hinge" kp="10" kv="1"/></actuator>
</mujoco>
"""
ALL = Randomise(
    base="cart",
    friction=(0.5, 1.5),
    mass=(0.9, 1.1),
    payload=(-0.5, 1.0),
    centre=(-0.01, 0.02),
    stiffness=(0.8, 1.2),
    damping=(0.7, 1.3),
    strength=(0.9, 1.0),
    offset=(-0.02, 0.02),
    latency=(0, 2),
    noise=(0.01, 0.01, 0.02),
    push_every=(3, 5),
    push=(-1.0, 1.0),
    camera_shift=(-0.02, 0.02),
    camera_tilt=0.1,
    light=(0.5, 1.2),
    colour=(-0.2, 0.2),
)


class Cart(Task):
    action_size, state_size, episode_steps = 2, 8, 20
    params = ALL.params
    camera = "side"
    cameras = {"pixels": Camera("side", 40, 40, stack=1)}

    @functools.cached_property
    def model(self) -> mujoco.MjModel:
        return self.scene().compile()

    def scene(self) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(SCENE)

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        drawn = ALL.draw(rng, n, self.model)
        return Start(torch.zeros(n, 3), torch.zeros(n, 3), drawn.memory, drawn.params)

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return offset_control(memory, delayed(memory, action))

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {"near": -x.qpos[..., 0].abs()}

    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return x.qpos[..., 0].abs() > 2.0

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        return ALL.advance(memory, action, rng)

    def push(self, x: Physics, memory: Memory) -> Tensor | None:
        return pushed(x, memory, "slide", "fall")

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return {"state": torch.cat((noisy(memory, x.qpos), x.qvel, memory["push"]), dim=-1)}


def _rng(*rows: int, seed: int = 5) -> RowRng:
    return RowRng(seed, torch.tensor(rows))


def test_branches_share_everything() -> None:
    env = make_env(Cart(), 3, 2, seed=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(7):
        env.restart(env.step(torch.rand(3, 3, 2, generator=generator) * 2 - 1))
    env.branch()
    for _ in range(6):  # a push and several noises later
        step = env.step((torch.rand(3, 1, 2, generator=generator) * 2 - 1).expand(3, 3, 2))
        assert step.state.eq(step.state[:, :1]).all()
        for name, values in env.memory.items():
            assert values.eq(values[:, :1]).all(), name
    for name in ALL.params:
        values = env.sim.params(name).unflatten(0, env.grid)
        assert values.eq(values[:, :1]).all(), name
        assert not values[0, 0].eq(values[1, 0]).all(), f"{name}: rows differ"
    nominal, *auxiliaries = (env.column(branch) for branch in range(3))
    for column in auxiliaries:
        assert all(torch.equal(values, nominal[name]) for name, values in column.items())


def test_a_push_reaches_the_velocities_of_a_row_and_its_branches() -> None:
    """After the step and its reward, before what is observed; without it all goes the same way."""

    class Still(Cart):
        def push(self, x: Physics, memory: Memory) -> Tensor | None:
            return None

    pushes = 0
    envs = [make_env(task(), 2, 1, seed=1) for task in (Cart, Still)]
    for _ in range(6):
        action = torch.full((2, 2, 2), 0.3)
        steps = [env.step(action) for env in envs]
        push = envs[0].memory["push"]  # (N, K, 2)
        torch.testing.assert_close(steps[0].reward, steps[1].reward, rtol=0, atol=0)
        velocities, unpushed = (env.physics().qvel[..., :2] for env in envs)
        torch.testing.assert_close(velocities, unpushed + push)
        torch.testing.assert_close(steps[0].state[..., 3:5], velocities, rtol=0, atol=0)
        assert torch.equal(push, push[:, :1].expand_as(push)) and torch.equal(push, envs[1].memory["push"])
        pushes += int(push[:, 0].any(-1).sum())
        envs[1].load_state_dict(envs[0].state_dict())  # and both go on from the pushed state
    assert pushes >= 2


def test_a_run_with_pushes_is_resumed_exactly() -> None:
    first, second = (make_env(Cart(), 3, 1, seed=seed) for seed in (1, 2))
    actions = 2 * torch.rand(12, 3, 2, 2, generator=torch.Generator().manual_seed(0)) - 1
    for action in actions[:4]:
        first.restart(first.step(action))
    saved = first.state_dict()
    second = make_env(Cart(), 3, 1, seed=1)
    second.load_state_dict(saved)
    first.branch()
    pushed_ones = 0.0
    for action in actions[4:]:
        steps = [env.step(action) for env in (first, second)]
        assert torch.equal(steps[0].state, steps[1].state) and torch.equal(steps[0].reward, steps[1].reward)
        pushed_ones += float(first.memory["push"].abs().sum())
        for env, step in zip((first, second), steps, strict=True):
            env.restart(step)
    assert pushed_ones > 0.0


def test_draws_depend_on_the_row_only() -> None:
    model, n = Cart().model, 4
    many, one = ALL.draw(_rng(0, 1, 2, 3), n, model), ALL.draw(_rng(2), 1, model)
    for together, alone in zip(many, one, strict=True):
        assert together.keys() == alone.keys()
        for name, values in together.items():
            assert torch.equal(values[2:3], alone[name]), name
    rngs, memories = (_rng(0, 1, 2, 3), _rng(2)), [many.memory, one.memory]
    memories = [{name: values[:, None] for name, values in memory.items()} for memory in memories]  # (N, K = 1, ...)
    for _ in range(8):
        memories = [
            ALL.advance(memory, torch.zeros(len(rng.rows), 1, 2), rng)
            for memory, rng in zip(memories, rngs, strict=True)
        ]
        assert all(torch.equal(values[2:3], memories[1][name]) for name, values in memories[0].items())


def test_values_are_within_their_ranges_and_around_the_scenes() -> None:
    model, n = Cart().model, 400
    params, memory = ALL.draw(_rng(*range(n)), n, model)
    assert set(params) == set(ALL.params)

    def spans(values: Tensor, low: float, high: float) -> None:
        room = 0.05 * (high - low)
        assert values.min() >= low - 1e-6 and values.max() <= high + 1e-6
        assert values.min() < low + room and values.max() > high - room

    nominal = {name: torch.tensor(getattr(model, name), dtype=torch.float64) for name in ALL.params}
    spans(params["geom_friction"][..., 0] / nominal["geom_friction"][:, 0], 0.5, 1.5)
    assert params["geom_friction"][..., 1:].eq(nominal["geom_friction"][:, 1:]).all()
    cart, arm = model.body("cart").id, model.body("arm").id
    assert (params["body_mass"][:, 0] == 0).all()
    spans(params["body_mass"][:, arm] / nominal["body_mass"][arm], 0.9, 1.1)
    same = params["body_inertia"][:, arm] / nominal["body_inertia"][arm]
    assert torch.allclose(same, (params["body_mass"][:, arm] / nominal["body_mass"][arm])[:, None].expand_as(same))
    assert params["body_mass"][:, cart].min() > 2 * 0.9 - 0.5 and params["body_mass"][:, cart].max() > 2.5
    spans(params["body_ipos"][:, cart], -0.01, 0.02)
    assert params["body_ipos"][:, arm].eq(nominal["body_ipos"][arm]).all()
    kp, gain = params["actuator_biasprm"][..., 1], params["actuator_gainprm"][..., 0]
    assert torch.allclose(kp, -gain)  # still a position actuator
    assert 0.72 * 40 <= gain[:, 0].min() < 0.8 * 40 < 1.1 * 40 < gain[:, 0].max() <= 1.2 * 40
    kd = params["actuator_biasprm"][:, 0, 2] / -3.0
    assert 0.63 <= kd.min() < 0.75 and 1.2 < kd.max() <= 1.3
    spans(params["cam_pos"] - nominal["cam_pos"], -0.02, 0.02)
    turned = (params["cam_quat"] * nominal["cam_quat"]).sum(-1).clamp(max=1.0).acos() * 2  # radians
    assert 0.09 < turned.max() <= 0.1 + 1e-6 and torch.allclose(params["cam_quat"].norm(dim=-1), torch.ones(1).double())
    spans(params["light_diffuse"] / nominal["light_diffuse"], 0.5, 1.2)
    assert params["geom_rgba"].min() >= 0 and params["geom_rgba"][..., 3].eq(1).all()
    spans(params["geom_rgba"][:, 0, :3] - nominal["geom_rgba"][0, :3], -0.2, 0.2)
    spans(memory["motor_offset"], -0.02, 0.02)
    assert memory["latency"].unique().tolist() == [0, 1, 2]
    spans(memory["noise"][:, 2], -0.02, 0.02)
    assert memory["until_push"].unique().tolist() == [3, 4, 5]


def test_ranges_of_one_value_change_nothing() -> None:
    one = (1.0, 1.0)
    still = Randomise(friction=one, mass=one, stiffness=one, damping=one, strength=one, light=one, colour=(0.0, 0.0))
    model = Cart().model
    for name, values in still.draw(_rng(0, 1), 2, model).params.items():
        assert values.eq(torch.tensor(getattr(model, name)).double()).all(), name
    nothing = Randomise()
    drawn = nothing.draw(_rng(0), 1, model)
    action = torch.ones(1, 1, 2)
    assert nothing.params == () and drawn == ({}, {}) and nothing.advance({}, action, _rng(0)) == {}
    assert delayed({}, action) is action and noisy({}, action) is action and offset_control({}, action) is action


def test_actions_come_late_by_each_rows_latency() -> None:
    late = Randomise(latency=(0, 2))
    memory = {"latency": torch.tensor([[0], [1], [2]]), "past_actions": torch.zeros(3, 1, 2, 1)}
    came = []
    for t in range(1, 5):
        action = torch.full((3, 1, 1), float(t))
        came.append(delayed(memory, action)[:, 0, 0])
        memory = late.advance(memory, action, _rng(0, 1, 2))
    assert torch.stack(came, 1).tolist() == [[1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]


def test_pushes_come_when_their_time_is_up() -> None:
    pushes = Randomise(push_every=(3, 3), push=(0.5, 1.0))
    rng = _rng(0, 1)
    memory = {name: values[:, None] for name, values in pushes.draw(rng, 2, Cart().model).memory.items()}
    pushed = []
    for _ in range(7):
        memory = pushes.advance(memory, torch.zeros(2, 1, 2), rng)
        pushed.append(bool(memory["push"].all()))
        assert memory["push"].all() or not memory["push"].any()
    assert pushed == [False, False, True] * 2 + [False]


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"friction": (1.5, 0.5)}, "lower and an upper"),
        ({"mass": (0.0, 1.0)}, "positive"),
        ({"push": (0.0, 1.0)}, "need each other"),
        ({"centre": (0.0, 0.1)}, "base"),
        ({"latency": (-1, 1)}, "at least 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(ranges: dict, words: str) -> None:
    with pytest.raises(SdpgError, match=words):
        Randomise(**ranges)


def test_what_does_not_fit_the_scene_is_refused() -> None:
    model = Cart().model
    with pytest.raises(SdpgError, match="without mass"):
        Randomise(base="arm", payload=(-1.0, 0.0)).draw(_rng(0), 1, model)
    with pytest.raises(SdpgError, match="no body 'leg'"):
        Randomise(base="leg", payload=(0.0, 1.0)).draw(_rng(0), 1, model)
    motors = mujoco.MjModel.from_xml_string(
        SCENE.replace("<position", "<motor").replace('kp="40" kv="3"', "").replace('kp="10" kv="1"', 'name="m"')
    )
    with pytest.raises(SdpgError, match="no kp and kd"):
        Randomise(stiffness=(0.9, 1.1)).draw(_rng(0), 1, motors)
    with pytest.raises(SdpgError, match="noise has 3 numbers for 4"):
        noisy({"noise": torch.zeros(1, 1, 3)}, torch.zeros(1, 1, 4))
