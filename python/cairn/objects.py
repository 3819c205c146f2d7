"""Values that are not tensors: plain ones go natively, the rest as ``torch.save`` pickles them.

Reading never runs code from the checkpoint unless the caller opts in: what is not plain data is read by the rules of
``torch.load(weights_only=True)``, which ``torch.serialization.add_safe_globals`` extends. A plain container that a
value holds twice comes back as two equal ones.
"""

import io
import os
import warnings
from typing import Any

import torch

from cairn import _engine
from cairn.errors import Corrupt, Error, InvalidArgument, UnsafeContent
from cairn.flattening import Path


class PickleWarning(UserWarning):
    """A value was saved that can be loaded only with ``allow_pickle=True``."""


class ConversionWarning(UserWarning):
    """A load converted tensors from one dtype to another."""


_warned: set[str] = set()  # classes that a PickleWarning has named


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
    _warn_if_foreign(key, payload)
    state.add_serialized_value(path, payload)


def pickle_allowed(allow_pickle: bool | None) -> bool:
    """The caller's word, or that of the environment."""
    return os.environ.get("CAIRN_ALLOW_PICKLE") == "1" if allow_pickle is None else allow_pickle


def load_value(key: str, payload: bytes, allow_pickle: bool) -> Any:
    """The value in a payload. Raises UnsafeContent if it holds a class that only running its pickle could make."""
    foreign = ""
    try:
        value, foreign = _engine.decode_plain(payload)
        if not foreign:
            return value
    except Error as error:
        # Not an archive that we know, such as the raw bytes of other planners: torch may know it.
        not_decoded: Error | None = error
    except TypeError as error:  # an unhashable key: no pickler writes that
        raise Corrupt(f"the value under '{key}' is no Python value: {error}", key=key) from error
    else:
        not_decoded = None
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:
        if not_decoded is not None and not allow_pickle:
            raise _located(not_decoded, key) from error
        if not allow_pickle:
            raise UnsafeContent(
                f"'{key}' holds a {foreign}, which can't be read without running code from the checkpoint; if you "
                f"trust it, pass allow_pickle=True or set CAIRN_ALLOW_PICKLE=1, or name the class to "
                f"torch.serialization.add_safe_globals",
                key=key,
                actual=foreign,
            ) from error
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=False)
    except Exception as error:
        raise Corrupt(f"the value under '{key}' can't be unpickled: {error}", key=key) from error


def _located(error: Error, key: str) -> Error:
    place = {**error.place, "key": error.key or key}
    return type(error)(f"{error.message} (key '{key}')" if error.key is None else error.message, **place)


def _warn_if_foreign(key: str, payload: bytes) -> None:
    """Nobody should learn at resume that a value needs ``allow_pickle``."""
    try:
        foreign = _engine.decode_plain(payload)[1]
    except Error:
        foreign = "value of an unknown kind"
    if not foreign or foreign in _warned:
        return
    try:
        torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception:
        _warned.add(foreign)
        warnings.warn(
            f"'{key}' holds a {foreign}, which is not plain data: cairn.load needs allow_pickle=True to load it",
            PickleWarning,
            stacklevel=4,
        )


def _class_of(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
