"""A TensorAwareStateDict of NVRx as a flat state dict of Cairn, and back. Loading runs no code from the file.

The state dict has three kinds of keys:

- ``structure``: the object's attributes as nodes. A node is an inline value (`_INLINE`), or a tuple that begins with
  its kind: ``("dict", keys, nodes)``, ``("list", nodes)``, ``("tuple", nodes)``, ``("object", name of the class, names
  of the attributes, nodes)``, ``("tensor", key, is a Parameter, device)``, ``("value", key)``.
- ``tensors/<path>``: a tensor, on the CPU. A tensor that occurs twice is stored once.
- ``values/<path>``: a list with a single value of another class, by the rules of docs/pickles.md.

The load makes an object by ``object.__new__`` and sets the attributes: no method of the class runs. The class must be
one of `_Classes`. The file never causes an import: the program has imported the class, or `_MEGATRON` names the class.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import (  # type: ignore[import-untyped]
    TensorAwareStateDict,
)

from cairn._state.torch_codes import QUANTIZED
from cairn.errors import Corrupt, Error, InvalidArgument, Unsupported

STRUCTURE = "structure"
_TENSORS = "tensors/"
_VALUES = "values/"

_INLINE = frozenset(
    (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
)  # exactly these types; Cairn reads them without code
_TENSOR_TYPES = (torch.Tensor, torch.nn.Parameter)
_MAPPING = "megatron.core.dist_checkpointing.mapping"
_MEGATRON = {
    "MCoreTensorAwareStateDict": "megatron.core.dist_checkpointing.tensor_aware_state_dict",
    "LocalNonpersistentObject": _MAPPING,
    "ShardedObject": _MAPPING,
    "ShardedTensor": _MAPPING,
}
_OWN_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
_FORM = 1


def stored_form(state: TensorAwareStateDict, part: tuple[int, int, int, str]) -> dict[str, Any]:
    """Returns the state dict of `state`, which is not hollow, with tensors on the CPU. `part` is checked by a load.

    The tensors of `state` that are on the CPU are not copied. Raises Unsupported, with the path, for an object that
    contains itself, and for a class with a pickling of its own.
    """
    writer = _Writer()
    root = writer.node(state, type(state).__name__)
    return {STRUCTURE: {"form": _FORM, "part": tuple(part), "state": root}, **writer.entries}


class _Writer:
    """Makes nodes; `entries` are the tensors and values by key."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}
        self._classes = _Classes()
        self._tensors: dict[int, tuple[Any, ...]] = {}
        self._above: set[int] = set()  # objects that contain the current one

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if _is_inline(value):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        is_known = self._classes.name_of(kind) is not None
        if not is_known and kind not in (dict, list, tuple):
            return self._value(value, path)
        if id(value) in self._above:
            raise Unsupported(f"'{path}' contains itself: a local checkpoint can't hold it", key=path)
        self._above.add(id(value))
        try:
            return self._object(value, path) if is_known else self._container(value, path)
        except RecursionError:
            raise Unsupported(f"the state is nested too deeply at '{path[:200]}'", key=path[:200]) from None
        finally:
            self._above.discard(id(value))

    def _container(self, value: Any, path: str) -> tuple[Any, ...]:
        if type(value) is dict:
            keys = [self._key(key, path) for key in value]
            return ("dict", keys, [self.node(item, f"{path}.{key}") for key, item in value.items()])
        return (type(value).__name__, [self.node(item, f"{path}.{index}") for index, item in enumerate(value)])

    def _key(self, key: Any, path: str) -> Any:
        if type(key) is tuple:
            return tuple(self._key(part, path) for part in key)
        if not _is_inline(key):
            name = type(key).__name__
            raise Unsupported(f"a key of the dict '{path}' is a {name}: a local checkpoint can't hold it", key=path)
        return key

    def _object(self, value: Any, path: str) -> tuple[Any, ...]:
        kind = type(value)
        own = [name for name in _OWN_PICKLING if getattr(kind, name, None) is not getattr(object, name, None)]
        slots = [base for base in kind.__mro__ if vars(base).get("__slots__")]
        if own or slots:
            raise Unsupported(
                f"'{path}' is a {kind.__qualname__}, which has {own[0] if own else '__slots__'}: a local checkpoint "
                "stores the attributes of an object and calls no method of its class",
                key=path,
                actual=kind.__qualname__,
            )
        attributes = vars(value)
        nodes = [self.node(item, f"{path}.{name}") for name, item in attributes.items()]
        return ("object", self._classes.name_of(kind), list(attributes), nodes)

    def _tensor(self, tensor: torch.Tensor, path: str) -> Any:
        if id(tensor) in self._tensors:
            return self._tensors[id(tensor)]
        is_plain = type(tensor) in _TENSOR_TYPES and tensor.layout is torch.strided and tensor.dtype not in QUANTIZED
        if not is_plain:
            return self._value(tensor, path)
        # The entry keeps the CPU's tensor alive, and the caller's state the tensor of `id`.
        key = self._add(_TENSORS, path, tensor if tensor.device.type == "cpu" else tensor.detach().cpu())
        node = ("tensor", key, isinstance(tensor, torch.nn.Parameter), str(tensor.device))
        self._tensors[id(tensor)] = node
        return node

    def _value(self, value: Any, path: str) -> tuple[Any, ...]:
        return ("value", self._add(_VALUES, path, [value]))

    def _add(self, prefix: str, path: str, entry: Any) -> str:
        """Adds an entry under a key that no other entry has: two paths may have the same text."""
        key, count = prefix + path, 1
        while key in self.entries:
            count += 1
            key = f"{prefix}{path}#{count}"
        self.entries[key] = entry
        return key


def _is_inline(value: Any) -> bool:
    kind = type(value)
    return kind in _INLINE or (
        kind is slice and all(type(part) in _INLINE for part in (value.start, value.stop, value.step))
    )


class _Classes:
    """The classes whose objects are stored by their attributes: those that derive from TensorAwareStateDict, and the
    classes of Megatron-core's shards."""

    def __init__(self) -> None:
        self._names = {kind: _name_of(kind) for kind in _subclasses(TensorAwareStateDict)}
        for name, module in _MEGATRON.items():
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None:
                self._names[kind] = _name_of(kind)

    def name_of(self, kind: type) -> str | None:
        """Returns the name in the file; None for another class."""
        return self._names.get(kind)

    def named(self, name: str) -> type | None:
        """Returns the class of a name in a file; None if the program has no such class."""
        module, _, qualified = name.partition(":")
        if _MEGATRON.get(qualified) == module and module not in sys.modules:
            importlib.import_module(_MEGATRON[qualified])
            self._names = _Classes()._names
        return next((kind for kind, known in reversed(self._names.items()) if known == name), None)


def _subclasses(kind: type) -> Iterator[type]:
    below: type
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def part_of(structure: Any) -> Any:
    """Returns the `part` of a stored form. Raises Corrupt, and Unsupported for the form of a later Cairn."""
    if type(structure) is not dict or not {"form", "part", "state"} <= set(structure):
        raise Corrupt("this is no local checkpoint: its structure has other entries", key=STRUCTURE)
    if structure["form"] != _FORM:
        raise Unsupported(
            "a later Cairn has written the local checkpoint", key=STRUCTURE, actual=str(structure["form"])
        )
    return structure["part"]


def state_of(structure: Any, entries: Mapping[str, Any], nodes_max: int) -> TensorAwareStateDict:
    """Returns the state of a stored form. `entries`: the tensors and values by key.

    `nodes_max` bounds the work; a structure has at least a byte for each node. Raises InvalidArgument for a class that
    the program has not imported, and Corrupt for a structure that stored_form() never makes.
    """
    reader = _Reader(entries, nodes_max)
    try:
        state = reader.value_of(structure["state"])
    except Error:
        raise
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Corrupt(f"the structure of the local checkpoint is damaged: {error!r}", key=STRUCTURE) from error
    if not isinstance(state, TensorAwareStateDict):
        raise Corrupt("the local checkpoint holds no TensorAwareStateDict", key=STRUCTURE, actual=type(state).__name__)
    return state


class _Reader:
    """Makes values of nodes."""

    def __init__(self, entries: Mapping[str, Any], nodes_max: int) -> None:
        self._entries = entries
        self._classes = _Classes()
        self._left = nodes_max
        self._tensors: dict[str, torch.Tensor] = {}
        self._by_kind: dict[str, Callable[..., Any]] = {
            "dict": lambda keys, nodes: dict(zip(keys, self._values(nodes), strict=True)),
            "list": lambda nodes: list(self._values(nodes)),
            "tuple": lambda nodes: tuple(self._values(nodes)),
            "object": self._object,
            "tensor": self._tensor,
            "value": lambda key: self._entries[_expect(key, _VALUES)][0],
        }

    def value_of(self, node: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError("a node occurs more than once")
        if type(node) is not tuple:
            if not _is_inline(node):
                raise ValueError(f"a {type(node).__name__} is no node")
            return node
        kind, *parts = node
        return self._by_kind[kind](*parts)

    def _values(self, nodes: Any) -> Iterator[Any]:
        if type(nodes) is not list:
            raise ValueError("the nodes are no list")
        return (self.value_of(node) for node in nodes)

    def _object(self, name: str, attributes: list[str], nodes: Any) -> Any:
        kind = self._classes.named(name)
        if kind is None:
            raise InvalidArgument(
                f"the local checkpoint holds a {name.replace(':', '.')}, a class that this program has not imported: "
                "import its module before the load",
                key=STRUCTURE,
                actual=name,
            )
        if any(type(attribute) is not str for attribute in attributes):
            raise ValueError("an attribute without a name")
        made: Any = object.__new__(kind)
        vars(made).update(zip(attributes, self._values(nodes), strict=True))
        return made

    def _tensor(self, key: str, is_parameter: bool, device: str) -> torch.Tensor:
        if key not in self._tensors:
            tensor = self._entries[_expect(key, _TENSORS)]
            if torch.device(device).type == "cuda" and torch.cuda.is_available():
                tensor = tensor.to(torch.device(device))
            self._tensors[key] = torch.nn.Parameter(tensor, tensor.requires_grad) if is_parameter else tensor
        return self._tensors[key]


def _expect(key: Any, prefix: str) -> str:
    if type(key) is not str or not key.startswith(prefix):
        raise ValueError(f"{key!r} is no key of {prefix}")
    return key


def is_tensor_key(key: str) -> bool:
    """Whether the entry under `key` is a tensor; otherwise it is a value."""
    return key.startswith(_TENSORS)
