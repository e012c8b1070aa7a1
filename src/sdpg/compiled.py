"""How loops over pixels are compiled.

Each of its files is compiled by itself and calls no compiled function of another: numba's cache notices a change of
the file that a function is in, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "arcp", "nsz", "afn"}}


def jit(function: Callable[..., Any]) -> Any:
    """Compiled at the first call and kept on disk: beside the file, or in the user's cache directory if that can't be
    written; where neither can, compiled in every process.

    Without the interpreter's lock, so that threads run side by side. Nothing may let the compiler assume that there are
    no NaN and infinities: they are how a ray misses.
    """
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no place for the cache
        return njit(**_OPTIONS)(function)


def inline_jit(function: Callable[..., Any]) -> Any:
    """Compiled together with those that call it: what only Python would need is left out, which takes less time."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)
