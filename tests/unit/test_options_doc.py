"""The tables of options in docs/ are those of the source, and every algorithm has one."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.options_table import MARKED, ROOT, Option, classes, options, renewed, table

PAGES = sorted((ROOT / "docs").glob("*.md"))
KNOWN = classes(ROOT / "src")
SOURCE = '''
@dataclass(frozen=True)
class BaseCfg:
    name: ClassVar[str] = "no option"
    seed: int = 0
    rate: float = 1e-3
    """Step
    size."""

class OtherCfg(BaseCfg):
    """Of the class, not of a field."""

    task: str
    rate: float = 2e-3
    """Larger | steps."""
    kind: Literal["a", "b"] = "a"
    causal: bool = True
    base: BaseCfg = field(default_factory=BaseCfg)

    def validate(self) -> None: ...
'''


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert text == renewed(text, KNOWN), "run: python tests/helpers/options_table.py"


def test_every_algorithms_options_are_on_a_page() -> None:
    shown = {match["name"] for page in PAGES for match in MARKED.finditer(page.read_text())}
    of_algorithms = set(classes(ROOT / "src" / "sdpg" / "algos")) - {"AlgoCfg", "NetworkCfg"}  # what several have
    assert of_algorithms, "no configuration was found"
    assert of_algorithms - shown == set()


def test_fields_are_read_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    assert options("OtherCfg", classes(tmp_path)) == [
        Option("seed", "0", ""),
        Option("rate", "2e-3", "Larger | steps."),
        Option("task", "", ""),
        Option("kind", "a", ""),
        Option("causal", "on", ""),
        Option("base", "BaseCfg()", ""),
    ]
    assert options("BaseCfg", classes(tmp_path))[1].text == "Step size."


def test_what_stands_between_the_comments_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(SOURCE)
    page = "# A\n\n<!-- options of OtherCfg -->\nold\n<!-- end of options -->\n\nrest\n"
    rows = options("OtherCfg", classes(tmp_path))
    new = renewed(page, classes(tmp_path))
    assert new == page.replace("old\n", table(rows))
    assert "| `rate` | `2e-3` | Larger \\| steps. |" in new
    assert renewed(new, classes(tmp_path)) == new
