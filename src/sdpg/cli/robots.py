"""robot: a simulated robot that speaks the real one's protocol."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sdpg.camera import Sensor
from sdpg.cli.output import print_json, write_json
from sdpg.cli.parse import Argv, parse, positional
from sdpg.errors import SdpgError

ROBOTS = ("go2",)


@dataclasses.dataclass(frozen=True)
class RobotOptions:
    """A Unitree Go2 in MuJoCo that stands in for a real one: takes LowCmd and gives LowState over DDS, on this machine
    alone by default. It lies on the ground until it is commanded."""

    terrain: str = "plain"
    """plain, or a kind of the task go2_terrain: slope_up, slope_down, rough, stairs_up, stairs_down."""
    level: int = 0
    """How hard: 0 to 9."""
    seed: int = 0
    """Of the ground, and of all that is random."""
    course: bool = False
    """The same kind and level of ground all around, in place of the map of training."""
    heading: float = 0.0
    """Degrees to the left of +x that it faces at the start."""
    domain: int = 1
    """DDS domain; 0 is a real robot's."""
    interface: str = "lo"
    """Network interface."""
    latency: float = 0.0
    """Milliseconds by which commands and states come late,"""
    jitter: float = 0.0
    """and milliseconds more, at most."""
    loss: float = 0.0
    """Share of commands and states that are lost."""
    corrupt: float = 0.0
    """Share of commands and states in which a bit is turned over."""
    disturb_after: float = 0.0
    """Seconds from the first command on in which latency, jitter, loss and corruption do not begin yet."""
    imu_noise: float = 0.0
    """Standard deviation of the gyroscope, rad/s; a fifth of it in radians for orientation."""
    encoder_noise: float = 0.0
    """Standard deviation of joint positions, rad; fifty times as much, in rad/s, for velocities."""
    torque_speed: bool = False
    """Motors lose torque at high speed."""
    watchdog: float = 100.0
    """Milliseconds without a sound command until the motors brake by themselves."""
    camera: bool = True
    """A depth camera, in a process of its own; 30 images a second if --sensor.rate says nothing else."""
    sensor: Sensor = dataclasses.field(default_factory=Sensor)
    """What the camera gets wrong."""
    seconds: float | None = None
    """End after so much time; else Ctrl-C does."""
    report: str | None = None
    """Write all numbers and the base's trajectory at 50 Hz to this JSON file."""
    video: str | None = None
    """Film it, from what was logged: an mp4."""
    json: bool = False
    """The numbers as one JSON object on standard output."""


def robot(argv: Argv) -> int:
    which, rest = positional(argv)
    options = parse(RobotOptions, rest, "sdpg robot go2")
    if which not in ROBOTS:
        raise SdpgError(f"which robot? sdpg robot go2{f'; there is no {which}' if which else ''}")
    for package in ("sdpg_runtime", "cyclonedds"):
        if find_spec(package) is None:
            raise SdpgError(f"{package} is not installed, which the robot speaks through: pip install 'sdpg[robot]'")
    return _run(options)


def _run(options: RobotOptions) -> int:
    from sdpg.robot import report, session
    from sdpg.train import stop_on_signals

    plan = _plan(options)
    if not options.json:
        where = "a plain" if options.terrain == "plain" else f"{options.terrain}, level {options.level}"
        how = f"domain {options.domain}, interface {options.interface}"
        print(f"a stand-in Go2 on {where}: {how}; lies until it is commanded (Ctrl-C ends)", flush=True)
    if options.report is not None:
        write_json(options.report, {}, "--report")  # a mistake is told now, not after an hour
    with stop_on_signals() as stop:
        world, log, facts = session.run(plan, options.seconds, stop)
    facts = {"robot": "stand-in Go2 (MuJoCo)", "options": dataclasses.asdict(options), **facts}
    if options.report is not None:
        write_json(options.report, facts | {"trajectory": report.trajectory(log)}, "--report")
    if options.video is not None:
        session.film(world, log, Path(options.video))
    if options.json:
        print_json(facts)
    else:
        print(_line(facts, report.fell(facts)))
    return 0


def _plan(options: RobotOptions) -> Any:
    from sdpg.robot.disturb import Disturbance
    from sdpg.robot.session import Plan
    from sdpg.robot.stand_in import Motors, Noise
    from sdpg.robot.world import Place

    _require(options)
    return Plan(
        place=Place(options.terrain, options.level, options.seed, options.course, options.heading),
        domain=options.domain,
        interface=options.interface,
        disturbance=Disturbance(
            options.latency, options.jitter, options.loss, options.corrupt, options.seed, options.disturb_after
        ),
        motors=Motors(options.torque_speed),
        noise=Noise(options.imu_noise, options.encoder_noise),
        patience=1e-3 * options.watchdog,
        sensor=options.sensor if options.camera else None,
        seed=options.seed,
    )


def _require(options: RobotOptions) -> None:
    for name in ("latency", "jitter", "disturb_after", "imu_noise", "encoder_noise"):
        if getattr(options, name) < 0.0:
            raise SdpgError(f"{name.replace('_', '-')} must be at least 0, not {getattr(options, name)}")
    for name in ("loss", "corrupt"):
        if not 0.0 <= getattr(options, name) <= 1.0:
            raise SdpgError(f"{name} must be between 0 and 1, not {getattr(options, name)}")
    if options.watchdog <= 0.0:
        raise SdpgError(f"watchdog must be positive, not {options.watchdog}")
    if not 0 <= options.domain <= 230:
        raise SdpgError(f"domain must be from 0 to 230, not {options.domain}")


def _line(facts: dict[str, Any], falls: int) -> str:
    commands = facts["commands"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in commands["dropped"].items()) or "none"
    rate = f"{commands['rate_hz']:.0f} a second" if commands["rate_hz"] else "none a second"
    pace = f"{facts['seconds']:.1f} s at {facts['real_time_factor'] or 0.0:.3f} of real time"
    camera = "; the camera died" if not facts.get("camera", {}).get("alive_at_the_end", True) else ""
    return (
        f"{pace}: walked {facts['distance']:.1f} m, fell {falls} times; commands: {commands['accepted']}, {rate}, "
        f"dropped {dropped}; the watchdog braked {len(commands['watchdog'])} times{camera}"
    )
