"""Does the file answer as the network did? Observations recorded from the task, with torch's answers to them."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sdpg.algos.api import Policy, begin_where
from sdpg.deploy.graph import ACTION, NEXT, Inputs, answers
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.types import Progress

TOLERANCE = 1e-5  # of an action; of numbers that are remembered and larger than 1, times their size
WORLDS = 20
IN, OUT = "in/", "out/"  # before the names of the graph's inputs and outputs

Arrays = dict[str, np.ndarray]


@torch.no_grad()
def record(
    policy: Policy, env: BranchedEnv, sources: tuple[str, ...], observations: int, progress: Progress = iter
) -> Arrays:
    """What the policy was given and what it answered while it acted: "in/NAME", "out/NAME" -> (observations, ...)."""
    rows: dict[str, list[Tensor]] = {}
    carry = policy.carry(env.num_nominal)
    for _ in progress(range(math.ceil(observations / env.num_nominal))):
        seen = env.observe().sources
        inputs = Inputs({name: seen[name] for name in sources}, carry)
        action, after = policy(inputs.sources, carry)
        told = {ACTION: action} | {NEXT + name: after[name] for name in carry}
        for prefix, values in ((IN, inputs.named()), (OUT, told)):
            for name, value in values.items():
                rows.setdefault(prefix + name, []).append(value.detach().cpu().clone())
        step = env.step(action[:, None].expand(-1, env.num_branches, -1))
        carry = begin_where(policy, after, env.restart(step)[:, 0])
    return {name: torch.cat(values)[:observations].numpy() for name, values in rows.items()}


def difference(data: bytes, recorded: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest difference between the graph's answers and the recorded ones, by output; infinite if one is not a
    number."""
    inputs = {name.removeprefix(IN): values for name, values in recorded.items() if name.startswith(IN)}
    largest = {}
    for name, values in answers(data, inputs).items():
        expected = recorded[OUT + name]
        if values.shape != expected.shape:
            raise SdpgError(f"output '{name}' is {values.shape}, and was {expected.shape} when it was recorded")
        wrong = np.abs(values.astype(np.float64) - expected) / np.maximum(1.0, np.abs(expected.astype(np.float64)))
        largest[name] = float(wrong.max()) if np.isfinite(wrong).all() else math.inf
    return largest


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack(data: bytes, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> Arrays:
    """The arrays that a contract asks for, name -> type and shape. The file may be a stranger's: nothing is unpickled,
    and nothing is unpacked that is larger than it should be. ValueError: what is wrong."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
    except zipfile.BadZipFile:
        raise ValueError("it is not an npz file") from None
    if sizes.keys() != wanted.keys():
        raise ValueError(f"it holds {', '.join(sorted(sizes))} in place of {', '.join(sorted(wanted))}")
    for name, (dtype, shape) in wanted.items():
        if sizes[name] > math.prod(shape) * np.dtype(dtype).itemsize + 4096:  # its header
            raise ValueError(f"'{name}' is larger than the contract says")
    arrays: Arrays = {}
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in wanted}
    except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"it can't be unpacked: {error}") from None
    for name, (dtype, shape) in wanted.items():
        if arrays[name].dtype != np.dtype(dtype) or arrays[name].shape != shape:
            found = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"'{name}' is {found}, and the contract says {dtype} {shape}")
    return arrays


def wanted_arrays(contract: Mapping[str, Any], observations: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What a record of so many observations holds: name -> type and shape."""
    parts = [(IN + source["name"], source) for source in contract["sources"]]
    for memory in contract["carry"]:
        parts += [(IN + memory["input"], memory), (OUT + memory["output"], memory)]
    parts.append((OUT + contract["action"]["output"], contract["action"]))
    return {name: (part["dtype"], (observations, *part["shape"])) for name, part in parts}
