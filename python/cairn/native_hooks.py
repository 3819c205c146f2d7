"""Which hooks of torch's protocol an object leaves as torch or Cairn define them.

``torch.distributed.checkpoint`` calls planners, storage writers, storage readers and stagers by hooks: methods that a
subclass may override. A class is native for exactly those hooks that it does not override. Cairn carries out native
hooks itself and calls the others as torch does. A subclass that only has its own ``__init__`` is native throughout.
"""

import types
from collections.abc import Iterable
from typing import Any

# Names that ABCs and protocols add to every subclass.
_MACHINERY = {"_abc_impl", "_is_protocol", "_is_runtime_protocol"}

_combinations: dict[tuple[type, type], type] = {}  # by a class of the caller's and the class of Cairn: what has both


def hooks_of(*classes: type) -> frozenset[str]:
    """The names that these classes and their bases define, private ones included, without dunder names."""
    names = {name for kind in classes for base in kind.__mro__ for name in vars(base)}
    return frozenset(name for name in names - _MACHINERY if not name.startswith("__"))


def overridden(instance: object, hooks: Iterable[str], native: tuple[type, ...]) -> list[str]:
    """Those of `hooks` that `instance` does not have from one of the `native` classes or their bases, sorted.

    A function that was set on the instance overrides its class. A hook that `instance` lacks counts too.
    """
    trusted = {base for kind in native for base in kind.__mro__}
    own = getattr(instance, "__dict__", {})
    return sorted(
        hook for hook in hooks if _owner(type(instance), hook) not in trusted or (hook in own and callable(own[hook]))
    )


def with_native_hooks(instance: Any, stock: type, ours: type) -> Any:
    """`instance`, with the hooks of `ours` wherever its class has those of `stock`, which is a base of `ours`.

    The result shares the attributes of `instance`; its class is `ours`, or derives from the class of `instance` first
    and from `ours` second. So ``super()`` in an overridden hook reaches Cairn's, as in a class that was defined after
    ``cairn.install()``. Returns `instance` itself if its class derives from `ours` already, or can't be combined.
    """
    kind = _combined(type(instance), stock, ours)
    if kind is type(instance):
        return instance
    twin: Any = object.__new__(kind)
    twin.__dict__ = instance.__dict__
    return twin


def name_of(kind: type) -> str:
    """A class as a message names it."""
    return f"{kind.__module__}.{kind.__qualname__}"


def why_not_native(instance: object, hooks: Iterable[str], native: tuple[type, ...]) -> str:
    """The class of `instance` and what it overrides, for a message; "" if it is native."""
    kind = type(instance)
    if not any(base in kind.__mro__ for base in native):
        return f"it is a {name_of(kind)}"
    names = overridden(instance, hooks, native)
    return f"{name_of(kind)} overrides {', '.join(names)}" if names else ""


def _owner(kind: type, hook: str) -> type | None:
    return next((base for base in kind.__mro__ if hook in vars(base)), None)


def _combined(kind: type, stock: type, ours: type) -> type:
    if ours in kind.__mro__:
        return kind
    if kind is stock:
        return ours
    if (kind, ours) not in _combinations:
        _combinations[kind, ours] = _new_class(kind, ours)
    return _combinations[kind, ours]


def _new_class(kind: type, ours: type) -> type:
    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__)

    try:
        return types.new_class(kind.__name__, (kind, ours), exec_body=fill)
    except TypeError:  # a metaclass or an __init_subclass__ that asks for more
        return kind
