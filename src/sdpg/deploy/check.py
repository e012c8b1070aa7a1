"""`sdpg export --check DIR`: is a folder whole, does its contract fit its policy, and does the policy still answer as
it did? The folder may be a stranger's: nothing in it is run but an ONNX graph of standard operators."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpg.deploy import contract as contracts
from sdpg.deploy import export as exports
from sdpg.deploy import parity
from sdpg.deploy.export import CONTRACT, MANIFEST, PARITY, POLICY, RECORD
from sdpg.deploy.graph import required
from sdpg.errors import SdpgError

MOST_OBSERVATIONS = 100_000


def problems(folder: Path | str) -> list[str]:
    """One line for each; none if all is well."""
    folder = Path(folder)
    for package in ("onnx", "onnxruntime"):
        required(package)
    if not folder.is_dir():
        raise SdpgError(f"no folder '{folder}'; give one that `sdpg export` wrote")
    files, found = _verified(folder)
    contract, wrong = _contract(files.get(CONTRACT))
    found += wrong
    if POLICY in files:
        found += _graph(files[POLICY], contract)
    if not found:  # else there is nothing to compare
        assert contract is not None
        found += _parity(files, contract)
    return found


def _verified(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files that are there, and what does not fit the manifest."""
    names = (POLICY, CONTRACT, RECORD, PARITY)
    files, found = {}, []
    for name in (*names, MANIFEST):
        try:
            files[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except OSError as error:
            found.append(f"{name} can't be read: {error.strerror}")
    if MANIFEST not in files:
        return files, found
    manifest = _object(files[MANIFEST])
    if manifest is None or manifest.get("format") != exports.FORMAT:
        return files, [*found, f"{MANIFEST} is not of an export by sdpg"]
    if manifest.get("version") != exports.VERSION:
        said = f"{MANIFEST} has version {manifest.get('version')!r}, this sdpg reads {exports.VERSION}"
        return files, [*found, f"{said}; use the sdpg that wrote it"]
    entries = manifest.get("files")
    if not isinstance(entries, dict) or set(entries) != set(names):
        return files, [*found, f"{MANIFEST} does not list exactly {', '.join(names)}"]
    for name in names:
        entry, data = entries[name], files.get(name)
        digest = entry.get("sha256") if isinstance(entry, dict) else None
        if data is not None and exports.sha256(data) != digest:
            found.append(f"{name} has another SHA-256 than {MANIFEST} says")
    return files, found


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _contract(data: bytes | None) -> tuple[dict[str, Any] | None, list[str]]:
    if data is None:
        return None, []
    contract = _object(data)
    if contract is None or contract.get("format") != contracts.FORMAT:
        return None, [f"{CONTRACT} is not a contract of sdpg"]
    if contract.get("version") != contracts.VERSION:
        said = f"{CONTRACT} has version {contract.get('version')!r}, this sdpg reads {contracts.VERSION}"
        return None, [f"{said}; use the sdpg that wrote it"]
    try:
        parity.wanted_arrays(contract, 1)
        _ports(contract)
        wrong = _layouts(contract)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return None, [f"{CONTRACT} is not complete: {type(error).__name__}: {error}"]
    return contract, wrong


def _layouts(contract: Mapping[str, Any]) -> list[str]:
    """Where the terms of a vector, or the images of a camera, do not add up to its shape."""
    found = []
    for source in contract["sources"]:
        if "layout" in source:
            layout = source["layout"]
            total = layout["history"] * sum(term["size"] for term in layout["terms"])
            if [total] != source["shape"]:
                found.append(f"{CONTRACT}: the terms of '{source['name']}' are {total} numbers, not {source['shape']}")
        elif "camera" not in source:
            found.append(f"{CONTRACT}: '{source['name']}' has neither a layout nor a camera")
    return found


def _ports(contract: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs and outputs as the contract has them: name -> type and shape without the batch."""
    action = contract["action"]
    inputs = {source["name"]: (source["dtype"], source["shape"]) for source in contract["sources"]}
    outputs = {action["output"]: (action["dtype"], action["shape"])}
    for memory in contract["carry"]:
        inputs[memory["input"]] = outputs[memory["output"]] = (memory["dtype"], memory["shape"])
    return inputs, outputs


def _graph(data: bytes, contract: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with the graph, by itself and against the contract."""
    onnx = required("onnx")
    try:
        model = onnx.load_model_from_string(data)
        onnx.checker.check_model(model)
    except Exception as error:  # the parser's own exceptions vary
        return [f"{POLICY} is not a sound ONNX file: {_first_line(error)}"]
    graph = model.graph
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in graph.initializer):
        return [f"{POLICY} keeps weights in other files, which are not opened"]
    if foreign := sorted({node.domain for node in graph.node} - {"", "ai.onnx"}):
        return [f"{POLICY} has operators of '{foreign[0]}', which are not standard"]
    if contract is None:
        return []
    found = []
    for what, ports, said in zip(("input", "output"), (graph.input, graph.output), _ports(contract), strict=True):
        there = {port.name: _port(onnx, port) for port in ports}
        for name in sorted(said.keys() | there.keys()):
            if name not in there:
                found.append(f"{POLICY} has no {what} '{name}', which {CONTRACT} names")
            elif name not in said:
                found.append(f"{POLICY} has an {what} '{name}' that {CONTRACT} does not name")
            else:
                (dtype, dims), (told, shape) = there[name], said[name]
                if dtype != told or dims[1:] != list(shape) or isinstance(dims[0], int):
                    found.append(f"{what} '{name}' is {dtype} {dims}; {CONTRACT} says {told} ['batch', {shape}]")
    return found


def _port(onnx: Any, port: Any) -> tuple[str, list[int | str]]:
    kind = port.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return dtype, [dim.dim_param or dim.dim_value for dim in kind.shape.dim]


def _parity(files: Mapping[str, bytes], contract: Mapping[str, Any]) -> list[str]:
    """Whether the policy answers what was recorded."""
    facts = _object(files[PARITY])
    count = facts.get("observations") if facts else None
    if not isinstance(count, int) or not 1 <= count <= MOST_OBSERVATIONS:
        return [f"{PARITY} does not say how many observations were recorded"]
    try:
        recorded = parity.unpack(files[RECORD], parity.wanted_arrays(contract, count))
    except ValueError as error:
        return [f"{RECORD}: {error}"]
    try:
        wrong = parity.difference(files[POLICY], recorded)
    except Exception as error:  # onnxruntime's own exceptions vary
        return [f"{POLICY} does not run: {_first_line(error)}"]
    return [
        f"{POLICY} answers '{name}' otherwise than recorded: by up to {value:.1e}, more than {parity.TOLERANCE:g}"
        for name, value in wrong.items()
        if not value < parity.TOLERANCE
    ]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
