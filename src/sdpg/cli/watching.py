"""play, view, replay: a policy in images; runs, compare: what has been trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

from sdpg.cli.output import print_json
from sdpg.cli.parse import Argv, parse, positional
from sdpg.errors import SdpgError

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
    task: str | None = None
    """The run's task, if it is a module:Class: its code is imported because you say so, not because a file does."""


def _subject(verb: str, subject: str | None, options: _Watch) -> str:
    """RUN, or with --policy TASK."""
    if subject is None:
        raise SdpgError(f"which run? sdpg {verb} RUN (what `sdpg train` printed), or sdpg {verb} TASK --policy random")
    if options.policy is not None and options.task is not None:
        raise SdpgError(
            f"the task is given twice: {subject} and --task {options.task}; with --policy, leave --task out"
        )
    return subject


@dataclasses.dataclass(frozen=True)
class PlayOptions(_Watch):
    """Film a policy beside what its camera sees: `sdpg play RUN --video out.mp4`, `sdpg play TASK --policy random`."""

    video: str | None = None
    """The mp4 or gif to write; out.mp4 if neither this nor --frames is given."""
    frames: str | None = None
    """Write PNG images into this folder instead."""
    episodes: int = 2
    seconds: float | None = None
    """No more than so much of the scene's time."""
    json: bool = False
    """One JSON object on standard output."""


def play(argv: Argv) -> int:
    subject, rest = positional(argv)
    options = parse(PlayOptions, rest, "sdpg play RUN")
    subject = _subject("play", subject, options)
    from sdpg.cli.display import progress
    from sdpg.watch import film, player

    if options.policy is None:
        policy, env = player.open_run(Path(subject), options.checkpoint, options.seed, options.task)
    else:
        policy, env = player.simple_policy(options.policy, subject, options.seed)
    result: dict[str, Any] = {}
    images = film.frames(policy, env, options.episodes, options.size, result, progress("filming"), options.seconds)
    stride = film.frame_stride(env)
    target = Path(options.frames or options.video or "out.mp4")
    if options.frames is not None:
        result["images"] = film.write_frames(target, images)
    else:
        fps = 1.0 / (env.task.step_seconds * stride)
        result["images"] = film.write_video(target, images, fps)
    result["file"] = str(target)
    if options.json:
        print_json(result)
    else:
        returns = ", ".join(f"{value:.1f}" for value in result["returns"]) or "of no whole episode"
        print(f"{target}: {result['images']} images, returns {returns}")
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
    from sdpg.train import stop_on_signals
    from sdpg.watch import browser as viewing

    with viewing.Server(options.port) as server:
        source = viewing.Source.find(subject, options.policy, options.checkpoint, options.seed, options.task)
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
    """Side of its image in pixels."""
    task: str | None = None
    """The dump's task, if it is a module:Class: its code is imported because you say so, not because a file does."""
    trust_model: bool = False
    """Replay a dump whose model is another than the task's scene of today: only if you know where it comes from."""
    json: bool = False
    """One JSON object on standard output."""


def replay(argv: Argv) -> int:
    path, rest = positional(argv)
    options = parse(ReplayOptions, rest, "sdpg replay DUMP")
    if path is None:
        raise SdpgError("which dump? sdpg replay DUMP (a file in the folder bad/ of a run)")
    from sdpg.run import failures
    from sdpg.watch import film
    from sdpg.watch import replay as replaying

    dump = failures.load(Path(path))
    played = replaying.replay(dump, options.task, options.trust_model)
    facts = replaying.report(path, dump, played)
    if options.video is not None:
        images = replaying.film(dump, played, options.size)
        facts["images"] = film.write_video(Path(options.video), images, replaying.FPS)
        facts["file"] = options.video
    if options.json:
        print_json(facts)
    else:
        print("\n".join(replaying.tell(facts)))
    return 0 if facts["reproduced"] else 1


# --- runs, compare ----------------------------------------------------------------------------------------------------


def runs(argv: Argv) -> int:
    from sdpg.cli.display import print_table
    from sdpg.run import listing as folders

    given, rest = positional(argv)
    options = parse(folders.Options, rest, "sdpg runs")
    root = given or "runs"
    found = folders.find(Path(root))
    if options.json:
        print_json([dataclasses.asdict(run) for run in found])
    elif found:
        print_table(folders.HEADER, folders.table(found), folders.NUMBERS)
    else:
        print(f"no runs below '{root}'")
    return 0


def compare(argv: Argv) -> int:
    from sdpg.cli.display import print_table
    from sdpg.report import compare as comparison
    from sdpg.run.resume import RESUMABLE

    options = parse(comparison.Options, argv, "sdpg compare")
    result = comparison.compare(options, RESUMABLE)
    if options.json:
        print_json(result)
    else:
        header = (*comparison.HEADER, *comparison.measures(result["runs"]))
        print_table(header, comparison.table(result["runs"]), range(2, len(header)))
        print(f"{result['metric']} in {result['png']} and {result['html']}")
    return 0
