"""The graph: what is seen -> actions -> targets of the joints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime

from sdpg_runtime.contract import CONTRACT, POLICY, Contract, Folder
from sdpg_runtime.errors import Refused

Array = np.ndarray

_TYPES = {"tensor(float)": "float32", "tensor(uint8)": "uint8", "tensor(int64)": "int64", "tensor(bool)": "bool"}


class Policy:
    """On one thread, so that the same inputs give the same bits, and cores are left to others."""

    def __init__(self, folder: Folder):
        self.contract = folder.contract
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(folder.policy, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own exceptions vary
            said = (str(error).splitlines() or ["?"])[0][:160]
            raise Refused(f"{POLICY} can't be loaded ({said}); export the run again") from error
        _require_ports(self._session, self.contract)
        self._outputs = [self.contract.output, *(memory.output for memory in self.contract.carry)]
        self.reset()
        self._try()

    def reset(self) -> None:
        """An episode begins."""
        self._carry = {memory.input: memory.begin for memory in self.contract.carry}

    def act(self, seen: Mapping[str, Array]) -> Array:
        """Inputs (1, ...) -> (A,), in the order of the contract."""
        action, *after = self._session.run(self._outputs, {**seen, **self._carry})
        self._carry = {memory.input: value for memory, value in zip(self.contract.carry, after, strict=True)}
        return action[0]

    def targets(self, action: Array) -> Array:
        """(A,) radians, within the joints' ranges."""
        joints = self.contract.joints
        return (joints.offset + joints.scale * action).clip(joints.low, joints.high)

    def _try(self) -> None:
        """Once with zeros: what can't run is found before anything moves, and the first real answer is not late."""
        names = {source.name for source in self.contract.sources}
        ports = self.contract.ports.items()
        zeros = {name: np.zeros((1, *shape), dtype) for name, (dtype, shape) in ports if name in names}
        try:
            action = self.act(zeros)
        except Exception as error:  # onnxruntime's own exceptions vary
            said = (str(error).splitlines() or ["?"])[0][:160]
            raise Refused(f"{POLICY} does not run ({said}); export the run again") from error
        if action.shape != self.contract.joints.scale.shape or action.dtype != np.float32:
            size = len(self.contract.joints.names)
            raise Refused(
                f"{POLICY} gives {action.dtype} {action.shape}, {CONTRACT} says float32 ({size},); export again"
            )
        self.reset()


def _require_ports(session: onnxruntime.InferenceSession, contract: Contract) -> None:
    there = {port.name: (_TYPES.get(port.type, port.type), tuple(port.shape[1:])) for port in session.get_inputs()}
    outputs = {port.name for port in session.get_outputs()}
    wanted = {contract.output, *(memory.output for memory in contract.carry)}
    for name in sorted(there.keys() | contract.ports.keys()):
        if there.get(name) != contract.ports.get(name):
            raise Refused(
                f"input '{name}' of {POLICY} is {_port(there.get(name))}, {CONTRACT} says "
                f"{_port(contract.ports.get(name))}; export the run again"
            )
    if outputs != wanted:
        raise Refused(f"{POLICY} has outputs {sorted(outputs)}, {CONTRACT} says {sorted(wanted)}; export the run again")


def _port(port: tuple[str, tuple[int, ...]] | None) -> str:
    return "missing" if port is None else f"{port[0]} {list(port[1])}"
