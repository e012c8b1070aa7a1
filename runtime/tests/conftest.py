"""What several tests begin with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import write_export
from worlds import World

from sdpg_runtime.options import Options


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return write_export(tmp_path / "export")


@pytest.fixture
def world(export: Path) -> Callable[..., World]:
    def make(path: Path | None = None, log: Path | None = None, **options: Any) -> World:
        return World(path or export, Options(**({"auto": True} | options)), log)

    return make
