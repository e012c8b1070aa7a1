"""Where a run's numbers come from: versions, git state, the hash of its scene."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from typing import Any

import mujoco
import numpy as np
import torch

import sdpg
from sdpg.build import model_bytes
from sdpg.env import BranchedEnv


def versions() -> dict[str, str]:
    return {
        "sdpg": sdpg.__version__,
        "python": sys.version.split()[0],
        "mujoco": mujoco.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "mujoco-warp": importlib.metadata.version("mujoco-warp"),
        "warp-lang": importlib.metadata.version("warp-lang"),
        "safetensors": importlib.metadata.version("safetensors"),
    }


def git_state() -> dict[str, Any] | None:
    """Commit of the repository that the run was started in, and whether it had changes; None outside of one."""

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def model_hash(env: BranchedEnv) -> str:
    """SHA-256 of the compiled scene; empty for engines without one."""
    model = getattr(env.sim, "model", None)
    if not isinstance(model, mujoco.MjModel):
        return ""
    return hashlib.sha256(model_bytes(model)).hexdigest()
