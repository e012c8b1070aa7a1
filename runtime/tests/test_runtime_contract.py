"""A folder that does not fit is refused with one line, and a policy does what its graph says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HISTORY, contract, graph, write_export

from sdpg_runtime.contract import load
from sdpg_runtime.errors import Refused
from sdpg_runtime.observation import Observer
from sdpg_runtime.policy import Policy

Told = dict[str, Any]


def history(told: Told) -> Told:
    return told["sources"][0]


def layout(told: Told) -> Told:
    return told["sources"][0]["layout"]


def camera(told: Told) -> Told:
    return told["sources"][1]["camera"]


CHANGES: list[tuple[Callable[[Told], Any], str]] = [
    (lambda t: t.update(format="other"), "is not a contract of sdpg"),
    (lambda t: t.update(version=2), "version 2, this runtime reads 1; install the sdpg-runtime"),
    (lambda t: t.update(version=None), "version None"),
    (lambda t: t.pop("sources"), "not complete .KeyError: 'sources'"),
    (lambda t: t.pop("rates"), "not complete"),
    (lambda t: t["rates"].update(control_seconds=0.0), "a control step of 0.0 s"),
    (lambda t: history(t).pop("layout"), "neither a layout nor a camera"),
    (lambda t: history(t).update(shape=[7]), r"makes \(135,\), not \(7,\)"),
    (lambda t: layout(t).update(history=HISTORY + 1), r"makes \(180,\), not \(135,\)"),
    (lambda t: layout(t).update(history=0), "a history of 0"),
    (lambda t: layout(t).update(begins="maybe"), "begins with 'maybe'"),
    (lambda t: layout(t)["terms"][0].update(name=""), "declare the task's `layouts`"),
    (lambda t: layout(t)["terms"][0].update(name="base_lin_vel"), "sees 'base_lin_vel', which the robot can't measure"),
    (lambda t: layout(t)["terms"][0].update(size=4), "'base_ang_vel' has 4 numbers"),
    (lambda t: layout(t)["terms"][0].update(scale=[1.0]), "not complete"),
    (lambda t: layout(t)["terms"][0].update(scale=[float("nan")] * 3), "not finite"),
    (lambda t: layout(t)["terms"][3]["order"].__setitem__(0, "tail"), "'joint_pos' name 'tail', no joint of the Go2"),
    (lambda t: layout(t)["terms"][3]["order"].__setitem__(0, "FR_calf"), "name a joint twice"),
    (lambda t: camera(t).update(image="heat"), "images of kind 'heat'"),
    (lambda t: camera(t).update(stack=3), r"makes \(3, 5, 8\), not \(2, 5, 8\)"),
    (lambda t: camera(t)["pipeline"].update(unknown=1), "not complete"),
    (lambda t: t["action"].update(target=None), "declare the task's `action_layout`"),
    (lambda t: t["action"]["target"]["order"].__setitem__(0, "tail"), "the actions name 'tail'"),
    (lambda t: t["action"]["target"].update(unit="Nm"), "in radians"),
    (lambda t: t["actuators"][0].update(kind="motor"), "'FR_hip' is no position servo"),
    (lambda t: t["joints"][0].update(range=None), "'FR_hip' has no range"),
    (lambda t: t["action"].update(output="mu"), "has outputs"),
    (lambda t: history(t).update(name="past"), "of policy.onnx is"),
    (lambda t: history(t).update(dtype="float16"), r"'history' of policy.onnx is float32 \[135\], .* float16 \[135\]"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES, ids=[why[:40] for _, why in CHANGES])
def test_a_contract_that_does_not_fit(tmp_path: Path, change: Callable[[Told], Any], why: str) -> None:
    told = contract()
    change(told)
    with pytest.raises(Refused, match=why) as refused:
        Policy(load(write_export(tmp_path / "export", told)))
    assert "\n" not in str(refused.value)


def test_actions_for_fewer_joints_are_of_another_robot(tmp_path: Path) -> None:
    told = contract()
    target = told["action"]["target"]
    for name in ("order", "scale", "offset"):
        target[name] = target[name][:11]
    told["action"]["shape"] = [11]
    with pytest.raises(Refused, match="no action moves 'RL_calf'"):
        load(write_export(tmp_path / "export", told))


@pytest.mark.parametrize("name", ["contract.json", "policy.onnx"])
def test_another_file_than_the_manifest_says(export: Path, name: str) -> None:
    data = (export / name).read_bytes()
    (export / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Refused, match=f"{name} has another SHA-256"):
        load(export)


@pytest.mark.parametrize("name", ["contract.json", "policy.onnx", "manifest.json"])
def test_a_missing_file(export: Path, name: str) -> None:
    (export / name).unlink()
    with pytest.raises(Refused, match=f"{name}': No such file or directory; give a folder that"):
        load(export)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"format": "sdpg-export", "version": 7}', "{}"])
def test_a_manifest_that_is_none(export: Path, text: str) -> None:
    (export / "manifest.json").write_text(text)
    with pytest.raises(Refused, match=r"manifest\.json (is not of an export|has version 7)"):
        load(export)


@pytest.mark.parametrize("data", [b"", b"nonsense", graph()[:200]])
def test_a_graph_that_is_none(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Refused, match=r"policy\.onnx can't be loaded") as refused:
        Policy(load(write_export(tmp_path / "export", policy=data)))
    assert "\n" not in str(refused.value)


def test_a_graph_of_another_contract(tmp_path: Path) -> None:
    with pytest.raises(
        Refused, match=r"input 'carry.sum' of policy.onnx is missing, contract.json says float32 \[12\]"
    ):
        Policy(load(write_export(tmp_path / "export", contract(recurrent=True))))


def test_what_cannot_be_json(export: Path) -> None:
    told = json.loads((export / "contract.json").read_text())
    told["sources"] = 7
    with pytest.raises(Refused, match="not complete"):
        load(write_export(export, told))


# --- the policy


def test_a_recurrent_policy_remembers_until_reset(tmp_path: Path) -> None:
    policy = Policy(load(write_export(tmp_path / "export", contract(recurrent=True), graph(recurrent=True))))
    seen = {"history": np.zeros((1, 135), np.float32), "depth": np.full((1, 2, 5, 8), 0.25, np.float32)}
    first, second = policy.act(seen), policy.act(seen)
    np.testing.assert_allclose(first, np.tanh(0.75), rtol=1e-6)
    np.testing.assert_allclose(second, np.tanh(1.0), rtol=1e-6)
    policy.reset()
    assert policy.act(seen).tobytes() == first.tobytes()


# --- what it sees: by hand


def frames(observer: Observer, robot: Any, count: int, action: float = 0.0) -> np.ndarray:
    seen = {}
    for _ in range(count):
        robot.clock.now += 0.02
        state = robot.state()
        image = robot.image("depth")
        seen = observer.observe(state, {"depth": image}, np.array((1.0, 2.0, 3.0)), np.full(12, action, np.float32))
    assert seen["depth"].shape == (1, 2, 5, 8) and seen["depth"].dtype == np.float32
    return seen["history"].reshape(HISTORY, -1)


def test_terms_are_scaled_and_ordered(export: Path) -> None:
    from fakes import Clock, Robot

    robot, observer = Robot(Clock()), Observer(load(export).contract)
    robot.gyroscope, robot.position = np.array((4.0, 8.0, 500.0)), np.arange(12.0)
    robot.quaternion = np.array((np.cos(np.pi / 4), np.sin(np.pi / 4), 0.0, 0.0))  # lies on its right side
    frame = frames(observer, robot, 1, 0.5)[-1]
    assert frame[:3].tolist() == [1.0, 2.0, 100.0]  # clipped
    np.testing.assert_allclose(frame[3:6], (0.0, -1.0, 0.0), atol=1e-6)
    assert frame[6:9].tolist() == [2.0, 4.0, 6.0]
    np.testing.assert_allclose(frame[9:21], np.arange(12.0) - (0.0, 0.8, -1.5) * 4, rtol=1e-6)
    assert frame[33:].tolist() == [0.5] * 12


def test_a_history_begins_as_the_contract_says(export: Path) -> None:
    from fakes import Clock, Robot

    robot, observer = Robot(Clock()), Observer(load(export).contract)
    first = frames(observer, robot, 1)
    assert (first == first[0]).all() and first.any()
    robot.gyroscope = np.ones(3)
    second = frames(observer, robot, 1)
    assert (second[:2] == first[1:]).all() and second[2, 0] == 0.25
    observer.reset()
    assert (frames(observer, robot, 1)[0, :3] == 0.25).all()
    told = contract()
    layout(told)["begins"] = "zeros"
    zeros = frames(Observer(load(write_export(export, told)).contract), robot, 1)
    assert not zeros[:2].any() and zeros[2].any()


def test_lost_depth_is_zero_and_images_stack(export: Path) -> None:
    from fakes import Clock, Robot

    clock = Clock()
    robot, observer = Robot(clock), Observer(load(export).contract)
    robot.pixels = np.full_like(robot.pixels, np.nan)
    frames(observer, robot, 1)
    state, image = robot.state(), robot.image("depth")
    assert state is not None and image is not None
    observer.reset()
    again = observer.observe(state, {"depth": image}, np.zeros(3), np.zeros(12, np.float32))["depth"]
    assert (again == -0.5).all()  # 0 m, centred
    robot.pixels = np.full_like(robot.pixels, 2.0)
    clock.now += 0.05
    state, image = robot.state(), robot.image("depth")
    assert state is not None and image is not None
    newer = observer.observe(state, {"depth": image}, np.zeros(3), np.zeros(12, np.float32))["depth"]
    assert (newer[0, 0] == -0.5).all() and (newer[0, 1] > 0.49).all()
