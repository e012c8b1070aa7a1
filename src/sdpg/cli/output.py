"""How the verbs speak: JSON for programs, aligned facts for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdpg.errors import SdpgError


def print_json(value: Any) -> None:
    print(json.dumps(plain(value), indent=1))


def plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(path: str, value: Any, option: str = "--write") -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(plain(value), indent=1) + "\n")
    except OSError as error:
        raise SdpgError(f"can't write '{path}': {error.strerror or error}; give another {option}") from error


def print_facts(facts: Mapping[str, Any], indent: str = "") -> None:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            print(f"{indent}{name}:")
            print_facts(value, indent + "  ")
        elif isinstance(value, list | tuple) and len(value) > 8:
            print(f"{indent}{name}: {len(value)} values (--json shows them)")
        else:
            print(f"{indent}{name}: {f'{value:.6g}' if isinstance(value, float) else value}")
