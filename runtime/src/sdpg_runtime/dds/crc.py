"""The robot's checksum: CRC-32/MPEG-2 over 32-bit words, the highest bit of a word first.

zlib has the same polynomial the other way round: lowest bit first, and inverted at the end. So bits of all bytes are
turned round before, and those of the sum after it: a few microseconds a message, where a loop over bits takes
milliseconds.
"""

from __future__ import annotations

import zlib

import numpy as np

_TURNED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def crc32_mpeg2(data: bytes) -> int:
    """Polynomial 0x04C11DB7, begins with all ones, highest bit first, nothing inverted."""
    turned = zlib.crc32(data.translate(_TURNED)) ^ 0xFFFFFFFF
    return int.from_bytes(turned.to_bytes(4, "little").translate(_TURNED), "big")


def crc_of_words(data: bytes) -> int:
    """Of little-endian 32-bit words, as they lie in the robot's memory; the length must be a multiple of 4."""
    return crc32_mpeg2(np.frombuffer(data, "<u4").byteswap().tobytes())
