"""Tables of options in docs/, made from the source; `python tests/helpers/options_table.py` renews them.

A page asks for the table of a dataclass by a pair of comments, and what stands between them is replaced:

    <!-- options of SdpgCfg -->
    <!-- end of options -->
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"(<!-- options of (?P<name>\w+) -->\n).*?(<!-- end of options -->)", flags=re.S)
WORDS = {"True": "on", "False": "off", "None": "none"}


@dataclass(frozen=True)
class Option:
    name: str
    default: str  # as it stands in the source; "" if it must be given
    text: str  # the string under the field; "" if there is none


def classes(folder: Path) -> dict[str, tuple[ast.ClassDef, str]]:
    """Every class below `folder` whose name ends in Cfg: name -> (its tree, the source it stands in)."""
    found: dict[str, tuple[ast.ClassDef, str]] = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Cfg"):
                assert node.name not in found, f"two classes are called {node.name}"
                found[node.name] = (node, source)
    return found


def options(name: str, found: dict[str, tuple[ast.ClassDef, str]]) -> list[Option]:
    """The fields of a dataclass in order, those of its bases first; a field that is declared again keeps its place."""
    node, source = found[name]
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in found]
    merged = {option.name: option for base in bases for option in options(base, found)}
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if "ClassVar" in ast.unparse(field.annotation):
            continue
        merged[field.target.id] = Option(field.target.id, _default(field.value, source), _string(below))
    return list(merged.values())


def _default(value: ast.expr | None, source: str) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        made = {word.arg: word.value for word in value.keywords}
        return _default(made.get("default"), source) or f"{_default(made.get('default_factory'), source)}()"
    text = ast.get_source_segment(source, value) or "" if value is not None else ""
    return WORDS.get(text, text.strip("\"'"))


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def table(rows: list[Option]) -> str:
    """As Markdown."""
    lines = ["| option | default | what it does |", "|---|---|---|"]
    for row in rows:
        cells = (f"`{row.name}`", f"`{row.default}`" if row.default else "", row.text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def renewed(page: str, found: dict[str, tuple[ast.ClassDef, str]]) -> str:
    """The page with the tables that it asks for as they should be."""
    return MARKED.sub(lambda match: match[1] + table(options(match["name"], found)) + match[3], page)


if __name__ == "__main__":
    known = classes(ROOT / "src")
    for doc in sorted((ROOT / "docs").glob("*.md")):
        before = doc.read_text()
        if (after := renewed(before, known)) != before:
            doc.write_text(after)
            print(f"{doc.relative_to(ROOT)} renewed")
