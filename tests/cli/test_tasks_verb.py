"""`sdpg tasks`: what there is to train, at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import subprocess_env
from PIL import Image
from torch import Tensor

from sdpg.cli import main
from sdpg.errors import SdpgError
from sdpg.presets import resolve
from sdpg.tasks import Camera, Encoder, Memory, Physics, Pipeline, Sensor, Terms
from sdpg.tasks.base import make_task, named_in_file
from sdpg.tasks.cartpole import Cartpole
from sdpg.tasks.randomise import Randomise
from sdpg.tasks.registry import ALIASES

Capture = pytest.CaptureFixture[str]


def test_tasks(capsys: Capture) -> None:
    assert main(["tasks"]) == 0
    assert "hopper" in capsys.readouterr().out
    assert main(["tasks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["hopper"]["state_size"] == 11
    assert rows["hopper"]["action_size"] == 3


def test_a_task_is_described(capsys: Capture) -> None:
    assert main(["tasks", "hopper"]) == 0
    told = capsys.readouterr().out
    for line in (
        "task: hopper",
        "licence: MIT, as sdpg",
        "action: 3 numbers in [-1, 1]: torques of thigh, leg and foot, up to 200 N m",
        "  state: 11 numbers, normalised, encoded as the options say",
        "  pixels: camera 'track', 84 x 84 colours, 3 frames, features as the options say",
        "reward_terms: forward, height, pitch, effort",
        "randomised: starts alone",
    ):
        assert line in told.splitlines(), line
    assert main(["tasks", "hopper", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["critic"] == {"state": "11 numbers, normalised, passed through"}
    assert main(["tasks", "hoper"]) == 2
    assert "unknown task 'hoper'" in capsys.readouterr().err


def test_what_a_task_declares_is_told(capsys: Capture) -> None:
    assert main(["tasks", "test_tasks_verb:Declares"]) == 0
    told = capsys.readouterr().out.splitlines()
    for line in (
        "robot: unitree_go2 of MuJoCo Menagerie",
        "licence: BSD-3-Clause (the robot's model)",
        "ends: the pole falls",
        "  eye: camera 'side', 40 x 30 depth from -0.5 to 0.5, one frame, 32 features, rendered at 44 x 30, "
        "pipeline: crop 0-0-2-2; limit 0.0 to 2.0; depth centred, sensor: latency 10.0 to 30.0",
        "  angle: 1 numbers, not normalised, MLP 8-4",
        "  rest: 2 numbers, not normalised, MLP 6",
        "  friction: 0.5 to 1.5",
        "success: tilt",
    ):
        assert line in told, line


def test_a_task_is_drawn_with_its_cameras(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "new" / "task.png"
    assert main(["tasks", "test_tasks_verb:Declares", "--picture", str(file)]) == 0
    assert f"picture: {file}" in capsys.readouterr().out.splitlines()
    image = np.asarray(Image.open(file).convert("RGB"))
    assert image.shape == (300, 300 + 4 + 400, 3)  # the scene, a gap, and 40 x 30 pixels as high as the scene
    depth = image[:, 304:]
    assert (depth == depth[..., :1]).all() and len(np.unique(depth)) > 3  # greys
    assert main(["tasks", "--picture", str(file)]) == 2
    assert "of which task?" in capsys.readouterr().err
    assert main(["tasks", "cartpole", "--picture", str(tmp_path)]) == 2
    assert f"the picture '{tmp_path}' can't be written" in capsys.readouterr().err


class Declares(Cartpole):
    robot, ends, randomised = "unitree_go2", "the pole falls", Randomise(friction=(0.5, 1.5))
    cameras = {
        "eye": Camera(
            "side", 44, 30, depth=True, stack=1,
            pipeline=Pipeline((0, 0, 2, 2), (0.0, 2.0), depth="centred"), sensor=Sensor(latency=(10.0, 30.0)),
        )
    }  # fmt: skip
    inputs = {"state": ("state",), "depth": ("eye", "angle")}
    encoders = {"eye": Encoder(features=32), "angle": Encoder(widths=(8, 4), normalized=False)}
    state_parts = {"pose": 2, "rest": 2}
    state_encoders = {"rest": Encoder(widths=(6,), normalized=False)}

    def observe(self, x: Physics, memory: Memory) -> dict[str, Tensor]:
        return super().observe(x, memory) | {"angle": x.qpos[..., 1:].clone()}

    def measure(self, x: Physics, memory: Memory) -> Terms:
        return {"tilt": x.qpos[..., 1].abs()}


def test_the_papers_names_are_aliases(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(ALIASES, "CartPole", "cartpole")
    assert type(make_task("CartPole")).__name__ == "Cartpole"
    assert resolve("CartPole", "paper", "pixels") == resolve("cartpole", "paper", "pixels")
    assert named_in_file("cartpole", "CartPole") == "cartpole"
    assert main(["tasks", "CartPole"]) == 0
    assert "task: cartpole" in capsys.readouterr().out
    with pytest.raises(SdpgError, match="not 'hopper'"):
        named_in_file("cartpole", "hopper")


def test_a_broken_plug_in_does_not_hide_the_others(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"cartpole": "sdpg.tasks.cartpole:Cartpole", "x": "no.no:X"}
    for module in ("plugins", "tasks.registry"):
        monkeypatch.setattr(f"sdpg.{module}.targets", lambda group, ours: known)
    for argv in (["tasks"], ["tasks", "--json"]):
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert "can't be loaded from no.no:X" in out
        assert "cartpole" in out


def test_the_list_of_tasks_does_not_wait_for_torch(capsys: Capture) -> None:
    script = "import sys; from sdpg.cli import main; main(['tasks']); assert not {'torch', 'mujoco'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", script], env=subprocess_env(), check=True, capture_output=True)
    assert main(["tasks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)  # of the classes themselves
    told = [
        f"{name:12} actions {row['action_size']:3}  state {row['state_size']:3}  {row['about']}"
        for name, row in rows.items()
    ]
    assert done.stdout.decode().splitlines() == told and rows["cartpole"]["episode_seconds"] == 6.0
