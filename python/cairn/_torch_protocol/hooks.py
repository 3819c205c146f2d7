"""Detection of the hooks of torch's protocol that an object leaves as torch or Cairn define them.

``torch.distributed.checkpoint`` calls planners, storage writers, storage readers and stagers by hooks: methods that a
subclass may override. A class is native for exactly the hooks that the class does not override. Cairn carries out
native hooks itself and calls the overridden hooks as torch does. A subclass that only has its own ``__init__`` is
native throughout.

A program may also replace a method of torch's class itself (``DefaultSavePlanner.resolve_data = ...``). Cairn's
implementation is not equal to the new method, therefore the hook counts as overridden. Detected are replacements after
the call of :func:`hooks_of`, which Cairn makes at its import.
"""

import copyreg
import functools
import types
from collections.abc import Iterable
from typing import Any

from cairn._process import ProcessPart, part

# Names that ABCs and protocols add to every subclass.
_MACHINERY = {"_abc_impl", "_is_protocol", "_is_runtime_protocol"}

_MISSING = object()
_PRIVATE = "_cairn_"  # prefix of attributes of Cairn's classes, to avoid clashes with subclasses of the caller's


class _Definitions(ProcessPart):
    """`by_class`: the attributes of each class at the call of hooks_of()."""

    def __init__(self) -> None:
        self.by_class: dict[type, dict[str, Any]] = {}

    def in_child(self) -> "_Definitions":
        """A child inherits the classes, whose methods may have been replaced before the fork."""
        return self


def hooks_of(*classes: type) -> frozenset[str]:
    """Returns the names that the classes and their bases define, private names included, without dunder names."""
    names: set[str] = set()
    for base in {base for kind in classes for base in kind.__mro__}:
        names.update(part(_Definitions).by_class.setdefault(base, dict(vars(base))))
    return frozenset(name for name in names - _MACHINERY if not name.startswith("__"))


def overridden(instance: object, hooks: Iterable[str], native: tuple[type, ...]) -> list[str]:
    """Returns the `hooks` that `instance` does not inherit from one of the `native` classes or their bases, sorted.

    A function that was set on the instance overrides the class. A hook that `instance` lacks counts as overridden, as
    does a hook that was replaced in a native class. A class with a ``__getattribute__`` overrides all hooks.
    """
    if _owner(type(instance), "__getattribute__") is not object:
        return sorted(hooks)
    trusted = {base for kind in native for base in kind.__mro__}
    own = getattr(instance, "__dict__", {})
    return sorted(
        hook
        for hook in hooks
        if (owner := _owner(type(instance), hook)) not in trusted
        or _is_replaced(owner, hook)
        or (hook in own and callable(own[hook]))
    )


def extends(instance: object, hook: str, native: tuple[type, ...]) -> bool:
    """Returns whether all overrides of `hook` seem to call ``super()``'s method, up to the method of a native class.

    The names in the functions' code decide: a function whose code does not name ``super`` and the hook reaches the
    native method in another way, or never. A function set on the instance counts as not calling the native method.
    """
    trusted = {base for kind in native for base in kind.__mro__}
    if hook in getattr(instance, "__dict__", {}):
        return False
    for base in type(instance).__mro__:
        if hook not in vars(base):
            continue
        if base in trusted:
            return not _is_replaced(base, hook)
        code = getattr(vars(base)[hook], "__code__", None)
        if code is None or not {"super", hook} <= set(code.co_names):
            return False
    return False


def with_native_hooks(instance: Any, stock: type, ours: type) -> Any:
    """Returns `instance` with the hooks of `ours` in place of the inherited hooks of `stock`, a base of `ours`.

    The result shares the attributes of `instance`. Its class is `ours`, or derives from the class of `instance` first
    and from `ours` second; therefore ``super()`` in an overridden hook reaches Cairn's hook, as in a class that was
    defined after ``cairn.install()``. The result is a new object, but pickles and copies as an object of the class of
    `instance`. Returns `instance` itself if its class already derives from `ours` or can't be combined: a class with
    ``__slots__``, whose values can't be shared, or with a metaclass that refuses.
    """
    kind = _combined(type(instance), stock, ours)
    if kind is type(instance):
        return instance
    twin: Any = object.__new__(kind)
    twin.__dict__ = instance.__dict__
    return twin


def name_of(kind: type) -> str:
    """Returns the name of a class for messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


def why_not_native(instance: object, hooks: Iterable[str], native: tuple[type, ...]) -> str:
    """Returns the class of `instance` and its overridden hooks, for a message; "" if `instance` is native."""
    kind = type(instance)
    if not any(base in kind.__mro__ for base in native):
        return f"it is a {name_of(kind)}"
    names = overridden(instance, hooks, native)
    return f"{name_of(kind)} overrides {', '.join(names)}" if names else ""


class _Combined:
    """First base of a combined class: keeps ``__init_subclass__`` of the caller's class uncalled, and pickles name the
    caller's class."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Does not call the next class."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, kind, _ = type(self).__bases__
        plain: Any = object.__new__(kind)
        plain.__dict__.update({name: value for name, value in vars(self).items() if not name.startswith(_PRIVATE)})
        function, arguments, *state = plain.__reduce_ex__(protocol)
        if function is copyreg.__newobj__:  # type: ignore[attr-defined]
            function, arguments = _blank, (kind,)  # pickle compares the class with the class of this instance
        return function, arguments, *state


def _blank(kind: type) -> Any:
    return object.__new__(kind)


def _is_replaced(kind: type, hook: str) -> bool:
    """Returns whether a method of this name was replaced in the class. Caches and data of the class may change."""
    now = vars(kind)[hook]
    is_method = callable(now) or hasattr(now, "__get__")
    before = part(_Definitions).by_class.get(kind)
    return is_method and before is not None and now is not before.get(hook, _MISSING)


def _owner(kind: type, hook: str) -> type | None:
    return next((base for base in kind.__mro__ if hook in vars(base)), None)


def _combined(kind: type, stock: type, ours: type) -> type:
    if ours in kind.__mro__:
        return kind
    if kind is stock:
        return ours
    if kind.__basicsize__ != stock.__basicsize__:  # __slots__
        return kind
    return _new_class(kind, ours)


@functools.cache
def _new_class(kind: type, ours: type) -> type:
    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__)

    try:
        return types.new_class(kind.__name__, (_Combined, kind, ours), exec_body=fill)
    except Exception:  # raised by a metaclass: more arguments are needed, or a second class of equal name is refused
        return kind
