"""The robot's checksum against the published check value and against one that goes bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from sdpg_runtime.dds.crc import crc32_mpeg2, crc_of_words


def _bit_by_bit(words: np.ndarray) -> int:
    crc = 0xFFFFFFFF
    for word in words.tolist():
        for bit in range(31, -1, -1):
            top = (crc >> 31) ^ (word >> bit & 1)
            crc = crc << 1 & 0xFFFFFFFF
            if top:
                crc ^= 0x04C11DB7
    return crc


def test_published_check_value() -> None:
    assert crc32_mpeg2(b"123456789") == 0x0376E6E7


def test_of_nothing_is_what_it_begins_with() -> None:
    assert crc32_mpeg2(b"") == 0xFFFFFFFF


@pytest.mark.parametrize("count", [1, 2, 7, 202, 294])
def test_words_bit_by_bit(count: int) -> None:
    words = np.random.default_rng(count).integers(0, 2**32, count, dtype=np.uint32)
    assert crc_of_words(words.astype("<u4").tobytes()) == _bit_by_bit(words)


def test_every_bit_counts() -> None:
    data = np.random.default_rng(0).integers(0, 256, 64, dtype=np.uint8)
    sums = {crc_of_words(data.tobytes())}
    for bit in range(8 * len(data)):
        changed = data.copy()
        changed[bit // 8] ^= 1 << bit % 8
        sums.add(crc_of_words(changed.tobytes()))
    assert len(sums) == 1 + 8 * len(data)
