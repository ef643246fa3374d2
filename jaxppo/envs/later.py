"""Libraries that others import at their top and few ever use."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module until something of it is asked for that does not wait too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system asks
            raise AttributeError(name)
        part = sys.modules.get(f"{self.__name__}.{name}")
        if isinstance(part, _Later):
            return part
        if sys.modules.get(self.__name__) is self:  # asked at once: none can wait for the others
            for held in [key for key, found in sys.modules.items() if isinstance(found, _Later)]:
                del sys.modules[held]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def imported_later(*names: str) -> Iterator[None]:
    """Within, importing those that nobody has imported yet waits for their first use.

    Of a package, name the parts that are imported too.
    """
    held = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(held)
    try:
        yield
    finally:
        for name, module in held.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
