"""Networks as tasks declare them: encoders per source, critics of a state with parts, what is normalised."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sdpg.algos.api import Context
from sdpg.algos.sdpg import Sdpg
from sdpg.algos.sdpg_cfg import SdpgCfg
from sdpg.build import cameras_of, make_env, shapes_of
from sdpg.check.checks import check_task
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.nn.declared import make_critic
from sdpg.nn.modules import CLIP, Critic, Normalizer
from sdpg.presets import resolve
from sdpg.run.memory import make_plan
from sdpg.run.policy import build_algorithm
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera, Encoder, Memory, Physics


class Declares(Cartpole):
    """Two cameras and two vectors, each with an encoder of its own; a state of two parts."""

    cameras = {"pixels": Camera("side", 40, 40), "ranges": Camera("side", 40, 40, depth=True, stack=1)}
    inputs = {
        "state": ("state",),
        "pixels": ("pixels", "ranges", "speed", "scan"),
        "vectors": ("speed", "scan"),
    }
    encoders = {
        "pixels": Encoder(features=24),
        "ranges": Encoder(features=8),
        "scan": Encoder(widths=(16, 12), normalized=False),
    }
    state_parts = {"pose": 2, "rest": 2}
    state_encoders = {"rest": Encoder(widths=(7, 6), normalized=False)}

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        scan = torch.stack([3.0 + x.qpos[..., 0] * i for i in range(5)], dim=-1)  # far from 0
        return super().observe(x, memory) | {"speed": x.qvel.clone(), "scan": scan}


def _algo(obs: str, **options: object) -> tuple[Sdpg, BranchedEnv]:
    chosen = {"encoder": "small", "actor_widths": (20,), "critic_widths": (9,), "horizon": 4, **options}
    env = make_env(Declares(), 2, 1, obs=obs, threads=1)
    return Sdpg(SdpgCfg(**chosen), Context(env, env.task.inputs[obs])), env  # type: ignore[arg-type]


def test_every_source_has_the_encoder_that_its_task_declares() -> None:
    algo, env = _algo("pixels", vector_widths=(11,), encoder_features=99)
    encoders = algo.actor.encoders
    assert encoders["pixels"].norm.normalized_shape == (24,) and encoders["ranges"].head[-2].out_features == 8
    assert isinstance(encoders["speed"][0], Normalizer), "as the options say"
    assert [each.out_features for each in encoders["speed"][1] if isinstance(each, nn.Linear)] == [11]
    kinds = [type(layer) for layer in encoders["scan"][1]]
    assert kinds == [nn.Linear, nn.ELU, nn.LayerNorm] * 2 and isinstance(encoders["scan"][0], nn.Identity)
    assert algo.actor.trunk[0].in_features == 24 + 8 + 11 + 12
    assert set(algo.normalizers) == {"speed", "state"}
    metrics = algo.update(algo.collect(env))
    assert metrics["Loss/actor_skipped"] == 0 and algo.normalizers["speed"].count > 1


def test_a_part_that_is_not_normalised_reaches_its_encoder_as_it_is() -> None:
    algo, env = _algo("state")
    algo.update(algo.collect(env))
    state = 50.0 * torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    shown = algo.normalizers["state"](state)
    assert torch.equal(shown[..., 2:], state[..., 2:])
    assert (shown[..., :2].abs() <= CLIP).all() and not torch.equal(shown[..., :2], state[..., :2])
    pose, rest = shown.split((2, 2), dim=-1)
    hidden = torch.cat((pose, algo.critic.parts["rest"](rest)), dim=-1)
    by_hand = algo.critic.value(algo.critic.trunk(hidden))[..., 0]
    torch.testing.assert_close(algo.critic(shown), by_hand)
    assert not list(algo.critic.parts["pose"].parameters()), "passed through"


def test_without_declarations_the_critic_is_the_plain_one() -> None:
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    declared, plain = make_critic(Cartpole(), 4, (8,), one), Critic(4, (8,), other)
    assert declared.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(values, plain.state_dict()[name]) for name, values in declared.state_dict().items())


def test_normalised_numbers_are_clipped_once_there_are_statistics() -> None:
    normalizer, x = Normalizer(2), torch.tensor([[3.0, 400.0]])
    torch.testing.assert_close(normalizer(x), x, rtol=1e-4, atol=0)  # nothing is known of what is usual
    normalizer.update(torch.tensor([[1.0, 5.0]]).expand(1000, 2))  # constant so far
    assert normalizer(torch.tensor([[1.001, -9.0]]))[0].tolist() == [pytest.approx(0.32, abs=0.1), -CLIP]
    x = torch.tensor([[1.001, -9.0]], requires_grad=True)
    normalizer(x).sum().backward()  # for algorithms that differentiate what a policy sees
    assert x.grad is not None and x.grad[0, 0] > 1.0 and x.grad[0, 1] == 0.0
    assert normalizer(torch.full((1, 2), torch.nan)).isnan().all(), "what is not finite is not hidden"


def test_a_policy_from_declared_sources_is_saved_and_loaded() -> None:
    cfg = replace(resolve("cartpole", obs="vectors"), task="test_declared:Declares", num_nominal=2, num_auxiliary=1)
    first, second = (make_env(Declares(), 2, 1, obs="vectors", threads=1) for _ in range(2))
    algo = build_algorithm(cfg, first)
    algo.update(algo.collect(first))
    other = build_algorithm(replace(cfg, seed=7), second)
    other.load_state_dict(algo.state_dict())
    seen = first.observe().sources
    assert torch.equal(algo.policy()(seen, {})[0], other.policy()(seen, {})[0])


@pytest.mark.parametrize("obs", ["pixels", "vectors", "state"])
def test_plans_count_the_declared_encoders(obs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply-adds as torch counts them on the networks that are trained; parameters in the memory plan."""
    from torch.utils.flop_counter import FlopCounterMode

    algo, env = _algo(obs, vector_widths=(11,), precision="float32")
    seen, counts = env.observe(), []
    for act in (lambda: algo.actor(seen.sources), lambda: algo.critic(seen.state[:, 0])):
        with FlopCounterMode(display=False) as counter:
            act()
        counts.append(counter.get_total_flops() // 2 // env.num_nominal)
    task = env.task
    shapes = shapes_of(task, obs, 2, 2)
    assert algo.cfg._multiply_adds(shapes) == tuple(counts)
    assert len(shapes.images) == len(cameras_of(task, obs))
    weights = [p for name, p in algo.actor.named_parameters() if name.startswith("encoders.") and p.dim() > 1]
    weights += [p for p in algo.critic.parts.parameters() if p.dim() > 1] * 2  # and those of the target
    counted = algo.cfg.memory(shapes).fixed["networks"] / 16  # weights, gradients, two moments: four floats each
    assert sum(p.numel() for p in weights) <= counted <= 1.1 * sum(p.numel() for p in weights) + 300
    monkeypatch.setattr("sdpg.run.memory.make_task", lambda name, cfg: Declares())
    assert make_plan(resolve("cartpole", obs=obs)).total > 0


class UnknownSource(Cartpole):
    encoders = {"proprio": Encoder()}


class WidthsOfACamera(Cartpole):
    encoders = {"pixels": Encoder(widths=(8,))}


class FeaturesOfAVector(Cartpole):
    encoders = {"state": Encoder(features=8)}


class NoEncoder(Cartpole):
    encoders = {"state": (8,)}  # type: ignore[dict-item]


class NoWidth(Cartpole):
    encoders = {"state": Encoder(widths=(8, 0))}


class PartsTooShort(Cartpole):
    state_parts = {"pose": 2, "rest": 1}


class EmptyPart(Cartpole):
    state_parts = {"pose": 4, "rest": 0}


class UnknownPart(Cartpole):
    state_parts = {"pose": 4}
    state_encoders = {"scan": Encoder()}


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (UnknownSource, r"encoders\['proprio'\] is of no source that inputs name; they name state, pixels"),
        (WidthsOfACamera, "is of a camera; give features"),
        (FeaturesOfAVector, "is of a vector; give widths"),
        (NoEncoder, "is tuple; give an Encoder"),
        (NoWidth, "features of 0; they must be positive"),
        (PartsTooShort, "state_parts add up to 3, and state_size is 4; make them equal"),
        (EmptyPart, r"state_parts\['rest'\] is 0"),
        (UnknownPart, r"state_encoders\['scan'\] is of no part of the state; its parts are pose"),
    ],
)
def test_mistakes_are_told_in_one_line(task: type[Cartpole], words: str) -> None:
    with pytest.raises(SdpgError, match=words):
        make_env(task(), 1, 0, threads=1)
    (problem,) = [finding.problem for finding in check_task(task()) if not finding.passed]
    assert problem is not None and "\n" not in problem


@pytest.mark.parametrize("algorithm", ["sdpg", "ppo"])
def test_who_has_no_camera_learns_with_the_preset_of_state(algorithm: str) -> None:
    state, blind, seeing = (resolve("go2_terrain", obs=obs, algorithm=algorithm) for obs in ("state", "scan", "depth"))
    assert replace(blind, obs="state") == state
    assert seeing.algo != state.algo
