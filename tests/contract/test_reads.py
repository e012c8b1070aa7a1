"""`Task.reads`: every field that is allowed is current on both engines, and every other one is refused in a line."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from sdpg.errors import SdpgError
from sdpg.sim.api import Simulator
from sdpg.sim.cpu import CpuSim
from sdpg.sim.reads import ALLOWED, FIELDS, refuse
from sdpg.sim.warp import WarpSim

# Every allowed field has numbers here, and but for the mocap body's they change in every step.
SCENE = """
<mujoco><option timestep="0.005" density="1.2" viscosity=".01"/><worldbody><geom type="plane" size="5 5 .1"/>
<body name="hand" mocap="true" pos="0 0 2"><geom size=".01" contype="0" conaffinity="0"/></body>
<body name="box" pos="0 0 .25" gravcomp=".2"><freejoint/><geom type="box" size=".1 .1 .1" mass="1"/>
<site name="top" pos="0 0 .1"/><camera name="eye" pos=".1 0 0"/><light name="lamp" pos="0 0 .1"/>
<body name="arm" pos=".15 0 0" gravcomp=".5">
<joint name="hinge" axis="0 1 0" damping=".1" stiffness="1" range="-.3 .3" limited="true"/>
<geom type="capsule" size=".03" fromto="0 0 0 .2 0 0" mass=".3"/><site name="tip" pos=".2 0 0"/></body></body>
</worldbody>
<tendon><spatial name="string"><site site="top"/><site site="tip"/></spatial></tendon>
<actuator><motor joint="hinge" gear="2"/><general joint="hinge" dyntype="filter" dynprm=".05" gainprm="1"/></actuator>
<sensor><gyro site="top"/><jointpos joint="hinge"/>{}</sensor></mujoco>
"""
ACCELERATIONS = '<accelerometer site="top"/><force site="tip"/>'
WORLDS, SUBSTEPS = 3, 2
CONSTANT = {"mocap_pos", "mocap_quat"}
ENGINES = {"cpu": CpuSim, "warp": WarpSim}
ERROR = {"cpu": 1e-6, "warp": 2e-3}  # of the largest number of a field; on warp 3e-4 seen
CASES = {stage: (tuple(sorted(fields)), "") for stage, fields in FIELDS.items()}
CASES["sensors of accelerations"] = ("sensordata",), ACCELERATIONS


def _compare(engine: str, sim: Simulator, model: mujoco.MjModel, before: torch.Tensor, ctrl: torch.Tensor) -> None:
    """The fields of `sim` with those of plain MuJoCo after the same step from the same rows."""
    expected: dict[str, list[np.ndarray]] = {name: [] for name in sim.fields}
    stale: dict[str, list[np.ndarray]] = {name: [] for name in sim.fields}
    for i in range(WORLDS):
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, before[i].double().numpy(), int(mujoco.mjtState.mjSTATE_INTEGRATION))
        data.ctrl[:] = ctrl[i].numpy()
        for _ in range(SUBSTEPS):
            mujoco.mj_step(model, data)
        for name in sim.fields:
            stale[name].append(getattr(data, name).copy())
        mujoco.mj_forward(model, data)
        for name in sim.fields:
            expected[name].append(getattr(data, name).copy())
    for name, values in sim.fields.items():
        want, old = np.stack(expected[name]), np.stack(stale[name])
        error = ERROR[engine] * max(1.0, np.abs(want).max())
        assert values.shape == want.shape and want.size, name
        assert np.abs(values.numpy() - want).max() < error, name
        if name not in {"qpos", "qvel", *FIELDS["state"]}:
            assert np.abs(old - want).max() > 2.0 * error, f"{name}: the test would not see that it is stale"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_every_allowed_field_is_that_of_the_state_after_the_step(case: str, engine: str) -> None:
    reads, sensors = CASES[case]
    model = mujoco.MjModel.from_xml_string(SCENE.format(sensors))
    sim: Simulator = ENGINES[engine](model, WORLDS, reads=reads)
    generator = torch.Generator().manual_seed(0)
    qpos = torch.tensor(model.qpos0, dtype=torch.float32).repeat(WORLDS, 1)
    sim.write(torch.arange(WORLDS), qpos, 4.0 * torch.randn(WORLDS, model.nv, generator=generator))
    for _ in range(10):
        ctrl = 3.0 * torch.randn(WORLDS, model.nu, generator=generator)
        before = sim.state_dict()["state"]
        sim.step(ctrl, SUBSTEPS)
    _compare(engine, sim, model, before, ctrl)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("subtree_linvel", "subtreelinvel sensor"),
        ("subtree_angmom", "subtreeangmom sensor"),
        ("cfrc_ext", "contact sensor"),
        ("cfrc_int", "force, torque"),
        ("cacc", "accelerometer"),
        ("energy", "e_potential"),
        ("efc_force", "contact sensor"),
        ("contact", "contact sensor"),
        ("geom_xquat", "'geom_xmat'"),
        ("qpos", "x.qpos"),
        ("qM", "no field of MjData"),
        ("bvh_active", "not kept current"),
        ("x_pos", "did you mean 'xpos'?"),
    ],
)
def test_what_would_not_be_current_is_refused_with_what_to_read_in_its_place(
    engine: str, name: str, instead: str
) -> None:
    """5. "`fields` are current on return"."""
    with pytest.raises(SdpgError, match=f"^reads names '{name}', which is .*{instead.replace('?', '[?]')}") as refusal:
        ENGINES[engine](mujoco.MjModel.from_xml_string(SCENE.format("")), WORLDS, reads=("xpos", name))
    assert "\n" not in str(refusal.value)


def test_every_field_of_mjdata_is_allowed_or_refused() -> None:
    names = {name for name in dir(mujoco.MjData) if not name.startswith("_")}
    assert names >= ALLOWED
    for name in names - ALLOWED:
        with pytest.raises(SdpgError, match=f"'{name}'"):
            refuse(name)
