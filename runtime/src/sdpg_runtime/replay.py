"""`sdpg-run replay LOG DIR`: are the logged actions those that the policy makes of the logged measurements?"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdpg_runtime.contract import POLICY, Folder
from sdpg_runtime.errors import Refused
from sdpg_runtime.log import Log, Tick, state_of
from sdpg_runtime.observation import Observer
from sdpg_runtime.policy import Policy
from sdpg_runtime.robot import GO2, Robot

Array = np.ndarray


def inputs_hash(seen: Mapping[str, Array]) -> bytes:
    """(16 bytes) of what the graph is given."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(seen):
        digest.update(name.encode())
        digest.update(seen[name].tobytes())
    return digest.digest()


@dataclass
class Replay:
    ticks: int = 0
    acted: int = 0  # of these the policy was asked in so many
    other_inputs: int = 0
    other_actions: int = 0
    largest: float = 0.0  # difference of an action
    gaps: int = 0  # ticks that the log lost
    damage: str = ""
    cut: bool = False  # at the end only, as a crash does

    @property
    def same(self) -> bool:
        whole = not self.damage or self.cut
        return self.acted > 0 and not (self.other_inputs or self.other_actions or self.gaps) and whole


def replay(path: Path | str, folder: Folder, robot: Robot = GO2) -> Replay:
    log = Log(path)
    if log.header.get("sha256") != dict(folder.sha256):
        raise Refused(
            f"the log is of another export: its {POLICY} or contract has another SHA-256; give its own folder"
        )
    policy, observer, found = Policy(folder), Observer(folder.contract, robot), Replay()
    last, before = np.zeros(len(folder.contract.joints.names), np.float32), -1
    for tick in log.ticks():
        found.ticks += 1
        number = int(tick.row["number"])
        found.gaps += number - before - 1
        before = number
        if not tick.row["acted"]:
            continue
        found.acted += 1
        if tick.row["begins"]:
            policy.reset()
            observer.reset()
            last = np.zeros_like(last)
        last = _compared(tick, policy, observer, last, found)
    log.close()
    found.damage, found.cut = log.damage, log.cut
    return found


def _compared(tick: Tick, policy: Policy, observer: Observer, last: Array, found: Replay) -> Array:
    row = tick.row
    seen = observer.observe(state_of(row), tick.images, row["command"], last)
    action = policy.act(seen)
    found.other_inputs += inputs_hash(seen) != row["inputs"].tobytes()
    same = action.tobytes() == row["action"].tobytes()
    if np.isfinite(action).all():
        same &= policy.targets(action).tobytes() == row["targets"].tobytes()
    if not same:
        found.other_actions += 1
        found.largest = max(found.largest, float(np.nan_to_num(np.abs(action - row["action"]), nan=np.inf).max()))
    return action
