"""The reset rules of the grid, on the toy and on a scene of one sliding block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.tasks import Block
from torch import Tensor

from sdpg.build import make_env
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.sim.toy import ToyTask
from sdpg.types import Ended, Memory, Physics, Start, Terms


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine writes MUJOCO_LOG.TXT into the current folder when it warns."""
    monkeypatch.chdir(tmp_path)


def _toy_env(n: int = 3, m: int = 4, seed: int = 0, first_row: int = 0, **options: float) -> BranchedEnv:
    task = ToyTask(**options)  # type: ignore[arg-type]
    return BranchedEnv(task, task.sim(n * (1 + m)), n, seed, first_row)


def _block_env(n: int = 3, m: int = 4, threads: int = 1, seed: int = 0) -> BranchedEnv:
    return make_env(Block(), n, m, seed, threads)


def _action(env: BranchedEnv, t: int, along_rows: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + t)
    action = 2 * torch.rand(*env.grid, env.task.action_size, generator=generator) - 1
    return action[:, :1].expand_as(action).contiguous() if along_rows else action


def _is_branched(env: BranchedEnv, row: int) -> bool:
    x, memory = env.physics(), env.memory
    tensors = [x.qpos, x.qvel, *memory.values()]
    return all(torch.equal(v[row], v[row, :1].expand_as(v[row])) for v in tensors)


def _advance(env: BranchedEnv, steps: int, along_rows: bool = False) -> None:
    for t in range(steps):
        env.restart(env.step(_action(env, t, along_rows)))


def test_every_row_starts_branched_and_rows_differ() -> None:
    env = _block_env()
    assert env.grid == (3, 5)
    assert all(_is_branched(env, row) for row in range(3))
    assert len(env.physics().qpos[:, 0, 0].unique()) == 3 and len(env.memory["goal"][:, 0, 0].unique()) == 3


def test_branch_copies_the_nominal_physics_memory_and_all() -> None:
    env = _block_env()
    _advance(env, 5)
    assert not _is_branched(env, 0)
    nominal = env.physics().qpos[:, 0].clone()
    env.branch()
    assert all(_is_branched(env, row) for row in range(3))
    assert torch.equal(env.physics().qpos[:, 0], nominal)


def test_a_terminated_auxiliary_is_copied_from_the_nominal_as_it_is_now() -> None:
    env = _toy_env(a=torch.eye(1), b=torch.eye(1), limit=1.5, start_std=0.0)
    action = torch.zeros(3, 5, 1)
    action[:, 0] = 0.5
    action[1, 2] = 0.99
    assert not env.restart(env.step(action)).any()
    step = env.step(action)  # states: nominals 1.0, branch (1, 2) 1.98: beyond the limit
    assert step.terminated.nonzero().tolist() == [[1, 2]]
    clock = env.clock.clone()
    cut = env.restart(step)
    assert cut.nonzero().tolist() == [[1, 2]]
    x = env.physics().qpos
    assert x[1, 2].item() == x[1, 0].item() == 1.0  # the current nominal, not its start
    assert (x[1, [1, 3, 4]] == 0).all()  # its neighbours are left alone
    assert step.state[1, 2].item() == pytest.approx(1.98)  # the state before the restart
    assert torch.equal(env.clock, clock) and env.episodes.count == 0


def test_a_copied_auxiliary_takes_the_nominals_memory() -> None:
    env = _block_env()
    _advance(env, 3)
    step = env.step(_action(env, 9))
    step.terminated[2, 3] = True
    step.truncated[2, 3] = False
    env.restart(step)
    assert all(torch.equal(v[2, 3], v[2, 0]) for v in env.memory.values())
    assert not torch.equal(env.memory["previous"][2, 2], env.memory["previous"][2, 0])


def test_a_terminated_nominal_restarts_and_branches_its_row_again() -> None:
    env = _toy_env(a=torch.eye(1), b=torch.eye(1), limit=1.5)
    env.sim.write(torch.arange(15), torch.zeros(15, 1), torch.zeros(15, 0))
    action = torch.zeros(3, 5, 1)
    action[1, 0] = 0.9
    env.restart(env.step(action))
    step = env.step(action)
    assert step.terminated.nonzero().tolist() == [[1, 0]]
    cut = env.restart(step)
    assert cut.tolist() == [[False] * 5, [True] * 5, [False] * 5]  # every trajectory of the row ends here
    assert env.clock.tolist() == [2, 0, 2] and env.episodes.count == 1
    assert _is_branched(env, 1) and env.physics().qpos[1, 0].item() not in (0.0, pytest.approx(1.8))
    assert step.state[1, 0].item() == pytest.approx(1.8)
    mean = env.episodes.means()
    assert mean.total == pytest.approx(step.reward[1, 0].item() - 0.9**2 - 0.1 * 0.9**2) and mean.length == 2.0


def test_the_time_limit_truncates_whole_rows_and_keeps_the_state_before() -> None:
    env = _toy_env(episode_steps=3)
    for t in range(2):
        step = env.step(_action(env, t))
        assert not step.truncated.any()
        assert not env.restart(step).any()
    step = env.step(_action(env, 2))
    assert step.truncated.all() and not step.terminated.any()
    before = env.physics().qpos.clone()
    assert env.restart(step).all()
    assert torch.equal(step.state, before)
    assert not torch.equal(env.physics().qpos, before)
    assert env.clock.tolist() == [0, 0, 0] and env.episodes.count == 3


def test_terminated_at_the_time_limit_is_terminated() -> None:
    env = _toy_env(episode_steps=1, limit=0.0)
    step = env.step(_action(env, 0))
    assert step.terminated.all() and not step.truncated.any()


def test_the_next_segment_goes_on() -> None:
    env = _block_env()
    _advance(env, 4)
    clock, nominal = env.clock.clone(), env.physics().qpos[:, 0].clone()
    env.branch()
    assert torch.equal(env.clock, clock) and torch.equal(env.physics().qpos[:, 0], nominal)


def test_parameters_are_drawn_per_row_and_shared_along_it() -> None:
    env = _block_env()
    friction = env.sim.params("geom_friction").view(3, 5, 2, 3)
    assert torch.equal(friction, friction[:, :1].expand_as(friction))
    assert len(friction[:, 0, 0, 0].unique()) == 3
    step = env.step(_action(env, 0))
    step.terminated[1, 0] = True
    env.restart(step)
    again = env.sim.params("geom_friction").view(3, 5, 2, 3)
    assert torch.equal(again, again[:, :1].expand_as(again))
    assert torch.equal(again[[0, 2]], friction[[0, 2]]) and not torch.equal(again[1], friction[1])


class _Nan(ToyTask):
    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {"r": torch.where(action[..., 0] > 0.9, torch.nan, 1.0)}


def test_a_reward_that_is_not_finite_is_a_failed_world() -> None:
    task = _Nan()
    env = BranchedEnv(task, task.sim(6), 2)
    action = torch.zeros(2, 3, 1)
    action[0, 1] = action[1, 0] = 1.0
    step = env.step(action)
    assert step.failed.tolist() == step.terminated.tolist() == [[False, True, False], [True, False, False]]
    assert step.reward.tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
    assert (step.state[step.failed] == 0).all() and torch.isfinite(step.state).all()
    assert env.restart(step).tolist() == [[False, True, False], [True, True, True]]
    assert torch.isfinite(env.observe().state).all()
    assert not env.step(torch.zeros(2, 3, 1)).failed.any()


class _Loud(ToyTask):
    """A large action makes the state large in row 0, the reward in row 1, a source beside the state in row 2."""

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        size = torch.tensor([0.0, 1e3, 0.0])[:, None]
        return {"r": size * action[..., 0]}

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        return {"heard": torch.tensor([0.0, 0.0, 1e3])[:, None, None] * action}

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        return Start(torch.zeros(n, 2), torch.zeros(n, 0), {"heard": torch.zeros(n, 1)})

    def control(self, x: Physics, memory: Memory, action: Tensor) -> Tensor:
        return torch.tensor([1e6, 0.0, 0.0])[:, None, None] * action

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return {"state": x.qpos.clone(), "heard": memory["heard"]}


@pytest.mark.parametrize("action", [0.5, torch.inf, -torch.inf, torch.nan])
def test_a_world_that_explodes_is_a_failed_world(action: float) -> None:
    """A finite number beyond the bound counts as one that is not finite, whatever its sign."""
    task = _Loud()
    env = BranchedEnv(task, task.sim(9), 3, max_value=100.0)
    actions = torch.zeros(3, 3, 1)
    actions[:, 1] = action
    step = env.step(actions)
    assert step.failed.tolist() == [[False, True, False]] * 3
    assert (step.reward[:, 1] == 0).all() and (step.state[:, 1] == 0).all() and step.terminated[:, 1].all()
    env.restart(step)
    assert not env.step(torch.full((3, 3, 1), 1e-5)).failed.any()


def test_steps_since_branch_count_from_the_last_time_a_branch_was_its_nominal() -> None:
    env = _block_env(n=2, m=2)
    for t in range(3):
        step = env.step(torch.zeros(2, 3, 1))
        if t == 1:
            step.terminated[0, 1] = True
        env.restart(step)
    assert env.steps_since_branch.tolist() == [[0, 1, 3], [0, 3, 3]]
    step = env.step(torch.zeros(2, 3, 1))
    step.terminated[1, 0] = True
    env.restart(step)
    assert env.steps_since_branch.tolist() == [[0, 2, 4], [0, 0, 0]]
    env.branch()
    assert not env.steps_since_branch.any()


@pytest.mark.parametrize("column", [0, 2])
def test_a_world_that_the_engine_gives_up_is_restarted(column: int) -> None:
    env = _block_env()
    _advance(env, 3)
    action = _action(env, 5)
    action[1, column] = torch.nan
    step = env.step(action)
    assert step.failed.nonzero().tolist() == [[1, column]]
    assert torch.isfinite(step.reward).all() and torch.isfinite(step.state).all()
    env.restart(step)
    for t in range(5):
        step = env.step(_action(env, t))
        assert not step.failed.any()
        assert torch.isfinite(step.reward).all()
        env.restart(step)


def test_observing_changes_nothing_and_shows_nominals_to_the_policy() -> None:
    env = _block_env()
    _advance(env, 3)
    first, second = env.observe(), env.observe()
    assert torch.equal(first.state, second.state) and first.state.shape == (3, 5, 3)
    assert set(first.sources) == {"state", "proprio"}
    assert torch.equal(first.sources["state"], first.state[:, 0]) and first.sources["proprio"].shape == (3, 1)


def test_the_reward_is_the_sum_of_its_terms() -> None:
    env = _block_env()
    step = env.step(_action(env, 0))
    assert set(step.terms) == {"position", "rate"}
    torch.testing.assert_close(step.reward, step.terms["position"] + step.terms["rate"])


def test_one_branch_is_ordinary_reinforcement_learning() -> None:
    env = _toy_env(m=0, episode_steps=2)
    env.branch()
    _advance(env, 2)
    assert env.grid == (3, 1) and env.episodes.count == 3


def test_a_restored_environment_goes_on_identically() -> None:
    env, fresh = _block_env(), _block_env(seed=5)
    _advance(env, 30)
    fresh._start_rng, fresh._step_rng = _block_env()._start_rng, _block_env()._step_rng  # the seed belongs to the run
    fresh.load_state_dict(env.state_dict())
    env.branch()  # auxiliaries are not saved: a segment begins with this
    assert not fresh.steps_since_branch.any()
    assert env.episodes.means() == fresh.episodes.means() or env.episodes.count == 0
    for t in range(60):
        a, b = env.step(_action(env, t)), fresh.step(_action(env, t))
        assert torch.equal(a.reward, b.reward) and torch.equal(a.state, b.state), t
        env.restart(a)
        fresh.restart(b)
    assert torch.equal(env.clock, fresh.clock) and env.episodes.count == fresh.episodes.count > 0
    assert env.episodes.means() == fresh.episodes.means()


def test_a_state_has_the_nominal_worlds_only_and_one_of_all_worlds_is_read_too() -> None:
    """Older checkpoints have the auxiliaries: (E, ...) of the engine, (N, K, ...) of memory."""
    env, new, old = (_block_env() for _ in range(3))
    _advance(env, 30)
    state = env.state_dict()
    named = {f"memory.{name}": values for name, values in env.memory.items()}
    of_all = {f"sim.{name}": values for name, values in env.sim.state_dict().items()}
    assert all(len(state[name]) == 3 for name in of_all) and all(len(values) == 15 for values in of_all.values())
    assert all(state[name].shape == values[:, 0].shape for name, values in named.items())
    new.load_state_dict(state)
    old.load_state_dict(state | named | of_all)
    env.branch()
    for t in range(60):
        steps = [each.step(_action(env, t)) for each in (env, new, old)]
        for step in steps[1:]:
            assert torch.equal(step.reward, steps[0].reward) and torch.equal(step.state, steps[0].state), t
        for each, step in zip((env, new, old), steps, strict=True):
            each.restart(step)


class _Careless(ToyTask):
    """Shows and returns its memory, the physics and the action themselves, not copies of them; counts its looks."""

    looks = 0

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        names = ("goal", "action", "again", "along", "place")
        memory = {name: torch.full((n, 2 if name == "place" else 1), 100.0 + i) for i, name in enumerate(names)}
        return Start(rng.normal(2), torch.zeros(n, 0), memory)

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return {"goal": memory["goal"][..., 0], "place": x.qpos[..., 0]}

    def advance(self, x: Physics, memory: Memory, action: Tensor, rng: RowRng) -> Memory:
        along = rng.normal(1)[:, None].expand(action.shape)  # one number for all branches of a row
        return memory | {"action": action, "again": action, "along": along, "place": x.qpos}

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        self.looks += 1
        return {"state": memory["goal"], "place": x.qpos, "action": memory["action"]}


def test_restarts_write_nothing_that_somebody_else_holds() -> None:
    task = _Careless()
    env = BranchedEnv(task, task.sim(15), 3)
    for t in range(4):
        goals, before = env.memory, env.observe()
        action = _action(env, t)
        step = env.step(action)
        between = env.observe()
        held = [action, *goals.values(), before.state, between.state, *before.sources.values()]
        held += [
            *between.sources.values(),
            *(v for v in vars(step).values() if isinstance(v, Tensor)),
            *step.terms.values(),
            *env.column(0).values(),
        ]
        step.terminated[1, 2] = step.terminated[2, 0] = True  # one is copied, a row begins
        kept = [values.clone() for values in held]
        env.restart(step)
        env.branch()
        assert all(torch.equal(values, copy) for values, copy in zip(held, kept, strict=True))
        # By whatever names the task returned a tensor, what it drew for the new episode is remembered by each.
        assert [values[2, 0, 0].item() for values in env.memory.values()] == [100.0, 101.0, 102.0, 103.0, 104.0]
        assert torch.equal(env.memory["action"][0, 0], action[0, 0]) and all(_is_branched(env, row) for row in range(3))


def test_a_restored_environment_shares_nothing_with_what_it_was_restored_from() -> None:
    env, other = _block_env(), _block_env()
    _advance(env, 3)
    for load, state in ((other.load_state_dict, env.state_dict()), (other.load_column, env.column(0))):
        kept = {name: values.clone() for name, values in state.items()}
        load(state)
        step = other.step(_action(other, 0))
        step.terminated[:, 0] = True
        other.restart(step)
        assert all(torch.equal(values, kept[name]) for name, values in state.items())


def test_a_restart_writes_the_rows_that_changed_and_copies_no_memory() -> None:
    env = _block_env()
    goal = env._memory["goal"]  # of which advance() returns the same tensor
    step = env.step(_action(env, 0))
    previous = env._memory["previous"]
    step.terminated[1, 2] = step.terminated[2, 0] = True
    env.restart(step)
    assert env._memory["goal"] is goal and env._memory["previous"] is previous


def test_the_task_is_asked_what_it_shows_once_a_step_and_again_after_a_restart() -> None:
    task = _Careless()
    env = BranchedEnv(task, task.sim(15), 3)
    env.observe()
    task.looks = 0
    for t in range(3):
        step = env.step(_action(env, t))
        assert not env.restart(step).any()
        seen = env.observe()
        assert torch.equal(seen.sources["place"], env.physics().qpos[:, 0])
    assert task.looks == 3
    step.terminated[1, 0] = True
    env.restart(step)
    assert torch.equal(env.observe().sources["place"], env.physics().qpos[:, 0])
    env.step(_action(env, 0))
    env.branch()
    assert torch.equal(env.observe().state, env.memory["goal"])
    assert task.looks == 6


def test_the_number_of_threads_changes_nothing() -> None:
    one, two = _block_env(threads=1), _block_env(threads=2)
    for t in range(60):
        a, b = one.step(_action(one, t)), two.step(_action(one, t))
        assert torch.equal(a.reward, b.reward) and torch.equal(a.state, b.state)
        one.restart(a)
        two.restart(b)


def test_rows_do_not_depend_on_how_they_are_spread() -> None:
    """Rows 2..3 of a large environment are rows 0..1 of one that starts at row 2."""
    whole, part = _toy_env(n=4, episode_steps=5), _toy_env(n=2, first_row=2, episode_steps=5)
    for t in range(12):
        action = _action(whole, t)
        a, b = whole.step(action), part.step(action[2:])
        assert torch.equal(a.reward[2:], b.reward) and torch.equal(a.state[2:], b.state)
        whole.restart(a)
        part.restart(b)


class _PerBranch(ToyTask):
    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        return Start(torch.zeros(n + 1, 2), torch.zeros(n, 0))


def test_a_start_of_the_wrong_size_is_refused_in_plain_words() -> None:
    task = _PerBranch()
    with pytest.raises(SdpgError, match="drew 'qpos' with leading size 4 for 3 rows"):
        BranchedEnv(task, task.sim(6), 3)


@pytest.mark.parametrize(("n", "m", "word"), [(0, 1, "num-nominal"), (1, -1, "num-auxiliary")])
def test_sizes_that_cannot_be(n: int, m: int, word: str) -> None:
    with pytest.raises(SdpgError, match=word):
        make_env(Block(), n, m)


def test_before_the_first_episode_ends_there_is_no_mean() -> None:
    means = _toy_env().episodes.means()
    mean, length = means.total, means.length
    assert mean != mean and length != length
