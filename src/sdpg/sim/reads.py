"""What a task may name in `reads`: the fields of MjData that both engines keep current, and how far each has to run the
forward pass after a step for it.

A field that is not listed here is stale, empty or sized by the contacts of the moment on one engine or both: it is
refused rather than given with last step's numbers.
"""

from __future__ import annotations

import difflib
from typing import Literal

import mujoco

from sdpg.errors import SdpgError

Stage = Literal["state", "position", "velocity", "acceleration"]

FIELDS: dict[Stage, frozenset[str]] = {
    "state": frozenset("act ctrl mocap_pos mocap_quat".split()),  # in the integration state itself
    "position": frozenset(
        "xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat "
        "light_xpos light_xdir subtree_com cdof cinert ten_length".split()
    ),
    "velocity": frozenset(
        "sensordata actuator_length actuator_velocity ten_velocity cvel cdof_dot qfrc_bias qfrc_passive qfrc_spring "
        "qfrc_damper qfrc_gravcomp qfrc_fluid".split()
    ),
    "acceleration": frozenset(
        "qacc qacc_smooth qfrc_smooth qfrc_constraint qfrc_actuator actuator_force act_dot".split()
    ),
}
ALLOWED = frozenset().union(*FIELDS.values())

_FORCES = "computed for sensors only: read an accelerometer, force, torque, touch or contact sensor as 'sensordata'"
_INSTEAD = {
    "qpos": "always there, as x.qpos",
    "qvel": "always there, as x.qvel",
    "subtree_linvel": "computed for sensors only: read a subtreelinvel sensor as 'sensordata'",
    "subtree_angmom": "computed for sensors only: read a subtreeangmom sensor as 'sensordata'",
    "energy": "computed on demand only: read e_potential and e_kinetic sensors as 'sensordata'",
    "cfrc_ext": _FORCES,
    "cfrc_int": _FORCES,
    "cacc": _FORCES,
    "qfrc_inverse": "not computed by a step: read 'qfrc_smooth' or 'qfrc_constraint'",
    "qacc_warmstart": "the solver's own: read 'qacc'",
    "xiquat": "not there on every engine: read 'ximat'",
    "geom_xquat": "not there on every engine: read 'geom_xmat', or a framequat sensor as 'sensordata'",
    "site_xquat": "not there on every engine: read 'site_xmat', or a framequat sensor as 'sensordata'",
}
_CONTACTS = "sized by the contacts of the moment: read a touch or contact sensor as 'sensordata'"


def stage_of(model: mujoco.MjModel, reads: tuple[str, ...]) -> Stage:
    """How far to run the forward pass, so that `reads` belong to the state after the step. Refuses what it can't be."""
    for name in reads:
        refuse(name)
    needed = {stage for stage, names in FIELDS.items() if names & set(reads)}
    if "sensordata" in reads and (model.sensor_needstage == int(mujoco.mjtStage.mjSTAGE_ACC)).any():
        needed.add("acceleration")
    return next((stage for stage in reversed(FIELDS) if stage in needed), "state")


def refuse(name: str) -> None:
    """Of a name in `reads` that is not allowed: why, and what to read in its place."""
    if name in ALLOWED:
        return
    near = difflib.get_close_matches(name, ALLOWED, 1)
    if name in _INSTEAD:
        reason = _INSTEAD[name]
    elif name.startswith(("efc_", "contact", "iefc_", "island_")):
        reason = _CONTACTS
    elif hasattr(mujoco.MjData, name):
        reason = f"not kept current by both engines: read one of {_known()}"
    else:
        reason = "no field of MjData" + (f": did you mean '{near[0]}'?" if near else f"; there are {_known()}")
    raise SdpgError(f"reads names '{name}', which is {reason}")


def _known() -> str:
    return ", ".join(sorted(ALLOWED))
