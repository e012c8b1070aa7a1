"""`sdpg export RUN`: a folder that holds a policy and all that must be known to run it without this package.

policy.onnx      normalisation, clipping and squashing inside
contract.json    what it sees, what its actions mean, how fast; where it comes from
parity.npz       observations recorded from the task, and torch's answers
parity.json      how far onnxruntime's answers are from these
manifest.json    size and SHA-256 of the others
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sdpg.algos.api import Policy
from sdpg.build import make_env
from sdpg.config import TrainCfg
from sdpg.deploy import parity
from sdpg.deploy.contract import make_contract, metadata
from sdpg.deploy.graph import ACTION, OPSET, Inputs, frozen, required, to_onnx
from sdpg.env import BranchedEnv
from sdpg.errors import SdpgError
from sdpg.evaluate import SEED
from sdpg.run import checkpoint
from sdpg.run.policy import load_policy
from sdpg.run.provenance import model_hash, versions
from sdpg.run.resume import cfg_from_dict
from sdpg.tasks.base import make_task
from sdpg.types import Progress

POLICY, CONTRACT, RECORD, PARITY, MANIFEST = "policy.onnx contract.json parity.npz parity.json manifest.json".split()
FORMAT, VERSION = "sdpg-export", 1
OBSERVATIONS = 1000


def export(
    run: Path | str,
    out: Path | str | None = None,
    which: str | int = "last",
    task: str | None = None,
    observations: int = OBSERVATIONS,
    progress: Progress = iter,
) -> dict[str, Any]:
    """Write a run's policy to `out`, or to RUN/export. A `task` that is not registered by name must be given."""
    for package in ("onnx", "onnxruntime"):  # before anything that takes time
        required(package)
    folder = checkpoint.find(Path(run), which)
    target = Path(run) / "export" if out is None else Path(out)
    _require_free(target)
    saved = checkpoint.load(folder)
    cfg = cfg_from_dict(saved.cfg, task)
    worlds = max(2, min(parity.WORLDS, observations))
    env = make_env(
        make_task(cfg.task, cfg.task_cfg), worlds, seed=SEED, threads=1, obs=cfg.obs, max_value=cfg.max_value
    )
    told = {"run": Path(run).resolve().name, "iteration": saved.iteration, "seconds": saved.seconds}
    files, facts = exported(load_policy(saved, env, task), env, cfg, told, observations, progress)
    _write(target, files)
    return {"folder": str(target), **facts}


def exported(
    policy: Policy,
    env: BranchedEnv,
    cfg: TrainCfg,
    told: Mapping[str, Any],
    observations: int = OBSERVATIONS,
    progress: Progress = iter,
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of a policy and what is to be said of them; `told`: of the run it comes from."""
    task, policy, sources = env.task, frozen(policy), env.task.inputs[cfg.obs]
    model: Any = env.sim.model
    seen = env.observe().sources
    inputs = Inputs({name: seen[name].clone() for name in sources}, policy.carry(env.num_nominal))
    origin = {
        "task": {"name": cfg.task, "observation": cfg.obs, "options": asdict(cfg.task_cfg)},
        "policy": {"algorithm": cfg.algorithm, **told, "precision": "float32", "opset": OPSET},
        "model_sha256": model_hash(env),
        "versions": versions() | _versions("onnx", "onnxruntime"),
    }
    contract = make_contract(task, model, inputs, policy.carry(1)) | origin
    data = to_onnx(policy, inputs, metadata(contract, str(told.get("run", ""))))
    recorded = parity.record(policy, env, sources, observations, progress)
    wrong = parity.difference(data, recorded)
    largest = max(wrong.values())
    if largest >= parity.TOLERANCE:
        raise SdpgError(
            f"onnxruntime's answers differ from torch's by up to {largest:.1e}, more than {parity.TOLERANCE:g}: "
            "nothing was written; a policy that draws random numbers or branches by its data can't be exported"
        )
    facts = {"observations": observations, "largest_difference": wrong, "tolerance": parity.TOLERANCE}
    files = {POLICY: data, CONTRACT: _json(contract), RECORD: parity.pack(recorded), PARITY: _json(facts)}
    entries = {name: {"size": len(each), "sha256": sha256(each)} for name, each in files.items()}
    files[MANIFEST] = _json({"format": FORMAT, "version": VERSION, "files": entries})
    return files, facts | {"inputs": {name: list(value.shape[1:]) for name, value in inputs.named().items()}} | {
        "output": {ACTION: [task.action_size]},
        "bytes": len(data),
    }


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _versions(*packages: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}


def _json(value: Any) -> bytes:
    """Floats as Python writes them: to the last bit."""
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def _require_free(target: Path) -> None:
    """An earlier export is replaced, anything else is not touched."""
    if not target.exists() or (target / MANIFEST).is_file() or (target.is_dir() and not any(target.iterdir())):
        return
    raise SdpgError(f"'{target}' is there and is not an export; give another --out")


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    """Written beside, then put in place. Of an earlier export every file is replaced, the manifest last: one that was
    interrupted does not pass a check. Whatever else is there stays."""
    beside = target.with_name(f".tmp-{target.name}-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        for name, data in files.items():
            (beside / name).write_bytes(data)
        if not target.exists():
            os.replace(beside, target)
            return
        for name in sorted(files, key=MANIFEST.__eq__):
            os.replace(beside / name, target / name)
    except OSError as error:
        raise SdpgError(f"can't write '{target}': {error.strerror or error}; give another --out") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
