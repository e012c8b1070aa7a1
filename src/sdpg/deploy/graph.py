"""A policy as an ONNX graph, and the graph's answers. One named input for each source; a recurrent policy's memory is
further inputs and outputs; the batch is of any size."""

from __future__ import annotations

import copy
import importlib
import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sdpg.algos.api import Carry, Policy
from sdpg.errors import SdpgError
from sdpg.nn.modules import Actor

OPSET = 17  # the first with LayerNormalization; onnxruntime since 1.12
ACTION, CARRY, NEXT = "actions", "carry.", "next."  # the output, and prefixes of what is remembered
THREADS = 1


@dataclass(frozen=True)
class Inputs:
    """What a policy is given: name -> (N, ...) each."""

    sources: Mapping[str, Tensor]
    carry: Carry

    @staticmethod
    def carry_input(name: str) -> str:
        return CARRY + name

    def named(self) -> dict[str, Tensor]:
        """By the graph's input names, in order."""
        return dict(self.sources) | {self.carry_input(name): value for name, value in self.carry.items()}


def frozen(policy: Policy) -> Policy:
    """A copy that computes in float32 throughout and learns nothing: what is exported, and what it is compared with."""
    fixed = copy.deepcopy(policy).eval().requires_grad_(False).cpu()
    for module in fixed.modules():
        if isinstance(module, Actor):
            module.half_precision = False
    return fixed


class _Positional(nn.Module):
    """A policy whose inputs and outputs are tensors, one after the other."""

    def __init__(self, policy: Policy, inputs: Inputs):
        super().__init__()
        self.policy, self.names, self.memory = policy, tuple(inputs.sources), tuple(inputs.carry)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        sources = dict(zip(self.names, tensors, strict=False))
        carry = dict(zip(self.memory, tensors[len(self.names) :], strict=True))
        action, after = self.policy(sources, carry)
        return action, *(after[name] for name in self.memory)


def _rms_norm(g: Any, x: Any, shape: Any, weight: Any, eps: Any) -> Any:
    """aten::rms_norm over the last axis, which the opset has no operator for: x / sqrt(mean x^2 + eps) * weight."""
    from torch.onnx import symbolic_helper

    given = symbolic_helper._maybe_get_const(eps, "f")
    small = g.op("Constant", value_t=torch.tensor(torch.finfo(torch.float32).eps if given is None else given))
    mean = g.op("ReduceMean", g.op("Mul", x, x), axes_i=[-1], keepdims_i=1)
    scaled = g.op("Div", x, g.op("Sqrt", g.op("Add", mean, small)))
    return scaled if symbolic_helper._is_none(weight) else g.op("Mul", scaled, weight)


def to_onnx(policy: Policy, inputs: Inputs, metadata: Mapping[str, str]) -> bytes:
    """The file of a `frozen` policy; `inputs` of two worlds or more are an example."""
    onnx = required("onnx")
    named = inputs.named()
    outputs = [ACTION, *(NEXT + name for name in inputs.carry)]
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The tracing exporter needs no further package and takes a second; it warns that it is the older one, and of
        # shapes that become constants, which all but the batch are.
        warnings.simplefilter("ignore")
        torch.onnx.register_custom_op_symbolic("aten::rms_norm", _rms_norm, OPSET)
        try:
            torch.onnx.export(
                _Positional(policy, inputs).eval(),
                tuple(named.values()),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                opset_version=OPSET,
                input_names=list(named),
                output_names=outputs,
                dynamic_axes={name: {0: "batch"} for name in (*named, *outputs)},
            )
        except Exception as error:  # an algorithm of the user's may compute anything
            reason = " ".join(str(error).split())[:200]
            raise SdpgError(f"this policy can't be written as ONNX: {type(error).__name__}: {reason}") from error
    model = onnx.load_model_from_string(buffer.getvalue())
    _mend(model, onnx.TensorProto)
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    model.producer_name = "sdpg"
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _mend(model: Any, types: Any) -> None:
    """What runtimes refuse, in other words: sums of bytes in 32 bits in place of 16, axes counted from the front."""
    del model.graph.value_info[:]  # they tell the old types
    for node in model.graph.node:
        if node.op_type == "Transpose":  # axes counted from the end, which the tracer passes on as they are
            for attribute in node.attribute:
                attribute.ints[:] = [axis % len(attribute.ints) for axis in attribute.ints]
        if node.op_type == "Cast":
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == types.INT16:
                    attribute.i = types.INT32


def session(data: bytes) -> Any:
    """An onnxruntime session on one CPU thread."""
    ort = required("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = THREADS
    options.log_severity_level = 4  # what matters is raised
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def answers(data: bytes, inputs: Mapping[str, np.ndarray], batch: int = 64) -> dict[str, np.ndarray]:
    """The graph's outputs by name, for inputs (n, ...): the first by itself, the others in batches."""
    running = session(data)
    names = [output.name for output in running.get_outputs()]
    total = len(next(iter(inputs.values())))
    begins = [0, *range(1, total, batch)]
    parts = [
        running.run(names, {name: values[i:j] for name, values in inputs.items()})
        for i, j in zip(begins, [*begins[1:], total], strict=True)
    ]
    return {name: np.concatenate([part[k] for part in parts]) for k, name in enumerate(names)}


def required(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise SdpgError(f"export needs {package}: pip install 'sdpg[export]'") from error
