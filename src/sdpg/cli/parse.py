"""Reading a command line: tyro on dataclasses, with its boxes of text turned into one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from sdpg.errors import SdpgError
from sdpg.ranges import require_in_range

Options = TypeVar("Options")
Argv = Sequence[str]


class Help(Exception):
    """The user asked for help; the message is the text."""


def parse(kind: type[Options], argv: Argv, prog: str, default: Options | None = None) -> Options:
    """`argv` as a `kind`; raises Help or an SdpgError of one line that names the nearest option."""
    import tyro

    def run(args: Argv) -> tuple[int | None, str, str, Any]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                parsed = tyro.cli(kind, args=list(args), prog=prog, default=default, return_unknown_args=True)
            except SystemExit as exit_:
                return int(exit_.code or 0), out.getvalue(), err.getvalue(), None
        return None, out.getvalue(), err.getvalue(), parsed

    code, out, err, parsed = run(argv)
    if code == 0:
        raise Help(out)
    if code is not None:
        raise SdpgError(f"{_one_line(err)} (see {prog} --help)")
    options, unknown = parsed
    if unknown:
        known = re.findall(r"--[a-z][\w.-]*", run(["--help"])[1])
        raise SdpgError(f"{_unknown_option(unknown[0], known)} (see {prog} --help)")
    for part in (options, *vars(options).values()):  # and those that another dataclass brought along
        if dataclasses.is_dataclass(part):
            require_in_range(vars(part))
    return options


def _one_line(box: str) -> str:
    """The first paragraph of tyro's message, between its rules."""
    lines = [line.strip(" │╭╮╰╯") for line in box.splitlines()]
    rules = [i for i, line in enumerate(lines) if line and set(line) <= set("-─")]
    if len(rules) >= 2:
        lines = lines[rules[0] + 1 : rules[1]]
    text = " ".join(line for line in lines if line).rstrip(".") or "these options can't be read"
    wrong = re.match(r"Error parsing (--\S+): (.*)", text)
    if wrong is None:
        return text
    option, reason = wrong.groups()
    given = re.search(r"instantiated from \[(.*?)\]\.|arguments: \[(.*?)\]|: ('[^']*')$", reason)
    value = next(filter(None, given.groups()), "").replace("', '", " ") if given else ""
    wanted = _KINDS.get(next(iter(re.findall(r"FLOAT FLOAT|INT|FLOAT|int\(\)|to float", reason)), ""))
    if not value:
        return f"{option}: {reason}"
    return f"{option} must be {wanted}, not {value}" if wanted else f"{option} can't be {value}"


_KINDS = {"FLOAT FLOAT": "two numbers"} | dict.fromkeys(["INT", "int()"], "a whole number")
_KINDS |= dict.fromkeys(["FLOAT", "to float"], "a number")


def _unknown_option(given: str, known: list[str]) -> str:
    name = given.split("=")[0]
    if not name.startswith("-"):
        return f"don't know what to do with '{name}'"
    by_last_part = {option.rsplit(".", 1)[-1].lstrip("-"): option for option in known}
    near = difflib.get_close_matches(name.replace("_", "-"), known, 1) or [
        by_last_part[part] for part in difflib.get_close_matches(name.lstrip("-").split(".")[-1], by_last_part, 1)
    ]
    return f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else "")


def positional(argv: Argv) -> tuple[str | None, list[str]]:
    """A first argument that is not an option, and the rest. An empty one, as of a variable that is not set, is none."""
    if argv and not argv[0].startswith("-"):
        return argv[0] or None, list(argv[1:])
    return None, list(argv)


def peek(argv: Argv, option: str) -> str | None:
    """The value of an option that decides which options there are."""
    for i, word in enumerate(argv):
        if word.startswith(f"{option}="):
            return word.split("=", 1)[1]
        if word == option and i + 1 < len(argv):
            return argv[i + 1]
    return None


def wants_help(argv: Argv) -> bool:
    return "-h" in argv or "--help" in argv
