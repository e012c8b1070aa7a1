"""Exports of go2_terrain that need no training: the real contract, and a graph made by hand whose robot just stands."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from sdpg.deploy.contract import make_contract
from sdpg.deploy.graph import ACTION, Inputs
from sdpg.tasks.go2_terrain import FRAME, FRAMES, Go2Terrain

TOO_FAST = 0.5  # metres a second forward, beyond which `breaks` answers NaN
_FORWARD = (FRAMES - 1) * FRAME + 6  # where the newest frame has the command; there it is doubled
_SHAPES = {"history": (FRAMES * FRAME,), "depth": (1, 58, 87)}


def standing(folder: Path, obs: str = "depth", breaks: bool = False) -> Path:
    """Actions are 0, whatever is seen; or NaN from a command on that is too fast, if it `breaks`."""
    task = Go2Terrain()
    sources = task.inputs[obs]
    inputs = Inputs({name: torch.zeros(1, *_SHAPES[name]) for name in sources}, {})
    contract = make_contract(task, task.model, inputs, {})
    files = {"contract.json": json.dumps(contract).encode(), "policy.onnx": _graph(sources, breaks)}
    entries = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    files["manifest.json"] = json.dumps({"format": "sdpg-export", "version": 1, "files": entries}).encode()
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def _graph(sources: tuple[str, ...], breaks: bool) -> bytes:
    constants = {
        "nothing": np.zeros((FRAMES * FRAME, 12), np.float32),
        "first": np.array([_FORWARD]),
        "last": np.array([_FORWARD + 1]),
        "axis": np.array([1]),
        "most": np.float32(2 * TOO_FAST),
        "answer": np.float32(np.nan if breaks else 0.0),
        "zero": np.float32(0.0),
        "flat": np.array([0, -1]),
    }
    nodes = [
        helper.make_node("MatMul", ["history", "nothing"], ["still"]),
        helper.make_node("Slice", ["history", "first", "last", "axis"], ["told"]),
        helper.make_node("Greater", ["told", "most"], ["fast"]),
        helper.make_node("Where", ["fast", "answer", "zero"], ["added"]),
        helper.make_node("Add", ["still", "added"], ["moved"]),
    ]
    last = "moved"
    for name in sources[1:]:  # each input must be used
        nodes += [
            helper.make_node("Reshape", [name, "flat"], [f"{name}.flat"]),
            helper.make_node("ReduceMean", [f"{name}.flat"], [f"{name}.mean"], axes=[1]),
            helper.make_node("Mul", [f"{name}.mean", "zero"], [f"{name}.zero"]),
            helper.make_node("Add", [last, f"{name}.zero"], [f"{name}.moved"]),
        ]
        last = f"{name}.moved"
    nodes.append(helper.make_node("Identity", [last], [ACTION]))
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *_SHAPES[name]]) for name in sources]
    out = helper.make_tensor_value_info(ACTION, TensorProto.FLOAT, ["batch", 12])
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "standing", ports, [out], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
