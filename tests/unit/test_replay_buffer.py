"""Hand-made episodes: a frame is one pixel whose value says which it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sdpg.algos.replay_buffer import CUT, GOES_ON, TERMINATED, TRUNCATED, Batch, ReplayBuffer

STACK, GAMMA = 3, 0.5


def _buffer(slots: int, rows: int = 1) -> ReplayBuffer:
    seen = {"pixels": torch.zeros(rows, STACK, 1, 1, dtype=torch.uint8)}
    return ReplayBuffer(slots, {"pixels": STACK}, seen, action_size=1)


def _stack(*frames: int) -> dict[str, Tensor]:
    """Rows whose newest frames are these; what stands before them must not matter."""
    return {"pixels": torch.tensor([[99, 99, frame] for frame in frames], dtype=torch.uint8)[..., None, None]}


def _episode(buffer: ReplayBuffer, first: int, length: int, end: int = GOES_ON) -> None:
    """Frames first, first + 1, ...; the action is a hundredth of the frame, the reward is the frame."""
    for age in range(length):
        frame = first + age
        ends = end if age == length - 1 else GOES_ON
        at = torch.tensor([float(frame)])
        buffer.add(_stack(frame), torch.tensor([age]), at[None] / 100, at, torch.tensor([ends]))
    if end == TRUNCATED:
        buffer.add_final(torch.tensor([0]), _stack(first + length), torch.tensor([length]))


def _samples(buffer: ReplayBuffer, n_step: int) -> dict[int, tuple[list[int], float, float, list[int]]]:
    """Newest frame of the start -> its stack, n-step reward, discount and the stack beyond."""
    batch: Batch = buffer.batch(buffer.starts(n_step), n_step, GAMMA)
    found = {}
    for i in range(len(batch.reward)):
        stack, beyond = (each["pixels"][i].flatten().tolist() for each in (batch.sources, batch.next_sources))
        assert batch.action[i].item() == pytest.approx(stack[-1] / 100)
        found[stack[-1]] = (stack, batch.reward[i].item(), batch.discount[i].item(), beyond)
    assert len(found) == len(batch.reward)
    return found


def test_stacks_repeat_the_first_frame_of_their_episode_and_returns_stop_at_its_termination() -> None:
    buffer = _buffer(slots=20)
    _episode(buffer, 1, 4, TERMINATED)
    _episode(buffer, 11, 3)
    found = _samples(buffer, n_step=2)
    assert found.keys() == {1, 2, 3, 4, 11}  # 12 and 13: what they came to is not known yet
    assert found[1] == ([1, 1, 1], 1 + 2 * 0.5, 0.25, [1, 2, 3])
    assert found[2] == ([1, 1, 2], 2 + 3 * 0.5, 0.25, [2, 3, 4])
    assert found[3][:3] == ([1, 2, 3], 3 + 4 * 0.5, 0.0)
    assert found[4][:3] == ([2, 3, 4], 4.0, 0.0)
    assert found[11] == ([11, 11, 11], 11 + 12 * 0.5, 0.25, [11, 12, 13])


def test_where_the_time_is_up_the_value_is_that_of_the_final_observation() -> None:
    buffer = _buffer(slots=20)
    _episode(buffer, 1, 3, TRUNCATED)
    _episode(buffer, 11, 1)
    found = _samples(buffer, n_step=3)
    assert found.keys() == {1, 2, 3}  # 4 is the final observation: nothing was done there
    assert found[1] == ([1, 1, 1], 1 + 2 * 0.5 + 3 * 0.25, 0.125, [2, 3, 4])
    assert found[2] == ([1, 1, 2], 2 + 3 * 0.5, 0.25, [2, 3, 4])
    assert found[3] == ([1, 2, 3], 3.0, 0.5, [2, 3, 4])


def test_no_return_runs_into_what_is_not_known() -> None:
    buffer = _buffer(slots=20)
    _episode(buffer, 1, 4, CUT)
    _episode(buffer, 11, 3, TERMINATED)
    assert _samples(buffer, n_step=2).keys() == {1, 2, 11, 12, 13}


def test_a_full_ring_forgets_the_oldest_and_what_had_its_frames() -> None:
    buffer = _buffer(slots=6)
    _episode(buffer, 1, 5, TERMINATED)
    _episode(buffer, 11, 4)  # slots, oldest first: 4 5 11 12 13 14
    found = _samples(buffer, n_step=2)
    assert found.keys() == {11, 12}  # 4 and 5 would need 2 and 3
    assert found[11] == ([11, 11, 11], 11 + 6.0, 0.25, [11, 12, 13])
    assert found[12] == ([11, 11, 12], 12 + 6.5, 0.25, [12, 13, 14])
    assert buffer.added == 9
    for first in range(20, 60, 10):  # around and around
        _episode(buffer, first, 3, TRUNCATED)
    found = _samples(buffer, n_step=2)
    assert found.keys() == {50, 51, 52}  # of the one before, its last frame and the final one: 42 43 50 51 52 53
    assert found[52] == ([50, 51, 52], 52.0, 0.5, [51, 52, 53])


def test_rows_end_their_episodes_at_different_times() -> None:
    """The second row's time is up after its first step: from then on it is a slot ahead."""
    buffer = _buffer(slots=8, rows=2)
    ends = [[GOES_ON, TRUNCATED], [GOES_ON, GOES_ON], [GOES_ON, GOES_ON]]
    ages = [[0, 0], [1, 0], [2, 1]]
    for t, (end, age) in enumerate(zip(ends, ages, strict=True)):
        frames = (1 + t, 101 + 2 * t)
        at = torch.tensor(frames, dtype=torch.float32)
        buffer.add(_stack(*frames), torch.tensor(age), at[:, None] / 100, at, torch.tensor(end))
        if t == 0:
            buffer.add_final(torch.tensor([1]), _stack(102), torch.tensor([1]))
    found = _samples(buffer, n_step=1)
    assert found.keys() == {1, 2, 101, 103}
    assert found[2] == ([1, 1, 2], 2.0, 0.5, [1, 2, 3])
    assert found[101] == ([101, 101, 101], 101.0, 0.5, [101, 101, 102])
    assert found[103] == ([103, 103, 103], 103.0, 0.5, [103, 103, 105])
