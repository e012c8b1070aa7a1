"""check, bench, doctor."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import shlex
import sys
from typing import Annotated, Any, Literal

from sdpg.cli.output import print_facts, print_json, write_json
from sdpg.cli.parse import Argv, parse, positional, wants_help
from sdpg.errors import SdpgError


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """Does a task keep the promises that branching needs? `sdpg check TASK`."""

    sim: Literal["cpu", "warp"] = "cpu"
    """The engine to check it on: mujoco.batch, or mujoco_warp."""
    json: bool = False
    """One JSON object on standard output."""


def check(argv: Argv) -> int:
    name, rest = positional(argv)
    options = parse(CheckOptions, rest, "sdpg check TASK")
    if name is None:
        raise SdpgError("which task? sdpg check TASK (`sdpg tasks` lists them)")
    from sdpg.build import make_env
    from sdpg.check.checks import check_task
    from sdpg.tasks.base import make_task

    findings = check_task(make_task(name), functools.partial(make_env, sim=options.sim))
    failed = [finding for finding in findings if not finding.passed]
    if options.json:
        print_json({"task": name, "passed": not failed, "checks": [dataclasses.asdict(f) for f in findings]})
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.passed else 'FAIL'} {finding.name}")
    for finding in failed:
        print(f"sdpg: task '{name}': {finding.name}: {finding.problem}", file=sys.stderr)
    return 2 if failed else 0


BENCHES = {
    "sim": "steps per second of the bare engine",
    "iteration": "seconds per phase of a training iteration",
    "memory": "peak memory of training, and how it grows with the number of environments",
    "render": "images per second of each renderer",
    "encoder": "milliseconds an image takes through each encoder",
    "scaling": "what an iteration costs against N, M, T, threads, ranks and images, and a model of it",
    "gradient": "signal, noise and bias of the ascent direction at a checkpoint of a run",
    "smoothing": "the paper's figure of a smoothed one-dimensional function",
    "view": "the paper's diagram of policy gradients as guided search, drawn from the registered algorithms",
    "curve": "keep a run's learning curve and evaluation as one small JSON",
    "plot": "draw the learning curves in benchmarks/results",
    "paper": "every method on the same tasks: the paper's figures and tables on one page",
}


def bench(argv: Argv) -> int:
    import importlib

    from sdpg.cli.display import telling

    kind, rest = positional(argv)
    if kind is None and wants_help(rest):
        print("usage: sdpg bench KIND [TASK or RUN] [OPTIONS]\n")
        for name, about in BENCHES.items():
            print(f"  {name:10} {about}")
        return 0
    if kind not in BENCHES:
        raise SdpgError(f"which bench? sdpg bench {'|'.join(BENCHES)}" + (f", not '{kind}'" if kind else ""))
    module = importlib.import_module(f"sdpg.bench.{kind}")
    options_type = module.Options
    subject, rest = positional(rest)
    fields = {field.name for field in dataclasses.fields(options_type)}
    names = [name for name in ("run", "task") if name in fields]
    if subject is not None and names:
        rest = [f"--{names[0]}", subject, *rest]
    elif subject is not None:
        raise SdpgError(f"sdpg bench {kind} takes no task; leave out '{subject}'")
    wrapped = _with_output(options_type)
    options = parse(wrapped, rest, f"sdpg bench {kind}", wrapped(options=options_type()))
    with telling() as tell:
        extra = {"tell": tell} if "tell" in inspect.signature(module.run).parameters else {}  # what takes hours
        result = {"command": shlex.join(["sdpg", "bench", *argv])} | module.run(options.options, **extra)
    if options.write is not None:
        write_json(options.write, result)
    if options.json:
        print_json(result)
    else:
        print_facts(result)
    return 0


def _with_output(kind: type[Any]) -> type[Any]:
    """The options of a bench and those of where its result goes."""
    import tyro

    @dataclasses.dataclass(frozen=True)
    class BenchOptions:
        options: Any
        json: bool = False
        """One JSON object on standard output."""
        write: str | None = None
        """Also write the JSON to this file."""

    BenchOptions.__doc__ = kind.__doc__
    BenchOptions.__annotations__["options"] = Annotated[kind, tyro.conf.arg(name="")]
    return BenchOptions


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Look at this machine: versions, cores, memory, disk, device, and whether the engine works."""

    json: bool = False
    """One JSON object on standard output."""


def doctor(argv: Argv) -> int:
    options = parse(DoctorOptions, argv, "sdpg doctor")
    from sdpg.doctor import examine

    facts = examine()
    problems = facts["problems"]
    if options.json:
        print_json(facts)
    else:
        print_facts({name: value for name, value in facts.items() if name != "problems"})
        print("all is well" if not problems else "\n".join(f"problem: {problem}" for problem in problems))
    return 1 if problems else 0
