"""Values: the engine encodes plain ones, and ``torch.save`` pickles the rest.

Reading never runs code from the checkpoint unless the caller allows pickle. The engine decodes plain data and objects
of the classes that :mod:`cairn._known_objects` lists. All remaining values are read by the rules of
``torch.load(weights_only=True)``, which ``torch.serialization.add_safe_globals`` extends. If those rules refuse a value
with tensors beside objects of the list (a deque of tensors), :mod:`cairn._known_objects.tensors` reads the value. An
object that a value holds twice is read as one object.

Tensors inside values are put on the device from which they were saved, as in DCP, whose
``DefaultLoadPlanner.load_bytes`` gives ``torch.load`` no ``map_location``. Where this process lacks the device, DCP
fails; Cairn puts the tensors on the CPU, with a :class:`DeviceWarning`: a checkpoint must stay readable on any machine.
"""

import io
import sys
import warnings
import zipfile
from typing import Any

import torch

from cairn import _engine, _known_objects
from cairn._known_objects.tensors import TensorsOfArchive
from cairn._process import ProcessPart, part
from cairn._settings import line_that_allows
from cairn._state.flattening import Path
from cairn._state.payloads import check_rules_hold, payload_of
from cairn._state.torch_codes import dtype_name
from cairn.errors import Corrupt, Error, InvalidArgument, UnsafeContent
from cairn.warnings import ConversionWarning, DeviceWarning, PickleWarning

_NAMED_KEYS_MAX = 5  # keys that a warning lists


class _Warned(ProcessPart):
    """`names`: the classes that a PickleWarning has named, and the devices that a DeviceWarning has named."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def in_child(self) -> "_Warned":
        """A child does not repeat the parent's warnings."""
        return self


def add_value(state: _engine.StateDict, path: Path, value: Any) -> None:
    """Adds a non-tensor to a StateDict for a save. Raises InvalidArgument if the value can't be pickled, or if a tensor
    inside the value has no elements."""
    if state.add_value(path, value):
        return
    key = ".".join(map(str, path))
    try:
        payload = payload_of(key, value)
    except Error:
        raise
    except Exception as error:
        raise InvalidArgument(f"the {_class_of(value)} under '{key}' can't be pickled: {error}", key=key) from error
    _warn_if_foreign(key, payload, _class_of(value))
    state.add_serialized_value(path, payload)


def load_value(key: str, payload: bytes, allow_pickle: bool, map_location: Any = None) -> Any:
    """Returns the value in a payload. Raises UnsafeContent for a class that can't be made without running the pickle.

    `map_location` is as in ``torch.load`` for tensors inside the value; None: the device from which they were saved.
    """
    foreign = ""
    not_decoded: Error | None = None
    try:
        value, foreign = _decoded(payload)
        if not foreign:
            return value
    except (Corrupt, UnsafeContent) as error:
        # torch detects neither records that share bytes nor parts that are repeated by reference.
        if not allow_pickle:
            raise error.under(key) from None
        not_decoded = error
    except Error as error:
        # Not an archive that Cairn knows, for example the raw bytes of a foreign planner. torch may know the format.
        not_decoded = error
    try:
        return _unpickle(key, payload, map_location, weights_only=True)
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if isinstance(error, UnsafeContent) and not allow_pickle:
            raise
        if not_decoded is None:
            location = _Devices() if map_location is None else map_location
            value, foreign = _described(payload, foreign, location)
            if not foreign:
                _warn_of_devices(key, location)
                return value
        if not_decoded is not None and not allow_pickle:
            raise not_decoded.under(key) from error
        if not allow_pickle:
            raise unsafe_content(key, foreign) from error
    try:
        return _unpickle(key, payload, map_location, weights_only=False)
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        raise Corrupt(f"the value under '{key}' can't be unpickled: {error}", key=key) from error


def unsafe_content(key: str, foreign: str) -> UnsafeContent:
    """Returns the error for an item with a class `foreign`, which needs the caller's consent."""
    return UnsafeContent(
        f"'{key}' holds a {foreign}, which can't be read without running code from the checkpoint. If you "
        f"trust its author: {line_that_allows()}, or set CAIRN_ALLOW_PICKLE=1 (docs/pickles.md)",
        key=key,
        actual=foreign,
    )


def warn_of_pickle(key: str, foreign: str) -> None:
    """Issues the PickleWarning of a save for an item with a class `foreign`, once for each class."""
    warned = part(_Warned).names
    if foreign in warned:
        return
    warned.add(foreign)
    warnings.warn(
        f"'{key}' holds a {foreign}, which is not plain data. To load it, code from the checkpoint must be allowed "
        f"to run: {line_that_allows()}, or set CAIRN_ALLOW_PICKLE=1 (docs/pickles.md)",
        PickleWarning,
        stacklevel=level_of_the_caller(),
    )


def payload_without_code(key: str, payload: bytes, allow_pickle: bool) -> bytes:
    """Returns a payload that is safe to unpickle: the value that load_value() reads, pickled by this process."""
    stream = io.BytesIO()
    torch.save(load_value(key, payload, allow_pickle), stream)
    return stream.getvalue()


def warn_of_conversions(conversions: list[tuple[str, int, int]]) -> None:
    """Issues a ConversionWarning for Cairn's caller unless `conversions` (key, saved and wanted dtype code) is
    empty."""
    if not conversions:
        return
    distinct = list(dict.fromkeys(conversions))
    named = [
        f"'{fqn}' from {dtype_name(saved)} to {dtype_name(target)}" for fqn, saved, target in distinct[:_NAMED_KEYS_MAX]
    ]
    rest = len(distinct) - len(named)
    more = f" and {rest} more" if rest else ""
    message = f"converted while loading: {', '.join(named)}{more}"
    warnings.warn(message, ConversionWarning, stacklevel=level_of_the_caller())


def _decoded(payload: bytes) -> tuple[Any, str]:
    """Returns the value in a payload; or None and the class that can't be built. Leaves tensors to torch."""
    return _engine.decode_plain(payload, _known_objects.make)


def _described(payload: bytes, foreign: str, map_location: Any) -> tuple[Any, str]:
    """As _decoded(), for a value with tensors that torch's rules refuse because of the value's objects.

    `foreign` is the class that _decoded() returned; `map_location` is for ``torch.load``.
    """
    try:
        restore = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]
        return _engine.decode_described(payload, TensorsOfArchive(payload, restore).make)
    except (torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except (Error, RuntimeError, LookupError, ValueError, zipfile.BadZipFile):
        return None, foreign


class _Devices(dict[Any, Any]):
    """A ``torch.load(map_location=...)`` that puts tensors of devices that this process lacks on the CPU.

    A dict, because the tensor subclasses that torch rebuilds by device accept no function.
    """

    def get(self, location: Any, default: Any = None) -> Any:
        """Returns the device for tensors saved from `location` (a string, or a ``torch.device``)."""
        if location not in self:
            self[location] = location if _has_device(str(location)) else "cpu"
        return self[location]

    def lacking(self) -> set[str]:
        """Returns the requested devices that this process lacks."""
        return {str(location) for location, place in self.items() if place != location}


def _has_device(location: str) -> bool:
    """Returns whether torch, or a backend registered with torch, can put a storage on the device; tries an empty
    storage."""
    try:
        storage = torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
        torch.serialization.default_restore_location(storage, location)  # type: ignore[no-untyped-call]
    except torch.cuda.OutOfMemoryError:
        return True
    except Exception:
        return False
    return True


def _unpickle(key: str, payload: bytes, map_location: Any, *, weights_only: bool) -> Any:
    """As torch.load, with missing devices replaced by the CPU."""
    if weights_only:
        check_rules_hold(f"the value under '{key}'", key=key)
    location = _Devices() if map_location is None else map_location
    value = torch.load(io.BytesIO(payload), map_location=location, weights_only=weights_only)
    _warn_of_devices(key, location)
    return value


def _warn_of_devices(key: str, location: Any) -> None:
    """Issues a DeviceWarning after a load if `location` is a _Devices and a device was missing."""
    warned = part(_Warned).names
    news = location.lacking() - warned if isinstance(location, _Devices) else None
    if news:
        warned.update(news)
        warnings.warn(
            f"'{key}' holds tensors that were saved from {', '.join(sorted(news))}, which this process lacks: the "
            f"tensors are on the CPU (warned once; later values are loaded likewise)",
            DeviceWarning,
            stacklevel=level_of_the_caller(),
        )


def _warn_if_foreign(key: str, payload: bytes, kind: str) -> None:
    """Warns at the save of a value that a load will refuse, once for each class. `kind` is the value's class."""
    try:
        _, foreign = _decoded(payload)
    except Error:
        foreign = kind
    warned = part(_Warned).names
    if not foreign or foreign in warned:
        return
    try:
        check_rules_hold(f"the value under '{key}'", key=key)  # as at the load
        torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception:
        _, foreign = _described(payload, foreign, "cpu")
        if foreign:
            warn_of_pickle(key, foreign)


def level_of_the_caller() -> int:
    """Returns the ``stacklevel`` for ``warnings.warn`` of the code that called Cairn."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "cairn":
        frame = frame.f_back
        level += 1
    return level


def _class_of(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
