from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import NAN_TASK, subprocess_env, tiny

from sdpg import cli, doctor, train
from sdpg.cli import main
from sdpg.cli.display import progress
from sdpg.cli.parse import _one_line
from sdpg.errors import SdpgError
from sdpg.run import checkpoint, log

TINY = "--num-nominal 2 --num-auxiliary 1 --iterations 2 --threads 1 --algo.horizon 4".split()
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    train.train(tiny(iterations=2), folder)
    return folder


@pytest.fixture(autouse=True)
def _no_long_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input that slips through must fail the test at once, not train for hours."""
    real = train.train

    def guarded(cfg: Any, *args: Any) -> dict[str, Any]:
        try:
            cfg.validate()
            assert cfg.iterations <= 10 and cfg.num_nominal <= 10, "this test would start a long run"
        except SdpgError:
            pass  # the real one refuses it too
        return real(cfg, *args)

    monkeypatch.setattr(train, "train", guarded)


def _refused(capsys: Capture, *argv: str) -> str:
    """Exit code 2, one line on stderr, nothing on stdout."""
    capsys.readouterr()
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sdpg: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


# --- the verbs


def test_help_names_every_verb(capsys: Capture) -> None:
    for argv in ([], ["--help"], ["-h"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert all(
            verb in out
            for verb in (
                "tasks",
                "train",
                "eval",
                "play",
                "view",
                "replay",
                "runs",
                "compare",
                "check",
                "bench",
                "doctor",
            )
        )
    assert main(["--version"]) == 0


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys; from sdpg.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], env=subprocess_env(), check=True, capture_output=True)


@pytest.mark.parametrize(
    "verb", ["tasks", "train", "eval", "play", "view", "replay", "runs", "compare", "check", "bench", "doctor"]
)
def test_every_verb_explains_itself(verb: str, capsys: Capture) -> None:
    assert main([verb, "--help"]) == 0
    assert verb in capsys.readouterr().out


def test_eval_of_what_a_policy_has_to_beat(capsys: Capture) -> None:
    """Doing nothing lets the pole hang; anything else is worse than that, or better."""
    returns = {}
    for policy in ("zero", "random"):
        assert main(["eval", "cartpole", "--policy", policy, "--episodes", "4", "--threads", "1", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["task"], result["algorithm"], result["episodes"]) == ("cartpole", policy, 4)
        returns[policy] = result["return"]["mean"]
    assert returns["zero"] != returns["random"]
    assert main(["eval", "cartpole", "--policy", "zero", "--episodes", "2", "--threads", "1"]) == 0
    assert capsys.readouterr().out.startswith("cartpole, zero: 2 episodes\nreturn ")
    assert "leave --task" in _refused(capsys, "eval", "cartpole", "--policy", "zero", "--checkpoint", "best")
    assert "unknown task 'nothing'" in _refused(capsys, "eval", "nothing", "--policy", "zero")


def test_train_resume_eval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "cartpole", *TINY, "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert summary["iteration"] == 2
    assert "iteration 2/2" in err
    run = summary["run"]
    assert run.startswith("runs/cartpole/sdpg/")

    assert main(["train", "--resume", run, "--iterations", "4"]) == 0
    out = capsys.readouterr().out
    assert "going on" in out
    assert "iteration 4/4" in out

    assert main(["eval", run, "--episodes", "3", "--threads", "1"]) == 0
    assert "3 episodes" in capsys.readouterr().out
    assert main(["eval", run, "--episodes", "3", "--json", "--write", "deep/result.json", "--checkpoint", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["iteration"] == 2
    assert json.loads((tmp_path / "deep/result.json").read_text()) == result


def test_resume_auto_takes_the_newest_run_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)

    def trained(*argv: str) -> dict[str, Any]:
        assert main(["train", *argv, "--resume", "auto", "--json", "--quiet"]) == 0
        return json.loads(capsys.readouterr().out)

    first = trained("cartpole", *TINY)  # there is none: a new one
    again = trained("cartpole", "--iterations", "3")
    assert again["run"] == first["run"] and again["iteration"] == 3
    other = trained("hopper", *TINY)
    assert other["run"] != first["run"]
    assert "which task" in _refused(capsys, "train", "--resume", "auto")
    assert "num-nominal" in _refused(capsys, "train", "cartpole", "--resume", "auto", "--num-nominal", "9")


def test_resume_auto_with_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """What a job that is started again and again says: go on if you can, else begin."""
    monkeypatch.chdir(tmp_path)
    job = ["train", "cartpole", "--run", "job", "--resume", "auto", "--json", "--quiet"]
    assert main([*job, *TINY]) == 0
    assert main([*job, "--iterations", "3"]) == 0
    assert json.loads(capsys.readouterr().out.split("}\n")[1] + "}")["iteration"] == 3
    shutil.rmtree("job/checkpoints")  # as if it had been killed before its first one
    assert main([*job, *TINY]) == 0
    assert json.loads(capsys.readouterr().out)["iteration"] == 2
    assert (tmp_path / "job-unsaved1/metrics.jsonl").is_file()  # nothing is lost


def test_resume_auto_survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The newest checkpoint and config.json: with --run, and without."""
    monkeypatch.chdir(tmp_path)
    for where in (["--run", "job"], []):
        assert main(["train", "cartpole", *TINY, "--checkpoint-every", "1", *where, "--json"]) == 0
        run = Path(json.loads(capsys.readouterr().out)["run"])
        (run / "config.json").write_text((run / "config.json").read_text()[:50])
        (run / "checkpoints/00000002/tensors.safetensors").write_bytes(b"")
        assert main(["train", "cartpole", *where, "--resume", "auto", "--iterations", "3", "--json"]) == 0
        out, err = capsys.readouterr()
        assert (json.loads(out)["run"], json.loads(out)["iteration"]) == (str(run), 3)
        assert "warning: checkpoint" in err and "going on from iteration 1" in err and "is written anew" in err
        assert [row["iteration"] for row in log.read(run)] == [1, 2, 3]


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sdpg.run.memory.resident_bytes", lambda: 2**29)  # a long test run has more
    endless = ["--num-nominal", "10", "--algo.horizon", "1000000", "--memory-gb", "3"]
    assert "or less, or set --memory-gb" in _refused(capsys, "train", "hopper", *TINY, *endless)
    assert "give fewer --num-auxiliary" in _refused(capsys, "train", "hopper", *TINY, "--memory-gb", "0.01")
    assert not list(tmp_path.iterdir())


def test_options_reach_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    seen: dict[str, Any] = {}

    def fake(cfg: Any, run: Any, resume: bool, report: Any, stop: Any, group: Any) -> dict[str, Any]:
        seen.update(cfg=cfg, run=run, resume=resume)
        report("warning", {"message": "careful"})
        return {}

    monkeypatch.setattr(train, "train", fake)
    argv = "train hopper --preset paper --minutes 2.5 --seed 7 --device cpu --run here --quiet --algo.no-causal"
    assert main(argv.split()) == 0
    cfg = seen["cfg"]
    assert (cfg.task, cfg.preset, cfg.minutes, cfg.seed, cfg.device) == ("hopper", "paper", 2.5, 7, "cpu")
    assert (cfg.num_auxiliary, cfg.algo.antithetic, cfg.algo.causal) == (
        63,
        False,
        False,
    )  # the paper's, but for --algo
    assert (seen["run"], seen["resume"]) == ("here", False)
    assert capsys.readouterr().err == "warning: careful\n"


def test_check_passes_a_good_task(capsys: Capture) -> None:
    assert main(["check", "cartpole", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


def test_check_fails_a_bad_task_with_a_sentence(stranger: Callable[[str, str], str], capsys: Capture) -> None:
    name = stranger("nan_task_check", NAN_TASK)
    assert main(["check", f"{name}:Broken"]) == 2
    out, err = capsys.readouterr()
    assert "FAIL" in out
    assert "ok" in out
    assert all(line.startswith(f"sdpg: task '{name}:Broken'") for line in err.splitlines())
    assert "Traceback" not in err


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ENOUGH_DISK", 0.0)
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY", 0.0)
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["sim"], facts["device"]) == ("cpu", "cpu") or facts["gpu"]
    assert "mujoco" in facts["versions"]
    assert "stepped" in facts["engine"]
    assert facts["renderer"].startswith("raster drew cartpole")

    monkeypatch.setattr(doctor, "ENOUGH_DISK", 1e9)
    monkeypatch.setattr(doctor, "ENOUGH_MEMORY", 1e9)

    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("no engine")

    monkeypatch.setattr(doctor, "make_env", broken)
    monkeypatch.setattr(doctor, "make_renderer", broken)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.count("problem: ") == 4
    assert "no images can be rendered" in out
    assert "no engine" in out


def test_bench(capsys: Capture, tmp_path: Path) -> None:
    iteration = "--num-nominal 2 --num-auxiliary 1 --iterations 1 --warmup 0 --threads 1".split()
    assert main(["bench", "iteration", "cartpole", "--obs", "state", *iteration, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ratio_to_raw"] > 0
    sim = "--num-worlds 4 --steps 2 --repeats 1 --threads 1".split()
    assert main(["bench", "sim", "cartpole", *sim, "--write", str(tmp_path / "sim.json")]) == 0
    assert "task: cartpole" in capsys.readouterr().out
    assert json.loads((tmp_path / "sim.json").read_text())["task"] == "cartpole"
    render = "--num-nominal 2 --width 8 --height 8 --repeats 1 --calls 1 --threads 1 --gl-seconds 0.01".split()
    assert main(["bench", "render", "cartpole", *render, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["raster_to_warp"] > 0
    assert main("bench smoothing --points 5 --repeats 2 --deltas 0.2 --num-auxiliary 3 --json".split()) == 0
    assert json.loads(capsys.readouterr().out)
    assert "takes no task" in _refused(capsys, "bench", "smoothing", "hopper")


def test_a_bar_for_what_takes_time_on_a_terminal_only(
    run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress("episodes")(range(3))) == [0, 1, 2]
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "episodes" in err and json.loads(out)["episodes"] == 1


# --- bad input


def test_unknown_names(capsys: Capture) -> None:
    assert "did you mean train?" in _refused(capsys, "trian", "hopper")
    assert "known: tasks" in _refused(capsys, "zzz")
    assert "unknown option --bogus" in _refused(capsys, "--bogus")
    assert "unknown task 'hoper'" in _refused(capsys, "train", "hoper", *TINY)
    assert "unknown task 'hoper'" in _refused(capsys, "check", "hoper")
    assert "did you mean --num-nominal?" in _refused(capsys, "train", "hopper", "--num-nominl", "3")
    assert "did you mean --algo.horizon?" in _refused(capsys, "train", "hopper", "--horizon", "3")
    assert "don't know what to do with 'more'" in _refused(capsys, "train", "hopper", "more")
    assert "unknown option --speed" in _refused(capsys, "eval", "x", "--speed", "3")
    assert "which bench?" in _refused(capsys, "bench", "everything")


def test_missing_words(capsys: Capture) -> None:
    assert "which task?" in _refused(capsys, "train")
    assert "which run?" in _refused(capsys, "eval")
    assert "which task?" in _refused(capsys, "check")
    assert "which bench?" in _refused(capsys, "bench")
    assert "Missing value" in _refused(capsys, "train", "hopper", "--seed")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--num-nominal", "0", "num-nominal must be at least 1"),
        ("--num-auxiliary", "0", "sdpg needs --num-auxiliary 1 or more"),
        ("--num-nominal", "x", "--num-nominal"),
        ("--iterations", "0", "iterations must be at least 1"),
        ("--minutes", "-1", "minutes must be positive"),
        ("--seed", "-1", "seed must be"),
        ("--device", "tpu", "--device"),
        ("--sim", "gpu", "--sim"),
        ("--preset", "big", "--preset"),
        ("--obs", "smell", "has no observations 'smell'; it has state, pixels"),
        ("--algo.horizon", "0", "algo.horizon must be at least 1"),
        ("--task", "walker", "given twice"),
    ],
)
def test_bad_values(option: str, value: str, said: str, capsys: Capture, tmp_path: Path) -> None:
    err = _refused(capsys, "train", "hopper", *TINY, "--run", str(tmp_path / "run"), option, value)
    assert said in err
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command = ("train", "hopper", *TINY, "--run", str(tmp_path / "run"), "--device", "cuda")
    assert "--device cuda: there is no GPU that torch can use; give --device cpu" in _refused(capsys, *command)
    assert "--sim cpu computes on CPU cores" in _refused(capsys, *command, "--sim", "cpu")
    assert not (tmp_path / "run").exists()


def test_bad_tasks(stranger: Callable[[str, str], str], capsys: Capture) -> None:
    assert "can't be loaded" in _refused(capsys, "train", "no_such_module:Task", *TINY)
    assert "can't be loaded" in _refused(capsys, "train", "sdpg.tasks.hopper:Jumper", *TINY)
    assert "can't be loaded" in _refused(capsys, "train", f"{stranger('bad_syntax', 'def (')}:Task", *TINY)
    assert "can't be loaded" in _refused(capsys, "train", f"{stranger('bad_import', '1 / 0')}:Task", *TINY)
    assert "not a subclass" in _refused(capsys, "train", "collections:OrderedDict", *TINY)


def test_a_nan_reward(stranger: Callable[[str, str], str], capsys: Capture, tmp_path: Path) -> None:
    name = stranger("nan_task_cli", NAN_TASK)
    err = _refused(capsys, "train", f"{name}:Broken", *TINY, "--quiet", "--run", "run")
    assert "reward term 'speed' is nan" in err and "sdpg replay run/bad/00000001-0-0.safetensors" in err
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1


def test_bad_runs(run: Path, tmp_path: Path, capsys: Capture) -> None:
    nowhere, empty = str(tmp_path / "nowhere"), str(tmp_path)
    assert "no run folder" in _refused(capsys, "eval", nowhere)
    assert "no run folder" in _refused(capsys, "train", "--resume", nowhere)
    assert "holds no checkpoint" in _refused(capsys, "eval", empty)
    assert "no config.json" in _refused(capsys, "train", "--resume", empty)
    assert "is not last, best or an iteration" in _refused(capsys, "eval", str(run), "--checkpoint", "first")
    assert "episodes must be at least 1" in _refused(capsys, "eval", str(run), "--episodes", "0")
    (tmp_path / "file").write_text("")
    assert "can't write" in _refused(
        capsys, "eval", str(run), "--episodes", "1", "--write", str(tmp_path / "file" / "x.json")
    )


def test_a_resumed_run_keeps_its_options(run: Path, capsys: Capture) -> None:
    assert "goes on: seed 0 -> 5; leave" in _refused(capsys, "train", "--resume", str(run), "--seed", "5")
    assert "algo.horizon" in _refused(capsys, "train", "--resume", str(run), "--algo.horizon", "5")
    assert "of task 'cartpole', not 'hopper'" in _refused(capsys, "train", "hopper", "--resume", str(run))
    assert "--run is for a new run" in _refused(capsys, "train", "--resume", str(run), "--run", "x")


def test_a_run_is_never_overwritten(run: Path, capsys: Capture) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    assert f"go on by --resume {run}" in _refused(capsys, "train", "cartpole", *TINY, "--run", str(run))
    assert (run / "metrics.jsonl").read_bytes() == before


def test_corrupt_and_foreign_checkpoints(run: Path, capsys: Capture) -> None:
    tensors = checkpoint.find(run) / checkpoint.TENSORS
    good = tensors.read_bytes()
    try:
        for bad in (good[:100], b"", good[:-1] + bytes([good[-1] ^ 1])):
            tensors.write_bytes(bad)
            assert "damaged or foreign" in _refused(capsys, "eval", str(run))
            assert "damaged or foreign" in _refused(capsys, "train", "--resume", str(run), "--iterations", "3")
    finally:
        tensors.write_bytes(good)
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0


def test_a_full_disk_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """All but the checkpoints could be written: what is there stays, and the line says what to do."""
    real = os.fsync

    def full(handle: int) -> None:
        if "checkpoints" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(train, "PATIENCE", 0.0)
    assert main(["train", "cartpole", *TINY, "--run", str(tmp_path / "run"), "--quiet"]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: can't save iteration 2") and "trying again" in warning
    assert error.startswith("sdpg: can't save") and "No space left on device" in error
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_full_disk_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    err = _refused(capsys, "train", "cartpole", *TINY, "--run", str(tmp_path / "run"), "--quiet")
    assert "can't write the run folder" in err


def test_other_errors_of_the_system_are_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def fail(argv: object) -> int:
        raise OSError(errno.EIO, "Input/output error", "some/file")

    monkeypatch.setitem(cli.VERBS, "tasks", (fail, ""))
    assert "'some/file': Input/output error" in _refused(capsys, "tasks")


def test_an_early_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupt(argv: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.VERBS, "tasks", (interrupt, ""))
    assert main(["tasks"]) == 130
    assert capsys.readouterr().err == ""


def test_messages_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def fail(argv: object) -> int:
        raise SdpgError("two\n  lines")

    monkeypatch.setitem(cli.VERBS, "tasks", (fail, ""))
    assert _refused(capsys, "tasks") == "sdpg: two lines\n"
    assert _one_line("╭ Error ─╮\n│ ────── │\n│ a b    │\n│ c.     │\n│ ────── │\n│ more   │\n╰────────╯") == "a b c"
    assert _one_line("") == "these options can't be read"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["train", "nothing"], "unknown task"),
        (["train", "hopper", "--num-nominal", "0"], "num-nominal"),
        (["eval", "nowhere"], "no run folder"),
    ],
)
def test_as_a_process(argv: list[str], said: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sdpg", *argv], env=subprocess_env(), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sdpg tasks --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=subprocess_env(), capture_output=True, text=True, cwd=tmp_path)
    assert "Traceback" not in done.stderr
