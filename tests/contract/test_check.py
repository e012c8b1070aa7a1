"""`check_task` passes every registered task and tells in a plain sentence what is wrong with a bad one."""

import functools

import pytest
from helpers import bad_tasks as bad
from helpers.arms import need_scene

from sdpg.build import make_env
from sdpg.check.checks import CHECKS, check_task
from sdpg.cli import main
from sdpg.render.raster import RasterRenderer
from sdpg.tasks.ant import Ant
from sdpg.tasks.base import TASKS, make_task
from sdpg.tasks.cartpole import Cartpole


@pytest.mark.parametrize("name", sorted(TASKS.targets()))
def test_registered_tasks_pass(name):
    need_scene(name)
    findings = check_task(make_task(name))
    assert [f for f in findings if not f.passed] == []
    assert [f.name for f in findings] == [name for name, *_ in CHECKS]


def test_rows_are_drawn_with_what_they_have_of_their_own(monkeypatch):
    """The check passes where images show it, and fails where a renderer forgets one of them."""
    assert [f for f in check_task(bad.SeesAGoal()) if not f.passed] == []
    draw = RasterRenderer.render
    for forgotten in ("mocap_pos", "geom_rgba"):

        def forgetful(self, qpos, own=None, forgotten=forgotten):  # fmt: skip
            return draw(self, qpos, {k: v for k, v in (own or {}).items() if k != forgotten or self.num == 1})

        monkeypatch.setattr(RasterRenderer, "render", forgetful)
        problems = {f.name: f.problem for f in check_task(bad.SeesAGoal()) if not f.passed}
        assert problems.keys() == {"images"}
        assert "'pixels' does not show a row's own geom_rgba and mocap_pos" in problems["images"]


@pytest.mark.parametrize(
    ("task", "check", "sentence"),
    [
        (
            bad.CountsInAttribute,
            "hidden state",
            "reward() answers differently when asked again (the attribute 'calls' ch",
        ),
        (bad.LeavesALetter, "hidden state", "reward() answers differently when asked again (the attribute 'before' ch"),
        (bad.KeepsGoalOfStart, "hidden state", "what a task remembers must be in memory"),
        (bad.DrawsPerBranch, "randomness", "control() draws random numbers of its own"),
        (bad.DrawsWithItsOwnGenerator, "hidden state", "control() answers differently"),
        (bad.DrawsStartItself, "start", "start() is not drawn per row: 'qpos'"),
        (bad.WritesPhysics, "writes", "reward() writes to its argument x.qpos"),
        (bad.WritesAction, "writes", "reward() writes to its argument action"),
        (bad.WritesMemory, "writes", "reward() writes to its argument memory['action']"),
        (bad.WritesIntoMemory, "writes", "advance() writes to its argument memory['action']"),
        (bad.RemembersALiveView, "views", "advance() returns a view of x.qpos"),
        (bad.HandsOutItsOwn, "views", "advance() returns self.still as memory, into which episodes are written"),
        (bad.MixesBranches, "branches", "the reward term 'rank' of a world depends on the other branches"),
        (
            bad.ReadsTheNominal,
            "branches",
            "the reward term 'ahead' of a world depends on the other branches, their order",
        ),
        (bad.CountsBranches, "branches", "what control() gives of a world depends on the other branches"),
        (bad.GustPerBranch, "branches", "the memory 'gust' of a world depends on the other branches"),
        (
            bad.NormalisesOverRows,
            "rows",
            "the reward term 'place' of a row depends on the other rows or on their number",
        ),
        (bad.CountsRows, "rows", "the observation 'state' of a row depends on the other rows or on their number"),
        (bad.EndsTogether, "rows", "the termination of a row depends on the other rows"),
        (bad.OneGustForAll, "rows", "the memory 'gust' of a row depends on the other rows or on their number"),
        (bad.DrawsAsManyAsRows, "rows", "how much advance() draws of a row depends on the other rows"),
        (bad.KnowsItsGrid, "rows", "with 2 rows of 3 branches, KnowsItsGrid raised RuntimeError"),
        (
            bad.MattersLate,
            "hidden state",
            "reward() answers differently when asked again (the attribute 'calls' changed)",
        ),
        (bad.MattersFirst, "hidden state", "observe() of a fresh MattersFirst answers unlike that of one in use"),
        (
            bad.VelocityByAttribute,
            "shapes",
            "(the attribute 'before' is set on the way: what a task remembers must be in",
        ),
        (
            bad.VelocityFromStart,
            "hidden state",
            "reward() answers differently when asked again (the attribute 'before' ch",
        ),
        (bad.Exits, "shapes", "Exits called exit('no such joint'): raise an error, or let terminated() end episodes"),
        (bad.ExitsInScene, "scene", "ExitsInScene called exit(1)"),
        (bad.NegativeTimestep, "scene", "timestep is -0.01; give positive seconds, or None for the scene's own"),
        (bad.NoEpisode, "scene", "episode_steps is 0; it must be a positive whole number"),
        (bad.NoSubsteps, "scene", "substeps is 0; it must be a positive whole number"),
        (bad.ReadsAString, "scene", "reads is 'xpos'; give a tuple of names"),
        (
            bad.StaleRead,
            "scene",
            "reads names 'subtree_linvel', which is computed for sensors only: read a subtreelinvel se",
        ),
        (bad.NotRead, "shapes", "x['xpos'] is not there: name it in the task's reads, which has none"),
        (bad.NoSuchBody, "shapes", "the scene has no body 'pol'; did you mean 'pole'?"),
        (bad.UnknownSource, "shapes", "inputs['pixels'] names 'propio', which is neither a camera nor in observe()"),
        (bad.NoSource, "scene", "inputs['state'] is empty; name at least one source"),
        (bad.SourceAsString, "scene", "inputs['state'] is 'state'; give a tuple of names"),
        (bad.ScalarSource, "shapes", "inputs['state'] names 'angle', which observe() gave as torch.float32 (4, 3)"),
        (bad.TwiceASource, "shapes", "'state' is a camera and a source of observe(); rename one"),
        (bad.NoWidth, "scene", "cameras['pixels']: width is 0; it must be a positive whole number"),
        (bad.NoFrames, "scene", "cameras['pixels']: stack is 0; it must be a positive whole number"),
        (bad.SmallImages, "scene", "cameras['pixels']: images of 16 x 16 pixels are too small for the encoder 'half'"),
        (bad.SmallDepth, "scene", "images of 8 x 84 pixels are too small for the depth encoder"),
        (bad.NoMetres, "scene", "cameras['pixels']: far is 0.0; give positive metres"),
        (bad.WrongControl, "shapes", "control() gave controls with shape (4, 3, 2); it must be (4, 3, 1)"),
        (bad.WrongTerm, "shapes", "reward() gave the term 'effort' with shape (4, 3, 1); it must be (4, 3)"),
        (bad.WrongTermType, "shapes", "reward() gave the term 'effort' as torch.float64; it must be torch.float32"),
        (bad.WrongStateSize, "shapes", "observe() gave 'state' with shape (4, 3, 4); it must be (4, 3, 5)"),
        (bad.WrongTerminated, "shapes", "terminated() gave its answer as torch.float32; it must be torch.bool"),
        (bad.NoState, "shapes", "observe() must return a dict with 'state'"),
        (bad.NoCamera, "scene", "the camera 'head' is not in the scene; it has side"),
        (bad.UnknownRead, "scene", "reads names 'wishes', which is no field of MjData"),
        (bad.UnknownParam, "scene", "params names 'luck', which is not a field of MjModel"),
        (bad.DropsMemory, "shapes", "advance() returned the memory [] but start() began with ['action']"),
        (bad.NotFinite, "finite", "the reward term 'log' is not finite at step 1"),
        (bad.StartPerBranch, "start", "start() gave qpos with shape (12, 2); it must be (4, 2)"),
        (bad.StartOnce, "start", "start() is not drawn per row"),
        (bad.MemoryNotPerRow, "start", "start() gave 'goal' with shape () for 4 rows; give one value per row"),
        (bad.Raises, "shapes", "Raises raised IndexError: no such joint."),
        (bad.GoalForEveryBranch, "start", "start() gave mocap_pos with shape (4, 2, 3); it must be (4, 1, 3)"),
        (bad.VariesTextures, "images", "'mat_texid' can't be drawn differently in each row"),
    ],
)
def test_bad_tasks_are_told_in_a_sentence(task, check, sentence):
    problems = {f.name: f.problem for f in check_task(task()) if not f.passed}
    assert len(problems) == 1  # the rule that is broken, and none that breaks with it
    assert sentence in problems.get(check, ""), problems
    assert "\n" not in problems[check] and problems[check].endswith(".")


def test_a_task_without_cameras_needs_none():
    assert bad.Blind().scene().compile().ncam == 0
    assert [f for f in check_task(bad.Blind()) if not f.passed] == []


@pytest.mark.parametrize("task", [Cartpole, Ant])
def test_tasks_pass_on_the_other_engine(task):
    findings = check_task(task(), functools.partial(make_env, sim="warp"))
    assert [f for f in findings if not f.passed] == []


@pytest.mark.parametrize(
    ("task", "obs", "sentence"),
    [
        (bad.NegativeTimestep, "state", "timestep is -0.01"),
        (bad.NoEpisode, "state", "episode_steps is 0"),
        (bad.ReadsAString, "state", "reads is 'xpos'"),
        (bad.StaleRead, "state", "reads names 'subtree_linvel'"),
        (bad.UnknownParam, "state", "params names 'luck'"),
        (bad.SourceAsString, "state", "inputs['state'] is 'state'"),
        (bad.ScalarSource, "state", "inputs['state'] names 'angle'"),
        (bad.Exits, "state", "exit('no such joint') was called in the task"),
        (bad.UnknownSource, "pixels", "inputs['pixels'] names 'propio'"),
        (bad.NoWidth, "pixels", "cameras['pixels']: width is 0"),
        (bad.NoFrames, "pixels", "cameras['pixels']: stack is 0"),
        (bad.SmallImages, "pixels", "images of 16 x 16 pixels are too small for the encoder 'half'"),
        (bad.SmallDepth, "pixels", "images of 8 x 84 pixels are too small for the depth encoder"),
        (bad.Blind, "pixels", "the scene has no camera 'track'; it has: none"),
    ],
)
def test_training_says_the_same_in_one_line(task, obs, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = (
        f"train {bad.__name__}:{task.__name__} --obs {obs} --num-nominal 2 --num-auxiliary 1 --iterations 1 --threads 1"
    )
    assert main([*argv.split(), "--algo.horizon", "2"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert sentence in said[-1] and said[-1].startswith("sdpg: ") and "Traceback" not in "".join(said)
