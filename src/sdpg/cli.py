"""The command line: the only module that prints. A mistake of the user's is one line on stderr and exit code 2."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from sdpg import __version__
from sdpg.errors import SdpgError

if TYPE_CHECKING:  # verbs import what they need: `sdpg --help` answers at once
    from sdpg.config import TrainCfg

Options = TypeVar("Options")
Argv = Sequence[str]

# --- parsing ----------------------------------------------------------------------------------------------------------


def _parse(kind: type[Options], argv: Argv, prog: str, default: Options | None = None) -> Options:
    """tyro, with its boxes of text turned into one line."""
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
        print(out, end="")
        raise SystemExit(0)
    if code is not None:
        raise SdpgError(f"{_one_line(err)} (see {prog} --help)")
    options, unknown = parsed
    if unknown:
        known = re.findall(r"--[a-z][\w.-]*", run(["--help"])[1])
        raise SdpgError(f"{_unknown_option(unknown[0], known)} (see {prog} --help)")
    return options


def _one_line(box: str) -> str:
    """The first paragraph of tyro's message, between its rules."""
    lines = [line.strip(" │╭╮╰╯") for line in box.splitlines()]
    rules = [i for i, line in enumerate(lines) if line and set(line) <= set("-─")]
    if len(rules) >= 2:
        lines = lines[rules[0] + 1 : rules[1]]
    return " ".join(line for line in lines if line).rstrip(".") or "these options can't be read"


def _unknown_option(given: str, known: list[str]) -> str:
    name = given.split("=")[0]
    if not name.startswith("-"):
        return f"don't know what to do with '{name}'"
    by_last_part = {option.rsplit(".", 1)[-1].lstrip("-"): option for option in known}
    near = difflib.get_close_matches(name.replace("_", "-"), known, 1) or [
        by_last_part[part] for part in difflib.get_close_matches(name.lstrip("-").split(".")[-1], by_last_part, 1)
    ]
    return f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else "")


def _positional(argv: Argv) -> tuple[str | None, list[str]]:
    """A first argument that is not an option, and the rest."""
    if argv and not argv[0].startswith("-"):
        return argv[0], list(argv[1:])
    return None, list(argv)


def _peek(argv: Argv, option: str) -> str | None:
    """The value of an option that decides which options there are."""
    for i, word in enumerate(argv):
        if word.startswith(f"{option}="):
            return word.split("=", 1)[1]
        if word == option and i + 1 < len(argv):
            return argv[i + 1]
    return None


def _wants_help(argv: Argv) -> bool:
    return "-h" in argv or "--help" in argv


def _print_json(value: Any) -> None:
    print(json.dumps(_plain(value), indent=1))


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TasksOptions:
    """List the tasks that can be trained."""

    json: bool = False
    """One JSON object on standard output."""


def tasks(argv: Argv) -> int:
    options = _parse(TasksOptions, argv, "sdpg tasks")
    from sdpg.tasks.base import make_task, registry

    rows: dict[str, dict[str, Any]] = {}
    for name, target in registry().items():
        try:
            task = make_task(name)
            about = sys.modules[type(task).__module__].__doc__ or type(task).__doc__ or ""
            seconds = task.episode_steps * task.substeps * task.timestep
            rows[name] = {
                "target": target,
                "about": about.strip().split("\n")[0],
                "action_size": task.action_size,
                "state_size": task.state_size,
                "episode_seconds": round(seconds, 3),
            }
        except Exception as error:  # one broken plug-in must not hide the others
            rows[name] = {"target": target, "error": f"{type(error).__name__}: {error}"}
    if options.json:
        _print_json(rows)
        return 0
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:12} can't be loaded: {row['error']}")
        else:
            print(f"{name:12} actions {row['action_size']:3}  state {row['state_size']:3}  {row['about']}")
    return 0


# --- train ------------------------------------------------------------------------------------------------------------

# What may differ when a run goes on; anything else would make it another run.
RESUMABLE = frozenset({"iterations", "minutes", "threads", "device", "checkpoint_every", "keep_checkpoints", "max_failed"})


def _train_options() -> type[Any]:
    import tyro

    from sdpg.config import TrainCfg

    @dataclasses.dataclass(frozen=True)
    class TrainOptions:
        """Train a policy: `sdpg train TASK [OPTIONS]`, or `sdpg train --resume RUN`. Defaults are those of the preset."""

        cfg: Annotated[TrainCfg, tyro.conf.arg(name="")]
        run: str | None = None
        """Folder of the run; runs/TASK/ALGORITHM/DATE if not given."""
        resume: str | None = None
        """Go on with the run in this folder, with its own options; more --iterations or --minutes may be given."""
        json: bool = False
        """One JSON object on standard output at the end, progress on standard error."""
        quiet: bool = False
        """No progress."""

    TrainOptions.__annotations__["cfg"] = Annotated[TrainCfg, tyro.conf.arg(name="")]
    return TrainOptions


def train(argv: Argv) -> int:
    from sdpg import presets
    from sdpg import train as training

    task, rest = _positional(argv)
    resume = _peek(rest, "--resume")
    if task is None and resume is None and not _wants_help(rest):
        raise SdpgError("which task? sdpg train TASK (`sdpg tasks` lists them), or sdpg train --resume RUN")
    if resume is not None and not _wants_help(rest):
        base = training.cfg_from_dict(training.read_config(Path(resume))["cfg"])
    else:
        preset, obs = _peek(rest, "--preset") or "cpu", _peek(rest, "--obs") or "state"
        base = presets.resolve(task or "TASK", preset, obs)
    kind = _train_options()
    options = _parse(kind, rest, "sdpg train TASK", kind(cfg=base))
    cfg: TrainCfg = options.cfg
    if resume is not None:
        _refuse_other_run(base, cfg, task, options.run)
    elif cfg.task != task:
        raise SdpgError(f"the task is given twice: {task} and --task {cfg.task}")
    with training.stop_on_signals() as stop, _Display(cfg, options.json, options.quiet) as display:
        summary = training.train(cfg, resume or options.run, resume is not None, display, stop)
    if options.json:
        _print_json(summary)
    return 0


def _refuse_other_run(base: TrainCfg, cfg: TrainCfg, task: str | None, run: str | None) -> None:
    if run is not None:
        raise SdpgError("--run is for a new run; --resume goes on in its own folder")
    if task is not None and task != base.task:
        raise SdpgError(f"--resume: that run is of task '{base.task}', not '{task}'")
    for field in dataclasses.fields(base):
        old, new = getattr(base, field.name), getattr(cfg, field.name)
        if old != new and field.name not in RESUMABLE:
            name = field.name.replace("_", "-")
            raise SdpgError(f"--{name} can't change when a run goes on; leave it out, or start a new run")


class _Display:
    """Progress of a run: a live line on a terminal, a plain line every ten seconds elsewhere."""

    def __init__(self, cfg: TrainCfg, to_stderr: bool, quiet: bool):
        from rich.console import Console

        self.cfg, self.quiet = cfg, quiet
        self.console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
        self.live: Any = None
        self.shown = -math.inf
        self.first: tuple[int, float] | None = None  # iteration and seconds when this session began

    def __enter__(self) -> _Display:
        if self.console.is_terminal and not self.quiet:
            from rich.live import Live

            self.live = Live("", console=self.console, refresh_per_second=4)
            self.live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.__exit__(None, None, None)

    def __call__(self, what: str, facts: Mapping[str, Any]) -> None:
        if what == "warning":
            self._print(f"warning: {facts['message']}", stderr=True)
        elif self.quiet:
            return
        elif what == "start":
            how = "going on" if facts["iteration"] else "training"
            worlds = f"{self.cfg.num_nominal} x (1 + {self.cfg.num_auxiliary}) worlds, {facts['threads']} threads"
            self._print(f"{how}: {facts['task']}, {worlds}, in {facts['run']}")
        elif what == "iteration":
            self._iteration(facts)
        elif what == "end":
            self._print(f"{_END[facts['reason']]} after iteration {facts['iteration']}, {facts['seconds']:.0f} s")
            if facts["iteration"]:
                self._print(f"look at it: sdpg eval {facts['run']}")

    def _print(self, text: str, stderr: bool = False) -> None:
        if stderr and self.live is None:
            print(text, file=sys.stderr, flush=True)
        else:
            self.console.print(text, markup=False)

    def _iteration(self, row: Mapping[str, Any]) -> None:
        iteration, seconds = row["iteration"], row["seconds"]
        self.first = self.first or (iteration, seconds)
        left = self._seconds_left(iteration, seconds)
        line = (
            f"iteration {iteration}/{self.cfg.iterations}  return {row['Train/mean_reward']:.1f}  "
            f"length {row['Train/mean_episode_length']:.0f}  {row['Perf/total_fps']:,.0f} steps/s  "
            f"{_duration(seconds)} gone, {_duration(left)} left"
        )
        if self.live is not None:
            self.live.update(line)
        elif time.monotonic() - self.shown >= 10.0 or iteration == self.cfg.iterations:
            self.shown = time.monotonic()
            self._print(line)

    def _seconds_left(self, iteration: int, seconds: float) -> float:
        first_iteration, first_seconds = self.first or (iteration, seconds)
        pace = (seconds - first_seconds) / (iteration - first_iteration) if iteration > first_iteration else math.nan
        left = (self.cfg.iterations - iteration) * pace
        if self.cfg.minutes is not None:
            budget = max(0.0, 60.0 * self.cfg.minutes - seconds)
            left = budget if math.isnan(left) else min(left, budget)
        return left


_END = {"iterations": "finished", "minutes": "time is up", "stopped": "stopped, saved"}


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# --- eval -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Evaluate a run with deterministic actions, one whole episode per world: `sdpg eval RUN`."""

    episodes: int = 64
    seed: int = 1000
    """Of the starts; not the seeds of training."""
    checkpoint: str = "last"
    """"last", or an iteration."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    json: bool = False
    """One JSON object on standard output."""
    write: str | None = None
    """Also write the JSON to this file."""


def evaluate(argv: Argv) -> int:
    run, rest = _positional(argv)
    options = _parse(EvalOptions, rest, "sdpg eval RUN")
    if run is None:
        raise SdpgError("which run? sdpg eval RUN (the folder that `sdpg train` printed)")
    from sdpg.evaluate import evaluate as evaluate_run

    result = evaluate_run(run, options.episodes, options.seed, options.checkpoint, options.threads)
    if options.write is not None:
        _write_json(options.write, result)
    if options.json:
        _print_json(result)
        return 0
    returns, length = result["return"], result["length"]
    print(f"{result['task']}, {result['algorithm']}, iteration {result['iteration']}: {result['episodes']} episodes")
    print(f"return {returns['mean']:.1f} +- {returns['std']:.1f}  ({returns['min']:.1f} to {returns['max']:.1f})")
    print(f"length {length['mean']:.0f} steps; {100 * result['survived']:.0f} % reached the time limit")
    print("per step: " + ", ".join(f"{name} {value:.3f}" for name, value in result["reward_per_step"].items()))
    return 0


def _write_json(path: str, value: Any) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(_plain(value), indent=1) + "\n")
    except OSError as error:
        raise SdpgError(f"can't write '{path}': {error.strerror or error}; give another --write") from error


# --- main -------------------------------------------------------------------------------------------------------------

VERBS: dict[str, tuple[Callable[[Argv], int], str]] = {
    "tasks": (tasks, "list the tasks"),
    "train": (train, "train a policy: sdpg train cartpole"),
    "eval": (evaluate, "evaluate a run: sdpg eval runs/cartpole/sdpg/DATE"),
}


def main(argv: Argv | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that module:Class finds a module of one's own
    try:
        with _quiet_pipes():
            return _dispatch(argv)
    except SdpgError as error:
        print(f"sdpg: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        print(f"sdpg: can't read or write{where}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as exit_:  # of --help
        return int(exit_.code or 0)


def _dispatch(argv: Argv) -> int:
    verb, rest = _positional(argv)
    if verb is None:
        if rest and rest[0] == "--version":
            print(__version__)
            return 0
        if rest and not _wants_help(rest):
            raise SdpgError(f"unknown option {rest[0]}; see sdpg --help")
        print("usage: sdpg VERB ...   (sdpg VERB --help says more)\n")
        for name, (_, about) in VERBS.items():
            print(f"  {name:8} {about}")
        return 0
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(VERBS)}"
        raise SdpgError(f"unknown verb '{verb}'; {hint}")
    return VERBS[verb][0](rest)


@contextlib.contextmanager
def _quiet_pipes() -> Iterator[None]:
    """`sdpg tasks | head` is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
