"""What runs on a GPU runs there without touching the CPU's tensors, and comes to the same numbers.

On a pretended GPU (tests/pretended_gpu.py): the kernels are the CPU's, so equal means equal to the last bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch
from helpers.arms import need_scene
from helpers.pretended_gpu import DEVICE, OnGpu, moved, pretended_gpu, to_host
from helpers.runs import tiny
from torch import Tensor

from sdpg import build, evaluate, train
from sdpg.algos.api import Context
from sdpg.algos.base import clipped_step
from sdpg.algos.sdpg import Sdpg, exploration_noise
from sdpg.build import compile_scene, make_env
from sdpg.config import TrainCfg
from sdpg.distributed import Group
from sdpg.env import BranchedEnv
from sdpg.nn.encoders import Depth, Pixels
from sdpg.nn.modules import Actor, Normalizer
from sdpg.render import own
from sdpg.rng import RowRng
from sdpg.run import checkpoint, failures
from sdpg.run.policy import SimplePolicy
from sdpg.tasks.base import BUILT_IN, make_task
from sdpg.types import MOCAP
from sdpg.watch import replay
from sdpg.watch.player import Player

Rows = list[dict[str, str]]
OBSERVATIONS = ("state", "pixels")


# --- the pretended GPU itself -----------------------------------------------------------------------------------------


def test_the_pretended_gpu_refuses_what_a_gpu_refuses() -> None:
    with pretended_gpu() as gpu:
        x = torch.arange(6.0, device=gpu.device).view(2, 3)
        assert x.device == gpu.device and (x * 2 + torch.tensor(1.0)).device == gpu.device
        for wrong in (
            lambda: x + torch.ones(2, 3),
            lambda: x[torch.tensor([0])],
            lambda: torch.cat((x, torch.ones(2, 3))),
            lambda: torch.nn.Linear(3, 1)(x),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                wrong()
        for host_only in (lambda: x.numpy(), lambda: x.view(-1).numpy()):
            with pytest.raises(TypeError, match="numpy"):
                host_only()
        assert not gpu.waits
        assert x.cpu().numpy().sum() == 15.0 and x.sum().item() == 15.0 and x.tolist()[1] == [3.0, 4.0, 5.0]
        assert len(x[x > 3]) == 2 and bool((x > 3).any())
        assert gpu.waits == {"_to_copy": 1, "_local_scalar_dense": 2, "tolist": 1, "index": 1}


# --- runs -------------------------------------------------------------------------------------------------------------


def _run(cfg: TrainCfg, folder: Path, resume: bool = False) -> Rows:
    """The rows of a run without its times, to the last digit."""
    rows: list[dict[str, Any]] = []
    report = lambda what, facts: rows.append(dict(facts)) if what == "iteration" else None  # noqa: E731
    train.train(cfg, folder, resume, report)
    return [{name: repr(x) for name, x in row.items() if name != "seconds" and "Perf/" not in name} for row in rows]


def _on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of runs are on the pretended device."""
    monkeypatch.setattr(train, "make_env", lambda *args, **kwargs: moved(build.make_env(*args, **kwargs)))


def _saved(folder: Path) -> dict[str, Any]:
    state = checkpoint.flatten(checkpoint.load(checkpoint.find(folder)).state)
    state.pop("run/seconds")
    return state


def _assert_equal(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name, values in a.items():
        same = torch.equal(values, b[name]) if isinstance(values, Tensor) else values == b[name]
        assert same, name


@pytest.mark.parametrize(
    ("task", "obs", "options"),
    [
        ("cartpole", "state", {}),
        ("cartpole", "pixels", {}),
        ("hopper", "state", {"max_value": 4.0, "max_failed": 1.0}),  # worlds fail, and dumps are written
    ],
)
def test_a_run_on_a_gpu_is_that_on_a_cpu_and_each_goes_on_as_the_other(
    task: str, obs: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, checkpoints and dumps; a run of one device is resumed and evaluated on the other."""
    cfg = tiny(task, obs, iterations=2, horizon=10, **options)
    rows = _run(cfg, tmp_path / "cpu")
    with pretended_gpu(), monkeypatch.context() as patched:
        _on_gpu(patched)
        assert _run(cfg, tmp_path / "gpu") == rows
    _assert_equal(_saved(tmp_path / "cpu"), _saved(tmp_path / "gpu"))
    dumps = [sorted(path.name for path in (tmp_path / where).glob("bad/*")) for where in ("cpu", "gpu")]
    assert dumps[0] == dumps[1] and bool(dumps[0]) == (task == "hopper")
    for name in dumps[1]:
        dump = failures.load(tmp_path / "gpu" / "bad" / name)
        assert replay.report(name, dump, replay.replay(dump))["reproduced"]

    longer = replace(cfg, iterations=3)
    rows = _run(longer, tmp_path / "gpu", resume=True)
    with pretended_gpu(), monkeypatch.context() as patched:
        _on_gpu(patched)
        assert _run(longer, tmp_path / "cpu", resume=True) == rows
    _assert_equal(_saved(tmp_path / "cpu"), _saved(tmp_path / "gpu"))


def _pair(obs: str, **options: Any) -> tuple[Sdpg, BranchedEnv]:
    """On the pretended device."""
    cfg = tiny("cartpole", obs)
    env = moved(make_env("cartpole", 3, 2, 5, 1, obs))
    return Sdpg(replace(cfg.algo, **options), Context(env, env.task.inputs[obs], 5)), env


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_all_that_an_algorithm_owns_is_on_the_device(obs: str) -> None:
    with pretended_gpu():
        algo, env = _pair(obs)
        rollout = algo.collect(env)
        algo.update(rollout)
        states = [state for optimizer in algo.optimizers.values() for state in optimizer.state.values()]
        owned = [*vars(rollout).values(), *rollout.sources.values()]
        owned += [x for module in algo.modules.values() for x in (*module.parameters(), *module.buffers())]
        owned += [x for state in states for name, x in state.items() if name != "step"]
        assert len(states) > 10
        assert all(x.device == DEVICE for x in owned if isinstance(x, Tensor))


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_the_algorithm_adds_no_wait_to_a_segment(obs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu() as gpu:
        algo, env = _pair(obs)
        algo.collect(env)
        inside: Counter[str] = Counter()

        def counted(method: Any, *args: Any) -> Any:
            with gpu.counting() as waits:
                result = method(*args)
            inside.update(waits)
            return result

        for name in ("branch", "observe", "step", "restart"):
            monkeypatch.setattr(env, name, partial(counted, getattr(env, name)))
        with gpu.counting() as waits:
            algo.collect(env)
        assert waits == inside and inside  # the environment asks whether a world failed or ended
        with gpu.counting() as waits:
            env.observe()
        assert not waits


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_an_update_waits_once_a_step_and_a_few_times_more(obs: str) -> None:
    """A step waits for its gradient's norm, which decides whether it is made."""

    def waits(**options: Any) -> int:
        with pretended_gpu() as gpu:
            algo, env = _pair(obs, **{"regression_steps": 2, "critic_passes": 1} | options)
            rollout = algo.collect(env)
            with gpu.counting() as found:
                algo.update(rollout)
        return sum(found.values())

    steps = waits()  # 2 of the actor, 1 of the temperature, 1 of the critic
    assert steps <= 4 + 12
    assert waits(actor_chunk=2) == steps  # not for every chunk
    assert waits(regression_steps=5) == waits(critic_passes=4) == steps + 3


# --- parts ------------------------------------------------------------------------------------------------------------


def test_random_numbers_are_the_same_on_every_device() -> None:
    """Drawn by torch's integers there, by numpy's here."""
    rows, some = torch.arange(50) + 7, torch.tensor([3, 1, 40])

    def draw(device: Any) -> list[Tensor]:
        rng = RowRng(2**40 + 5, rows.to(device), stream=(99 << 8) + 3)
        part = rng.select(some.to(device))
        drawn = [rng.integers(1 << 62, 9), part.uniform(-2.0, 3.0, 4), rng.uniform(0.0, 1.0, 3), part.normal(5)]
        return [*drawn, rng.normal(2, 3), rng.counter, exploration_noise(1, 10**6, rows.to(device), (3, 5, 2), True)]

    here = draw("cpu")
    with pretended_gpu() as gpu:
        there = draw(gpu.device)
        assert not gpu.waits and all(x.device == gpu.device for x in there)
    assert all(torch.equal(a, b) for a, b in zip(here, to_host(there), strict=True))


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_task_steps_and_restarts_on_the_device(name: str) -> None:
    need_scene(name)
    size = make_task(name).action_size
    actions = torch.rand(4, 2, 2, size, generator=torch.Generator().manual_seed(0))  # (T, N, K, A)

    def go(env: BranchedEnv) -> list[Tensor]:
        found: list[Tensor] = []
        for i, action in enumerate(actions):
            step = env.step(action.to(env.device))
            ended = torch.zeros_like(step.terminated)
            ended[i % 2, i // 2] = True  # a nominal or an auxiliary, of either row
            step = replace(step, terminated=step.terminated | ended)
            found += [x for x in vars(step).values() if isinstance(x, Tensor)]
            found += [*step.terms.values(), env.restart(step), env.observe().state, *env.memory.values()]
        return found

    here = go(make_env(name, 2, 1, 0, 1))
    with pretended_gpu():
        there = go(moved(make_env(name, 2, 1, 0, 1)))
        assert all(x.device == DEVICE for x in there)
    assert all(torch.equal(a, b) for a, b in zip(here, to_host(there), strict=True))


@pytest.mark.parametrize("kind", ["drqv2", "half", "depth"])
def test_encoders_forward_and_backward(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder = Depth((3, 20, 24), 5, generator, far=5.0) if kind == "depth" else Pixels((3, 40, 44), kind, 5, generator)  # type: ignore[arg-type]
    x = torch.rand(2, 3, 20, 24) * 9 if kind == "depth" else torch.randint(0, 256, (2, 3, 40, 44), dtype=torch.uint8)
    expected = encoder(x).sum()
    expected.backward()
    gradients = [p.grad for p in encoder.parameters()]
    encoder.zero_grad()
    with pretended_gpu() as gpu:
        there = encoder.to(gpu.device)
        total = there(x.to(gpu.device)).sum()
        total.backward()
        assert not gpu.waits and total.device == gpu.device
        assert total.item() == expected.item()
        assert all(torch.equal(a, to_host(b.grad)) for a, b in zip(gradients, there.parameters(), strict=True))


def test_half_precision_is_asked_of_the_policys_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    plain = torch.autocast

    def autocast(*args: Any, **kwargs: Any) -> Any:
        asked.append((*args, kwargs["enabled"]))
        return plain("cpu", enabled=False)

    monkeypatch.setattr(torch, "autocast", autocast)
    generator = torch.Generator().manual_seed(0)
    actor = Actor({"x": (torch.nn.Linear(3, 4), 4)}, (8,), 2, "shared", 0.0, 1.0, generator, bfloat16=True)
    actor({"x": torch.zeros(1, 3)})
    with pretended_gpu() as gpu:
        actor.to(gpu.device)({"x": torch.zeros(1, 3, device=gpu.device)})
    assert asked == [("cpu", torch.bfloat16, True), ("cuda", torch.bfloat16, True)]


class _Twice(Group):
    """Two ranks that say the same."""

    size = 2

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        assert tensor.device == DEVICE  # by NCCL
        return tensor.mul_(2.0)

    def stack(self, tensor: Tensor) -> Tensor:
        assert tensor.device == DEVICE
        return torch.stack((tensor, tensor))


def test_what_ranks_sum_is_on_the_device() -> None:
    with pretended_gpu() as gpu:
        layer = torch.nn.Linear(2, 1).to(gpu.device)
        optimizer = torch.optim.Adam(layer.parameters(), fused=True)
        x = torch.ones(1, 2, device=gpu.device)
        norm = clipped_step(optimizer, [layer(x).sum()], 1e-3, 1e9, _Twice())
        assert norm == pytest.approx(2 * 3**0.5)  # d/dw = (1, 1), d/db = 1, of two ranks
        normalizer = Normalizer(2).to(gpu.device)
        normalizer.update(torch.tensor([[1.0, 3.0], [3.0, 5.0]], device=gpu.device), _Twice())
        assert normalizer.count.item() == pytest.approx(4, abs=1e-3)
        assert normalizer.mean.tolist() == pytest.approx([2.0, 4.0], abs=1e-3)


@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_an_evaluation(obs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(make_task("cartpole")), "episode_steps", 6)
    cfg = tiny("cartpole", obs).algo

    def go(env: BranchedEnv) -> dict[str, Any]:
        return evaluate.run_episodes(Sdpg(cfg, Context(env, env.task.inputs[obs], 0)).policy(), env)

    expected = go(make_env("cartpole", 3, 0, 1, 1, obs))
    assert expected["length"]["mean"] == 6.0
    with pretended_gpu():
        assert go(moved(make_env("cartpole", 3, 0, 1, 1, obs))) == expected


def test_states_are_mended_on_the_device() -> None:
    spec = compile_scene(make_task("hopper"))
    hopper = own.Rows(spec, 3, (), torch.device("cpu"))
    qpos = torch.rand(3, spec.nq)
    qpos[1, 2], qpos[2, 0] = torch.nan, 1e10
    rows = hopper(qpos, None)
    assert rows.keys() == {"qpos"} and rows["qpos"].dtype == torch.float64
    assert torch.equal(rows["qpos"][0], qpos[0].double())
    assert rows["qpos"][1].tolist() == rows["qpos"][2].tolist() == spec.qpos0.tolist()
    body = "<body mocap='true' pos='{} 0 0'><geom size='1'/></body>"
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body.format(1)}{body.format(2)}</worldbody></mujoco>")
    given = torch.full((2, 2, 3), 7.0)
    given[1, 0, 1] = torch.inf
    fixed = own.Rows(model, 2, MOCAP, torch.device("cpu"))(torch.zeros(2, 0), {"mocap_pos": given})
    assert fixed["mocap_pos"].tolist() == [[[7, 7, 7], [7, 7, 7]], [[7, 0, 7], [7, 7, 7]]]
    assert fixed["mocap_quat"].tolist() == [[[1, 0, 0, 0]] * 2] * 2
    with pretended_gpu() as gpu:
        there = own.Rows(spec, 3, (), gpu.device)
        for given in (qpos, qpos.to(gpu.device)):
            assert torch.equal(to_host(there(given, None)["qpos"]), rows["qpos"])
        assert not gpu.waits


def test_frame_stacks_are_on_the_renderers_device() -> None:
    with pretended_gpu() as gpu:
        env = moved(make_env("cartpole", 2, 0, 0, 1, "pixels"))
        frame_stacks = env.frame_stacks
        assert frame_stacks is not None
        env.observe()
        qpos = env.physics().qpos[:, 0]
        before = frame_stacks.frames()["pixels"]
        frame_stacks.look(qpos + 0.3, torch.tensor([False, True], device=gpu.device))
        after = frame_stacks.frames()["pixels"]
        with gpu.counting() as waits:
            frame_stacks.look(qpos, torch.zeros(2, dtype=torch.bool, device=gpu.device))
        assert not waits and after.device == gpu.device
        before, after = to_host((before, after))  # (2, 9, H, W)
        assert torch.equal(after[0, :-3], before[0, 3:]) and not torch.equal(after[0, -3:], before[0, -3:])
        assert torch.equal(after[1], after[1, -3:].repeat(3, 1, 1))
        frame_stacks.load_state_dict({"frames.pixels": torch.ones(2, 9, 84, 84, dtype=torch.uint8)})
        assert frame_stacks.frames()["pixels"].device == gpu.device


def test_a_film_of_a_world_on_the_device() -> None:
    plain = make_env("cartpole", 1, 0, 0, 1, "pixels")
    with pretended_gpu():
        env = moved(plain)
        image = OnGpu(torch.zeros(3, 30, 30, dtype=torch.uint8))
        player = Player(SimplePolicy("zero", 1, RowRng(0, env.rows)), env, lambda qpos: image)
        player.step()
        assert player.image().shape == (30, 44, 3)
        player.restart()
        assert player.steps == 0 and env.clock.tolist() == [0]
