from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import NAN_TASK, Recorder, assert_same, saved_tensors, subprocess_env, tiny

from sdpg import train
from sdpg.engines import choose_engine
from sdpg.errors import SdpgError
from sdpg.run import checkpoint, folder, log, resume
from sdpg.tasks.base import TASKS, make_task

EVERYTHING = [(task, obs) for task in TASKS.targets() for obs in make_task(task).inputs] + [
    ("helpers.sources:Senses", "pixels")
]


@pytest.mark.parametrize(("task", "obs"), EVERYTHING)
def test_a_resumed_run_is_the_run_that_never_stopped(task: str, obs: str, tmp_path: Path) -> None:
    cfg = tiny(task, obs, iterations=10, horizon=12, checkpoint_every=3)
    train.train(cfg, tmp_path / "whole")
    recorder = Recorder(stop_after=5)
    summary = train.train(cfg, tmp_path / "parts", report=recorder, stop=recorder.stop)
    assert (summary["reason"], summary["iteration"]) == ("stopped", 5)
    summary = train.train(cfg, tmp_path / "parts", resume=True)
    assert (summary["reason"], summary["iteration"]) == ("iterations", 10)
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """Rows beyond the checkpoint are dropped and computed anew."""
    cfg = tiny(iterations=8, checkpoint_every=3)
    train.train(cfg, tmp_path / "whole")
    train.train(replace(cfg), tmp_path / "killed")
    root = tmp_path / "killed" / "checkpoints"
    (root / "last").write_text("00000003")
    (root / ".tmp-00000009-1").mkdir()
    train.train(cfg, tmp_path / "killed", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert not (root / ".tmp-00000009-1").exists()


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_same_seed_and_threads_are_bit_identical_after_20_iterations(threads: int, tmp_path: Path) -> None:
    cfg = tiny("hopper", iterations=20, threads=threads, num_nominal=4, num_auxiliary=3, horizon=8)
    train.train(cfg, tmp_path / "a")
    train.train(cfg, tmp_path / "b")
    assert_same(tmp_path / "a", tmp_path / "b")
    train.train(replace(cfg, seed=1), tmp_path / "c")
    assert not torch.equal(
        saved_tensors(tmp_path / "a")["env/sim.state"], saved_tensors(tmp_path / "c")["env/sim.state"]
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_pixels_are_bit_identical_after_10_iterations(precision: str, threads: int, tmp_path: Path) -> None:
    cfg = tiny("cartpole", "pixels", iterations=10, threads=threads)
    cfg = replace(cfg, algo=replace(cfg.algo, precision=precision))  # type: ignore[arg-type]
    train.train(cfg, tmp_path / "a")
    train.train(cfg, tmp_path / "b")
    assert_same(tmp_path / "a", tmp_path / "b")


def test_the_run_folder_tells_what_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = train.train(tiny(iterations=3))
    again = train.train(tiny(iterations=1))
    run = Path(summary["run"])
    assert run.parent == Path("runs/cartpole/sdpg")
    assert again["run"] != summary["run"]
    config = json.loads((run / "config.json").read_text())
    asked = tiny(iterations=3)
    algo = replace(asked.algo, schedule_iterations=3)
    assert resume.cfg_from_dict(config["cfg"]) == replace(asked, sim=choose_engine().sim, algo=algo)
    session = config["sessions"][0]
    assert session["device"] == choose_engine().device
    assert set(session["versions"]) >= {"sdpg", "mujoco", "torch", "numpy"}
    assert len(session["model_sha256"]) == 64
    rows = log.read(run)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert rows[-1]["Train/env_steps"] == 3 * 6 * 9
    expected = {"Train/mean_reward", "Train/mean_episode_length", "Train/reward_per_step", "Train/failed"}
    expected |= {"Train/episodes", "Perf/total_fps", "Perf/collect_seconds", "Perf/update_seconds", "Perf/memory_mb"}
    assert expected <= set(rows[-1])
    assert any(name.startswith("Episode_Reward/") for name in rows[-1])
    assert list(run.glob("events.out.tfevents.*"))


def test_resume_appends_a_session_and_keeps_the_time(tmp_path: Path) -> None:
    train.train(tiny(iterations=2), tmp_path / "run")
    first = checkpoint.load(checkpoint.find(tmp_path / "run")).state["run"]["seconds"]
    train.train(tiny(iterations=4), tmp_path / "run", resume=True)
    assert len(folder.read_config(tmp_path / "run")["sessions"]) == 2
    assert checkpoint.load(checkpoint.find(tmp_path / "run")).state["run"]["seconds"] > first
    seconds = [row["seconds"] for row in log.read(tmp_path / "run")]
    assert seconds == sorted(seconds)


def test_a_prolonged_run_keeps_its_schedules(tmp_path: Path) -> None:
    train.train(tiny(iterations=2), tmp_path / "run")
    cfg = resume.cfg_from_dict(folder.read_config(tmp_path / "run")["cfg"])
    train.train(replace(cfg, iterations=3), tmp_path / "run", resume=True)
    assert log.read(tmp_path / "run")[-1]["Loss/actor_lr"] == pytest.approx(cfg.algo.actor_lr_min)


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    train.train(tiny(iterations=2), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert train.train(tiny(iterations=2), tmp_path / "run", resume=True)["iteration"] == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_nan_reward_stops_the_run_and_names_the_term(stranger: Callable[[str, str], str], tmp_path: Path) -> None:
    name = stranger("nan_task_train", NAN_TASK)
    with pytest.raises(
        SdpgError, match=r"100 % of its world-steps .*\(reward term 'speed' is nan\); fix .*`sdpg replay "
    ):
        train.train(tiny(f"{name}:Broken"), tmp_path / "run")
    row, *others = log.read(tmp_path / "run")
    assert not others and row["Train/failed"] == 1.0 and row["Train/dumps"] == 1
    assert (row["Train/failed_nominal"], row["Train/failed_auxiliary"]) == (6 * 3, 6 * 3 * 2)


LATE_NAN = (
    NAN_TASK
    + """
class Late(Cartpole):
    steps = 0
    def reward(self, x, memory, action):
        Late.steps += 1
        bad = torch.nan if Late.steps > 20 else 0.0
        return {"late": x.qpos[..., 0] + bad}
"""
)


def test_what_was_learned_before_a_failure_is_saved(stranger: Callable[[str, str], str], tmp_path: Path) -> None:
    name = stranger("late_nan_task", LATE_NAN)
    with pytest.raises(SdpgError, match="reward term 'late'"):
        train.train(tiny(f"{name}:Late", iterations=10, checkpoint_every=100), tmp_path / "run")
    assert checkpoint.load(checkpoint.find(tmp_path / "run")).iteration == 3  # 3 x 6 steps were fine
    assert [row["iteration"] for row in log.read(tmp_path / "run")] == [1, 2, 3, 4]


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_warns_and_the_next_save_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    real, saves = checkpoint.save, []

    def flaky(*args: Any) -> Path:
        saves.append(args[1])
        return _full() if len(saves) == 1 else real(*args)  # type: ignore[return-value]

    monkeypatch.setattr(checkpoint, "save", flaky)
    train.train(tiny(iterations=4, checkpoint_every=2), tmp_path / "run", report=recorder)
    assert saves == [2, 3, 4]  # tried again soon, then at its time
    assert len(recorder.messages()) == 1
    assert "can't save iteration 2" in recorder.messages()[0]
    assert checkpoint.find(tmp_path / "run").name == "00000004"


def test_a_last_save_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train.train(tiny(iterations=2), tmp_path / "run")
    monkeypatch.setattr(checkpoint, "save", _full)
    monkeypatch.setattr(train, "PATIENCE", 0.0)
    with pytest.raises(SdpgError, match=r"can't save iteration 3 .*No space left.*older checkpoints are untouched"):
        train.train(tiny(iterations=3), tmp_path / "run", resume=True)
    assert checkpoint.find(tmp_path / "run").name == "00000002"


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thing").write_text("mine")
    with pytest.raises(SdpgError, match="not empty; give another --run"):
        train.train(tiny(), tmp_path)
    with pytest.raises(SdpgError, match="can't write the run folder"):
        train.train(tiny(), tmp_path / "thing" / "run")
    assert (tmp_path / "thing").read_text() == "mine"


def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    train.train(tiny("cartpole", iterations=1), tmp_path / "run")
    with pytest.raises(SdpgError, match="of task 'cartpole', not 'hopper'"):
        train.train(tiny("hopper", iterations=2), tmp_path / "run", resume=True)


def test_a_resume_with_other_options_is_refused_with_what_differs(tmp_path: Path) -> None:
    cfg = tiny(iterations=1)
    train.train(cfg, tmp_path / "run")
    other = replace(cfg, num_nominal=4, iterations=2, algo=replace(cfg.algo, gamma=0.9))
    with pytest.raises(SdpgError, match=r"num-nominal 3 -> 4, algo.gamma 0.99 -> 0.9; leave these options out"):
        train.train(other, tmp_path / "run", resume=True)
    assert train.train(replace(cfg, iterations=2, threads=2), tmp_path / "run", resume=True)["iteration"] == 2


def test_a_folder_that_someone_trains_in_is_refused(tmp_path: Path) -> None:
    train.train(tiny(iterations=1), tmp_path / "run")
    with folder._lock(tmp_path / "run"), pytest.raises(SdpgError, match="another process trains in"):
        train.train(tiny(iterations=2), tmp_path / "run", resume=True)
    train.train(tiny(iterations=2), tmp_path / "run", resume=True)


def _status(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text())


def test_the_status_tells_how_a_run_stands(stranger: Callable[[str, str], str], tmp_path: Path) -> None:
    run, states = tmp_path / "run", []
    recorder = Recorder(stop_after=2)

    def look(what: str, facts: Mapping[str, Any]) -> None:
        recorder(what, facts)
        states.append(_status(run)["state"] if what in ("start", "iteration") else "")

    train.train(tiny(iterations=3), run, report=look, stop=recorder.stop)
    assert set(states) == {"", "running"}
    assert _status(run)["state"] == "interrupted"
    train.train(tiny(iterations=3), run, resume=True)
    status = _status(run)
    assert (status["state"], status["iteration"], status["iterations"]) == ("finished", 3, 3)
    assert status["pid"] == os.getpid() and status["seconds"] > 0
    with pytest.raises(SdpgError):
        train.train(tiny(f"{stranger('broken_task', NAN_TASK)}:Broken"), tmp_path / "bad")
    assert _status(tmp_path / "bad")["state"] == "failed"
    assert "reward term 'speed'" in _status(tmp_path / "bad")["message"]


def test_a_run_folder_that_vanishes_is_made_anew(tmp_path: Path) -> None:
    run, recorder = tmp_path / "run", Recorder()

    def remove(what: str, facts: Mapping[str, Any]) -> None:
        recorder(what, facts)
        if what == "iteration" and facts["iteration"] == 3:
            shutil.rmtree(run)

    train.train(tiny(iterations=6), run, report=remove)
    lost, anew = recorder.messages()
    assert "can't write" in lost and "was gone; made it anew" in anew
    assert [row["iteration"] for row in log.read(run)] == [4, 5, 6]  # what could not be written waited
    train.train(tiny(iterations=7), run, resume=True)


def test_the_last_save_is_tried_until_it_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls, recorder = checkpoint.save, [], Recorder()

    def flaky(*args: Any) -> Path:
        calls.append(args[1])
        return _full() if len(calls) < 3 else real(*args)  # type: ignore[return-value]

    monkeypatch.setattr(checkpoint, "save", flaky)
    monkeypatch.setattr(train, "RETRY", 0.0)
    train.train(tiny(iterations=1), tmp_path / "run", report=recorder)
    assert calls == [1, 1, 1] and "trying again for 60 s" in recorder.messages()[0]
    assert checkpoint.find(tmp_path / "run").name == "00000001"


def test_the_best_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = iter([3.0, 9.0, 5.0, 4.0, 2.0])
    real = checkpoint.save

    def scored(*args: Any) -> Path:
        return real(*args[:5], next(returns))

    monkeypatch.setattr(checkpoint, "save", scored)
    train.train(tiny(iterations=5, checkpoint_every=1, keep_checkpoints=1), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "00000002",
        "00000005",
        "best",
        "last",
    ]
    assert checkpoint.load(checkpoint.find(tmp_path / "run", "best")).score == 9.0


def _damage(run: Path, iteration: int) -> None:
    file = run / "checkpoints" / f"{iteration:08}" / checkpoint.TENSORS
    file.write_bytes(file.read_bytes()[:-9])


def test_a_damaged_checkpoint_costs_the_iterations_since_the_one_before(tmp_path: Path) -> None:
    cfg = tiny(iterations=6, checkpoint_every=2)
    train.train(cfg, tmp_path / "whole")
    train.train(cfg, tmp_path / "run")
    _damage(tmp_path / "run", 6)
    recorder = Recorder()
    train.train(cfg, tmp_path / "run", resume=True, report=recorder)
    (message,) = recorder.messages()
    assert "00000006' is damaged" in message and "going on from iteration 4" in message
    assert_same(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run/checkpoints/last").write_bytes(bytes(9))  # as a power cut may leave it
    train.train(replace(cfg, iterations=7), tmp_path / "run", resume=True, report=recorder)
    assert "going on from iteration 6" in recorder.messages()[1]
    for iteration in (4, 6, 7):
        _damage(tmp_path / "run", iteration)
    with pytest.raises(SdpgError, match="00000007' is damaged or foreign"):
        train.train(replace(cfg, iterations=8), tmp_path / "run", resume=True)


def test_a_checkpoint_of_a_newer_version_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train.train(tiny(iterations=2, checkpoint_every=1), tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "VERSION", 2)
        checkpoint.save(tmp_path / "run/checkpoints", 3, {}, {})
    with pytest.raises(SdpgError, match="has format version 2"):
        train.train(tiny(iterations=4), tmp_path / "run", resume=True)


@pytest.mark.parametrize("config", ['{"cfg": {"task": "cart', None, '{"cfg": {}, "sessions": [3]}'])
def test_a_run_goes_on_without_its_config(config: str | None, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train.train(tiny(iterations=2), run)
    (run / "config.json").unlink()
    if config is not None:
        (run / "config.json").write_text(config)
    recorder = Recorder()
    cfg = resume.cfg_from_dict(resume.saved_options(run))
    assert cfg == replace(tiny(iterations=2), sim=cfg.sim, algo=cfg.algo)
    train.train(replace(cfg, iterations=3), run, resume=True, report=recorder)
    assert "config.json' can't be read: it is written anew" in recorder.messages()[0]
    assert folder.read_config(run)["cfg"]["iterations"] == 3


def test_a_changed_scene_is_told(tmp_path: Path) -> None:
    train.train(tiny(iterations=1), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["sessions"][0]["model_sha256"] = "0" * 64
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    recorder = Recorder()
    train.train(tiny(iterations=2), tmp_path / "run", resume=True, report=recorder)
    assert "scene is not the one" in recorder.messages()[0]


WRONG = [  # option, value in a file, what it must be
    ("track", "os.path", "one of none, wandb, trackio"),  # what is looked for is imported
    ("obs", ["state"], "a text"),
    ("sim", "gpu", "one of auto, cpu, warp"),
    ("num-nominal", 3.0, "a whole number"),
    ("num-nominal", True, "a whole number"),
    ("minutes", "3", "a number or null"),
    ("deterministic", 1, "true or false"),
    ("algo", 3, "an object"),
    ("algo.horizon", "x", "a whole number"),
    ("algo.encoder", "unknown", "one of drqv2"),
    ("algo.gamma", "0.9", "a number"),
    ("algo.log-std-bounds", [1.0], "a list: a number, a number or null"),
    ("algo.actor-widths", [64, "x"], "a list: a whole number, ..."),
    ("algo.actor-widths", "64", "a list: a whole number, ..."),
]


def test_bad_configs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SdpgError, match="does not know: bogus"):
        resume.cfg_from_dict({"task": "cartpole", "bogus": 1})
    with pytest.raises(SdpgError, match="names 'None' as its task"):
        resume.cfg_from_dict({})
    with pytest.raises(SdpgError, match="num-nominal must be at least 1"):
        resume.cfg_from_dict({"task": "cartpole", "num_nominal": 0})
    with pytest.raises(SdpgError, match=r"unknown algorithm 'os:abort' in the saved config; known: .*sdpg"):
        resume.cfg_from_dict({"task": "cartpole", "algorithm": "os:abort"})
    for option, value, fix in WRONG:
        *parents, name = option.replace("-", "_").split(".")
        values = {"algo": {name: value}} if parents else {name: value}
        with pytest.raises(SdpgError, match=rf"has {option} .*; it must be {fix}"):
            resume.cfg_from_dict({"task": "cartpole"} | values)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SdpgError, match="no GPU that torch can use"):
        train.train(tiny(device="cuda"))


def test_a_run_of_before_engines_could_be_chosen_goes_on_with_its_own() -> None:
    before = tiny()
    assert before.sim == "auto" and resume.engine_of(before) == "cpu"
    resume.require_same_options(before, replace(before, sim="cpu"))
    with pytest.raises(SdpgError, match="sim cpu -> warp"):
        resume.require_same_options(before, replace(before, sim="warp"))


def test_another_device_is_worth_a_word(tmp_path: Path) -> None:
    recorder = Recorder()
    train.train(tiny(iterations=1, device="cpu"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sessions"][0]["device"] = "cuda"
    (tmp_path / "config.json").write_text(json.dumps(config))
    train.train(tiny(iterations=2, device="cpu"), tmp_path, True, recorder)
    assert any("was on cuda and goes on on cpu" in message for message in recorder.messages())


def test_config_json_that_is_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SdpgError, match=r"has no config\.json"):
        folder.read_config(tmp_path)
    for text in ("{", "[]", '{"cfg": 3}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(SdpgError, match="can't be read"):
            folder.read_config(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_iteration_and_saves(number: signal.Signals, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = "--num-nominal 2 --num-auxiliary 1 --threads 1 --iterations 1000000 --checkpoint-every 1000000".split()
    command = [sys.executable, "-m", "sdpg", "train", "cartpole", "--run", str(run), *options]
    process = subprocess.Popen(
        command, env=subprocess_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        deadline = time.monotonic() + 60
        while not (run / log.METRICS).exists() or not log.read(run):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "stopped, saved" in out
    saved = checkpoint.load(checkpoint.find(run))
    assert saved.iteration == log.read(run)[-1]["iteration"]


def test_the_second_signal_ends_the_process() -> None:
    script = (
        "import os, signal, sdpg.train\n"
        "with sdpg.train.stop_on_signals() as stop:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert stop()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], env=subprocess_env(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_first_signal_is_remembered_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with train.stop_on_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is before
