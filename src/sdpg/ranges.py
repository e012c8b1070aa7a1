"""What options may be: one rule for all that share a name, whichever verb they belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sdpg.errors import SdpgError

MOST = 2**31 - 1  # of whole numbers: more is a slip of the finger, and overflows somewhere
MOST_THREADS = 1024

_RULES: list[tuple[str, Callable[[float], bool], str]] = [
    (
        "at least 1",
        lambda x: x >= 1,
        "num_nominal num_auxiliary num_worlds environments iterations episodes repeats calls rounds steps batch "
        "features width height points smooth checkpoint_every keep_checkpoints horizon regression_steps critic_passes "
        "critic_batch actor_chunk encoder_features actor_widths critic_widths vector_widths",
    ),
    (
        "at least 0",
        lambda x: x >= 0,
        "warmup schedule_iterations schedule_from output_gain temperature_lr actor_lr_min gl_seconds turn_seconds "
        "seconds",
    ),
    (
        "positive",
        lambda x: x > 0,
        "minutes memory_gb max_value initial_std temperature target_std mean_bound actor_lr critic_lr max_grad_norm "
        "reward_scale deltas",
    ),
    ("between 0 and 1", lambda x: 0 <= x <= 1, "max_failed lam"),
    ("in (0, 1]", lambda x: 0 < x <= 1, "gamma regression_fraction"),
    ("in [0, 1)", lambda x: 0 <= x < 1, "target_decay"),
    ("between 0 and 2**31 - 1", lambda x: 0 <= x <= MOST, "seed"),
    (f"between 0 and {MOST_THREADS}", lambda x: 0 <= x <= MOST_THREADS, "threads"),
    ("between 0 and 65535", lambda x: 0 <= x <= 65535, "port"),
    ("between 64 and 2160", lambda x: 64 <= x <= 2160, "size"),
    ("finite", math.isfinite, "log_std_bounds"),
]
RULES = {name: (words, holds) for words, holds, names in _RULES for name in names.split()}


def refuse_out_of_range(options: Mapping[str, Any], prefix: str = "") -> None:
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
            if key in RULES and not RULES[key][1](item):
                raise SdpgError(f"{name} must be {RULES[key][0]}, not {item}")
            if isinstance(item, int) and item > MOST:
                raise SdpgError(f"{name} must be at most {MOST}, not {item}")
