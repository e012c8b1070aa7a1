"""What the author of a task imports: `from sdpg.tasks import Task, Start, ...`. docs/new_task.md shows how."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sdpg.rng import RowRng
    from sdpg.tasks.base import Task, TaskCfg
    from sdpg.types import (
        ActionLayout,
        Camera,
        Encoder,
        Ended,
        Memory,
        ObservedTerm,
        Physics,
        Pipeline,
        Sensor,
        Start,
        Terms,
        VectorLayout,
    )

__all__ = [
    "ActionLayout", "Camera", "Encoder", "Ended", "Memory", "ObservedTerm", "Physics", "Pipeline", "RowRng", "Sensor",
    "Start", "Task", "TaskCfg", "Terms", "VectorLayout",
]  # fmt: skip

_HOMES = {"RowRng": "sdpg.rng", "Task": "sdpg.tasks.base", "TaskCfg": "sdpg.tasks.base"}


def __getattr__(name: str) -> Any:
    """Looked up when asked for: `sdpg tasks` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "sdpg.types")), name)
