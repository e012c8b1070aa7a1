"""docs/python.md: its code blocks, one after the other, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOC = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOC.read_text(), flags=re.M | re.S)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), str(DOC), "exec"), {})
    assert (tmp_path / "runs" / "from-python" / "config.json").is_file()
