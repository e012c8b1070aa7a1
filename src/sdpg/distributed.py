"""Several processes that train one policy: `torchrun --nproc-per-node 2 -m sdpg train hopper`.

Each rank owns a part of the rows, with all of their branches, and a copy of the networks. What they exchange goes
through a `Group`; `ALONE` is the group of one: nothing to exchange, and `torch.distributed` is never touched.

Tensors travel by the way of their device: gloo on the CPU, NCCL on GPUs, of which every rank has one. Numbers and other
things always go by gloo.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from sdpg.errors import SdpgError

if TYPE_CHECKING:  # `sdpg --help` does not wait for torch
    from torch import Tensor
    from torch.distributed import Store

T = TypeVar("T")

# Seconds that a rank waits for another one. A process that dies is noticed at once, by its connections; this is for a
# machine or a network that falls silent, and longer than anything that rank 0 does alone (a slow disk, a tracker).
TIMEOUT = 120.0


class RankLost(SdpgError):
    """Another rank is gone, silent or never came. Every rank that is left says so: rank 0 may be the one."""


class Group:
    """The ranks of a run, and all that they say to each other. Every rank makes the same calls in the same order."""

    rank = 0
    size = 1
    local_size = 1  # ranks on this machine, which share its cores and its memory

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place, the same to the last bit on each of them."""
        return tensor

    def stack(self, tensor: Tensor) -> Tensor:
        """(...) of every rank -> (ranks, ...)."""
        return tensor[None]

    def sums(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Each number, summed over the ranks."""
        return dict(numbers)

    def all_gather(self, thing: T) -> list[T]:
        """What every rank brings, in the order of the ranks."""
        return [thing]

    def gather(self, thing: T) -> list[T]:
        """The same for rank 0; the others get an empty list."""
        return [thing]

    def on_rank_zero(self, act: Callable[[], T]) -> T:
        """What rank 0 makes of `act`, which no other rank calls; its SdpgError, too, is raised on every rank."""
        return act()

    def on_all_ranks(self, act: Callable[[], T]) -> T:
        """`act` on every rank, without a word between them. An SdpgError of one of them is raised on all: nobody waits
        for a rank that has left."""
        return act()


ALONE = Group()


class _Ranks(Group):
    """More than one, by torch.distributed."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_size = _local_size()

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        with self._asking():
            self._dist.all_reduce(tensor)
        return tensor

    def stack(self, tensor: Tensor) -> Tensor:
        import torch

        every = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._asking():
            self._dist.all_gather(every, tensor.contiguous())
        return torch.stack(every)

    def sums(self, numbers: Mapping[str, float]) -> dict[str, float]:
        import torch

        total = self.all_reduce_(torch.tensor(list(numbers.values()), dtype=torch.float64, device="cpu"))
        return dict(zip(numbers, total.tolist(), strict=True))

    def all_gather(self, thing: T) -> list[T]:
        every: list[Any] = [None] * self.size
        with self._asking():
            self._dist.all_gather_object(every, _packed(thing))
        return [pickle.loads(parcel) for parcel in every]

    def gather(self, thing: T) -> list[T]:
        every: list[Any] = [None] * self.size if self.rank == 0 else []
        with self._asking():
            self._dist.gather_object(_packed(thing), every if self.rank == 0 else None)
        return [pickle.loads(parcel) for parcel in every]

    def on_rank_zero(self, act: Callable[[], T]) -> T:
        told: list[Any] = [_packed(_attempt(act))] if self.rank == 0 else [None]
        with self._asking():
            self._dist.broadcast_object_list(told)
        result, mistake = pickle.loads(told[0])
        if mistake is not None:
            raise SdpgError(mistake)
        return result

    def on_all_ranks(self, act: Callable[[], T]) -> T:
        result, mistake = _attempt(act)
        mistakes = self.all_gather(mistake)
        for rank, message in enumerate(mistakes):
            if message is not None:
                raise SdpgError(f"rank {rank}: {message}" if rank else message)
        return result  # type: ignore[return-value]

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """What torch says of a lost connection, as one line that names the way on."""
        try:
            yield
        except RuntimeError as error:
            reason = _reason(error)
            who = f"rank {1 - self.rank}" if self.size == 2 else f"rank {self.rank}: another rank"
            what = "is gone"
            if re.search("timed? ?out|timing out", reason, re.IGNORECASE):
                what = f"has not answered for {TIMEOUT:.0f} s"
            elif re.search("cuda|invalid usage", reason, re.IGNORECASE):  # nobody left: a GPU of ours can't go on
                who, what = f"rank {self.rank}", "can't go on"
            raise RankLost(
                f"{who} {what} ({reason}); the last checkpoint is good: start again with --resume auto"
            ) from error


class _Packer(pickle.Pickler):
    """Tensors are unpacked on the CPU: as they are, they would appear on the sender's GPU, which another rank owns."""

    def reducer_override(self, thing: Any) -> Any:
        import torch

        if isinstance(thing, torch.Tensor) and not thing.is_cpu:
            return thing.cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def _packed(thing: Any) -> bytes:
    parcel = io.BytesIO()
    _Packer(parcel, pickle.HIGHEST_PROTOCOL).dump(thing)
    return parcel.getvalue()


def _reason(error: Exception) -> str:
    """The first sentence, without the line of source code that gloo or NCCL puts before it; and NCCL's "last error",
    which says more."""
    lines = str(error).split("\n")
    first = re.sub(r"\[[^]]*\.(cc|cpp):\d+\] |NCCL error in: \S+:\d+, ", "", lines[0]).split(". ")[0].rstrip(".")
    more = [after for line, after in pairwise(lines) if line == "Last error:" and after]
    return ": ".join([first, *more])


def _attempt(act: Callable[[], T]) -> tuple[T | None, str | None]:
    """The result, or the user's mistake."""
    try:
        return act(), None
    except SdpgError as error:
        return None, str(error)


def my_rank() -> int:
    """This process among those of its run, as torchrun numbers them; known before they have met."""
    return int(os.environ.get("RANK") or 0) if _world_size() > 1 else 0


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE") or 1)


def _local_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE") or _world_size())


@contextlib.contextmanager
def join() -> Iterator[Group]:
    """The group that torchrun put this process into; ALONE without torchrun."""
    if _world_size() == 1:
        yield ALONE
        return
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=TIMEOUT)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        store.set_timeout(timeout)
        place = dist.PrefixStore(_fresh_name(store, rank, size), store)
        dist.init_process_group(_ways(), store=place, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise RankLost(
            f"WORLD_SIZE is {_world_size()}, but its ranks do not meet ({_reason(error)}); start them by torchrun, or "
            "unset it"
        ) from error
    yield _Ranks()
    dist.destroy_process_group()  # after an error the process ends, and others may still be speaking


def _ways() -> str:
    """How tensors travel, by device. On a machine with GPUs this rank gets its own: torch's current one from here on,
    before anything is put there. Where ranks have to share one, which NCCL refuses, gloo carries its tensors, too."""
    import torch

    if not torch.cuda.is_available():
        return "gloo"
    local_rank, gpus = int(os.environ.get("LOCAL_RANK") or my_rank()), torch.cuda.device_count()
    torch.cuda.set_device(local_rank % gpus)
    if _local_size() > gpus or not torch.distributed.is_nccl_available():
        return "gloo"
    # The host waits for every sum, and so an error or a timeout is raised where it can be told in one line; by default
    # NCCL's watchdog would abort the process. A step waits for its gradient's norm anyway.
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    return "cpu:gloo,cuda:nccl"


def _fresh_name(store: Store, rank: int, size: int) -> str:
    """A name that the ranks of this start, and no others, share. torchrun keeps its store when it starts ranks anew:
    what the dead ones left there, their addresses among it, must not be taken for that of the living. So every rank
    calls out a word that nobody has heard, and rank 0 answers it with the name."""
    if rank:
        word = secrets.token_hex(8)
        store.set(f"sdpg/word/{rank}", word)
        name = store.get(f"sdpg/answer/{word}").decode()  # waits for it
        store.set(f"sdpg/heard/{name}/{rank}", "")
        return f"sdpg/{name}"
    name, missing = secrets.token_hex(8), set(range(1, size))
    given_up = time.monotonic() + TIMEOUT
    while missing:
        if time.monotonic() > given_up:
            raise RuntimeError(f"no word of rank {min(missing)} for {TIMEOUT:.0f} s")
        for other in sorted(missing):
            if store.check([f"sdpg/word/{other}"]):  # that of an earlier start is answered, too: nobody waits for it
                store.set(f"sdpg/answer/{store.get(f'sdpg/word/{other}').decode()}", name)
            if store.check([f"sdpg/heard/{name}/{other}"]):
                missing.remove(other)
        time.sleep(0.02)
    return f"sdpg/{name}"
