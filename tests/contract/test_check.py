"""`check_task` passes every registered task and tells in a plain sentence what is wrong with a bad one."""

import math

import numpy as np
import pytest
import torch

from sdpg.check import CHECKS, check_task
from sdpg.tasks.ant import Ant
from sdpg.tasks.base import make_task, registry
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera, Start


@pytest.mark.parametrize("name", sorted(registry()))
def test_registered_tasks_pass(name):
    findings = check_task(make_task(name))
    assert [f for f in findings if not f.passed] == []
    assert [f.name for f in findings] == [name for name, *_ in CHECKS]


class CountsInAttribute(Cartpole):
    calls = 0

    def reward(self, x, memory, action):
        self.calls += 1
        return super().reward(x, memory, action) | {"novelty": torch.full(action.shape[:2], 1.0 / self.calls)}


class LeavesALetter(Cartpole):
    """control() leaves something behind for reward(): right in a step, wrong in a branch."""

    def control(self, x, memory, action):
        self.before = x.qpos[..., 0].clone()
        return super().control(x, memory, action)

    def reward(self, x, memory, action):
        return {"moved": x.qpos[..., 0] - getattr(self, "before", 0.0)}


class KeepsGoalOfStart(Cartpole):
    goal = 0.0

    def start(self, rng, n):
        self.goal = float(rng.rows[0] + rng.seed)
        return super().start(rng, n)

    def reward(self, x, memory, action):
        return {"near": -(x.qpos[..., 0] - self.goal).abs()}


class DrawsPerBranch(Cartpole):
    def control(self, x, memory, action):
        return action + 0.01 * torch.randn_like(action)


class DrawsWithItsOwnGenerator(Cartpole):
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def control(self, x, memory, action):
        return action + 0.01 * torch.tensor(self.generator.normal(size=action.shape), dtype=torch.float32)


class DrawsStartItself(Cartpole):
    def start(self, rng, n):
        return Start(torch.rand(n, 2) * 0.1, torch.zeros(n, 2))


class WritesPhysics(Cartpole):
    def reward(self, x, memory, action):
        x.qpos.clamp_(-9.0, 9.0)
        return super().reward(x, memory, action)


class WritesAction(Cartpole):
    def reward(self, x, memory, action):
        action *= 0.5
        return super().reward(x, memory, action)


class WritesMemory(Ant):
    def reward(self, x, memory, action):
        memory["action"] = action.clone()
        return super().reward(x, memory, action)


class WritesIntoMemory(Ant):
    def advance(self, x, memory, action, rng):
        memory["action"].copy_(action)
        return memory


class RemembersALiveView(Ant):
    def advance(self, x, memory, action, rng):
        return {"action": x.qpos[..., 7:]}


class MixesBranches(Cartpole):
    def reward(self, x, memory, action):
        return {"rank": x.qpos[..., 0] - x.qpos[..., 0].mean(-1, keepdim=True)}


class WrongControl(Cartpole):
    def control(self, x, memory, action):
        return torch.cat((action, action), dim=-1)


class WrongTerm(Cartpole):
    def reward(self, x, memory, action):
        return {"effort": -action}


class WrongTermType(Cartpole):
    def reward(self, x, memory, action):
        return {"effort": -action[..., 0].double()}


class WrongStateSize(Cartpole):
    state_size = 5


class WrongTerminated(Cartpole):
    def terminated(self, x, memory):
        return super().terminated(x, memory).float()


class NoState(Cartpole):
    def observe(self, x, memory):
        return {"proprio": x.qpos.clone()}


class NoCamera(Cartpole):
    cameras = {"pixels": Camera("head")}


class UnknownRead(Cartpole):
    reads = ("wishes",)


class UnknownParam(Cartpole):
    params = ("luck",)


class DropsMemory(Ant):
    def advance(self, x, memory, action, rng):
        return {}


class NotFinite(Cartpole):
    def reward(self, x, memory, action):
        return {"log": x.qpos[..., 0].clamp(min=0.0).log()}


class StartPerBranch(Cartpole):
    def start(self, rng, n):
        return Start(rng.uniform(-0.1, 0.1, 3, 2).flatten(0, 1), torch.zeros(3 * n, 2))


class StartOnce(Cartpole):
    def start(self, rng, n):
        return Start(rng.uniform(-0.1, 0.1, 2).mean(0).expand(n, 2), torch.zeros(n, 2))


class MemoryNotPerRow(Cartpole):
    def start(self, rng, n):
        start = super().start(rng, n)
        return Start(start.qpos, start.qvel, memory={"goal": torch.tensor(math.pi)})


class Raises(Cartpole):
    def terminated(self, x, memory):
        raise IndexError("no such joint")


@pytest.mark.parametrize(
    ("task", "check", "sentence"),
    [
        (CountsInAttribute, "hidden state", "reward() answers differently when asked again (the attribute 'calls' ch"),
        (LeavesALetter, "hidden state", "reward() answers differently when asked again (the attribute 'before' ch"),
        (KeepsGoalOfStart, "hidden state", "what a task remembers must be in memory"),
        (DrawsPerBranch, "randomness", "control() draws random numbers of its own"),
        (DrawsPerBranch, "branches", "branches that took equal actions differ in reward at step 1"),
        (DrawsWithItsOwnGenerator, "hidden state", "control() answers differently"),
        (DrawsWithItsOwnGenerator, "branches", "branches that took equal actions differ"),
        (DrawsStartItself, "start", "start() is not drawn per row: 'qpos'"),
        (WritesPhysics, "writes", "reward() writes to its argument x.qpos"),
        (WritesAction, "writes", "reward() writes to its argument action"),
        (WritesMemory, "writes", "reward() writes to its argument memory['action']"),
        (WritesIntoMemory, "writes", "advance() writes to its argument memory['action']"),
        (RemembersALiveView, "views", "advance() returns a view of x.qpos"),
        (MixesBranches, "nominal", "what auxiliaries do changes the nominal world's reward"),
        (WrongControl, "shapes", "control() gave controls with shape (4, 3, 2); it must be (4, 3, 1)"),
        (WrongTerm, "shapes", "reward() gave the term 'effort' with shape (4, 3, 1); it must be (4, 3)"),
        (WrongTermType, "shapes", "reward() gave the term 'effort' as torch.float64; it must be torch.float32"),
        (WrongStateSize, "shapes", "observe() gave 'state' with shape (4, 3, 4); it must be (4, 3, 5)"),
        (WrongTerminated, "shapes", "terminated() gave its answer as torch.float32; it must be torch.bool"),
        (NoState, "shapes", "observe() must return a dict with 'state'"),
        (NoCamera, "scene", "the camera 'head' is not in the scene; it has side"),
        (UnknownRead, "scene", "reads names 'wishes', which is not a field of MjData"),
        (UnknownParam, "scene", "params names 'luck', which is not a field of MjModel"),
        (DropsMemory, "shapes", "advance() returned the memory [] but start() began with ['action']"),
        (NotFinite, "finite", "the reward term 'log' is not finite at step 1"),
        (StartPerBranch, "start", "start() gave qpos with shape (12, 2); it must be (4, 2)"),
        (StartOnce, "start", "start() is not drawn per row"),
        (MemoryNotPerRow, "start", "start() gave 'goal' with shape () for 4 rows; give one value per row"),
        (Raises, "shapes", "Raises raised IndexError: no such joint."),
    ],
)
def test_bad_tasks_are_told_in_a_sentence(task, check, sentence):
    problems = {f.name: f.problem for f in check_task(task()) if not f.passed}
    assert sentence in problems.get(check, ""), problems
    assert "\n" not in problems[check] and problems[check].endswith(".")
