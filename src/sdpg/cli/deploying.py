"""export: a policy as files that run without this package."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from sdpg.cli.output import print_json
from sdpg.cli.parse import Argv, parse, positional
from sdpg.errors import SdpgError


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Write a policy as ONNX with a contract of what it sees and does: `sdpg export RUN --out DIR`; or look such a
    folder over: `sdpg export --check DIR`."""

    out: str | None = None
    """The folder to write; RUN/export if not given. An earlier export there is replaced."""
    check: str | None = None
    """Look at this folder instead: files, hashes, shapes, and whether the policy answers as recorded."""
    observations: int = 1000
    """Recorded from the task, to compare onnxruntime's answers with torch's."""
    checkpoint: str = "last"
    """"last", "best", or an iteration."""
    task: str | None = None
    """The run's task, if it is a module:Class: its code is imported because you say so, not because a file does."""
    json: bool = False
    """One JSON object on standard output."""


def export(argv: Argv) -> int:
    run, rest = positional(argv)
    options = parse(ExportOptions, rest, "sdpg export RUN")
    if options.check is not None:
        if run is not None or options.out is not None:
            raise SdpgError("--check looks at a folder and writes none; leave RUN and --out out")
        return _check(options.check, options.json)
    if run is None:
        raise SdpgError("which run? sdpg export RUN (what `sdpg train` printed), or sdpg export --check DIR")
    from sdpg.cli.display import progress
    from sdpg.deploy.export import export as write

    facts = write(run, options.out, options.checkpoint, options.task, options.observations, progress("recording"))
    if options.json:
        print_json(facts)
        return 0
    inputs = ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in facts["inputs"].items())
    largest = max(facts["largest_difference"].values())
    print(f"{facts['folder']}: policy.onnx sees {inputs}; contract.json says what that is")
    print(f"onnxruntime against torch on {facts['observations']} observations: {largest:.1e} apart at most")
    return 0


def _check(folder: str, json: bool) -> int:
    from sdpg.deploy.check import problems

    found = problems(Path(folder))
    if json:
        print_json({"folder": folder, "sound": not found, "problems": found})
    elif not found:
        print(f"{folder}: all is well")
    for problem in found:
        print(f"sdpg: {folder}: {problem}", file=sys.stderr)
    return 2 if found else 0
