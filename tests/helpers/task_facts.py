"""Tables of tasks in docs/tasks.md, made of what `sdpg tasks NAME` says; `python tests/helpers/task_facts.py` renews
them, and with --pictures the pictures too.

The page asks for them by pairs of comments, and what stands between them is replaced:

    <!-- facts of go2_terrain -->
    <!-- in brief: hopper walker -->
    <!-- end of facts -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sdpg.check.describe import describe
from sdpg.tasks.base import make_task

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tasks.md"
MARKED = re.compile(
    r"(<!-- (?P<kind>facts of|in brief:) (?P<names>[\w ]+) -->\n)(?P<text>.*?)(<!-- end of facts -->)", flags=re.S
)
BRIEF = ("action", "reward_terms", "ends")
CALLED = {
    "control_step": "control step", "observations": "observation", "sources": "source", "critic": "critic's",
    "reward_terms": "reward terms", "success": "measured", "options": "option", "randomised": "randomised",
}  # fmt: skip


@cache
def facts(name: str) -> Mapping[str, Any]:
    return describe(make_task(name))


def table(name: str) -> str:
    lines = ["| | |", "|---|---|"]
    told = {key: value for key, value in facts(name).items() if key != "about"}
    for key, value in told.items():
        title = CALLED.get(key, key)
        if isinstance(value, Mapping):
            lines += [f"| {title} `{part}` | {_cell(text)} |" for part, text in value.items()]
        else:
            lines.append(f"| {title} | {_cell(value)} |")
    return "\n".join(lines) + "\n"


def brief(names: list[str]) -> str:
    lines = ["| task | state | " + " | ".join(CALLED.get(key, key) for key in BRIEF) + " |", "|---" * 5 + "|"]
    for name in names:
        state = facts(name)["sources"]["state"].split(",")[0]
        lines.append(f"| {name} | {state} | " + " | ".join(_cell(facts(name)[key]) for key in BRIEF) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|")


def asked(page: str) -> Iterator[tuple[str, str, str]]:
    """(kind, names, what stands there now) of every table that a page asks for."""
    for match in MARKED.finditer(page):
        yield match["kind"], match["names"], match["text"]


def wanted(kind: str, names: str) -> str:
    return table(names) if kind == "facts of" else brief(names.split())


def _draw() -> None:
    from sdpg.cli import main
    from sdpg.tasks.registry import BUILT_IN

    for name in BUILT_IN:
        main(["tasks", name, "--picture", str(PAGE.parent / "tasks" / f"{name}.png"), "--json"])


if __name__ == "__main__":
    if "--pictures" in sys.argv:
        _draw()
    before = PAGE.read_text()
    PAGE.write_text(MARKED.sub(lambda match: match[1] + wanted(match["kind"], match["names"]) + match[5], before))
