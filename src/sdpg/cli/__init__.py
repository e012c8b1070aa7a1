"""The command line: the only part that prints. A mistake of the user's is one line on stderr and exit code 2."""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterator

from sdpg import __version__
from sdpg.cli.deploying import export
from sdpg.cli.examining import bench, check, doctor
from sdpg.cli.parse import Argv, Help, positional, wants_help
from sdpg.cli.robots import robot
from sdpg.cli.training import evaluate, tasks, train
from sdpg.cli.watching import compare, play, replay, runs, view
from sdpg.distributed import RankLost, my_rank
from sdpg.errors import SdpgError
from sdpg.render.progress import listen

VERBS: dict[str, tuple[Callable[[Argv], int], str]] = {
    "tasks": (tasks, "list the tasks"),
    "train": (train, "train a policy: sdpg train cartpole"),
    "eval": (evaluate, "evaluate a run: sdpg eval runs/cartpole/sdpg/DATE"),
    "play": (play, "film a policy: sdpg play runs/cartpole/sdpg/DATE --video out.mp4"),
    "view": (view, "watch a policy in the browser: sdpg view runs/cartpole/sdpg/DATE"),
    "replay": (replay, "play a world that failed again: sdpg replay RUN/bad/DUMP --video out.mp4"),
    "runs": (runs, "list runs and their state: sdpg runs"),
    "compare": (compare, "curves of runs in one figure and one page: sdpg compare RUN RUN ..."),
    "export": (export, "a policy as ONNX with its contract: sdpg export RUN"),
    "robot": (robot, "a simulated Go2 that speaks the real one's protocol: sdpg robot go2"),
    "check": (check, "does a task keep its promises? sdpg check my_module:MyTask"),
    "bench": (bench, "measure: sdpg bench (its --help lists what)"),
    "doctor": (doctor, "what this machine has and whether all works"),
}


def main(argv: Argv | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    # Before torch is imported: its idle threads spin for milliseconds by default, which on a machine with other work to
    # do makes an update ten times slower. This is long enough to catch the next operation.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # So that a module:Class finds a module of one's own. Only if there is one: the working folder may be a stranger's.
    if any(":" in word for word in argv) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    listen(_tell)
    try:
        with _quiet_pipes():
            return _dispatch(argv)
    except Help as help_:
        if my_rank() == 0:
            print(help_, end="")
        return 0
    except SdpgError as error:
        if my_rank() == 0 or isinstance(error, RankLost):  # every other mistake is one of all ranks
            print(f"sdpg: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        print(f"sdpg: can't read or write{where}: {error.strerror or error}", file=sys.stderr)
        return 2
    except SystemExit as error:  # none of ours
        print(
            f"sdpg: exit({error.code!r}) was called in the task or in what it imports; raise an error", file=sys.stderr
        )
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


def _tell(what: str, done: int, total: int) -> None:
    """A line on standard error that counts, if that is a terminal; it is gone at the end."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{what}: {done} of {total}" if done < total else "\r\033[K")
        sys.stderr.flush()
