"""Robot models of MuJoCo Menagerie, found on this machine or downloaded to the user's cache when first needed.

The `mujoco-menagerie` package fetches and verifies them; MENAGERIE_ROOT names a folder that has them already.
"""

from __future__ import annotations

from pathlib import Path

import mujoco
import mujoco_menagerie

from sdpg.errors import SdpgError

HINT = "connect to the network, or set MENAGERIE_ROOT to a folder with the models of MuJoCo Menagerie"


def folder(robot: str) -> Path:
    """Where the model `robot`, such as "unitree_go2", is; downloads it if need be."""
    try:
        path = Path(mujoco_menagerie.get(robot).path())
    except (mujoco_menagerie.MenagerieError, OSError) as error:
        raise SdpgError(f"the model '{robot}' can't be had ({str(error).splitlines()[0]}): {HINT}") from error
    if not path.is_dir():
        raise SdpgError(f"the model '{robot}' is not in {path.parent}: {HINT}")
    return path


def model(robot: str, file: str) -> mujoco.MjSpec:
    """A file of a robot's folder, ready to be changed or attached to a scene."""
    path = folder(robot) / file
    if not path.is_file():
        raise SdpgError(f"the model '{robot}' has no file {path}: {HINT}")
    try:
        return mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise SdpgError(f"{path} can't be read as a model: {str(error).splitlines()[0]}") from error


def licence(robot: str) -> str:
    """Its SPDX name; no download."""
    return mujoco_menagerie.get(robot).license
