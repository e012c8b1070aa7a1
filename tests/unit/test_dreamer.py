"""DreamerV3: what it remembers of episodes, how it acts, what its losses change."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.runs import SRC
from helpers.targets import Targets

from sdpg.algos.api import Context
from sdpg.algos.dreamer import Dreamer, newest_frames
from sdpg.algos.dreamer_cfg import SIZES, DreamerCfg
from sdpg.algos.dreamer_networks import DreamerNetworks, as_tensordict, seeded
from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.evaluate import run_episodes
from sdpg.presets import resolve

CFG = DreamerCfg(size="1m", steps=6, buffer=400, seed_steps=12, batch=3, length=5, train_ratio=5.0, imagination=3)


@pytest.fixture(scope="module")
def env() -> BranchedEnv:
    return make_env("cartpole", 3, 0, seed=0, threads=1, obs="pixels")


def made(env: BranchedEnv, cfg: DreamerCfg = CFG) -> Dreamer:
    algo = cfg.build(Context(env, sources=("pixels",)))
    assert isinstance(algo, Dreamer)
    return algo


def test_frames_are_the_newest_of_a_stack_in_the_models_size() -> None:
    stack = torch.zeros(2, 9, 128, 128, dtype=torch.uint8)
    stack[:, 6:, ::2] = 200  # every other row: its mean, where two become one
    frames = newest_frames({"pixels": stack}, {"pixels": 3})
    assert frames.shape == (2, 3, 64, 64) and frames.dtype == torch.uint8 and (frames == 100).all()
    small = torch.full((1, 3, 48, 84), 7, dtype=torch.uint8)
    assert newest_frames({"a": small, "b": small}, {"a": 3, "b": 3}).unique().tolist() == [7]


def test_bytes_are_scaled_when_acting_and_when_learning(env: BranchedEnv) -> None:
    """An image of bytes and the same image as numbers between 0 and 1 are one to the encoder."""
    image = newest_frames(env.observe().sources, {"pixels": 3})
    assert image.dtype == torch.uint8 and image.max() > 1
    encoder = made(env).networks.encoder
    assert torch.equal(encoder(image), encoder(image.float() / 255.0))


def test_time_outs_and_terminations_are_remembered_apart() -> None:
    """Row 1's time is nearly up; then row 2 is said to have terminated, and row 0 to have failed beside row 1."""
    env = make_env("cartpole", 3, 0, seed=0, threads=1, obs="pixels")
    algo = made(env)
    env._clock[1] = env.task.episode_steps - 2  # its second step is its last
    algo.collect(env)
    buffer = algo.buffer
    assert buffer._written.tolist() == [6, 7, 6]
    first, last, terminated = buffer._flags.unbind(-1)
    assert first[:7, 0].tolist() == [True] + [False] * 6
    assert first[:7, 1].tolist() == [False] * 3 + [True] + [False] * 3
    assert last[:7, 1].tolist() == [False] * 2 + [True] + [False] * 4 and not last[:, 0].any()
    assert not terminated.any()
    assert (buffer._action[3, 1] == 0).all() and buffer._reward[3, 1] == 0  # nothing led to the beginning
    assert (buffer._action[2, 1] != 0).all() and buffer._reward[2, 1] != 0  # the last action and its reward are there
    assert not torch.equal(buffer._image[2, 1], buffer._image[3, 1])
    step = env.step(torch.zeros(3, 1, 1))
    ended = torch.tensor([False, False, True])[:, None]
    algo._remember_ends(env, replace(step, terminated=ended))
    assert buffer._written.tolist() == [6, 7, 7] and buffer._flags[6, 2].tolist() == [False, True, True]
    failed = torch.tensor([True, False, False])[:, None]
    algo._remember_ends(env, replace(step, terminated=failed, failed=failed, truncated=~failed & ~ended))
    assert buffer._written.tolist() == [6, 7, 7]  # nothing can be drawn: what is there is the last that is known
    assert buffer._flags[5, 0].tolist() == buffer._flags[6, 1].tolist() == [False, True, False]


def test_what_acts_is_what_the_losses_see(env: BranchedEnv) -> None:
    """From each latent state of a replayed sequence, with the action that was taken, the policy comes to the belief
    that the losses have of the next step; it begins as they do."""
    algo = made(env)
    algo.collect(env)
    batch = algo.buffer.draw(3, 5, torch.Generator().manual_seed(0))
    with seeded(0, algo.device), torch.no_grad():
        _, seen = algo.loss.model_loss(as_tensordict(batch, algo.networks))
        states, beliefs = seen["next", "state"], seen["next", "belief"]
        carry = algo.networks.start(3)
        for t in range(5):
            _, belief = algo.networks.look(batch.image[:, t], carry)
            torch.testing.assert_close(belief, beliefs[:, t])
            carry = {"state": states[:, t], "belief": beliefs[:, t], "action": batch.action[:, min(t + 1, 4)]}


def test_the_policy_remembers(env: BranchedEnv) -> None:
    policy, sources = made(env).policy(), env.observe().sources
    with torch.no_grad():
        action, carry = policy(sources, policy.carry(3))
        again, _ = policy(sources, carry)
        afresh, _ = policy(sources, policy.carry(3))
    assert (action.abs() < 1).all() and torch.equal(carry["action"], action)
    assert carry["state"].view(3, 32, -1).sum(-1).eq(1).all()
    assert torch.equal(action, afresh) and not torch.equal(action, again)


def test_an_update_moves_every_network_and_the_slow_critic_follows(env: BranchedEnv) -> None:
    algo = made(env, replace(CFG, warmup=0, target_rate=0.5))
    algo.collect(env)
    before = {name: value.clone() for name, value in algo.networks.named_parameters()}
    slow = [value.clone() for value in algo._slow]
    assert all(torch.equal(a, b) for a, b in zip(slow, algo.networks.critic.parameters(), strict=True))
    with seeded(0, algo.device):
        algo._update_once(torch.Generator().manual_seed(0))
        algo._update_once(torch.Generator().manual_seed(0))  # heads of zeros pass nothing on in the first
    assert not [name for name, value in algo.networks.named_parameters() if torch.equal(value, before[name])]
    assert all(not torch.equal(a, b) for a, b in zip(slow, algo._slow, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(algo.networks.critic.parameters(), algo._slow, strict=True))


def test_the_actors_loss_does_not_reach_the_world_model(env: BranchedEnv) -> None:
    algo = made(env)
    algo.collect(env)
    with seeded(0, algo.device):
        batch = algo.buffer.draw(3, 5, torch.Generator().manual_seed(0))
        losses = algo.loss(as_tensordict(batch, algo.networks))
    losses["loss_actor"].backward(retain_graph=True)
    touched = {name.split(".")[0] for name, p in algo.networks.named_parameters() if p.grad is not None}
    assert touched == {"actor"}


def test_a_sequence_forgets_where_an_episode_begins(env: BranchedEnv) -> None:
    """What comes before `first` does not change what comes after it."""
    algo = made(env)
    algo.collect(env)
    batch = algo.buffer.draw(3, 5, torch.Generator().manual_seed(0))
    first = torch.zeros_like(batch.first)
    first[:, 2] = True
    other = replace(batch, first=first, action=batch.action.clone(), image=batch.image.clone())
    other.action[:, :3] += 1.0  # that which led to the beginning, too
    other.image[:, :2] = 0
    found = []
    for each in (replace(batch, first=first), other):
        with seeded(0, algo.device), torch.no_grad():
            _, seen = algo.loss.model_loss(as_tensordict(each, algo.networks))
        found.append(seen["next", "belief"])
    assert torch.equal(found[0][:, 2:], found[1][:, 2:]) and not torch.equal(found[0][:, 1], found[1][:, 1])


def test_a_resume_has_the_networks_the_moments_and_the_slow_critic(env: BranchedEnv) -> None:
    algo, other = made(env), made(env, CFG)
    for _ in range(2):
        metrics = algo.update(algo.collect(env))
    assert metrics["Train/updates"] == 6.0 and metrics["Loss/skipped"] == 0.0
    other.load_state_dict(algo.state_dict())
    assert other.made == 36 and other.optimizer.param_groups[0]["step"] == algo.optimizer.param_groups[0]["step"] > 0
    for mine, theirs in zip(algo.optimizer.state.values(), other.optimizer.state.values(), strict=True):
        assert torch.equal(mine["rms"], theirs["rms"]) and torch.equal(mine["momentum"], theirs["momentum"])
    assert all(torch.equal(a, b) for a, b in zip(algo._slow, other._slow, strict=True))
    assert torch.equal(algo.loss.actor_loss.retnorm.high, other.loss.actor_loss.retnorm.high)
    assert not torch.equal(other._slow[0], next(other.networks.critic.parameters()))


def test_evaluation_draws_nothing(env: BranchedEnv) -> None:
    """The global generator is as it was, and the same worlds give the same return."""
    algo = made(env)
    before = torch.get_rng_state()
    returns = []
    for _ in range(2):
        worlds = make_env("cartpole", 2, 0, seed=3, threads=1, obs="pixels")
        worlds._clock[:] = worlds.task.episode_steps - 4
        returns.append(run_episodes(algo.policy(), worlds)["return"]["mean"])
    assert returns[0] == returns[1]
    made(env).update(made(env).collect(env))
    assert torch.equal(torch.get_rng_state(), before)


def test_planned_parameters_are_those_of_the_networks() -> None:
    """The plan counts the slow critic as well, and leaves biases and norms out."""
    for size, channels, actions in (("1m", 3, 1), ("12m", 6, 4)):
        cfg = replace(CFG, size=size)  # type: ignore[arg-type]
        networks = DreamerNetworks(cfg, channels, actions)
        real = sum(p.numel() for p in networks.parameters()) + sum(p.numel() for p in networks.critic.parameters())
        assert cfg._parameters(channels, actions) == pytest.approx(real, rel=0.03)
    assert list(SIZES) == ["1m", "12m", "25m", "50m", "100m", "200m"]


def test_wrong_options_and_observations_are_one_line(env: BranchedEnv) -> None:
    with pytest.raises(SdpgError, match=r"dreamer learns from colour images alone, and 'state' is something else"):
        CFG.build(Context(make_env(Targets(), 2, 0, seed=0, threads=1)))
    with pytest.raises(SdpgError, match=r"algo.buffer 12 is too small for 3 worlds: give 15 or more"):
        made(env, replace(CFG, buffer=12)).collect(env)
    cfg = resolve("cartpole", obs="pixels", algorithm="dreamer")
    with pytest.raises(SdpgError, match=r"algo.length must be at least 2, not 1"):
        replace(cfg, algo=replace(cfg.algo, length=1)).validate()  # type: ignore[call-arg]


def test_without_torchrl_it_is_one_line_and_the_rest_does_not_need_it(tmp_path: Path) -> None:
    script = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torchrl' else find(name, *a)\n"
        "from sdpg.algos.registry import ALGORITHMS\n"
        "from sdpg.errors import SdpgError\n"
        "for name in ALGORITHMS.built_in:\n"
        "    try: ALGORITHMS.load(name)\n"
        "    except SdpgError as error: print(error)\n"
        "print('torchrl' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["algorithm 'dreamer' needs torchrl: pip install 'sdpg[dreamer]'", "False"]
