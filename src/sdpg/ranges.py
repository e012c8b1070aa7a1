"""What options may be: one rule for all that share a name, whichever verb they belong to. Algorithms and tasks have
rules of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sdpg.errors import SdpgError

MOST = 2**31 - 1  # of whole numbers: more is a slip of the finger, and overflows somewhere
MOST_THREADS = 1024

RANGES: dict[str, Callable[[float], bool]] = {
    "at least 1": lambda x: x >= 1,
    "at least 0": lambda x: x >= 0,
    "positive": lambda x: x > 0,
    "between 0 and 1": lambda x: 0 <= x <= 1,
    "in (0, 1]": lambda x: 0 < x <= 1,
    "in [0, 1)": lambda x: 0 <= x < 1,
    "between 0 and 2**31 - 1": lambda x: 0 <= x <= MOST,
    f"between 0 and {MOST_THREADS}": lambda x: 0 <= x <= MOST_THREADS,
    "between 0 and 65535": lambda x: 0 <= x <= 65535,
    "between 64 and 2160": lambda x: 64 <= x <= 2160,
}

# Options of runs, reports and benches: range -> their names.
_OURS = {
    "at least 1": "draws num_nominal num_worlds environments iterations episodes repeats calls rounds steps batch "
    "features width height points smooth checkpoint_every keep_checkpoints seeds image_seeds observations buffer "
    "branch_steps",
    "at least 0": "times num_auxiliary warmup schedule_iterations schedule_from gl_seconds turn_seconds seconds",
    "positive": "minutes image_minutes budget memory_gb max_value deltas",
    "between 0 and 1": "max_failed lams",
    "between 0 and 2**31 - 1": "seed",
    f"between 0 and {MOST_THREADS}": "threads",
    "between 0 and 65535": "port",
    "between 64 and 2160": "size",
}


def rules(options: Mapping[str, Any], ranges: Mapping[str, str], prefix: str = "") -> dict[str, bool]:
    """Sentence -> whether it holds, for every number of the options that `ranges` names: range -> names, separated by
    spaces. Options that are None are left out."""
    found = {}
    for words, names in ranges.items():
        for key in names.split():
            value = options.get(key)
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, int | float):
                    found[f"{prefix}{key.replace('_', '-')} must be {words}, not {item}"] = RANGES[words](item)
    return found


def require_in_range(options: Mapping[str, Any], prefix: str = "") -> None:
    """One line for the first of the options that can't be meant; `prefix` stands before its name. Every number is
    finite, whole ones are below 2**31, and no text is empty."""
    for key, value in options.items():
        name = prefix + key.replace("_", "-")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, str) and not item.strip():
                raise SdpgError(f"{name} must not be empty")
            if isinstance(item, bool) or not isinstance(item, int | float):
                continue
            if not math.isfinite(item):
                raise SdpgError(f"{name} must be a finite number, not {item}")
            if isinstance(item, int) and item > MOST:
                raise SdpgError(f"{name} must be at most {MOST}, not {item}")
    for sentence, holds in rules(options, _OURS, prefix).items():
        if not holds:
            raise SdpgError(sentence)
