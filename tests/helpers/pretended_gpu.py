"""A GPU for machines without one: tensors that say that they are on cuda:0, keep their numbers in host memory, and
refuse what a GPU refuses.

What it proves: that no tensor on the CPU (beyond single numbers, which torch allows) meets one on the device, that
nothing on the device is taken for host memory (`numpy()`), and how often the host waits for the device. Numbers are
those of the CPU's kernels, so a run here can be compared with one on the CPU bit for bit. What it can't prove is what
CUDA's own kernels do.

    with pretended_gpu() as gpu:
        x = torch.zeros(3, device=gpu.device)
        x.sum().item()          # gpu.waits == {"_local_scalar_dense": 1}
        x + torch.ones(3)       # raises

For torch itself these are wrapper tensors on the device "meta", which needs no driver; only Python's `.device` says
cuda.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from sdpg.env import BranchedEnv
from sdpg.render.api import Image, Renderer
from sdpg.render.stack import FrameStacks
from sdpg.sim.api import Simulator

DEVICE = torch.device("cuda", 0)
_GPU = ("cuda", "meta")
_COPY, _COPY_INTO = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default
_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "bincount")
_waits: Counter[str] = Counter()  # what the host asked of the device, since the outermost `pretended_gpu` began


class OnGpu(Tensor):
    """`host` has the numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> OnGpu:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device("meta"),
            requires_grad=host.requires_grad,
        )

    def __init__(self, host: Tensor):
        self.host = host

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def tolist(self) -> Any:
        _waits["tolist"] += 1
        return self.host.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __repr__(self, **options: Any) -> str:
        return f"OnGpu({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation: checked, done in host memory, its result put where a GPU would have it."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    here = [x for x in tensors if isinstance(x, OnGpu)]
    strangers = [x for x in tensors if not isinstance(x, OnGpu) and x.dim()]
    if here and strangers and func not in (_COPY, _COPY_INTO):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {func} found cuda:0 and cpu")
    wanted = kwargs.get("device")
    on_gpu = bool(here) if wanted is None else torch.device(wanted).type in _GPU
    if func is _COPY_INTO:
        on_gpu = isinstance(args[0], OnGpu)
    _count(func, args, here, on_gpu)
    if wanted is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    unwrapped = tree_map_only(OnGpu, lambda x: x.host, (args, kwargs))
    out = func(*unwrapped[0], **unwrapped[1])
    if not on_gpu:
        return args[0] if func is _COPY_INTO else out
    out = tree_map_only(Tensor, OnGpu, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if here else out


def _count(func: Any, args: Any, here: list[OnGpu], on_gpu: bool) -> None:
    name = func.overloadpacket.__name__
    masks = name in ("index", "index_put", "index_put_") and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    # A mask has to be counted before it can be used; a single number that is put where it holds needs no counting.
    if here and (name in _WAITS or (func in (_COPY, _COPY_INTO) and not on_gpu) or (masks and name == "index")):
        _waits[name] += 1


class _Dispatch(TorchDispatchMode):
    """For operations without a tensor among their arguments, such as zeros(device="cuda")."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """torch.tensor(...) asks no dispatcher: made on the CPU, then moved."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and torch.device(device).type in _GPU:
            return func(*args, **kwargs | {"device": "cpu"}).to(device)
        return func(*args, **kwargs)


class Gpu:
    device = DEVICE

    @property
    def waits(self) -> Counter[str]:
        """How often the host has waited for the device, by operation."""
        return _waits

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """The waits within."""
        before, found = _waits.copy(), Counter[str]()
        yield found
        found.update(_waits - before)


@contextmanager
def pretended_gpu() -> Iterator[Gpu]:
    _waits.clear()
    with patch.object(torch.cuda, "_lazy_init", lambda: None), _Functions(), _Dispatch():
        yield Gpu()


def to_host(thing: Any) -> Any:
    """The same with plain tensors."""
    return tree_map_only(OnGpu, lambda x: x.host, thing)


class GpuSim:
    """A simulator of the CPU as one of the device. What it does inside is not looked at."""

    device = DEVICE

    def __init__(self, sim: Any):
        self._sim = sim
        self.num_worlds, self.nq, self.nv, self.nu, self.threads = sim.num_worlds, sim.nq, sim.nv, sim.nu, sim.threads
        self._fields = {name: OnGpu(values) for name, values in sim.fields.items()}  # live, as those are
        with suppress(AttributeError):
            self.model = sim.model

    @property
    def fields(self) -> Mapping[str, Tensor]:
        return self._fields

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._sim, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = to_host(args), to_host(kwargs)
            return tree_map_only(Tensor, OnGpu, method(*args, **kwargs))

        return call


class GpuRenderer:
    """The same of a renderer."""

    device = DEVICE

    def __init__(self, renderer: Renderer):
        self._renderer = renderer
        self.kind, self.num, self.views, self.threads = renderer.kind, renderer.num, renderer.views, renderer.threads
        self.varied = renderer.varied

    def render(self, qpos: Tensor, own: Mapping[str, Tensor] | None = None) -> dict[str, Image]:
        assert isinstance(qpos, OnGpu) and all(isinstance(values, OnGpu) for values in (own or {}).values())
        images = self._renderer.render(qpos.host, to_host(own))
        return {
            name: Image(*(None if x is None else OnGpu(x) for x in (image.rgb, image.depth)))
            for name, image in images.items()
        }


def moved(env: BranchedEnv) -> BranchedEnv:
    """A fresh environment like `env`, on the device."""
    sim: Simulator = GpuSim(env.sim)
    frame_stacks = (
        FrameStacks(GpuRenderer(env.frame_stacks.renderer), env.frame_stacks.cameras, env.frame_stacks.step_seconds)
        if env.frame_stacks is not None
        else None
    )
    first_row = int(env.rows[0])
    return BranchedEnv(env.task, sim, env.num_nominal, env.seed, first_row, frame_stacks, env.max_value)
