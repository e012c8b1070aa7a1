"""SIGKILL at any moment: the newest complete checkpoint loads, verifies and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SRC, subprocess_env

ROUNDS = 50

# A process that has loaded everything forks one trainer after the other, so that a round costs a fraction of a second.
# Checkpoints are written after every iteration: most of a trainer's time is spent inside of one.
DRIVER = """
import json, os, random, signal, sys, time
from pathlib import Path

import torch
from conftest import tiny
from sdpg import checkpoint, train

run, rounds = Path(sys.argv[1]), int(sys.argv[2])
sync = os.fsync
os.fsync = lambda handle: (time.sleep(0.004), sync(handle))  # a slow disk: more of the kills fall into a write
torch.set_num_threads(1)
cfg = tiny(iterations=10**6, checkpoint_every=1, keep_checkpoints=2)
chance = random.Random(0)
train.train(cfg, run, stop=iter([False, True]).__next__)
torn, reached = 0, [1]
for number in range(rounds):
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train.train(cfg, run, resume=True, report=lambda what, facts: os.write(told, b"."))
        finally:
            os._exit(1)  # it never ends by itself
    if number % 5:  # one of five is killed while it starts
        for _ in range(chance.randint(4, 7)):  # "plan", "start", "iteration", "saved" ...
            os.read(heard, 1)
    time.sleep(chance.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(heard)
    os.close(told)
    assert os.WIFSIGNALED(status), "the trainer died of itself"
    torn += any((run / "checkpoints").glob(".tmp-*"))
    reached.append(checkpoint.load(checkpoint.find(run)).iteration)  # verified
train.train(cfg, run, resume=True, stop=iter([False, True]).__next__)
left = [path.name for path in (run / "checkpoints").glob(".tmp-*")]
print(json.dumps({"torn": torn, "reached": reached, "left": left}))
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    env = subprocess_env()
    env["PYTHONPATH"] = f"{SRC}:{SRC.parent / 'tests'}"
    command = [sys.executable, str(driver), str(tmp_path / "run"), str(ROUNDS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    reached = told["reached"]
    assert len(reached) == ROUNDS + 1 and reached == sorted(reached)  # no round lost what an earlier one had saved
    assert reached[-1] >= reached[0] + ROUNDS / 2  # they did go on
    assert told["torn"] >= 5  # kills did fall into writes
    assert told["left"] == []  # and what they tore is cleared away
