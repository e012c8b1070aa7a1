"""Classes by name: built in, a third party's by entry point, or "module:Class". Loaded when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from sdpg.errors import SdpgError


def targets(group: str, built_in: Mapping[str, str]) -> dict[str, str]:
    """Name -> "module:Class": ours, and third parties' from an entry-point group."""
    return {point.name: point.value for point in entry_points(group=group)} | dict(built_in)


@dataclass(frozen=True)
class Plugins:
    what: str  # "task": how messages call one of them
    base: type  # what all of them derive from
    group: str  # the entry-point group of third parties
    built_in: Mapping[str, str]  # name -> "module:Class"

    def targets(self) -> dict[str, str]:
        """Name -> "module:Class"."""
        return targets(self.group, self.built_in)

    def load(self, name: str) -> type[Any]:
        """The class. Its module is imported, its name and kind are checked, and nothing is called."""
        target = name if ":" in name else self.targets().get(name)
        if target is None:
            known = ", ".join(sorted(self.targets()))
            raise SdpgError(f"unknown {self.what} '{name}'; known: {known}; or give module:Class")
        module, _, attribute = target.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if name in self.built_in and error.name and not error.name.startswith("sdpg"):
                raise SdpgError(f"{self.what} '{name}' needs {error.name}: pip install 'sdpg[{name}]'") from error
            raise self._broken(name, target, error) from error
        except Exception as error:  # a stranger's module may raise anything
            raise self._broken(name, target, error) from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            base = f"{self.base.__module__}.{self.base.__qualname__}"
            raise SdpgError(f"{self.what} '{name}' ({target}) is not a subclass of {base}")
        return found

    def _broken(self, name: str, target: str, error: Exception) -> SdpgError:
        return SdpgError(f"{self.what} '{name}' can't be loaded from {target}: {type(error).__name__}: {error}")
