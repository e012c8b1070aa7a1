"""Fixtures of all tests: one thread, and modules with tasks of a stranger's. What tests import is in helpers/."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does, before torch is imported

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """(name, source) -> the name of a module that `module:Class` finds in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)
