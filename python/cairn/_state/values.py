"""Values that are not tensors: plain ones go natively, the rest as ``torch.save`` pickles them.

Reading never runs code from the checkpoint unless the caller opts in. Plain data is read natively, and so are objects
of the classes that :mod:`cairn._known_objects` lists. What else there is, is read by the rules of
``torch.load(weights_only=True)``, which ``torch.serialization.add_safe_globals`` extends; and if those refuse tensors
beside objects of the list (a deque of tensors), by :mod:`cairn._known_objects.tensors`. An object that a value holds
twice comes back as one.

Tensors inside values come back on the device that they were saved from, as DCP has it: its
``DefaultLoadPlanner.load_bytes`` gives ``torch.load`` no ``map_location``. Where this process lacks the device, DCP
fails; here they come on the CPU, with a :class:`DeviceWarning`: a checkpoint must stay readable on any machine.
"""

import io
import sys
import warnings
import zipfile
from typing import Any

import torch

from cairn import _engine, _known_objects
from cairn._known_objects.tensors import TensorsOfArchive
from cairn._settings.consent import line_that_allows
from cairn._state.flattening import Path
from cairn._state.tensors import dtype_name
from cairn._state.torch_file import check_rules_hold
from cairn.errors import Corrupt, Error, InvalidArgument, UnsafeContent
from cairn.warnings import ConversionWarning, DeviceWarning, PickleWarning

_NAMED_KEYS_MAX = 5  # keys that a warning spells out
_warned: set[str] = set()  # classes that a PickleWarning has named, and devices that a DeviceWarning has


def add_value(state: _engine.StateDict, path: Path, value: Any) -> None:
    """Adds a non-tensor to a StateDict that is to be saved. Raises InvalidArgument if it can't be pickled."""
    if state.add_value(path, value):
        return
    key = ".".join(map(str, path))
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except Exception as error:
        raise InvalidArgument(f"the {_class_of(value)} under '{key}' can't be pickled: {error}", key=key) from error
    payload = stream.getvalue()
    _warn_if_foreign(key, payload, _class_of(value))
    state.add_serialized_value(path, payload)


def load_value(key: str, payload: bytes, allow_pickle: bool, map_location: Any = None) -> Any:
    """The value in a payload. Raises UnsafeContent if it holds a class that only running its pickle could make.

    `map_location` says as in ``torch.load`` where tensors inside it go; None: where they were saved from.
    """
    foreign = ""
    not_decoded: Error | None = None
    try:
        value, foreign = _decoded(payload)
        if not foreign:
            return value
    except (Corrupt, UnsafeContent) as error:
        # torch would not notice records that share bytes, nor parts that are repeated by reference.
        if not allow_pickle:
            raise error.under(key) from None
        not_decoded = error
    except Error as error:
        # Not an archive that we know, such as the raw bytes of other planners: torch may know it.
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
            raise UnsafeContent(
                f"'{key}' holds a {foreign}, which can't be read without running code from the checkpoint. If you "
                f"trust whoever wrote it: {line_that_allows()}, or set CAIRN_ALLOW_PICKLE=1 (docs/pickles.md)",
                key=key,
                actual=foreign,
            ) from error
    try:
        return _unpickle(key, payload, map_location, weights_only=False)
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        raise Corrupt(f"the value under '{key}' can't be unpickled: {error}", key=key) from error


def payload_without_code(key: str, payload: bytes, allow_pickle: bool) -> bytes:
    """A payload for what unpickles whatever it gets: the value that load_value() reads, as this process pickles it."""
    stream = io.BytesIO()
    torch.save(load_value(key, payload, allow_pickle), stream)
    return stream.getvalue()


def warn_of_conversions(conversions: list[tuple[str, int, int]]) -> None:
    """A ConversionWarning for the caller of Cairn, if there are any: key, saved and wanted dtype code."""
    if not conversions:
        return
    distinct = list(dict.fromkeys(conversions))
    named = [
        f"'{fqn}' from {dtype_name(saved)} to {dtype_name(target)}" for fqn, saved, target in distinct[:_NAMED_KEYS_MAX]
    ]
    rest = len(distinct) - len(named)
    more = f" and {rest} more" if rest else ""
    message = f"converted while loading: {', '.join(named)}{more}"
    warnings.warn(message, ConversionWarning, stacklevel=_level_of_the_caller())


def _decoded(payload: bytes) -> tuple[Any, str]:
    """The value in a payload; or None and the class because of which it can't be built. Tensors are left to torch."""
    return _engine.decode_plain(payload, _known_objects.make)


def _described(payload: bytes, foreign: str, map_location: Any) -> tuple[Any, str]:
    """As _decoded(), for a value with tensors in it, which torch's rules refuse for the sake of its other objects.

    `foreign` is what _decoded() said; `map_location` is for ``torch.load``.
    """
    try:
        restore = torch.serialization._get_restore_location(map_location)  # type: ignore[no-untyped-call]
        return _engine.decode_described(payload, TensorsOfArchive(payload, restore).make)
    except (torch.cuda.OutOfMemoryError, MemoryError):
        raise
    except (Error, RuntimeError, LookupError, ValueError, zipfile.BadZipFile):
        return None, foreign


class _Devices(dict[Any, Any]):
    """For ``torch.load(map_location=...)``: devices that this process lacks become the CPU.

    A dict, because the tensor subclasses that torch rebuilds by their device take no function.
    """

    def get(self, location: Any, default: Any = None) -> Any:
        """Where what was saved from `location` (a string, or a ``torch.device``) is to go."""
        if location not in self:
            self[location] = location if _has_device(str(location)) else "cpu"
        return self[location]

    def lacking(self) -> set[str]:
        """The devices that were asked for and are not here."""
        return {str(location) for location, place in self.items() if place != location}


def _has_device(location: str) -> bool:
    """Whether torch, or what has registered itself with it, can put a storage there: it is asked to, with no bytes."""
    try:
        storage = torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
        torch.serialization.default_restore_location(storage, location)  # type: ignore[no-untyped-call]
    except torch.cuda.OutOfMemoryError:
        return True
    except Exception:
        return False
    return True


def _unpickle(key: str, payload: bytes, map_location: Any, *, weights_only: bool) -> Any:
    """As torch.load, but no device is missing."""
    if weights_only:
        check_rules_hold(f"the value under '{key}'", key=key)
    location = _Devices() if map_location is None else map_location
    value = torch.load(io.BytesIO(payload), map_location=location, weights_only=weights_only)
    _warn_of_devices(key, location)
    return value


def _warn_of_devices(key: str, location: Any) -> None:
    """After a load by this map_location: a DeviceWarning, if it is a _Devices and a device was missing."""
    news = location.lacking() - _warned if isinstance(location, _Devices) else None
    if news:
        _warned.update(news)
        warnings.warn(
            f"'{key}' holds tensors that were saved from {', '.join(sorted(news))}, which this process lacks: they are "
            f"on the CPU, and so are those of values that are loaded later",
            DeviceWarning,
            stacklevel=_level_of_the_caller(),
        )


def _warn_if_foreign(key: str, payload: bytes, kind: str) -> None:
    """Warns at the save of a value that a load will refuse, once for each class. `kind` is the value's class."""
    try:
        _, foreign = _decoded(payload)
    except Error:
        foreign = kind
    if not foreign or foreign in _warned:
        return
    try:
        check_rules_hold(f"the value under '{key}'", key=key)  # as at the load
        torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception:
        _, foreign = _described(payload, foreign, "cpu")
        if not foreign or foreign in _warned:
            return
        _warned.add(foreign)
        warnings.warn(
            f"'{key}' holds a {foreign}, which is not plain data. To load it, code from the checkpoint must be allowed "
            f"to run: {line_that_allows()}, or set CAIRN_ALLOW_PICKLE=1 (docs/pickles.md)",
            PickleWarning,
            stacklevel=_level_of_the_caller(),
        )


def _level_of_the_caller() -> int:
    """For ``warnings.warn``: how far up the code is that called Cairn."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "cairn":
        frame = frame.f_back
        level += 1
    return level


def _class_of(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
