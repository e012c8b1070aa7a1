"""tasks, train, eval."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sdpg.cli.output import print_facts, print_json, write_json
from sdpg.cli.parse import Argv, Help, parse, peek, positional, wants_help
from sdpg.errors import SdpgError

if TYPE_CHECKING:  # verbs import what they need: `sdpg --help` answers at once
    from sdpg.config import TrainCfg


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TasksOptions:
    """List the tasks that can be trained; `sdpg tasks NAME` describes one of them."""

    json: bool = False
    """One JSON object on standard output, with what is known once each task has been loaded."""
    picture: Path | None = None
    """Also draw the task that is named: its scene beside what each of its cameras shows a policy (PNG)."""


def tasks(argv: Argv) -> int:
    task, rest = positional(argv)
    options = parse(TasksOptions, rest, "sdpg tasks")
    if task is not None:
        return _describe(task, options)
    if options.picture is not None:
        raise SdpgError("of which task? sdpg tasks NAME --picture FILE.png")
    from sdpg.tasks.registry import BUILT_IN, glance, registry

    # Ours are known to load: a glance will do, and nobody waits for torch.
    known = registry()
    ours = {} if options.json else {name: glance(name) for name in known if known[name] == BUILT_IN.get(name)}
    rows = {name: ours.get(name) or _loaded(name, target) for name, target in known.items()}
    if options.json:
        print_json(rows)
        return 0
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:12} can't be loaded: {row['error']}")
        else:
            print(f"{name:12} actions {row['action_size']:3}  state {row['state_size']:3}  {row['about']}")
    return 0


def _describe(name: str, options: TasksOptions) -> int:
    from sdpg.check.describe import describe
    from sdpg.tasks.base import make_task
    from sdpg.tasks.registry import canonical

    facts = {"task": canonical(name), **describe(make_task(name))}
    if options.picture is not None:
        from sdpg.watch.picture import picture, write_picture

        write_picture(options.picture, picture(make_task(name)))
        facts["picture"] = str(options.picture)
    (print_json if options.json else print_facts)(facts)
    return 0


def _loaded(name: str, target: str) -> dict[str, Any]:
    """What a task says of itself; if it can't be loaded, why: one broken plug-in must not hide the others."""
    from sdpg.tasks.base import make_task
    from sdpg.tasks.registry import about

    try:
        task = make_task(name)
        return {
            "target": target,
            "about": about(sys.modules[type(task).__module__].__doc__, type(task).__doc__),
            "action_size": task.action_size,
            "state_size": task.state_size,
            "episode_seconds": round(task.episode_steps * task.step_seconds, 3),
        }
    except Exception as error:
        return {"target": target, "error": f"{type(error).__name__}: {error}"}


# --- train ------------------------------------------------------------------------------------------------------------


def _train_options() -> type[Any]:
    import tyro

    from sdpg.config import TrainCfg

    @dataclasses.dataclass(frozen=True)
    class TrainOptions:
        """Train a policy: `sdpg train TASK [OPTIONS]`, or `sdpg train --resume RUN`. Defaults are the preset's."""

        cfg: Annotated[TrainCfg, tyro.conf.arg(name="")]
        run: str | None = None
        """Folder of the run; runs/TASK/ALGORITHM/DATE if not given."""
        resume: str | None = None
        """Go on with the run in this folder, with its own options; more --iterations or --minutes may be given. If its
        task is a module:Class, it must be given, too: a file does not choose which code is imported.
        "auto": with the newest run of the task (or with --run DIR), if there is one; else a new one."""
        json: bool = False
        """One JSON object on standard output at the end, progress on standard error."""
        quiet: bool = False
        """No progress."""

    TrainOptions.__annotations__["cfg"] = Annotated[TrainCfg, tyro.conf.arg(name="")]
    return TrainOptions


def train(argv: Argv) -> int:
    from sdpg import presets
    from sdpg import train as training
    from sdpg.cli.display import Display
    from sdpg.distributed import join
    from sdpg.run import resume as resume_rules
    from sdpg.tasks.registry import canonical

    task, rest = positional(argv)
    task = canonical(task) if task else None
    kind = _train_options()
    resume = peek(rest, "--resume")
    if task is None and resume in (None, "auto") and not wants_help(rest):
        raise SdpgError("which task? sdpg train TASK (`sdpg tasks` lists them), or sdpg train --resume RUN")
    base = presets.resolve(task or "TASK", _preset(rest), *(_peeked(rest, name) for name in ("obs", "algorithm")))
    if wants_help(rest) or "--help-algo" in rest:
        _help(kind, base, "--help-algo" in rest)
    with join() as group:
        typed = task or peek(rest, "--task")
        resume, saved = group.on_rank_zero(lambda: resume_target(typed, base, resume, peek(rest, "--run")))
        base = saved or base
        options = parse(kind, rest, "sdpg train TASK", kind(cfg=base))
        cfg: TrainCfg = options.cfg
        if resume is not None:
            resume_rules.require_same_options(base, cfg)
        elif cfg.task != task:
            raise SdpgError(f"the task is given twice: {task} and --task {cfg.task}")
        quiet = options.quiet or group.rank > 0
        with training.stop_on_signals(group) as stop, Display(cfg, options.json, quiet) as display:
            summary = training.train(cfg, resume or options.run, resume is not None, display, stop, group)
        if options.json and group.rank == 0:
            print_json(summary)
    return 0


def resume_target(
    task: str | None, base: TrainCfg, resume: str | None, run: str | None
) -> tuple[str | None, TrainCfg | None]:
    """The folder of the run that is resumed, and its options; None if a new one begins."""
    from sdpg.run import resume as resume_rules

    if resume == "auto":
        resume, run = resume_rules.resume_target(base, run), None
    if resume is None:
        return None, None
    if run is not None:
        raise SdpgError("--run is for a new run; --resume goes on in its own folder")
    return resume, resume_rules.cfg_from_dict(resume_rules.saved_options(Path(resume)), task)


def _help(kind: type[Any], base: TrainCfg, algorithm_too: bool) -> None:
    """The options of the run; those of the algorithm by name and value, or explained, too."""
    from sdpg.run.resume import options

    try:
        parse(kind, ["--help"], "sdpg train TASK", kind(cfg=base))
    except Help as text:
        run, _, _ = str(text).partition("\n algo options")
        values = [f"--{name} {value}" for name, value in options(base).items() if name.startswith("algo.")]
        short = textwrap.fill("  ".join(v.replace(" ", "\0") for v in values), 118, break_on_hyphens=False).replace(
            "\0", " "
        )
        note = f"\n options of {base.algorithm}, as the preset has them; --help-algo explains them\n\n"
        raise Help(str(text) if algorithm_too else f"{run}{note}{textwrap.indent(short, '  ')}\n") from None


def _peeked(argv: Argv, name: str) -> str:
    """An option that decides the defaults of the others, and which there are."""
    from sdpg.config import TrainCfg

    return peek(argv, f"--{name}") or getattr(TrainCfg, name)


def _preset(argv: Argv) -> str:
    """tyro trusts defaults, so the value is checked here."""
    from sdpg.config import TrainCfg

    allowed = typing.get_args(typing.get_type_hints(TrainCfg)["preset"])
    value = _peeked(argv, "preset")
    if value not in allowed:
        raise SdpgError(f"--preset '{value}' is not known; give one of {', '.join(allowed)}")
    return value


# --- eval -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Evaluate a run with deterministic actions, one whole episode per world, on its own engine: `sdpg eval RUN`; or
    what it has to beat: `sdpg eval TASK --policy zero`."""

    policy: Literal["zero", "random"] | None = None
    """No run: a task, and a policy that has learned nothing."""
    episodes: int = 64
    seed: int = 1000
    """Of the starts; not the seeds of training."""
    checkpoint: str = "last"
    """"last", "best", or an iteration."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    task: str | None = None
    """The run's task, if it is a module:Class: its code is imported because you say so, not because a file does."""
    json: bool = False
    """One JSON object on standard output."""
    write: str | None = None
    """Also write the JSON to this file."""


def evaluate(argv: Argv) -> int:
    run, rest = positional(argv)
    options = parse(EvalOptions, rest, "sdpg eval RUN")
    if run is None:
        raise SdpgError("which run? sdpg eval RUN (the folder that `sdpg train` printed)")
    from sdpg.cli.display import progress
    from sdpg.evaluate import evaluate as evaluate_run
    from sdpg.evaluate import evaluate_simple

    if options.policy is not None:
        if options.task is not None or options.checkpoint != "last":
            raise SdpgError("--policy goes with a task alone: leave --task and --checkpoint out")
        result = evaluate_simple(
            run, options.policy, options.episodes, options.seed, options.threads, progress("episodes")
        )
    else:
        how = (options.episodes, options.seed, options.checkpoint, options.threads)
        result = evaluate_run(run, *how, progress("episodes"), options.task)
    if options.write is not None:
        write_json(options.write, result)
    if options.json:
        print_json(result)
        return 0
    returns, length = result["return"], result["length"]
    trained = f", iteration {result['iteration']}" if "iteration" in result else ""
    what = f"{result['task']}, {result['algorithm']}{trained}: {result['episodes']} episodes"
    print(what if result["sim"] == "cpu" else f"{what} on mujoco_warp ({result['device']})")
    print(f"return {returns['mean']:.1f} +- {returns['std']:.1f}  ({returns['min']:.1f} to {returns['max']:.1f})")
    print(f"length {length['mean']:.0f} steps; {100 * result['survived']:.0f} % reached the time limit")
    print("per step: " + ", ".join(f"{name} {value:.3f}" for name, value in result["reward_per_step"].items()))
    if result["measures"]:
        print("measured: " + ", ".join(f"{name} {value['mean']:.3f}" for name, value in result["measures"].items()))
    return 0
