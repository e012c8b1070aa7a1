"""Tasks with one mistake each, for the checks to find; and one that is right to have no camera."""

import math
import sys
from dataclasses import replace

import mujoco
import numpy as np
import torch

from sdpg.tasks.ant import Ant
from sdpg.tasks.base import Task
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Camera, Start


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


class Blind(Cartpole):
    """Its scene has no camera, and it names none."""

    camera, cameras = Task.camera, Task.cameras

    def scene(self):
        spec = super().scene()
        spec.delete(spec.cameras[0])
        return spec
