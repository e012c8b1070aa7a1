"""`check_task` passes every registered task and tells in a plain sentence what is wrong with a bad one."""

import functools
import math
import sys
from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch
from helpers.arms import need_scene

from sdpg.build import make_env
from sdpg.check.checks import CHECKS, check_task
from sdpg.cli import main
from sdpg.render.raster import RasterRenderer
from sdpg.tasks.ant import Ant
from sdpg.tasks.base import TASKS, Task, make_task
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera, Start


@pytest.mark.parametrize("name", sorted(TASKS.targets()))
def test_registered_tasks_pass(name):
    need_scene(name)
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

    def start(self, rng, n, ended):
        self.goal = float(rng.rows[0] + rng.seed)
        return super().start(rng, n, ended)

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
    def start(self, rng, n, ended):
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


class HandsOutItsOwn(Ant):
    def __init__(self):
        self.still = torch.zeros(4, 3, 8)

    def advance(self, x, memory, action, rng):
        return {"action": self.still}


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
    def start(self, rng, n, ended):
        return Start(rng.uniform(-0.1, 0.1, 3, 2).flatten(0, 1), torch.zeros(3 * n, 2))


class StartOnce(Cartpole):
    def start(self, rng, n, ended):
        return Start(rng.uniform(-0.1, 0.1, 2).mean(0).expand(n, 2), torch.zeros(n, 2))


class MemoryNotPerRow(Cartpole):
    def start(self, rng, n, ended):
        start = super().start(rng, n, ended)
        return Start(start.qpos, start.qvel, memory={"goal": torch.tensor(math.pi)})


class NormalisesOverRows(Cartpole):
    def reward(self, x, memory, action):
        place = x.qpos[..., 0]
        return super().reward(x, memory, action) | {"place": (place - place.mean(0)) / (place.std(0) + 1e-3)}


class CountsRows(Cartpole):
    def observe(self, x, memory):
        return {"state": super().observe(x, memory)["state"] / x.qpos.shape[0]}


class EndsTogether(Cartpole):
    def terminated(self, x, memory):
        return (x.qpos[..., 0] > 0.0).any(0).expand(x.qpos.shape[:2])


class OneGustForAll(Ant):
    def start(self, rng, n, ended):
        start = super().start(rng, n, ended)
        return Start(start.qpos, start.qvel, start.memory | {"gust": torch.zeros(n, 1)})

    def advance(self, x, memory, action, rng):
        gust = rng.normal(1)[:1, None].expand(*action.shape[:2], 1)
        return super().advance(x, memory, action, rng) | {"gust": gust.contiguous()}


class GustPerBranch(OneGustForAll):
    def advance(self, x, memory, action, rng):
        return {"action": action.clone(), "gust": rng.normal(action.shape[1], 1)}


class DrawsAsManyAsRows(OneGustForAll):
    def advance(self, x, memory, action, rng):
        gust = rng.normal(action.shape[0], 1)[:, :1].expand(*action.shape[:2], 1)
        return {"action": action.clone(), "gust": gust.contiguous()}


class ReadsTheNominal(Cartpole):
    def reward(self, x, memory, action):
        return {"ahead": x.qpos[..., 0] - x.qpos[:, :1, 0]}


class CountsBranches(Cartpole):
    def control(self, x, memory, action):
        return action / action.shape[1]


class KnowsItsGrid(Cartpole):
    def reward(self, x, memory, action):
        return {"alive": torch.ones(4, 3) * x.qpos[..., 0]}


class MattersLate(Cartpole):
    calls = 0

    def reward(self, x, memory, action):
        self.calls += 1
        bonus = 1.0 if self.calls > 500 else 0.0
        return super().reward(x, memory, action) | {"bonus": torch.full(action.shape[:2], bonus)}


class MattersFirst(Cartpole):
    """Calibrates itself when it is first used."""

    offset = None

    def observe(self, x, memory):
        state = super().observe(x, memory)["state"]
        self.offset = state[:1, :1].clone() if self.offset is None else self.offset
        return {"state": state - self.offset}


class VelocityByAttribute(Cartpole):
    """There is no `before` in the first step."""

    def reward(self, x, memory, action):
        speed = (x.qpos[..., 0] - self.before) / 0.02
        return {"speed": speed}

    def advance(self, x, memory, action, rng):
        self.before = x.qpos[..., 0].clone()
        return memory


class VelocityFromStart(Cartpole):
    """What start() leaves is that of the rows that began last."""

    def start(self, rng, n, ended):
        start = super().start(rng, n, ended)
        self.before = start.qpos
        return start

    def reward(self, x, memory, action):
        before = self.before.view(4, 1, 2)[..., 0]
        return {"speed": (x.qpos[..., 0] - before) / 0.02}


class Exits(Cartpole):
    def terminated(self, x, memory):
        sys.exit("no such joint")


class ExitsInScene(Cartpole):
    def scene(self):
        sys.exit(1)


class NegativeTimestep(Cartpole):
    timestep = -0.01


class NoEpisode(Cartpole):
    episode_steps = 0


class NoSubsteps(Cartpole):
    substeps = 0


class ReadsAString(Cartpole):
    reads = "xpos"


class StaleRead(Cartpole):
    reads = ("subtree_linvel",)


class NotRead(Cartpole):
    def reward(self, x, memory, action):
        return {"height": x.body("pole").xpos[..., 2]}


class NoSuchBody(Cartpole):
    reads = ("xpos",)

    def reward(self, x, memory, action):
        return {"height": x.body("pol").xpos[..., 2]}


class UnknownSource(Cartpole):
    inputs = {"state": ("state",), "pixels": ("pixels", "propio")}


class NoSource(Cartpole):
    inputs = {"state": ()}


class SourceAsString(Cartpole):
    inputs = {"state": "state"}


class ScalarSource(Cartpole):
    inputs = {"state": ("state", "angle")}

    def observe(self, x, memory):
        return super().observe(x, memory) | {"angle": x.qpos[..., 1]}


class TwiceASource(Cartpole):
    cameras = {"state": Camera("side")}


class NoWidth(Cartpole):
    cameras = {"pixels": Camera("side", width=0)}


class NoFrames(Cartpole):
    cameras = {"pixels": Camera("side", stack=0)}


class SmallImages(Cartpole):
    cameras = {"pixels": Camera("side", width=16, height=16)}


class SmallDepth(Cartpole):
    cameras = {"pixels": Camera("side", width=8, depth=True)}


class NoMetres(Cartpole):
    cameras = {"pixels": Camera("side", depth=True, far=0.0)}


class Raises(Cartpole):
    def terminated(self, x, memory):
        raise IndexError("no such joint")


class SeesAGoal(Cartpole):
    """A ball above the rail, of another colour and somewhere else in every row."""

    params = ("geom_rgba",)
    goals = 1

    def scene(self):
        spec = super().scene()
        ball = spec.worldbody.add_body(name="goal", mocap=True)
        ball.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], contype=0, conaffinity=0)
        return spec

    def start(self, rng, n, ended):
        start = super().start(rng, n, ended)
        rgba = torch.from_numpy(self.scene().compile().geom_rgba).repeat(n, 1, 1)
        rgba[:, -1, :3] = rng.uniform(0.2, 1.0, 3)
        place = torch.cat((rng.uniform(-1.0, 1.0, 1), torch.zeros(n, 1), torch.ones(n, 1)), dim=-1)
        return replace(start, params={"geom_rgba": rgba}, mocap_pos=place[:, None].repeat(1, self.goals, 1))


class GoalForEveryBranch(SeesAGoal):
    goals = 2


class VariesTextures(Cartpole):
    params = ("mat_texid",)

    def start(self, rng, n, ended):
        texid = torch.from_numpy(self.scene().compile().mat_texid)
        return replace(super().start(rng, n, ended), params={"mat_texid": texid.repeat(n, 1, 1)})


def test_rows_are_drawn_with_what_they_have_of_their_own(monkeypatch):
    """The check passes where images show it, and fails where a renderer forgets one of them."""
    assert [f for f in check_task(SeesAGoal()) if not f.passed] == []
    draw = RasterRenderer.render
    for forgotten in ("mocap_pos", "geom_rgba"):

        def forgetful(self, qpos, own=None, forgotten=forgotten):  # fmt: skip
            return draw(self, qpos, {k: v for k, v in (own or {}).items() if k != forgotten or self.num == 1})

        monkeypatch.setattr(RasterRenderer, "render", forgetful)
        problems = {f.name: f.problem for f in check_task(SeesAGoal()) if not f.passed}
        assert problems.keys() == {"images"}
        assert "'pixels' does not show a row's own geom_rgba and mocap_pos" in problems["images"]


@pytest.mark.parametrize(
    ("task", "check", "sentence"),
    [
        (CountsInAttribute, "hidden state", "reward() answers differently when asked again (the attribute 'calls' ch"),
        (LeavesALetter, "hidden state", "reward() answers differently when asked again (the attribute 'before' ch"),
        (KeepsGoalOfStart, "hidden state", "what a task remembers must be in memory"),
        (DrawsPerBranch, "randomness", "control() draws random numbers of its own"),
        (DrawsWithItsOwnGenerator, "hidden state", "control() answers differently"),
        (DrawsStartItself, "start", "start() is not drawn per row: 'qpos'"),
        (WritesPhysics, "writes", "reward() writes to its argument x.qpos"),
        (WritesAction, "writes", "reward() writes to its argument action"),
        (WritesMemory, "writes", "reward() writes to its argument memory['action']"),
        (WritesIntoMemory, "writes", "advance() writes to its argument memory['action']"),
        (RemembersALiveView, "views", "advance() returns a view of x.qpos"),
        (HandsOutItsOwn, "views", "advance() returns self.still as memory, into which episodes are written"),
        (MixesBranches, "branches", "the reward term 'rank' of a world depends on the other branches"),
        (ReadsTheNominal, "branches", "the reward term 'ahead' of a world depends on the other branches, their order"),
        (CountsBranches, "branches", "what control() gives of a world depends on the other branches"),
        (GustPerBranch, "branches", "the memory 'gust' of a world depends on the other branches"),
        (NormalisesOverRows, "rows", "the reward term 'place' of a row depends on the other rows or on their number"),
        (CountsRows, "rows", "the observation 'state' of a row depends on the other rows or on their number"),
        (EndsTogether, "rows", "the termination of a row depends on the other rows"),
        (OneGustForAll, "rows", "the memory 'gust' of a row depends on the other rows or on their number"),
        (DrawsAsManyAsRows, "rows", "how much advance() draws of a row depends on the other rows"),
        (KnowsItsGrid, "rows", "with 2 rows of 3 branches, KnowsItsGrid raised RuntimeError"),
        (MattersLate, "hidden state", "reward() answers differently when asked again (the attribute 'calls' changed)"),
        (MattersFirst, "hidden state", "observe() of a fresh MattersFirst answers unlike that of one in use"),
        (VelocityByAttribute, "shapes", "(the attribute 'before' is set on the way: what a task remembers must be in"),
        (VelocityFromStart, "hidden state", "reward() answers differently when asked again (the attribute 'before' ch"),
        (Exits, "shapes", "Exits called exit('no such joint'): raise an error, or let terminated() end episodes"),
        (ExitsInScene, "scene", "ExitsInScene called exit(1)"),
        (NegativeTimestep, "scene", "timestep is -0.01; give positive seconds, or None for the scene's own"),
        (NoEpisode, "scene", "episode_steps is 0; it must be a positive whole number"),
        (NoSubsteps, "scene", "substeps is 0; it must be a positive whole number"),
        (ReadsAString, "scene", "reads is 'xpos'; give a tuple of names"),
        (
            StaleRead,
            "scene",
            "reads names 'subtree_linvel', which is computed for sensors only: read a subtreelinvel se",
        ),
        (NotRead, "shapes", "x['xpos'] is not there: name it in the task's reads, which has none"),
        (NoSuchBody, "shapes", "the scene has no body 'pol'; did you mean 'pole'?"),
        (UnknownSource, "shapes", "inputs['pixels'] names 'propio', which is neither a camera nor in observe()"),
        (NoSource, "scene", "inputs['state'] is empty; name at least one source"),
        (SourceAsString, "scene", "inputs['state'] is 'state'; give a tuple of names"),
        (ScalarSource, "shapes", "inputs['state'] names 'angle', which observe() gave as torch.float32 (4, 3)"),
        (TwiceASource, "shapes", "'state' is a camera and a source of observe(); rename one"),
        (NoWidth, "scene", "cameras['pixels']: width is 0; it must be a positive whole number"),
        (NoFrames, "scene", "cameras['pixels']: stack is 0; it must be a positive whole number"),
        (SmallImages, "scene", "cameras['pixels']: images of 16 x 16 pixels are too small for the encoder 'half'"),
        (SmallDepth, "scene", "images of 8 x 84 pixels are too small for the encoder 'half'"),
        (NoMetres, "scene", "cameras['pixels']: far is 0.0; give positive metres"),
        (WrongControl, "shapes", "control() gave controls with shape (4, 3, 2); it must be (4, 3, 1)"),
        (WrongTerm, "shapes", "reward() gave the term 'effort' with shape (4, 3, 1); it must be (4, 3)"),
        (WrongTermType, "shapes", "reward() gave the term 'effort' as torch.float64; it must be torch.float32"),
        (WrongStateSize, "shapes", "observe() gave 'state' with shape (4, 3, 4); it must be (4, 3, 5)"),
        (WrongTerminated, "shapes", "terminated() gave its answer as torch.float32; it must be torch.bool"),
        (NoState, "shapes", "observe() must return a dict with 'state'"),
        (NoCamera, "scene", "the camera 'head' is not in the scene; it has side"),
        (UnknownRead, "scene", "reads names 'wishes', which is no field of MjData"),
        (UnknownParam, "scene", "params names 'luck', which is not a field of MjModel"),
        (DropsMemory, "shapes", "advance() returned the memory [] but start() began with ['action']"),
        (NotFinite, "finite", "the reward term 'log' is not finite at step 1"),
        (StartPerBranch, "start", "start() gave qpos with shape (12, 2); it must be (4, 2)"),
        (StartOnce, "start", "start() is not drawn per row"),
        (MemoryNotPerRow, "start", "start() gave 'goal' with shape () for 4 rows; give one value per row"),
        (Raises, "shapes", "Raises raised IndexError: no such joint."),
        (GoalForEveryBranch, "start", "start() gave mocap_pos with shape (4, 2, 3); it must be (4, 1, 3)"),
        (VariesTextures, "images", "'mat_texid' can't be drawn differently in each row"),
    ],
)
def test_bad_tasks_are_told_in_a_sentence(task, check, sentence):
    problems = {f.name: f.problem for f in check_task(task()) if not f.passed}
    assert len(problems) == 1  # the rule that is broken, and none that breaks with it
    assert sentence in problems.get(check, ""), problems
    assert "\n" not in problems[check] and problems[check].endswith(".")


class Blind(Cartpole):
    """Its scene has no camera, and it names none."""

    camera, cameras = Task.camera, Task.cameras

    def scene(self):
        spec = super().scene()
        spec.delete(spec.cameras[0])
        return spec


def test_a_task_without_cameras_needs_none():
    assert Blind().scene().compile().ncam == 0
    assert [f for f in check_task(Blind()) if not f.passed] == []


@pytest.mark.parametrize("task", [Cartpole, Ant])
def test_tasks_pass_on_the_other_engine(task):
    findings = check_task(task(), functools.partial(make_env, sim="warp"))
    assert [f for f in findings if not f.passed] == []


@pytest.mark.parametrize(
    ("task", "obs", "sentence"),
    [
        (NegativeTimestep, "state", "timestep is -0.01"),
        (NoEpisode, "state", "episode_steps is 0"),
        (ReadsAString, "state", "reads is 'xpos'"),
        (StaleRead, "state", "reads names 'subtree_linvel'"),
        (UnknownParam, "state", "params names 'luck'"),
        (SourceAsString, "state", "inputs['state'] is 'state'"),
        (ScalarSource, "state", "inputs['state'] names 'angle'"),
        (Exits, "state", "exit('no such joint') was called in the task"),
        (UnknownSource, "pixels", "inputs['pixels'] names 'propio'"),
        (NoWidth, "pixels", "cameras['pixels']: width is 0"),
        (NoFrames, "pixels", "cameras['pixels']: stack is 0"),
        (SmallImages, "pixels", "images of 16 x 16 pixels are too small for the encoder 'half'"),
        (SmallDepth, "pixels", "images of 8 x 84 pixels are too small for the encoder 'half'"),
        (Blind, "pixels", "the scene has no camera 'track'; it has: none"),
    ],
)
def test_training_says_the_same_in_one_line(task, obs, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = f"train {__name__}:{task.__name__} --obs {obs} --num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1"
    assert main([*argv.split(), "--algo.horizon", "2"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert sentence in said[-1] and said[-1].startswith("sdpg: ") and "Traceback" not in "".join(said)
