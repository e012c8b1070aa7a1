"""The simulator's contract (sim/api.py) on every engine: each promise is quoted above its assertion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from helpers.sims import READS, SCENE, E, ctrl_at, run_steps, same_fields, start_worlds
from torch import Tensor

from sdpg.sim.api import Simulator
from sdpg.sim.cpu import CpuSim
from sdpg.sim.toy import ToySim
from sdpg.sim.warp import WarpSim

WARP_ERROR = 1e-4  # metres and radians after 40 control steps of SCENE in float32; 1e-5 seen


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine writes MUJOCO_LOG.TXT into the current folder when it warns."""
    monkeypatch.chdir(tmp_path)


def _cpu(threads: int = 1, reads: tuple[str, ...] = READS) -> CpuSim:
    return CpuSim(mujoco.MjModel.from_xml_string(SCENE), E, threads, reads)


def _warp(reads: tuple[str, ...] = READS, **options: Any) -> WarpSim:
    return WarpSim(mujoco.MjModel.from_xml_string(SCENE), E, reads, **options)


def _toy() -> ToySim:
    return ToySim(torch.tensor([[1.0, 0.1], [-0.1, 0.9]]), torch.tensor([[0.0], [0.3]]), E)


ENGINES: dict[str, Callable[[], Simulator]] = {
    "cpu": _cpu,
    "cpu without derived fields": lambda: _cpu(reads=()),
    "cpu with positions": lambda: _cpu(reads=("xpos",)),
    "cpu with accelerations": lambda: _cpu(reads=("qacc",)),
    "warp": _warp,
    "warp without derived fields": lambda: _warp(reads=()),
    "warp with accelerations": lambda: _warp(reads=("qacc",)),
    "toy": _toy,
}
REAL: dict[str, Callable[[], CpuSim | WarpSim]] = {"cpu": _cpu, "warp": _warp}  # those with a MuJoCo model


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> CpuSim | WarpSim:
    return REAL[request.param]()


@pytest.fixture(params=ENGINES)
def sim(request: pytest.FixtureRequest) -> Simulator:
    sim = ENGINES[request.param]()
    start_worlds(sim, torch.arange(E))
    return sim


def _poison(sim: Simulator, world: int) -> None:
    """A state that is not finite: in the velocity, or in the state if there is none."""
    worlds = torch.tensor([world])
    qpos, qvel = sim.fields["qpos"][worlds].clone(), sim.fields["qvel"][worlds].clone()
    (qvel if sim.nv else qpos)[0, 0] = torch.nan
    sim.write(worlds, qpos, qvel)


def _parts(sim: CpuSim | WarpSim) -> dict[str, Tensor]:
    """The rows, taken apart by MuJoCo's own sizes: name -> (E, size)."""
    names = [name for name in mujoco.mjtState.__members__ if name.startswith("mjSTATE_")]
    atoms = [name for name in names if bin(int(mujoco.mjtState.__members__[name])).count("1") == 1]
    sizes = [mujoco.mj_stateSize(sim.model, int(mujoco.mjtState.__members__[name])) for name in atoms]
    rows = sim.state_dict()["state"]
    return {name[8:]: part for name, part in zip(atoms, rows.split(sizes, dim=1), strict=True)}


def test_steps_are_mj_steps() -> None:
    """The cpu engine beside plain `mujoco.mj_step`, bit for bit (float64 rows, float32 fields)."""
    sim = _cpu(threads=2)
    start_worlds(sim, torch.arange(E))
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = [mujoco.MjData(model) for _ in range(E)]
    for i, d in enumerate(data):
        d.qpos[:], d.qvel[:] = sim._qpos[i], sim._qvel[i]
    for t in range(60):
        ctrl = ctrl_at(sim, t)
        sim.step(ctrl, 2)
        for i, d in enumerate(data):
            d.ctrl[:] = ctrl[i].numpy()
            mujoco.mj_step(model, d, 2)
            assert np.array_equal(d.qpos, sim._qpos[i]) and np.array_equal(d.qvel, sim._qvel[i])
            assert torch.equal(sim.fields["qpos"][i], torch.from_numpy(d.qpos.astype(np.float32)))
    assert max(d.ncon for d in data) > 0  # there was something to disagree about


def test_fields_are_current(sim: Simulator) -> None:
    """5. "`fields` are current on return from `step`, `write`, `copy` and `load`: they belong to the state now in the
    rows." """
    if "xpos" not in sim.fields:
        assert set(sim.fields) >= {"qpos", "qvel"}
        return
    model, reads = mujoco.MjModel.from_xml_string(SCENE), tuple(name for name in READS if name in sim.fields)
    other = _cpu(reads=reads) if isinstance(sim, CpuSim) else _warp(reads=reads)

    def check(engine: Simulator) -> None:
        fields = engine.fields
        for i in range(E):
            data = mujoco.MjData(model)
            data.qpos[:], data.qvel[:] = fields["qpos"][i].numpy(), fields["qvel"][i].numpy()
            mujoco.mj_forward(model, data)
            for name in reads:
                torch.testing.assert_close(fields[name][i], torch.tensor(getattr(data, name), dtype=torch.float32))

    check(sim)  # after write
    sim.step(ctrl_at(sim, 0), 2)
    check(sim)
    sim.copy(torch.tensor([0]), torch.tensor([4]))
    check(sim)
    other.load_state_dict(sim.state_dict())
    check(other)


def test_a_push_changes_velocities_and_nothing_else(sim: Simulator) -> None:
    """8. "`add_velocity` changes velocities and nothing else of the state, in the worlds that it is told: the warm
    start stays." 5. "`fields` are current on return from [...] `add_velocity`"."""
    run_steps(sim, 20)  # the warm start is warm
    before, worlds = sim.state_dict(), torch.tensor([1, 4])
    fields = {name: values.clone() for name, values in sim.fields.items()}
    change = torch.linspace(0.25, 0.5, sim.nv).repeat(2, 1)
    sim.add_velocity(worlds, change)
    after, others = sim.state_dict(), torch.tensor([0, 2, 3, 5])
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name][others], values[others]) for name, values in before.items())
    if not isinstance(sim, CpuSim | WarpSim):
        assert torch.equal(after["state"], before["state"])
        return
    parts = _parts(sim)
    sim.load_state_dict(before)
    for name, values in _parts(sim).items():
        if name == "QVEL":
            torch.testing.assert_close(parts[name][worlds], values[worlds] + change, check_dtype=False)
        else:
            assert torch.equal(parts[name], values), name
    sim.load_state_dict(after)
    torch.testing.assert_close(sim.fields["qvel"][worlds], fields["qvel"][worlds] + change)
    if "sensordata" in sim.fields:  # the hinge's velocity, its joint being the last
        torch.testing.assert_close(sim.fields["sensordata"][:, 0], sim.fields["qvel"][:, -1])


def test_branches_go_on_identically_after_a_push(sim: Simulator) -> None:
    """2., with a push on the way; and what is pushed by nothing goes on as if it had not been."""
    run_steps(sim, 20)
    sim.copy(torch.tensor([0, 0]), torch.tensor([3, 5]))
    twin = sim.state_dict()
    sim.add_velocity(torch.tensor([0, 1, 3, 5]), torch.tensor([0.3, 0.0, 0.3, 0.3])[:, None].expand(4, sim.nv))
    once = run_steps(sim, 20, lambda t: ctrl_at(sim, t)[:1].expand(E, -1))
    for fields in once:
        assert all(torch.equal(values[0], values[k]) for values in fields.values() for k in (3, 5))
    sim.load_state_dict(twin)
    unpushed = run_steps(sim, 20, lambda t: ctrl_at(sim, t)[:1].expand(E, -1))
    assert same_fields(once, unpushed, torch.tensor([1, 2, 4]))
    assert sim.nv == 0 or not torch.equal(once[-1]["qpos"][0], unpushed[-1]["qpos"][0])


def test_fields_are_float32_with_the_worlds_first(sim: Simulator) -> None:
    for values in sim.fields.values():
        assert values.dtype == torch.float32 and values.shape[0] == sim.num_worlds
    assert sim.fields["qpos"].shape == (E, sim.nq) and sim.fields["qvel"].shape == (E, sim.nv)


def test_a_copy_goes_on_identically(sim: Simulator) -> None:
    """2. "`copy` makes dst indistinguishable from src: given equal controls, both go on bit-identically." """
    run_steps(sim, 20)  # the warm start is warm, the actuator has a state
    src, dst = torch.tensor([0, 0, 1]), torch.tensor([3, 5, 4])
    sim.copy(src, dst)
    assert all(torch.equal(values[src], values[dst]) for values in sim.fields.values())

    def ctrl(t: int) -> Tensor:
        u = ctrl_at(sim, 50 + t)
        u[dst] = u[src]
        return u

    for t in range(64):
        sim.step(ctrl(t), 2)
        assert all(torch.equal(values[src], values[dst]) for values in sim.fields.values()), t


def test_a_copy_leaves_source_and_strangers_alone(sim: Simulator) -> None:
    """3. "Worlds do not influence each other: what happens in one ... leaves the others untouched bit for bit." """
    run_steps(sim, 10)
    saved, others = sim.state_dict(), torch.tensor([0, 1, 2, 4])
    expected = run_steps(sim, 20)
    sim.load_state_dict(saved)
    sim.copy(torch.tensor([0, 1]), torch.tensor([3, 5]))
    start_worlds(sim, torch.tensor([5]), seed=9)
    assert same_fields(expected, run_steps(sim, 20), others)


def test_a_world_is_its_row(sim: Simulator) -> None:
    """1. "whatever can influence its future is in the integration state ... and in its model parameters": restored, it
    goes on as before, whatever happened in between."""
    run_steps(sim, 15)
    saved = {name: values.clone() for name, values in sim.state_dict().items()}
    expected = run_steps(sim, 30)
    start_worlds(sim, torch.arange(E), seed=3)
    run_steps(sim, 7)
    sim.load_state_dict(saved)
    assert same_fields(expected, run_steps(sim, 30))


@pytest.mark.parametrize("engine", ENGINES)
def test_another_process_goes_on_identically(engine: str) -> None:
    """state_dict(): "Everything needed to go on exactly from here", in a newly built simulator."""
    sim, fresh = ENGINES[engine](), ENGINES[engine]()
    start_worlds(sim, torch.arange(E))
    if isinstance(sim, CpuSim | WarpSim):
        sim.set_params(torch.tensor([2]), {"geom_friction": 0.1 * sim.params("geom_friction")[:1]})
    run_steps(sim, 15)
    fresh.load_state_dict(sim.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(sim.fields.values(), fresh.fields.values(), strict=True))
    assert same_fields(run_steps(sim, 30), run_steps(fresh, 30))


def test_write_starts_anew(sim: Simulator) -> None:
    """4. "`write` starts a world anew: time, warm start, controls, applied forces and actuator state are cleared." """
    made = (make() for make in ENGINES.values())
    fresh = next(other for other in made if type(other) is type(sim) and other.fields.keys() == sim.fields.keys())
    run_steps(sim, 25)
    for engine in (sim, fresh):
        start_worlds(engine, torch.arange(E), seed=4)
    assert same_fields(run_steps(sim, 20), run_steps(fresh, 20))


def test_write_clears_the_row(real: CpuSim | WarpSim) -> None:
    """4., on the rows themselves, which are MuJoCo's integration state; and worlds that are not written keep theirs."""
    start_worlds(real, torch.arange(E))
    run_steps(real, 25)
    before = _parts(real)
    assert before["ACT"][1].any() and before["WARMSTART"][1].any()
    start_worlds(real, torch.tensor([1, 4]), seed=4)
    after = _parts(real)
    for name in ("TIME", "ACT", "WARMSTART", "CTRL", "QFRC_APPLIED", "XFRC_APPLIED"):
        assert not after[name][[1, 4]].any(), name
    assert all(torch.equal(after[name][[0, 2, 3, 5]], before[name][[0, 2, 3, 5]]) for name in before)


GOALS = SCENE.replace("</worldbody>", '<body mocap="true" pos="1 2 3"><geom size=".1"/></body>' * 2 + "</worldbody>")


@pytest.mark.parametrize("engine", [CpuSim, WarpSim])
def test_mocap_bodies_are_where_write_puts_them(engine: type[CpuSim] | type[WarpSim]) -> None:
    """4. "Mocap bodies are where it is told, or else where the model has them, and stay there." 2. They are copied.
    1. They are in the row."""
    model = mujoco.MjModel.from_xml_string(GOALS)
    sims = [engine(model, E, reads=("xpos", "mocap_pos")) for _ in range(2)]
    sim = sims[0]
    assert torch.equal(
        sim.params("mocap_pos"), torch.tensor([1.0, 2.0, 3.0]).expand(E, 2, 3).to(sim.params("mocap_pos"))
    )
    pos, quat = torch.randn(3, 2, 3), torch.nn.functional.normalize(torch.randn(3, 2, 4), dim=-1)
    worlds, rest = torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5])
    qpos, qvel = sim.fields["qpos"][worlds].clone(), sim.fields["qvel"][worlds].clone()
    sim.write(worlds, qpos, qvel, mocap_pos=pos, mocap_quat=quat)
    run_steps(sim, 5)
    torch.testing.assert_close(sim.params("mocap_pos", worlds), pos, check_dtype=False)
    torch.testing.assert_close(sim.params("mocap_quat", worlds), quat, check_dtype=False)
    torch.testing.assert_close(sim.fields["xpos"][worlds, -2:], pos)
    assert torch.equal(sim.fields["mocap_pos"][rest], torch.tensor([1.0, 2.0, 3.0]).expand(3, 2, 3))
    sim.copy(worlds, rest)
    assert torch.equal(sim.params("mocap_pos", rest), sim.params("mocap_pos", worlds))
    sims[1].load_state_dict(sim.state_dict())
    assert torch.equal(sims[1].params("mocap_pos"), sim.params("mocap_pos"))
    assert same_fields(run_steps(sim, 5), run_steps(sims[1], 5))
    sim.write(worlds[:1], qpos[:1], qvel[:1])
    assert sim.params("mocap_pos", worlds[:1]).tolist() == [[[1, 2, 3], [1, 2, 3]]]


@pytest.mark.parametrize("field", ["geom_friction", "body_mass"])
def test_parameters_are_per_world_and_are_copied(real: CpuSim | WarpSim, field: str) -> None:
    """2. with parameters: "the whole state, parameters and fields too"; dependent constants follow."""
    sim, default = real, real.params(field)
    start_worlds(sim, torch.arange(E))
    values = default[:2] * torch.tensor([0.2, 3.0], dtype=default.dtype).view(2, *[1] * (default.dim() - 1))
    sim.set_params(torch.tensor([0, 1]), {field: values})
    torch.testing.assert_close(sim.params(field)[:2], values)
    assert torch.equal(sim.params(field)[2], torch.from_numpy(getattr(sim.model, field)).to(default))
    run_steps(sim, 10)
    src, dst = torch.tensor([0, 1]), torch.tensor([3, 4])
    sim.copy(src, dst)
    assert torch.equal(sim.params(field)[src], sim.params(field)[dst])

    def ctrl(t: int) -> Tensor:
        u = ctrl_at(sim, t)
        u[dst] = u[src]
        u[2] = u[0]
        return u

    sim.write(torch.arange(E), sim.fields["qpos"][[0, 1, 0, 0, 1, 5]], sim.fields["qvel"][[0, 1, 0, 0, 1, 5]])
    for t in range(64):
        sim.step(ctrl(t), 2)
        assert all(torch.equal(x[src], x[dst]) for x in sim.fields.values()), t
    assert not torch.equal(sim.fields["qpos"][0], sim.fields["qpos"][2])  # same start and controls, other parameters


def test_worlds_with_parameters_match_a_model_with_them(real: CpuSim | WarpSim) -> None:
    """ "Give `worlds` their own values of model fields; dependent constants follow." The cpu engine to the last bit."""
    sim, model = real, mujoco.MjModel.from_xml_string(SCENE)
    model.body_mass[1] *= 4.0
    mujoco.mj_setConst(model, mujoco.MjData(model))
    mass = torch.from_numpy(model.body_mass.copy())
    sim.set_params(torch.tensor([2]), {"body_mass": mass[None].to(sim.params("body_mass"))})
    start_worlds(sim, torch.arange(E))
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = sim.fields["qpos"][2].numpy(), sim.fields["qvel"][2].numpy()
    for t in range(40):
        ctrl = ctrl_at(sim, t)
        sim.step(ctrl, 2)
        data.ctrl[:] = ctrl[2].numpy()
        mujoco.mj_step(model, data, 2)
    error = (sim.fields["qpos"][2] - torch.from_numpy(data.qpos.astype(np.float32))).abs().max()
    assert error == 0.0 if isinstance(sim, CpuSim) else error < WARP_ERROR


def test_parameters_of_one_world_leave_the_others_alone(real: CpuSim | WarpSim) -> None:
    """3. "Worlds do not influence each other", constants that follow from parameters included."""
    start_worlds(real, torch.arange(E))
    saved = real.state_dict()
    expected = run_steps(real, 20)
    real.load_state_dict(saved)
    real.set_params(torch.tensor([2]), {"body_mass": 2.0 * real.params("body_mass")[:1]})
    assert same_fields(expected, run_steps(real, 20), torch.tensor([0, 1, 3, 4, 5]))


def test_a_failed_world_is_reported_not_raised_and_the_others_go_on(sim: Simulator) -> None:
    """6. "A world that the engine refuses or warns about is reported by `step`, never raised"; 3. failure included."""
    run_steps(sim, 5)
    saved = sim.state_dict()
    expected = run_steps(sim, 10)
    sim.load_state_dict(saved)
    _poison(sim, 2)
    others = torch.tensor([0, 1, 3, 4, 5])
    reported = torch.zeros(E, dtype=torch.bool)
    for t, fields in enumerate(expected):
        reported |= sim.step(ctrl_at(sim, t), 2)
        assert all(torch.equal(sim.fields[name][others], fields[name][others]) for name in fields), t
    assert reported.tolist() == [False, False, True, False, False, False]


def test_the_engine_says_what_is_wrong(sim: Simulator) -> None:
    """failure_reason(): "What the engine said of a world that the last `step` reported; "" if it did not." """
    _poison(sim, 2)
    assert sim.step(ctrl_at(sim, 0), 2)[2]
    said = [sim.failure_reason(world) for world in range(E)]
    assert said[2] and "\n" not in said[2] and not any(said[:2] + said[3:])
    start_worlds(sim, torch.tensor([2]))
    sim.step(ctrl_at(sim, 1), 2)
    assert sim.failure_reason(2) == ""


def test_the_state_of_some_worlds_is_their_part_of_the_state_of_all(sim: Simulator) -> None:
    run_steps(sim, 5)
    some, of_all = sim.state_dict(torch.tensor([4, 1])), sim.state_dict()
    assert some.keys() == of_all.keys() and "state" in some
    assert all(torch.equal(values, of_all[name][[4, 1]]) for name, values in some.items())
    run_steps(sim, 1)
    assert not torch.equal(of_all["state"], sim.state_dict()["state"])  # what was given out stays


@pytest.mark.parametrize("cure", ["write", "copy"])
def test_a_failed_world_is_cured(sim: Simulator, cure: str) -> None:
    """6. "its next `write` or `copy` cures it." """
    _poison(sim, 2)
    assert sim.step(ctrl_at(sim, 0), 2)[2]
    if cure == "write":
        start_worlds(sim, torch.tensor([2]))
    else:
        sim.copy(torch.tensor([0]), torch.tensor([2]))
    for t in range(10):
        assert not sim.step(ctrl_at(sim, t), 2).any()
    assert all(torch.isfinite(values).all() for values in sim.fields.values())


def test_a_control_that_is_not_finite_is_reported(sim: Simulator) -> None:
    """6., with a control in place of a state."""
    ctrl = ctrl_at(sim, 0)
    ctrl[3, 0] = torch.nan
    assert sim.step(ctrl, 2).tolist() == [i == 3 for i in range(E)]
    start_worlds(sim, torch.tensor([3]))
    assert not sim.step(ctrl_at(sim, 1), 2).any()


def test_nothing_depends_on_the_number_of_threads() -> None:
    """7. "Nothing depends on the number of threads." """
    one, two = _cpu(threads=1), _cpu(threads=2)
    assert (one.threads, two.threads) == (1, 2)
    for sim in (one, two):
        start_worlds(sim, torch.arange(E))
        sim.copy(torch.tensor([1]), torch.tensor([5]))
    assert same_fields(run_steps(one, 60), run_steps(two, 60))


@pytest.mark.parametrize("engine", REAL)
def test_a_row_does_not_depend_on_how_many_there_are(engine: str) -> None:
    """3., for worlds that are not there at all."""
    model, many = mujoco.MjModel.from_xml_string(SCENE), REAL[engine]()
    few = CpuSim(model, 2, 1, READS) if engine == "cpu" else WarpSim(model, 2, READS)
    start_worlds(many, torch.arange(E))
    few.write(torch.arange(2), many.fields["qpos"][:2].clone(), many.fields["qvel"][:2].clone())
    many.write(torch.arange(2), many.fields["qpos"][:2].clone(), many.fields["qvel"][:2].clone())
    for t in range(30):
        ctrl = ctrl_at(many, t)
        few.step(ctrl[:2], 2)
        many.step(ctrl, 2)
        assert torch.equal(few.fields["qpos"], many.fields["qpos"][:2])


def test_substeps_are_steps_with_the_same_control(sim: Simulator) -> None:
    """ "Advance every world by `substeps`". Engines whose fields need a further forward pass are held to the state."""
    saved = sim.state_dict()
    for t in range(10):
        sim.step(ctrl_at(sim, t), 3)
    once = sim.fields["qpos"].clone()
    sim.load_state_dict(saved)
    for t in range(10):
        for _ in range(3):
            sim.step(ctrl_at(sim, t), 1)
    torch.testing.assert_close(once, sim.fields["qpos"], rtol=1e-5, atol=1e-5)
