"""Jacobians of a control step, against the linear system's own and against MuJoCo's `mjd_transitionFD`."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from helpers.sims import READS, SCENE, ctrl_at, start_worlds

from sdpg.build import make_env
from sdpg.sim.cpu import CpuSim
from sdpg.sim.jacobian import StepJacobian, Tangent
from sdpg.sim.toy import ToyTask
from sdpg.sim.warp import WarpSim

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION.value


def test_the_linear_systems_jacobian_is_its_matrices() -> None:
    """Two substeps: s'' = A (A s + B u) + B u, so the columns are A A and A B + B. Worlds have their own matrices."""
    task = ToyTask()
    sim = task.sim(3)
    sim.set_params(torch.tensor([1]), {"A": torch.tensor([[[0.9, 0.3], [0.1, 1.1]]])})
    sim.write(torch.arange(3), torch.randn(3, 2), torch.zeros(3, 0))
    a, b = sim.params("A"), sim.params("B")
    _, qpos, _, transposed, known = StepJacobian(sim).measure(sim.state_dict(), torch.randn(3, 1), substeps=2)
    expected = torch.cat((a @ a, a @ b + b), dim=2)  # (N, 2, 3)
    assert known.all() and qpos.shape == (3, 2)
    torch.testing.assert_close(transposed.mT.double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "warm_up"), [("hopper", 0), ("hopper", 60), ("ant", 0), ("ant", 20)])
def test_it_agrees_with_mujocos_own(name: str, warm_up: int) -> None:
    """In the air and on the ground; quaternions (ant) in their tangent space. MuJoCo's is of one substep."""
    n, generator = 6, torch.Generator().manual_seed(0)
    env = make_env(name, n, 0, seed=0, threads=1)
    for _ in range(warm_up):
        env.step(2.0 * torch.rand(n, 1, env.task.action_size, generator=generator) - 1.0)
    sim, model = env.sim, env.sim.model
    ctrl = 2.0 * torch.rand(n, sim.nu, generator=generator) - 1.0
    ctrl[0] = 1.0  # at the limit: it can only go back
    before = sim.state_dict()
    *_, transposed, known = StepJacobian(sim).measure(before, ctrl, substeps=1)
    assert known.all()
    data, size = mujoco.MjData(model), 2 * model.nv
    contacts = []
    for world in range(n):
        found = []
        for centred in (False, True):
            state, control = np.zeros((size, size)), np.zeros((size, sim.nu))
            mujoco.mj_setState(model, data, before["state"][world].numpy(), INTEGRATION)
            data.ctrl[:] = ctrl[world].numpy()
            mujoco.mjd_transitionFD(model, data, 1e-6, centred, state, control, None, None)
            found.append(np.concatenate((state, control), axis=1))
        contacts.append(data.ncon)
        mine, largest = transposed[world].mT.numpy(), np.abs(found[0]).max()
        np.testing.assert_allclose(mine, found[0], atol=2e-6 * largest)
        np.testing.assert_allclose(mine, found[1], atol=2e-2 * largest)  # a contact that just begins has two sides
    assert (max(contacts) > 0) == ((name, warm_up) != ("ant", 0))


@pytest.fixture
def scene() -> CpuSim:
    """A free ball, a hinged pole, a filtered actuator, a sensor, with contacts."""
    sim = CpuSim(mujoco.MjModel.from_xml_string(SCENE), 4, 1, READS)
    start_worlds(sim, torch.arange(4))
    for t in range(10):
        sim.step(ctrl_at(sim, t), 2)
    return sim


def test_every_direction_leads_where_the_jacobian_says(scene: CpuSim) -> None:
    """Derived fields and the actuator's state, too: moved by a small random step, all change as the Jacobian tells."""
    jacobian, before, ctrl = StepJacobian(scene), scene.state_dict(), ctrl_at(scene, 99)
    t = jacobian.tangent
    assert (t.size, t.positions, t.na) == (2 * scene.nv + 1, scene.nv, 1)
    fields, *_, transposed, _ = jacobian.measure(before, ctrl, substeps=2)
    probe, size = scene.another(4), 1e-5
    step = size * torch.randn(4, t.size + scene.nu, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    probe.load_state_dict(before)
    probe.step(ctrl.double(), 2)
    base = probe.state_dict()["state"], torch.cat([probe.fields[name].flatten(1).clone() for name in READS], dim=1)
    probe.load_state_dict(before | {"state": t.moved(before["state"], step[:, : t.size])})
    probe.step(ctrl.double() + step[:, t.size :], 2)
    moved = probe.state_dict()["state"], torch.cat([probe.fields[name].flatten(1) for name in READS], dim=1)
    change = torch.cat((t.difference(moved[0], base[0]), moved[1] - base[1]), dim=1)
    predicted = torch.einsum("npi,np->ni", transposed.double(), step)
    assert change.abs().max() > size  # it did move
    torch.testing.assert_close(predicted, change, atol=2e-2 * size, rtol=2e-3)
    torch.testing.assert_close(fields, base[1].float(), atol=1e-6, rtol=0)


def test_steps_in_the_tangent_space_are_mujocos(scene: CpuSim) -> None:
    tangent, model = Tangent(scene), scene.model
    generator = torch.Generator().manual_seed(0)
    qpos = scene.state_dict()["state"][:, 1 : 1 + model.nq]
    step = torch.randn(4, model.nv, dtype=torch.float64, generator=generator)
    step[1] = 0.0
    moved = tangent.moved_positions(qpos, step)
    for world in range(4):
        expected = qpos[world].numpy().copy()
        mujoco.mj_integratePos(model, expected, step[world].numpy(), 1.0)
        np.testing.assert_allclose(moved[world].numpy(), expected, atol=1e-12)
    state, other = (torch.zeros(4, tangent.at + tangent.nq + tangent.nv + tangent.na).double() for _ in range(2))
    state[:, 1 : 1 + model.nq], other[:, 1 : 1 + model.nq] = moved, qpos
    torch.testing.assert_close(tangent.difference(state, other)[:, : model.nv], step, atol=1e-12, rtol=0)


def test_the_gradient_of_fields_goes_through_the_tangent(scene: CpuSim) -> None:
    """Two steps in one graph: what a loss of qpos, qvel and derived fields says of the first control is what stepping
    again with another one shows."""
    jacobian, before = StepJacobian(scene), scene.state_dict()
    weights: dict[str, torch.Tensor] = {}

    def loss(fields: dict[str, torch.Tensor]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(2)
        for name, values in sorted(fields.items()):
            weights.setdefault(name, torch.randn(values.shape, generator=generator))
        return sum((weights[name].to(values) * values).sum() for name, values in sorted(fields.items()))  # type: ignore

    def rolled(first: torch.Tensor) -> torch.Tensor:
        probe = scene.another(4)
        probe.load_state_dict(before)
        probe.step(first, 2)
        probe.step(0.5 * probe.fields["qpos"][:, -1:], 2)  # a policy: the control depends on the state
        return loss({name: values.clone() for name, values in probe.fields.items()})

    ctrl = ctrl_at(scene, 99).requires_grad_()
    tangent, fields, known = jacobian.step(before, torch.zeros(4, jacobian.tangent.size), ctrl, 2)
    scene.step(ctrl.detach(), 2)
    _, fields, also = jacobian.step(scene.state_dict(), tangent, 0.5 * fields["qpos"][:, -1:], 2)
    assert (known & also).all()
    (gradient,) = torch.autograd.grad(loss(fields), ctrl)
    for world in range(4):
        nudge = torch.zeros(4, 1, dtype=torch.float64)
        nudge[world] = 1e-5
        first = ctrl.detach().double()
        slope = (rolled(first + nudge) - rolled(first - nudge)) / 2e-5
        assert gradient[world].item() == pytest.approx(slope.item(), rel=2e-3, abs=2e-3)


def test_a_world_that_fails_has_no_jacobian_and_the_others_keep_theirs(scene: CpuSim) -> None:
    before = scene.state_dict()
    jacobian, ctrl = StepJacobian(scene), ctrl_at(scene, 99)
    *_, sound, all_known = jacobian.measure(before, ctrl, 2)
    before["state"][2, 1] = torch.nan
    *_, transposed, known = jacobian.measure(before, ctrl, 2)
    assert all_known.all() and known.tolist() == [True, True, False, True]
    assert not transposed[2].any()
    assert torch.equal(transposed[[0, 1, 3]], sound[[0, 1, 3]])


def test_in_single_precision_it_is_near() -> None:
    """`mujoco_warp` has float32 states: larger steps, fewer digits."""
    model = mujoco.MjModel.from_xml_string(SCENE.replace('pos="0 0 .12"', 'pos="0 0 .5"'))  # no contact
    cpu, warp = CpuSim(model, 2, 1, ("xpos",)), WarpSim(model, 2, ("xpos",))
    for sim in (cpu, warp):
        qpos = torch.from_numpy(model.qpos0).float().repeat(2, 1)
        sim.write(torch.arange(2), qpos, 0.3 * torch.ones(2, model.nv))
    ctrl = torch.tensor([[0.3], [-0.2]])
    exact, near = (StepJacobian(sim).measure(sim.state_dict(), ctrl, 2)[3] for sim in (cpu, warp))
    torch.testing.assert_close(near, exact, atol=2e-2, rtol=2e-2)
