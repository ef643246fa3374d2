"""Lazy imports of libraries that other libraries import but rarely use."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """Lazy module proxy: imports the module at the first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system asks for these
            raise AttributeError(name)
        part = sys.modules.get(f"{self.__name__}.{name}")
        if isinstance(part, _LazyModule):
            return part
        if sys.modules.get(self.__name__) is self:  # used inside `imported_later`: import all now
            for key in [key for key, x in sys.modules.items() if isinstance(x, _LazyModule)]:
                del sys.modules[key]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def imported_later(*names: str) -> Iterator[None]:
    """Inside this context, imports of modules `names` are delayed until their first use.

    Modules that are already imported are not affected. List submodules too.
    """
    proxies = {name: _LazyModule(name) for name in names if name not in sys.modules}
    sys.modules.update(proxies)
    try:
        yield
    finally:
        for name, module in proxies.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
