"""What an environment keeps about its finished nominal episodes: returns, lengths and measures, over all ranks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sdpg.distributed import Group

WINDOW = 100  # finished episodes that the running averages look back on
_MEASURE = "finished."  # in a state, before the name of a measure


@dataclass(frozen=True)
class Episode:
    total: float  # its return
    length: int  # control steps
    measures: Mapping[str, float] = field(default_factory=dict)  # as the task named them


@dataclass(frozen=True)
class Means:
    """Over the last finished episodes; NaN before the first."""

    total: float
    length: float
    measures: Mapping[str, float]


class Episodes:
    """Counts and averages finished episodes. Every rank averages over those of all, as of the last `share`, in the
    order in which one process would have seen them."""

    def __init__(self) -> None:
        self._shared: deque[Episode] = deque(maxlen=WINDOW)  # of all ranks
        self._shared_count = 0
        # What the other ranks have not heard of: when and in which row it ended, and the episode.
        self._unshared: deque[tuple[int, int, Episode]] = deque(maxlen=WINDOW)
        self._unshared_count = 0
        self._steps = 0  # since the last `share`

    @property
    def count(self) -> int:
        """Episodes finished so far."""
        return self._shared_count + self._unshared_count

    def tick(self) -> None:
        """A control step was made."""
        self._steps += 1

    def add(self, rows: Tensor, totals: Tensor, lengths: Tensor, measures: Mapping[str, Tensor]) -> None:
        """Episodes that ended in this step: (n,) each, with the rows' numbers over all ranks."""
        table = torch.stack(
            [rows.double(), totals.double(), lengths.double(), *(m.double() for m in measures.values())]
        )
        for row, total, length, *values in table.t().tolist():
            episode = Episode(total, int(length), dict(zip(measures, values, strict=True)))
            self._unshared.append((self._steps, int(row), episode))
        self._unshared_count += len(rows)

    def share(self, group: Group) -> None:
        """Tell the other ranks of what ended since the last call, and hear of theirs."""
        every = group.all_gather((list(self._unshared), self._unshared_count))
        ended = sorted((each for theirs, _ in every for each in theirs), key=lambda each: each[:2])
        self._shared.extend(episode for _, _, episode in ended)
        self._shared_count += sum(count for _, count in every)
        self._forget_unshared()

    def means(self) -> Means:
        last = self._last()
        if not last:
            return Means(float("nan"), float("nan"), {})
        names = last[-1].measures
        measures = {name: _finite_mean([each.measures[name] for each in last]) for name in names}
        return Means(
            sum(each.total for each in last) / len(last), sum(each.length for each in last) / len(last), measures
        )

    def state_dict(self) -> dict[str, Tensor]:
        last = self._last()
        finished = torch.tensor([(each.total, each.length) for each in last], dtype=torch.float64).view(-1, 2)
        state = {"finished": finished, "episodes": torch.tensor(self.count)}
        for name in last[-1].measures if last else ():
            state[_MEASURE + name] = torch.tensor([each.measures[name] for each in last], dtype=torch.float64)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        names = [name.removeprefix(_MEASURE) for name in state if name.startswith(_MEASURE)]
        columns = [state[_MEASURE + name].tolist() for name in names]
        measures = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        finished = state["finished"].tolist()
        self._shared.clear()
        for (total, length), named in zip(finished, measures or [{}] * len(finished), strict=True):
            self._shared.append(Episode(total, int(length), named))
        self._shared_count = int(state["episodes"])
        self._forget_unshared()

    def _forget_unshared(self) -> None:
        self._unshared.clear()
        self._unshared_count = self._steps = 0

    def _last(self) -> list[Episode]:
        return [*self._shared, *(episode for _, _, episode in self._unshared)][-WINDOW:]


def _finite_mean(values: list[float]) -> float:
    """NaN of none: a world that failed has no measure."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def of_all_ranks(name: str) -> bool:
    """Whether a part of `Episodes.state_dict` is alike on every rank; all of them are."""
    return name in ("finished", "episodes") or name.startswith(_MEASURE)
