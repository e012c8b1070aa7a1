"""How the ranks of a run talk: what is said, what is sent, and what a lost rank is called."""

from __future__ import annotations

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.pretended_gpu import pretended_gpu
from helpers.ranks import ranks
from torch import Tensor

from sdpg.distributed import ALONE, TIMEOUT, Group, RankLost, _fresh_name, _packed, _Ranks, _ways, join, my_rank
from sdpg.errors import SdpgError
from sdpg.nn.modules import Normalizer, moments


def _speak(group: Group) -> None:
    rank = group.rank
    assert (rank, group.size, group.local_size) == (my_rank(), 3, 3)
    numbers = torch.tensor([1.0, 10.0 * rank])
    assert group.all_reduce_(numbers).tolist() == [3.0, 30.0] and numbers.tolist() == [3.0, 30.0]
    assert group.stack(torch.tensor([rank, 7])).tolist() == [[0, 7], [1, 7], [2, 7]]
    assert group.sums({"a": rank, "b": rank == 1}) == {"a": 3.0, "b": 1.0}
    assert group.all_gather("x" * rank) == ["", "x", "xx"]
    told = group.gather({"rows": torch.full((rank,), rank)})
    assert [state["rows"].tolist() for state in told] == ([[], [1], [2, 2]] if rank == 0 else [])
    assert group.on_rank_zero(lambda: f"of {rank}") == "of 0"
    assert group.on_all_ranks(lambda: f"of {rank}") == f"of {rank}"

    def wrong() -> None:
        if rank == 1:
            raise SdpgError("no such thing")

    with pytest.raises(SdpgError, match=r"^rank 1: no such thing$"):
        group.on_all_ranks(wrong)

    def wrong_first() -> None:
        raise SdpgError(f"no folder {rank}")

    for act in (group.on_rank_zero, group.on_all_ranks):
        with pytest.raises(SdpgError, match=r"^no folder 0$"):
            act(wrong_first)
    count, mean, var = moments(torch.arange(2.0 * rank).view(-1, 1), group)  # (), (0, 1), (0, 1, 2, 3)
    assert (count.item(), mean.item()) == (6.0, 7.0 / 6.0)
    assert var.item() == pytest.approx(15.0 / 6.0 - (7.0 / 6.0) ** 2)
    normalizer = Normalizer(1)
    normalizer.update(torch.empty(0, 1), group)
    assert normalizer.mean.item() == 0.0 and normalizer.var.item() == 1.0


def test_what_ranks_say_to_each_other() -> None:
    ranks(__name__, "_speak", size=3)


def test_the_group_of_one_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with join() as group:
        assert group is ALONE
    x = torch.ones(2)
    assert group.all_reduce_(x) is x and group.stack(x).shape == (1, 2) and group.sums({"a": 2.0}) == {"a": 2.0}
    assert group.all_gather(3) == group.gather(3) == [3]
    assert group.on_rank_zero(lambda: 4) == group.on_all_ranks(lambda: 4) == 4
    assert not torch.distributed.is_initialized()


def test_ranks_that_can_not_meet_are_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert my_rank() == 1
    with pytest.raises(SdpgError, match=r"WORLD_SIZE is 2, .* start them by torchrun, or unset it"), join():
        pass


def test_what_an_earlier_start_left_in_the_store_is_not_taken_for_this_one() -> None:
    """torchrun keeps its store over a restart."""
    store = torch.distributed.HashStore()
    names = []
    for _ in range(3):
        with ThreadPoolExecutor() as ranks:
            told = list(ranks.map(lambda rank: _fresh_name(store, rank, 3), (1, 2, 0)))
        assert len(set(told)) == 1
        names.append(told[0])
    assert len(set(names)) == 3


def _leave(group: Group) -> None:
    if group.rank == 1:
        os._exit(0)
    with pytest.raises(
        RankLost, match=r"^rank 1 is gone \(.+\); the last checkpoint is good: start again with --resume auto$"
    ):
        group.all_reduce_(torch.ones(3))


def test_a_rank_that_left_is_named() -> None:
    start = time.monotonic()
    ranks(__name__, "_leave")
    assert time.monotonic() - start < 60


_REMOTE = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was \
a network error, NCCL version 2.21.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgressOpt: Call to recv from 10.0.0.2<33759> failed : Connection reset by peer"""
_SILENT = """[Rank 0] Work WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=9, Timeout(ms)=120000) timed out in blocking \
wait.
Exception raised from wait at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:763 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96"""
_WATCHDOG = """[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST) ran for \
120011 milliseconds before timing out."""
_SHARED = """NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, invalid usage (run with NCCL_DEBUG=WARN \
for details), NCCL version 2.21.5
ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
Last error:
Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"""
_RESET = "remote process exited or there was a network error, NCCL version 2.21.5: socketProgressOpt: Call to recv from"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (_REMOTE, f"rank 1 is gone ({_RESET} 10.0.0.2<33759> failed : Connection reset by peer); "),
        (_SILENT, f"rank 1 has not answered for {TIMEOUT:.0f} s ([Rank 0] Work WorkNCCL("),
        (_WATCHDOG, f"rank 1 has not answered for {TIMEOUT:.0f} s ("),
        (
            _SHARED,
            "rank 0 can't go on (invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5: Duplic",
        ),
        (
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors",
            "rank 0 can't go on (CUDA error: ",
        ),
    ],
)
def test_what_nccl_says_becomes_one_line(text: str, line: str) -> None:
    group = object.__new__(_Ranks)
    group.rank, group.size = 0, 2
    with pytest.raises(RankLost) as caught, group._asking():
        raise torch.distributed.DistBackendError(text)
    said = str(caught.value)
    assert said.startswith(line) and "\n" not in said and ".hpp" not in said and "frame #" not in said
    assert said.endswith("; the last checkpoint is good: start again with --resume auto")


@pytest.mark.parametrize(
    ("gpus", "ranks", "local_rank", "ways", "bound"),
    [
        (0, 2, 1, "gloo", []),
        (2, 2, 1, "cpu:gloo,cuda:nccl", [1]),
        (8, 2, 0, "cpu:gloo,cuda:nccl", [0]),
        (2, 4, 3, "gloo", [1]),  # two ranks share a GPU: NCCL would refuse
    ],
)
def test_every_rank_gets_a_gpu_of_its_own(
    gpus: int, ranks: int, local_rank: int, ways: str, bound: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    for name, value in {"WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": ranks, "LOCAL_RANK": local_rank, "RANK": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "")  # so that it is put back
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert _ways() == ways and calls == bound
    assert ("nccl" in ways) == (os.environ.get("TORCH_NCCL_BLOCKING_WAIT") == "1")  # its errors are raised


def test_what_is_sent_arrives_on_the_cpu() -> None:
    """A tensor of a GPU would be unpacked on the sender's."""
    with pretended_gpu() as gpu:
        parcel = _packed({"rows": [torch.arange(3, device=gpu.device)], "plain": torch.ones(2)})
    rows, plain = pickle.loads(parcel).values()
    assert type(rows[0]) is Tensor and rows[0].tolist() == [0, 1, 2] and plain.tolist() == [1.0, 1.0]
