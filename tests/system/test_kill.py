"""SIGKILL at any moment: the newest complete checkpoint loads, verifies and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.runs import SRC, subprocess_env

ROUNDS = 50

# A process that has loaded everything forks one trainer after the other, so that a round costs a fraction of a second.
# Moments are counted, not timed: a trainer is killed before the n-th time that it opens, renames, removes or syncs
# something in its folder. A file that it was just syncing is left half-written.
DRIVER = """
import json, os, random, signal, sys
from pathlib import Path

import torch
from helpers.runs import tiny
from sdpg import train
from sdpg.run import checkpoint

run, rounds = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
cfg = tiny(iterations=10**6, checkpoint_every=1, keep_checkpoints=2)
train.train(cfg, run, stop=iter([False, True]).__next__)
left, sync = 0, os.fsync  # moments that this process has left; 0: it is not to be killed


def moment(torn=None):
    global left
    left -= 1
    if left == 0:
        if torn is not None and os.fstat(torn).st_size:
            os.truncate(torn, os.fstat(torn).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def hook(event, arguments):
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        path = os.fspath(arguments[0]) if isinstance(arguments[0], (str, os.PathLike)) else ""
        if path.startswith(str(run)) and "tfevents" not in path:  # those are another thread's
            moment()


def synced(handle):
    place = os.readlink(f"/proc/self/fd/{handle}")
    moment(handle if os.path.isfile(place) else None)
    sync(handle)


sys.addaudithook(hook)
os.fsync = synced
chance = random.Random(0)
torn, reached = 0, [1]
for _ in range(rounds):
    moments = chance.randint(1, 100)
    child = os.fork()
    if child == 0:
        left = moments
        try:
            train.train(cfg, run, resume=True)
        finally:
            os._exit(1)  # it never ends by itself
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "the trainer died of itself"
    torn += any((run / "checkpoints").glob(".tmp-*"))
    reached.append(checkpoint.load(checkpoint.find(run)).iteration)  # verified
train.train(cfg, run, resume=True, stop=iter([False, True]).__next__)
rest = [path.name for path in (run / "checkpoints").glob(".tmp-*")]
print(json.dumps({"torn": torn, "reached": reached, "rest": rest}))
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    env = subprocess_env()
    env["PYTHONPATH"] = f"{SRC}:{SRC.parent / 'tests'}"
    command = [sys.executable, str(driver), str(tmp_path / "run"), str(ROUNDS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    reached = told["reached"]
    assert len(reached) == ROUNDS + 1 and reached == sorted(reached)  # no round lost what an earlier one had saved
    assert reached[-1] >= reached[0] + ROUNDS / 2  # they did go on
    assert told["torn"] >= ROUNDS // 5  # kills did fall into writes
    assert told["rest"] == []  # and what they tore is cleared away
