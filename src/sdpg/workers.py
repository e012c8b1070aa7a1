"""A few threads that share out independent pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor


class Workers:
    """The caller is one of the threads: with one thread nothing is handed over at all."""

    def __init__(self, threads: int):
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Every job once, each by whoever is free; raises what a job raised."""
        left = iter(jobs)  # next() of a sequence's iterator is atomic: no job is taken twice

        def work() -> None:
            for job in left:
                job()

        helpers = min(self.threads, len(jobs)) - 1
        if helpers > 0 and self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="sdpg-worker")
        busy = [self._pool.submit(work) for _ in range(helpers)] if self._pool else []
        try:
            work()
        finally:
            for future in busy:
                future.result()
