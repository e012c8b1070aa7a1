"""What a preset is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]


@dataclass(frozen=True)
class Delta:
    """What differs from the defaults: options of the run, options of the algorithm."""

    run: Values = field(default_factory=dict)
    algo: Values = field(default_factory=dict)

    def __or__(self, other: Delta) -> Delta:
        return Delta(self.run | other.run, self.algo | other.algo)
