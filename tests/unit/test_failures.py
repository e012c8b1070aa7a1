"""Worlds that fail: what is dumped, and that a replay ends in the same NaN."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import mujoco
import pytest
import torch
from helpers.runs import NAN_TASK, tiny
from helpers.tasks import Block
from safetensors.torch import load_file, save_file
from torch import Tensor

from sdpg.build import make_env
from sdpg.cli import main
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.rng import RowRng
from sdpg.run import checkpoint, failures, log
from sdpg.run.failures import MAX_DUMPS, STEPS, Dump, FailureRecorder
from sdpg.tasks.base import Task
from sdpg.tasks.cartpole import Cartpole
from sdpg.train import train
from sdpg.types import Ended, Memory, Physics, Start, Terms
from sdpg.watch.replay import Replay, replay

Stranger = Callable[[str, str], str]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine writes MUJOCO_LOG.TXT into the current folder when it warns."""
    monkeypatch.chdir(tmp_path)


class Endless(Cartpole):
    def terminated(self, x: Physics, memory: Memory) -> Tensor:
        return torch.zeros_like(x.qpos[..., 0], dtype=torch.bool)


class Springy(Endless):
    """A spring far too stiff for the timestep: the cart swings out twice as far in every step, or more."""

    def scene(self) -> mujoco.MjSpec:
        spec = super().scene()
        spec.joint("slide").stiffness[0] = 5.4e4
        return spec


class Heavy(Block):
    """Its mass differs from row to row, on which other constants depend; its reward needs a derived field."""

    params = ("geom_friction", "body_mass")
    reads = ("xpos",)

    def start(self, rng: RowRng, n: int, ended: Ended | None) -> Start:
        start = super().start(rng, n, ended)
        mass = torch.cat((torch.zeros(n, 1), rng.uniform(0.5, 2.0, 1)), dim=-1).double()  # (n, bodies)
        return replace(start, params={**start.params, "body_mass": mass})

    def reward(self, x: Physics, memory: Memory, action: Tensor) -> Terms:
        return super().reward(x, memory, action) | {"height": x["xpos"][..., 1, 2].clone()}


class Kicked(Heavy):
    """Every gust that is strong kicks the block as well."""

    def push(self, x: Physics, memory: Memory) -> Tensor | None:
        change = torch.zeros_like(x.qvel)
        change[..., 0] = torch.where(memory["gust"].abs() > 1.0, 0.1 * memory["gust"], 0.0)
        return change


def _recorder(env: BranchedEnv, task: str, folder: Path, horizon: int) -> FailureRecorder:
    def warn(message: str) -> None:
        raise AssertionError(message)

    return FailureRecorder(env, folder, {"task": task}, horizon, 0, warn)


def _action(env: BranchedEnv, t: int) -> Tensor:
    return 2 * torch.rand(*env.grid, 1, generator=torch.Generator().manual_seed(t)) - 1


def _replay(dump: Dump) -> Replay:
    """By one who knows the dump's task."""
    return replay(dump, dump.about["task"])


def _dump_of(run: Path) -> Dump:
    return failures.load(next((run / "bad").iterdir()))


# --- what is remembered


@pytest.mark.parametrize("task", [Block, Heavy, Kicked])
def test_every_worlds_past_can_be_played_again(task: type[Task], tmp_path: Path) -> None:
    """Bit for bit, through branches, copies, restarts and segments; with contacts, memory, parameters, pushes."""
    env = make_env(task(), 3, 4, seed=5, threads=1)
    recorder = _recorder(env, f"{task.__module__}:{task.__name__}", tmp_path, horizon=7)
    seen: set[str] = set()
    for t in range(80):
        if t % 7 == 0:
            env.branch()
        step = env.step(_action(env, t))
        if t in (5, 33, 79):
            for row in range(3):
                for branch in (0, 2, 4):
                    dump = recorder._dump(row, branch)
                    assert dump is not None
                    steps, since_branch = len(dump.action), dump.about["apart"]
                    assert steps == min(STEPS, int(env.clock[row])) and since_branch == int(
                        env.steps_since_branch[row, branch]
                    )
                    played = _replay(dump)
                    assert (played.departed, played.failed, len(played.reward)) == (None, None, steps), (t, row, branch)
                    torch.testing.assert_close(played.reward[-1], step.reward[row, branch].item())
                    seen |= {"shared, then apart"} if steps > since_branch > 0 else set()
                    seen |= {"copied within the segment"} if branch and 0 < since_branch < t % 7 + 1 <= steps else set()
        step.terminated[2, 0] |= t == 20  # a row begins anew, an auxiliary becomes its nominal
        step.terminated[1, 2] |= t == 31
        env.restart(step)
    assert env.episodes.count > 3 and len(seen) == 2


def test_a_past_that_is_not_the_recorded_one_is_noticed(tmp_path: Path) -> None:
    env = make_env(Block(), 2, 2, threads=1)
    recorder = _recorder(env, "helpers.tasks:Block", tmp_path, horizon=9)
    for t in range(9):
        env.step(_action(env, t))
    dump = recorder._dump(1, 2)
    assert dump is not None and _replay(dump).departed is None
    control = dump.control.clone()
    control[4] += 1e-3
    assert _replay(replace(dump, control=control)).departed == 5
    assert _replay(replace(dump, end=dump.end + 1e-15)).departed == 9


def test_a_long_segment_is_remembered_to_its_branching(tmp_path: Path) -> None:
    env = make_env(Endless(), 2, 1, threads=1)
    recorder = _recorder(env, "test_failures:Endless", tmp_path, horizon=70)
    for t in range(65):
        env.step(_action(env, t))
    nominal, auxiliary = recorder._dump(0, 0), recorder._dump(0, 1)
    assert nominal is not None and auxiliary is not None
    assert (len(nominal.action), len(auxiliary.action)) == (STEPS, 65)
    assert _replay(nominal).departed is None and _replay(auxiliary).departed is None
    # Where the branching is forgotten there is nothing to begin with.
    short = _recorder(env, "test_failures:Endless", tmp_path, horizon=10)
    env.step(_action(env, 65))
    assert short._dump(0, 1) is None and short._dump(0, 0) is not None


def test_without_failures_nothing_is_written(tmp_path: Path) -> None:
    train(tiny(iterations=2), tmp_path / "run")
    assert not (tmp_path / "run" / "bad").exists()
    assert [row["Train/dumps"] for row in log.read(tmp_path / "run")] == [0, 0]


# --- the same NaN again


@pytest.mark.parametrize("branch", [0, 3])
@pytest.mark.parametrize("when", [2, 40])
def test_a_world_that_the_engine_refuses_fails_again(branch: int, when: int, tmp_path: Path) -> None:
    env = make_env(Block(), 3, 4, threads=1)
    recorder = _recorder(env, "helpers.tasks:Block", tmp_path, horizon=8)
    for t in range(when):
        if t % 8 == 0:
            env.branch()
        env.restart(env.step(_action(env, t)))
    action = _action(env, when)
    action[1, branch] = torch.nan
    step = env.step(action)
    assert step.failed.nonzero().tolist() == [[1, branch]]
    what = recorder.write(7)
    assert what[0] == "action[0] is nan" and what[1].startswith("the engine says: ") and "CTRL" in what[1].upper()
    (path,) = recorder.dumps
    assert path == tmp_path / "bad" / f"00000007-1-{branch}.safetensors"
    dump = failures.load(path)
    played = _replay(dump)
    assert (played.failed, played.departed, played.what) == (len(dump.action), None, what)
    assert recorder.write(8) == [] and recorder.dumps == [path]  # it is told once


@pytest.mark.parametrize(
    ("max_value", "clause"),
    [(1e5, r"qvel\[0\] is -?\d.*, beyond max-value 100000"), (1e30, "the engine says: .*unstable")],
)
def test_physics_that_blow_up_blow_up_again(max_value: float, clause: str, tmp_path: Path) -> None:
    """A finite but absurd state, and one that the engine itself gives up."""
    cfg = tiny("test_failures:Springy", horizon=40, max_value=max_value, max_failed=0.01)
    with pytest.raises(
        SdpgError, match=rf"\({clause}.*\); look at its actuators, contacts and timestep \(`sdpg replay .*bad"
    ):
        train(cfg, tmp_path / "run")
    assert [row["iteration"] for row in log.read(tmp_path / "run")] == [1]
    dump = _dump_of(tmp_path / "run")
    played = _replay(dump)
    assert (played.failed, played.departed, played.what) == (len(dump.action), None, dump.about["what"])
    assert 3 < played.failed < 40
    shifts = played.qpos[:, 0].abs()
    assert (shifts[1:] > 2 * shifts[:-1]).all()  # it is the explosion that is shown


TIRED = """
import torch
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Start

class Tired(Cartpole):
    '''Gives NaN after a number of steps that only its memory knows, and which is drawn at random.'''
    def start(self, rng, n, ended):
        start = super().start(rng, n, ended)
        return Start(start.qpos, start.qvel, {"left": rng.uniform(8.0, 30.0, 1)})

    def terminated(self, x, memory):
        return torch.zeros_like(x.qpos[..., 0], dtype=torch.bool)

    def advance(self, x, memory, action, rng):
        return {"left": memory["left"] - 1.0 - 0.2 * rng.uniform(0.0, 1.0, 1)[:, None]}

    def reward(self, x, memory, action):
        return {"mood": memory["left"][..., 0].log(), **super().reward(x, memory, action)}
"""
FIXED = TIRED.replace('memory["left"][..., 0].log()', 'memory["left"][..., 0].clamp(min=0.1).log()')


def test_a_reward_that_is_nan_is_nan_again_and_mended_when_the_task_is(
    stranger: Stranger, tmp_path: Path, capsys: Capture
) -> None:
    name = stranger("tired_task", TIRED)
    train(tiny(f"{name}:Tired", iterations=6, max_failed=1.0), tmp_path / "run")
    path = min((tmp_path / "run" / "bad").iterdir())
    typed = ["--task", f"{name}:Tired"]
    assert main(["replay", str(path), *typed]) == 0
    out = capsys.readouterr().out
    assert "physics: as recorded, bit for bit\n" in out and "fails: reward term 'mood' is nan" in out
    assert main(["replay", str(path), *typed, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["reproduced"] and facts["what"] == facts["recorded"] == [
        "reward term 'mood' is nan",
        "the reward is nan",
    ]
    assert facts["failed_at"] == facts["steps"] > 7  # since the start of the episode, in an earlier iteration
    stranger("fixed_task", FIXED)
    with_fixed = failures.load(path)
    with_fixed.about["task"] = "fixed_task:Tired"
    played = _replay(with_fixed)
    assert (played.failed, played.departed) == (None, None)
    path.write_bytes(failures.encode(with_fixed, 2))
    assert main(["replay", str(path), "--task", "fixed_task:Tired"]) == 1
    assert "no step fails" in capsys.readouterr().out


def test_the_film(stranger: Stranger, tmp_path: Path, capsys: Capture) -> None:
    name = stranger("tired_task_film", TIRED)
    train(tiny(f"{name}:Tired", iterations=3, max_failed=1.0), tmp_path / "run")
    path = min((tmp_path / "run" / "bad").iterdir())
    out = tmp_path / "deep" / "bad.mp4"
    assert main(["replay", str(path), "--video", str(out), "--size", "96", "--json", "--task", f"{name}:Tired"]) == 0
    facts = json.loads(capsys.readouterr().out)
    reader = imageio_ffmpeg.read_frames(str(out))
    assert next(reader)["size"] == (96, 96)
    images = [torch.frombuffer(bytearray(frame), dtype=torch.uint8).view(96, 96, 3) for frame in reader]
    assert len(images) == facts["images"] == facts["steps"] + 9  # the last one stays
    red, green, _ = images[-1][2, 40].tolist()
    assert red > 150 and green < 80 < images[0][2, 40, 1]


# --- in a run


def test_a_run_keeps_a_few_dumps_and_goes_on_although_all_fails(stranger: Stranger, tmp_path: Path) -> None:
    name = stranger("nan_task_allowed", NAN_TASK)
    cfg = tiny(f"{name}:Broken", iterations=MAX_DUMPS + 2, max_failed=1.0)
    train(replace(cfg, iterations=4), tmp_path / "run")
    train(cfg, tmp_path / "run", resume=True)
    rows = log.read(tmp_path / "run")
    assert [row["Train/dumps"] for row in rows] == [*range(1, MAX_DUMPS + 1), MAX_DUMPS, MAX_DUMPS]
    files = sorted(path.name for path in (tmp_path / "run" / "bad").iterdir())
    assert files == [f"{i:08}-0-0.safetensors" for i in range(1, MAX_DUMPS + 1)]
    assert all(row["Loss/actor_skipped"] == row["Loss/critic_skipped"] == 0 for row in rows)
    # The one that a run stops with is always there.
    with pytest.raises(SdpgError, match=r"sdpg replay .*bad/00000013-0-0\.safetensors --task nan_task_allowed:Broken`"):
        train(replace(cfg, iterations=20, max_failed=0.5), tmp_path / "run", resume=True)
    assert log.read(tmp_path / "run")[-1]["Train/dumps"] == MAX_DUMPS + 1


def test_a_disk_that_is_full_costs_a_warning(
    stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    messages: list[str] = []

    def report(what: str, facts: Mapping[str, Any]) -> None:
        if what == "warning":
            messages.append(facts["message"])

    monkeypatch.setattr(failures, "write_atomic", full)
    name = stranger("nan_task_full", NAN_TASK)
    with pytest.raises(SdpgError, match=r"reward term 'speed' is nan.*`sdpg check"):
        train(tiny(f"{name}:Broken"), tmp_path / "run", report=report)
    assert len(messages) == 1 and "No space left on device; the run goes on without this dump" in messages[0]


BAD_START = """
import torch
from sdpg.tasks.cartpole import Cartpole
from sdpg.types import Start

class BadStart(Cartpole):
    def start(self, rng, n, ended):
        start = super().start(rng, n, ended)
        return Start(torch.where(rng.uniform(0.0, 1.0, 1) < 0.3, torch.nan, start.qpos), start.qvel)
"""


def test_starts_that_are_not_finite_spoil_nothing(stranger: Stranger, tmp_path: Path) -> None:
    """The policy saw NaN before the step failed: neither statistics nor networks may learn from that."""
    name = stranger("bad_start_task", BAD_START)
    train(tiny(f"{name}:BadStart", iterations=8, horizon=12, max_failed=1.0, num_nominal=8), tmp_path / "run")
    rows = log.read(tmp_path / "run")
    assert sum(row["Train/failed_nominal"] for row in rows) > 3
    assert not any(row["Loss/actor_skipped"] or row["Loss/critic_skipped"] for row in rows)
    state = checkpoint.flatten(checkpoint.load(checkpoint.find(tmp_path / "run")).state["algo"])
    assert all(torch.isfinite(value).all() for value in state.values() if isinstance(value, Tensor))


# --- files of strangers


@pytest.fixture
def dump_file(tmp_path: Path) -> Path:
    with pytest.raises(SdpgError, match="qvel"):
        train(tiny("test_failures:Springy", horizon=20), tmp_path / "made")
    return next((tmp_path / "made" / "bad").iterdir())


def test_files_that_are_no_dumps_are_refused_in_one_line(dump_file: Path, tmp_path: Path, capsys: Capture) -> None:
    def refused(path: Path, *options: str) -> str:
        capsys.readouterr()
        assert main(["replay", str(path), *(options or ["--task", "test_failures:Springy"])]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("sdpg: ") and err.count("\n") == 1 and "Traceback" not in err
        return err

    data, bad = dump_file.read_bytes(), tmp_path / "bad.safetensors"
    about = failures.load(dump_file).about
    tensors = load_file(dump_file)

    def changed(values: Mapping[str, Any], **tensor_changes: Tensor) -> Path:
        save_file(tensors | tensor_changes, bad, {"about": json.dumps(about | values)})
        return bad

    assert "no dump" in refused(tmp_path / "nowhere")
    assert "no dump" in refused(tmp_path)
    for content in (data[:-10], data[:100], b"", b"\x80\x04\x95pickle", b"{}"):
        bad.write_bytes(content)
        assert "damaged" in refused(bad)
    save_file(tensors, bad)
    assert "damaged" in refused(bad)
    assert "its format is 'other'" in refused(changed({"format": "other"}))
    assert "has version 99" in refused(changed({"version": 99}))
    assert "SHA-256" in refused(changed({}, model=tensors["model"].flip(0)))
    assert "it does not tell iteration" in refused(changed({"iteration": "x"}))
    assert "unknown task 'nosuchtask'" in refused(changed({"task": "nosuchtask"}), "--task", "nosuchtask")
    assert "the dump's model is not the scene of 'hopper'" in refused(changed({"task": "hopper"}), "--size", "64")
    assert "does not fit" in refused(changed({"task": "hopper"}), "--trust-model")
    assert "does not fit" in refused(changed({}, control=tensors["control"][:, :0]))
    assert "does not fit" in refused(changed({}, action=tensors["action"].bool()))
    assert "unknown engine 'other'" in refused(changed({"sim": "other"}))
    assert main(["replay", str(changed({"versions": 3})), "--task", "test_failures:Springy"]) == 0


@pytest.mark.parametrize(
    ("argv", "words"), [(["replay"], "which dump?"), (["replay", "x", "--size", "8"], "size must")]
)
def test_bad_options_are_one_line(argv: list[str], words: str, capsys: Capture) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
