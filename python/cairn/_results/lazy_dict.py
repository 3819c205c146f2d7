"""LazyDict: a dict whose entries are computed when the dict is first looked at."""

from collections.abc import Callable, Mapping
from typing import Any


class LazyDict(dict[Any, Any]):
    """A dict with the entries that `make` returns. The first use of the dict calls `make` once and then releases
    `make`.

    Every method of dict computes the entries first, as do iteration, comparison, copying and pickling; a pickle and a
    copy are plain dicts. If `make` raises, the use raises, and the next use calls `make` again. Only C code that reads
    a dict without its methods (``PyDict_Next``) sees an empty dict.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Mapping[Any, Any]]) -> None:
        super().__init__()
        self._make: Callable[[], Mapping[Any, Any]] | None = make

    def __reduce_ex__(self, protocol: Any) -> Any:
        _fill(self)
        return dict, (dict(self.items()),)


def _fill(lazy: LazyDict) -> None:
    if lazy._make is not None:
        dict.update(lazy, lazy._make())
        lazy._make = None


def _filled(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def call(self: LazyDict, *arguments: Any, **keywords: Any) -> Any:
        _fill(self)
        return method(self, *arguments, **keywords)

    call.__name__ = name
    return call


for _name in (
    "__contains__",
    "__delitem__",
    "__eq__",
    "__getitem__",
    "__ior__",
    "__iter__",
    "__len__",
    "__ne__",
    "__or__",
    "__repr__",
    "__reversed__",
    "__ror__",
    "__setitem__",
    "clear",
    "copy",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
):
    setattr(LazyDict, _name, _filled(_name))
