"""`sdpg-run DIR`, `sdpg-run check DIR`, `sdpg-run replay LOG DIR`.

Exit codes: 0 all is well, 1 a guard ended it or a replay differs, 2 refused before anything moved.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from sdpg_runtime import __version__, contract, velocity
from sdpg_runtime.errors import Refused
from sdpg_runtime.guards import Limits
from sdpg_runtime.link import Link
from sdpg_runtime.log import Writer
from sdpg_runtime.loop import Runner
from sdpg_runtime.machine import ASKED, Mode, Wish
from sdpg_runtime.options import Options, changed, times
from sdpg_runtime.policy import Policy
from sdpg_runtime.replay import replay
from sdpg_runtime.robot import GO2
from sdpg_runtime.screen import Keys, Screen, lines

PRIORITY = 10  # of real-time threads, 1 to 99
HELP = "keys: s stand up, p policy, d damping, q quit"


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    verbs = {"check": _check, "replay": _replay}
    try:
        if argv and argv[0] in verbs:
            return verbs[argv[0]](argv[1:])
        return _run(argv)
    except Refused as error:
        print(f"sdpg-run: {error}", file=sys.stderr)
        return 2


def _check(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="sdpg-run check", description="Does a folder fit this robot and itself?")
    parser.add_argument("folder")
    folder = contract.load(parser.parse_args(argv).folder)
    Policy(folder)
    found = folder.contract
    print(f"{GO2.name}: {len(found.joints.names)} joints at {1.0 / found.seconds:g} Hz")
    for source in found.sources:
        print(f"sees {source.name}: {found.ports[source.name][0]} {list(found.ports[source.name][1])}")
    print("all is well")
    return 0


def _replay(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="sdpg-run replay", description="Does the policy still do what the log says?")
    parser.add_argument("log")
    parser.add_argument("folder")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    args = parser.parse_args(argv)
    found = replay(args.log, contract.load(args.folder))
    if args.json:
        print(json.dumps(vars(found) | {"same": found.same}))
        return 0 if found.same else 1
    if found.damage:
        print(f"the log is not whole: {found.damage}; read {found.ticks} ticks before that")
    if found.same:
        print(f"{found.ticks} ticks, {found.acted} of the policy: the same actions, bit for bit")
        return 0
    print(
        f"{found.ticks} ticks, {found.acted} of the policy: {found.other_inputs} with other inputs, "
        f"{found.other_actions} with other actions (by up to {found.largest:.1e}), {found.gaps} ticks missing"
    )
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sdpg-run",
        description="Run an exported policy on a robot. Also: sdpg-run check DIR, sdpg-run replay LOG DIR.",
        epilog=f"While it runs, {HELP}. Any guard, SIGINT and SIGTERM lead to damping.",
    )
    add = parser.add_argument
    add("folder", help="that `sdpg export` wrote")
    add("--link", default="dds", help="dds, unitree, or MODULE:FUNCTION of (domain, interface) (default: dds)")
    add("--interface", default="lo", help="network interface (default: lo)")
    add("--domain", type=int, default=1, help="DDS domain: 0 of a robot, 1 of a stand-in (default: 1)")
    add("--dry-run", action="store_true", help="compute everything, send nothing")
    add("--velocity", type=float, nargs=2, default=(0.0, 0.0), metavar=("X", "Y"), help="m/s forward and to the left")
    add("--turn", type=float, default=0.0, metavar="W", help="rad/s to the left")
    add("--script", metavar="FILE", help='velocities over time: [{"seconds": 2, "velocity": [0.5, 0], "turn": 0}]')
    add("--remote", action="store_true", help="velocities from the wireless controller's sticks")
    add("--auto", action="store_true", help="stand up and begin by itself; end after damping")
    add("--seconds", type=float, default=math.inf, metavar="S", help="that the policy runs, then damping and the end")
    add("--wait", type=float, default=5.0, metavar="S", help="for state and images, at the start (default: 5)")
    add("--limit", action="append", default=[], metavar="NAME=VALUE", help="of a guard, see docs/robot.md")
    add("--time", action="append", default=[], metavar="NAME=S", help="of a state, see docs/robot.md")
    add("--realtime", action="store_true", help="ask for real-time scheduling: on a busy machine deadlines need it")
    add("--log", metavar="FILE", help="log every tick there")
    add("--json", action="store_true", help="no screen; a report as JSON at the end")
    add("--version", action="version", version=__version__)
    return parser


def _run(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    folder = contract.load(args.folder)
    policy, told = Policy(folder), _velocity(args)
    options = Options(
        limits=changed(Limits(), args.limit, "--limit"),
        times=times(args.time),
        publish=not args.dry_run,
        auto=args.auto,
        seconds=args.seconds,
    )
    if args.realtime:
        _ask_for_realtime()  # before the link's threads, which inherit it
    link = open_link(args.link, args.domain, args.interface)
    log = runner = None
    try:
        log = None if args.log is None else Writer(args.log, folder, GO2)
        runner = Runner(link, folder, policy, told, options, log)
        _listen(runner)
        sys.setswitchinterval(0.0005)  # so that the sender need not wait for the others' Python
        gc.collect()
        gc.freeze()
        runner.start()
        _await_sensors(runner, args.wait)
        _watch(runner, args)
    finally:
        if runner is not None:
            runner.publisher.stop()  # before its link goes
        if log is not None:
            log.close()
        link.close()
    return _ended(runner, args)


def _ask_for_realtime() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    except (OSError, AttributeError) as error:
        why = getattr(error, "strerror", None) or "not on this system"
        raise Refused(
            f"--realtime is not granted ({why}); leave it out, or give the right (ulimit -r, CAP_SYS_NICE)"
        ) from error


def _velocity(args: argparse.Namespace) -> velocity.Velocity:
    if args.script is not None:
        return velocity.script(args.script)
    forward, left = args.velocity
    return velocity.remote() if args.remote else velocity.constant(forward, left, args.turn)


def open_link(name: str, domain: int, interface: str) -> Link:
    known = {"dds": "sdpg_runtime.dds.link:DdsLink", "unitree": "sdpg_runtime.unitree:UnitreeLink"}
    module, _, function = known.get(name, name).partition(":")
    if not function:
        raise Refused(f"--link {name} is neither dds, unitree nor MODULE:FUNCTION")
    try:
        make: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        fix = {"dds": "pip install 'sdpg-runtime[dds]'"}.get(name, "check that it is installed")
        raise Refused(f"--link {name} can't be loaded ({error}); {fix}") from error
    try:
        link: Link = make(domain, interface)
    except Refused:
        raise
    except Exception as error:  # whatever the transport's library raises
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"--link {name} can't begin on {interface!r}, domain {domain} ({said})") from error
    return link


def _listen(runner: Runner) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: runner.wish(Wish.QUIT))


def _await_sensors(runner: Runner, seconds: float) -> None:
    """In Passive, where nothing is sent; what is still missing after so long is refused."""
    until = time.monotonic() + seconds
    while runner.ticks == 0 or (runner.machine.mode is Mode.PASSIVE and runner.machine.note):
        if runner.finished.is_set():
            return
        if time.monotonic() > until:
            trouble = runner.machine.note.removeprefix("waits: ") or "the control loop did not begin"
            runner.wish(Wish.QUIT)
            runner.finished.wait(1.0)
            raise Refused(trouble)
        time.sleep(0.02)


def _watch(runner: Runner, args: argparse.Namespace) -> None:
    """Draws and listens until all is over. The robot does not wait for it: it has threads of its own."""
    live = not args.json and sys.stdout.isatty()
    screen, mode = Screen(sys.stdout), None
    with Keys() as keys:
        while not runner.finished.wait(0.1) and not runner.lost:
            if (wish := keys.pressed()) is not None:
                runner.wish(wish)
            if live:
                screen.draw([*lines(runner.report(), args.dry_run), HELP])
            elif runner.machine.mode is not mode and not args.json:
                mode = runner.machine.mode
                print(f"{mode.name.lower()} {runner.machine.reason}".rstrip(), flush=True)
    if runner.lost:
        runner.log_blindly()


def _ended(runner: Runner, args: argparse.Namespace) -> int:
    report = runner.report()
    if runner.machine.mode is Mode.PASSIVE and report["reason"] not in ("", ASKED):
        raise Refused(report["reason"])
    code = 0 if report["reason"] in ("", ASKED) else 1
    if args.json:
        print(json.dumps(report | {"exit_code": code}))
    else:
        print("\n".join(lines(report, args.dry_run)))
    return code


if __name__ == "__main__":
    sys.exit(main())
