from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sdpg.distributed import Group
from sdpg.engines import Engine
from sdpg.errors import SdpgError
from sdpg.machine import GB, free_bytes, resident_bytes
from sdpg.nn.encoders import Pixels, image_cost
from sdpg.presets import resolve
from sdpg.run.memory import Plan, make_plan


def _plan(n: int, limit: float | None) -> Plan:
    return Plan({"program": 100, "networks": 50}, {"physics": 10, "images": 20}, n, limit)


def test_the_sum_and_the_largest_that_fits() -> None:
    """150 once and 30 for each nominal: 10 take 450, and 1000 leave room for (1000 - 150) / 30 = 28."""
    plan = _plan(10, 1000.0)
    assert (plan.total, plan.largest) == (450, 28)
    plan.require_room()
    assert plan.parts == {"program": 100, "networks": 50, "physics": 100, "images": 200}
    _plan(10, None).require_room()


def test_what_does_not_fit_is_refused_with_the_fix() -> None:
    with pytest.raises(SdpgError, match=r"give --num-nominal 28 or less, or set --memory-gb"):
        _plan(29, 1000.0).require_room()
    with pytest.raises(SdpgError, match="give fewer --num-auxiliary"):
        _plan(29, 100.0).require_room()


def test_the_cost_of_an_encoder_is_that_of_its_layers() -> None:
    """Nature on 9 x 84 x 84: 32 x 20 x 20 + 64 x 9 x 9 + 64 x 7 x 7 + 128 = 21248 outputs,
    each of as many products as its filter has weights: 8 x 8 x 9, 4 x 4 x 32, 3 x 3 x 64, 3136."""
    cost = image_cost((9, 84, 84), False, "nature", 128)
    real = Pixels((9, 84, 84), "nature", 128, torch.Generator())
    assert cost.parameters == sum(p.numel() for p in real.parameters())
    assert cost.outputs == 21248
    assert cost.multiply_adds == 12800 * 576 + 5184 * 512 + 3136 * 576 + 128 * 3136
    assert cost.kept == 9 * 84 * 84 + 21248 + 2 * 12800  # what goes in, what comes out, the largest layer twice more
    halved = image_cost((9, 84, 84), False, "half", 128)
    assert halved.kept == 9 * 42 * 42 + 21248 + 2 * 12800


def test_images_dominate_a_run_from_pixels_and_grow_with_the_nominals_alone() -> None:
    small, large = (make_plan(replace(resolve("hopper", "paper", "pixels"), num_auxiliary=m)) for m in (1, 63))
    assert small.parts["images"] == large.parts["images"] >= 64 * 32 * 9 * 84 * 84
    assert small.parts["segment"] * 32 == large.parts["segment"]
    assert make_plan(resolve("hopper")).parts["images"] == 0


def test_the_machine_is_asked() -> None:
    assert resident_bytes() > 50 * 2**20
    free = free_bytes()
    assert free is None or free > 0
    plan = make_plan(resolve("cartpole"))
    # The program is as large as this process is, which earlier tests may have made large.
    assert plan.fixed["program"] >= 50 * 2**20 and plan.total - plan.fixed["program"] < GB


def test_a_gpu_is_asked_for_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks on a machine with one GPU, each may have half of what is free there."""
    monkeypatch.setattr("sdpg.run.memory.choose_engine", lambda sim, device: Engine("cpu", "cuda", "pretended"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 * GB, 16 * GB))
    for gpus, share in ((1, 4.0), (2, 8.0)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        group = Group()
        group.local_size = 2
        plan = make_plan(resolve("cartpole"), group)
        assert plan.limit == 0.95 * share * GB and plan.parts["program"] == 0
