"""The command line: the only module that prints. A mistake of the user's is one line on stderr and exit code 2."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import os
import shlex
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sdpg import __version__
from sdpg.errors import SdpgError
from sdpg.options import Argv, Help, parse, peek, positional, wants_help

if TYPE_CHECKING:  # verbs import what they need: `sdpg --help` answers at once
    from sdpg.config import TrainCfg


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
    options = parse(TasksOptions, argv, "sdpg tasks")
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
        """Go on with the run in this folder, with its own options; more --iterations or --minutes may be given.
        "auto": with the newest run of the task (or with --run DIR), if there is one; else a new one."""
        json: bool = False
        """One JSON object on standard output at the end, progress on standard error."""
        quiet: bool = False
        """No progress."""

    TrainOptions.__annotations__["cfg"] = Annotated[TrainCfg, tyro.conf.arg(name="")]
    return TrainOptions


def train(argv: Argv) -> int:
    from sdpg import folder, presets
    from sdpg import train as training
    from sdpg.display import Display

    task, rest = positional(argv)
    resume, run = peek(rest, "--resume"), peek(rest, "--run")
    if task is None and resume in (None, "auto") and not wants_help(rest):
        raise SdpgError("which task? sdpg train TASK (`sdpg tasks` lists them), or sdpg train --resume RUN")
    base = presets.resolve(task or "TASK", _choice(rest, "preset"), _choice(rest, "obs"))
    if resume == "auto" and not wants_help(rest):
        resume, run = folder.to_go_on_with(base, run), None
    if resume is not None and not wants_help(rest):
        base = folder.cfg_from_dict(folder.read_config(Path(resume))["cfg"])
        if run is not None:
            raise SdpgError("--run is for a new run; --resume goes on in its own folder")
        if task not in (None, base.task):
            raise SdpgError(f"--resume: that run is of task '{base.task}', not '{task}'")
    kind = _train_options()
    options = parse(kind, rest, "sdpg train TASK", kind(cfg=base))
    cfg: TrainCfg = options.cfg
    if resume is not None:
        folder.refuse_another(base, cfg)
    elif cfg.task != task:
        raise SdpgError(f"the task is given twice: {task} and --task {cfg.task}")
    with training.stop_on_signals() as stop, Display(cfg, options.json, options.quiet) as display:
        summary = training.train(cfg, resume or options.run, resume is not None, display, stop)
    if options.json:
        _print_json(summary)
    return 0


def _choice(argv: Argv, name: str) -> str:
    """An option that decides the defaults of the others. tyro trusts defaults, so the value is checked here."""
    from sdpg.config import TrainCfg

    allowed = typing.get_args(typing.get_type_hints(TrainCfg)[name])
    value = peek(argv, f"--{name}") or getattr(TrainCfg, name)
    if value not in allowed:
        raise SdpgError(f"--{name} '{value}' is not known; give one of {', '.join(allowed)}")
    return value


# --- eval -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Evaluate a run with deterministic actions, one whole episode per world: `sdpg eval RUN`."""

    episodes: int = 64
    seed: int = 1000
    """Of the starts; not the seeds of training."""
    checkpoint: str = "last"
    """"last", "best", or an iteration."""
    threads: int = 0
    """CPU threads; 0: all cores."""
    json: bool = False
    """One JSON object on standard output."""
    write: str | None = None
    """Also write the JSON to this file."""


def evaluate(argv: Argv) -> int:
    run, rest = positional(argv)
    options = parse(EvalOptions, rest, "sdpg eval RUN")
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


# --- play, view -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Watch:
    """What is played, by `play` and `view`."""

    policy: Literal["random", "zero"] | None = None
    """Without a run: such actions on a task."""
    size: int = 480
    """Side of the third-person view in pixels."""
    seed: int = 1000
    """Of the starts; not the seeds of training."""
    checkpoint: str = "last"
    """"last", "best", or an iteration."""


def _subject(verb: str, subject: str | None, options: _Watch) -> str:
    """RUN or TASK, once it is there and the options are sound."""
    if subject is None:
        raise SdpgError(f"which run? sdpg {verb} RUN (what `sdpg train` printed), or sdpg {verb} TASK --policy random")
    if not 64 <= options.size <= 2160:
        raise SdpgError("size must be between 64 and 2160")
    return subject


@dataclasses.dataclass(frozen=True)
class PlayOptions(_Watch):
    """Film a policy beside what its camera sees: `sdpg play RUN --video out.mp4`, `sdpg play TASK --policy random`."""

    video: str | None = None
    """The mp4 to write; out.mp4 if neither this nor --frames is given."""
    frames: str | None = None
    """Write PNG pictures into this folder instead."""
    episodes: int = 2
    json: bool = False
    """One JSON object on standard output."""


def play(argv: Argv) -> int:
    subject, rest = positional(argv)
    options = parse(PlayOptions, rest, "sdpg play RUN")
    subject = _subject("play", subject, options)
    if options.episodes < 1:
        raise SdpgError("episodes must be at least 1")
    from sdpg import video

    if options.policy is None:
        policy, env = video.load_policy(Path(subject), options.checkpoint, options.seed)
    else:
        policy, env = video.simple_policy(options.policy, subject, options.seed)
    result: dict[str, Any] = {}
    pictures = video.frames(policy, env, options.episodes, options.size, result)
    stride = video.frame_stride(env)
    target = Path(options.frames or options.video or "out.mp4")
    if options.frames is not None:
        result["pictures"] = video.write_frames(target, pictures)
    else:
        fps = 1.0 / (env.task.timestep * env.task.substeps * stride)
        result["pictures"] = video.write_video(target, pictures, fps)
    result["file"] = str(target)
    if options.json:
        _print_json(result)
    else:
        returns = ", ".join(f"{value:.1f}" for value in result["returns"])
        print(f"{target}: {result['pictures']} pictures, returns {returns}")
    return 0


@dataclasses.dataclass(frozen=True)
class ViewOptions(_Watch):
    """Watch a policy in the browser beside what its camera sees: `sdpg view RUN`, `sdpg view TASK --policy random`."""

    port: int | None = None
    """Of this machine's loopback address; the first free one from 8080 on if not given."""
    open: bool = True
    """Open the page, if this machine has a desktop."""
    seconds: float | None = None
    """End after this time; else Ctrl-C does."""


def view(argv: Argv) -> int:
    subject, rest = positional(argv)
    options = parse(ViewOptions, rest, "sdpg view RUN")
    subject = _subject("view", subject, options)
    from sdpg import view as viewing
    from sdpg.train import stop_on_signals

    with viewing.Server(options.port) as server:
        source = viewing.Source.find(subject, options.policy, options.checkpoint, options.seed)
        show, port = viewing.Show(source, subject, options.size), server.port
        with stop_on_signals() as stop:
            server.present(show)
            url = f"http://localhost:{port}/"
            print(f"{subject}, {source.label}: {url}  (Ctrl-C ends)")
            print(f"from another machine: ssh -L {port}:localhost:{port} HOST, then open {url} there", flush=True)
            if options.open:
                viewing.open_page(url)
            show.run(stop, options.seconds)
    return 0


# --- replay -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ReplayOptions:
    """Play the last steps of a world that failed once more: `sdpg replay RUN/bad/DUMP --video out.mp4`."""

    video: str | None = None
    """Also write an mp4 of it."""
    size: int = 480
    """Side of its picture in pixels."""
    json: bool = False
    """One JSON object on standard output."""


def replay(argv: Argv) -> int:
    path, rest = positional(argv)
    options = parse(ReplayOptions, rest, "sdpg replay DUMP")
    if path is None:
        raise SdpgError("which dump? sdpg replay DUMP (a file in the folder bad/ of a run)")
    if not 64 <= options.size <= 2160:
        raise SdpgError("size must be between 64 and 2160")
    from sdpg import quarantine, video
    from sdpg import replay as replaying

    dump = quarantine.load(Path(path))
    played = replaying.replay(dump)
    facts = replaying.report(path, dump, played)
    if options.video is not None:
        pictures = replaying.film(dump, played, options.size)
        facts["pictures"] = video.write_video(Path(options.video), pictures, replaying.FPS)
        facts["file"] = options.video
    if options.json:
        _print_json(facts)
    else:
        print("\n".join(replaying.tell(facts)))
    return 0 if facts["reproduced"] else 1


# --- runs, compare ----------------------------------------------------------------------------------------------------


def runs(argv: Argv) -> int:
    from sdpg import runs as folders
    from sdpg.display import print_table

    given, rest = positional(argv)
    options = parse(folders.Options, rest, "sdpg runs")
    root = given or "runs"
    found = folders.find(Path(root))
    if options.json:
        _print_json([dataclasses.asdict(run) for run in found])
    elif found:
        print_table(folders.HEADER, folders.table(found), folders.NUMBERS)
    else:
        print(f"no runs below '{root}'")
    return 0


def compare(argv: Argv) -> int:
    from sdpg import compare as comparison
    from sdpg.display import print_table

    options = parse(comparison.Options, argv, "sdpg compare")
    result = comparison.compare(options, RESUMABLE)
    if options.json:
        _print_json(result)
    else:
        print_table(comparison.HEADER, comparison.table(result["runs"]), range(2, len(comparison.HEADER)))
        print(f"{result['metric']} in {result['png']} and {result['html']}")
    return 0


# --- check, bench, doctor ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CheckOptions:
    """Does a task keep the promises that branching needs? `sdpg check TASK`."""

    json: bool = False
    """One JSON object on standard output."""


def check(argv: Argv) -> int:
    name, rest = positional(argv)
    options = parse(CheckOptions, rest, "sdpg check TASK")
    if name is None:
        raise SdpgError("which task? sdpg check TASK (`sdpg tasks` lists them)")
    from sdpg.check import check_task
    from sdpg.tasks.base import make_task

    findings = check_task(make_task(name))
    failed = [finding for finding in findings if not finding.passed]
    if options.json:
        _print_json({"task": name, "passed": not failed, "checks": [dataclasses.asdict(f) for f in findings]})
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
    "smoothing": "the paper's figure of a smoothed one-dimensional function",
    "curve": "keep a run's learning curve and evaluation as one small JSON",
    "plot": "draw the learning curves in benchmarks/results",
}


def bench(argv: Argv) -> int:
    import importlib

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
    names = {field.name for field in dataclasses.fields(options_type)} & {"task", "run"}
    if subject is not None and names:
        rest = [f"--{names.pop()}", subject, *rest]
    elif subject is not None:
        raise SdpgError(f"sdpg bench {kind} takes no task; leave out '{subject}'")
    wrapped = _with_output(options_type)
    options = parse(wrapped, rest, f"sdpg bench {kind}", wrapped(options=options_type()))
    result = {"command": shlex.join(["sdpg", "bench", *argv])} | module.run(options.options)
    if options.write is not None:
        _write_json(options.write, result)
    if options.json:
        _print_json(result)
    else:
        _print_facts(result)
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


def _print_facts(facts: Mapping[str, Any], indent: str = "") -> None:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            print(f"{indent}{name}:")
            _print_facts(value, indent + "  ")
        elif isinstance(value, list | tuple) and len(value) > 8:
            print(f"{indent}{name}: {len(value)} values (--json shows them)")
        else:
            print(f"{indent}{name}: {f'{value:.6g}' if isinstance(value, float) else value}")


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
        _print_json(facts)
    else:
        _print_facts({name: value for name, value in facts.items() if name != "problems"})
        print("all is well" if not problems else "\n".join(f"problem: {problem}" for problem in problems))
    return 1 if problems else 0


# --- main -------------------------------------------------------------------------------------------------------------

VERBS: dict[str, tuple[Callable[[Argv], int], str]] = {
    "tasks": (tasks, "list the tasks"),
    "train": (train, "train a policy: sdpg train cartpole"),
    "eval": (evaluate, "evaluate a run: sdpg eval runs/cartpole/sdpg/DATE"),
    "play": (play, "film a policy: sdpg play runs/cartpole/sdpg/DATE --video out.mp4"),
    "view": (view, "watch a policy in the browser: sdpg view runs/cartpole/sdpg/DATE"),
    "replay": (replay, "play a world that failed again: sdpg replay RUN/bad/DUMP --video out.mp4"),
    "runs": (runs, "list runs and their state: sdpg runs"),
    "compare": (compare, "curves of runs in one figure and one page: sdpg compare RUN RUN ..."),
    "check": (check, "does a task keep its promises? sdpg check my_module:MyTask"),
    "bench": (bench, "measure: sdpg bench sim|iteration|render|smoothing"),
    "doctor": (doctor, "what this machine has and whether all works"),
}


def main(argv: Argv | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    # Before torch is imported: its idle threads spin for milliseconds by default, which on a machine with other work to
    # do makes an update ten times slower. This is long enough to catch the next operation.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that module:Class finds a module of one's own
    try:
        with _quiet_pipes():
            return _dispatch(argv)
    except Help as help_:
        print(help_, end="")
        return 0
    except SdpgError as error:
        print(f"sdpg: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        print(f"sdpg: can't read or write{where}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _dispatch(argv: Argv) -> int:
    verb, rest = positional(argv)
    if verb is None:
        if rest and rest[0] == "--version":
            print(__version__)
            return 0
        if rest and not wants_help(rest):
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
