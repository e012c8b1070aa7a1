"""`sdpg export`: from a run to a folder, and what is found in a folder that is not as it was written."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.runs import tiny

from sdpg.cli import main
from sdpg.deploy import export as exports
from sdpg.deploy.export import CONTRACT, MANIFEST, PARITY, POLICY, RECORD
from sdpg.train import train

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    cfg = tiny("cartpole", "pixels", iterations=1)
    train(replace(cfg, algo=replace(cfg.algo, encoder="small", encoder_features=8)), folder)  # type: ignore[call-arg]
    assert main(["export", str(folder), "--observations", "24"]) == 0
    return folder


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run / "export", tmp_path / "copy"))


def vouch(folder: Path) -> None:
    """Make the hashes fit what is there, as one who means harm would."""
    names = (POLICY, CONTRACT, RECORD, PARITY)
    entries = {name: {"size": 0, "sha256": exports.sha256((folder / name).read_bytes())} for name in names}
    (folder / MANIFEST).write_text(json.dumps({"format": exports.FORMAT, "version": exports.VERSION, "files": entries}))


def found(folder: Path, capsys: Capture) -> list[str]:
    capsys.readouterr()
    assert main(["export", "--check", str(folder)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return [line.removeprefix(f"sdpg: {folder}: ") for line in err.splitlines()]


def test_a_run_is_exported_again_and_looked_over(run: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "policy"
    for again in (False, True):  # an earlier export is replaced, and what else is there stays
        assert main(["export", str(run), "--out", str(out), "--observations", "3", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["folder"] == str(out) and facts["largest_difference"]["actions"] < 1e-5
        there = {path.name for path in out.iterdir()}
        assert there == {POLICY, CONTRACT, RECORD, PARITY, MANIFEST} | ({"notes"} if again else set())
        (out / "notes").write_text("mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy"]
    assert main(["export", "--check", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: all is well\n"
    contract = json.loads((out / CONTRACT).read_text())
    camera = contract["sources"][0]["camera"]
    assert camera["stack"] == 3 and camera["image"] == "rgb" and contract["sources"][0]["dtype"] == "uint8"
    assert contract["policy"]["algorithm"] == "sdpg" and len(contract["model_sha256"]) == 64
    record = np.load(out / RECORD, allow_pickle=False)
    assert record["in/pixels"].std() > 0 and record["out/actions"].shape == (3, 1)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_what_was_changed_is_found(folder: Path, capsys: Capture) -> None:
    data = bytearray((folder / POLICY).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / POLICY).write_bytes(data)
    assert any("policy.onnx has another SHA-256" in line for line in found(folder, capsys))
    (folder / RECORD).unlink()
    assert "parity.npz is missing" in found(folder, capsys)
    (folder / MANIFEST).write_text("{}")
    assert "manifest.json is not of an export by sdpg" in found(folder, capsys)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(version=2), "contract.json has version 2, this sdpg reads 1; use the sdpg that wrote it"),
        (lambda c: c.pop("action"), "contract.json is not complete: KeyError: 'action'"),
        (lambda c: c.update(format="x"), "contract.json is not a contract of sdpg"),
        (lambda c: c["sources"][0].update(shape=[9, 84, 83]), "input 'pixels' is uint8 ['batch', 9, 84, 84]"),
        (lambda c: c["sources"][0].update(name="depth"), "policy.onnx has no input 'depth', which contract.json"),
        (lambda c: c["action"].update(shape=[2]), "output 'actions' is float32 ['batch', 1]"),
        (lambda c: c["sources"][0].pop("camera"), "'pixels' has neither a layout nor a camera"),
    ],
)
def test_a_contract_that_does_not_fit(
    change: Callable[[dict[str, Any]], None], said: str, folder: Path, capsys: Capture
) -> None:
    edit(folder / CONTRACT, change)
    vouch(folder)
    lines = found(folder, capsys)
    assert any(said in line for line in lines), lines


def test_other_weights_answer_otherwise(folder: Path, capsys: Capture) -> None:
    model = onnx.load(folder / POLICY)
    weight = next(each for each in model.graph.initializer if each.name.endswith("mean.bias"))
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) + 0.1, weight.name))
    onnx.save(model, folder / POLICY)
    vouch(folder)
    (line,) = found(folder, capsys)
    assert line.startswith("policy.onnx answers 'actions' otherwise than recorded: by up to ")


def test_a_strangers_file_runs_no_code(folder: Path, capsys: Capture) -> None:
    before = (folder / RECORD).read_bytes()
    buffer = io.BytesIO()
    np.savez(buffer, **{"in/pixels": np.array([print], dtype=object), "out/actions": np.zeros((24, 1), np.float32)})
    (folder / RECORD).write_bytes(buffer.getvalue())
    vouch(folder)
    (line,) = found(folder, capsys)
    assert line.startswith("parity.npz: ") and "allow_pickle" in line
    (folder / RECORD).write_bytes(before)
    model = onnx.load(folder / POLICY)
    model.graph.node[-1].domain = "stranger"
    model.opset_import.add(domain="stranger", version=1)
    onnx.save(model, folder / POLICY)
    vouch(folder)
    assert found(folder, capsys) == ["policy.onnx has operators of 'stranger', which are not standard"]
    (folder / POLICY).write_bytes(b"no graph")
    vouch(folder)
    assert found(folder, capsys)[0].startswith("policy.onnx is not a sound ONNX file")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export"], "which run? sdpg export RUN"),
        (["export", "nowhere"], "no run folder 'nowhere'"),
        (["export", "--check", "nowhere"], "no folder 'nowhere'; give one that `sdpg export` wrote"),
        (["export", "RUN", "--check", "x"], "--check looks at a folder and writes none"),
        (["export", "RUN", "--observations", "0"], "observations must be at least 1, not 0"),
        (["export", "RUN", "--out", "RUN"], "is there and is not an export; give another --out"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, run: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert main([word.replace("RUN", str(run)) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    capsys.readouterr()
    assert main(["export", str(run)]) == 2
    assert capsys.readouterr().err == f"sdpg: export needs {package}: pip install 'sdpg[export]'\n"
