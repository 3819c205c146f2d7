"""Tensors that only torch can describe (tensor subclasses, quantised tensors), as archives of ``torch.save``.

An archive is read by the rules of ``torch.load(weights_only=True)``, as in DCP: ``torch.serialization.
add_safe_globals`` allows a class. With the user's consent (`allow_pickle`) an archive may also run code.
"""

import io

import torch

from cairn._process import ProcessPart, part
from cairn._state.payloads import check_rules_hold, payload_of, refused_class
from cairn._state.values import unsafe_content, warn_of_pickle
from cairn.errors import Error, UnsafeContent, Unsupported


class _Checked(ProcessPart):
    """`kinds`: the classes of which an archive was tried."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()

    def in_child(self) -> "_Checked":
        """A child repeats neither the trials nor the warnings of the parent."""
        return self


def archive_of(key: str, tensor: torch.Tensor) -> bytes:
    """Returns the archive of a tensor, with its elements on the CPU, as DCP writes it.

    Issues a PickleWarning, once for each class, if a load will refuse the archive. Raises Unsupported for a tensor that
    torch can't save.
    """
    kind = type(tensor)
    tensor = tensor.detach().cpu()
    try:
        if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        payload = payload_of(key, tensor)
    except Error:
        raise
    except Exception as error:
        raise Unsupported(f"torch can't save the {kind.__name__} under '{key}': {error}", key=key) from error
    checked = part(_Checked).kinds
    if kind not in checked:
        checked.add(kind)
        _warn_if_refused(key, kind, payload)
    return payload


def tensor_in_archive(key: str, payload: bytes, allow_pickle: bool) -> torch.Tensor:
    """Returns the tensor in an archive, on the CPU. Raises UnsafeContent for a class that torch's rules refuse, unless
    `allow_pickle`; Unsupported for an archive that torch can't read, or that holds no tensor."""
    if not allow_pickle:
        check_rules_hold(f"the tensor under '{key}'", key=key)
    try:
        loaded = _unpickled(payload, weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        refused = refused_class(error)
        if refused is None:
            raise Unsupported(f"torch can't read the tensor under '{key}': {error}", key=key) from error
        if not allow_pickle:
            raise unsafe_content(key, refused) from error
        try:
            loaded = _unpickled(payload, weights_only=False)
        except MemoryError:
            raise
        except Exception as failure:
            raise Unsupported(f"torch can't read the tensor under '{key}': {failure}", key=key) from failure
    if not isinstance(loaded, torch.Tensor):
        raise Unsupported(f"the item of the tensor '{key}' holds a {type(loaded).__name__}", key=key)
    return loaded


def _unpickled(payload: bytes, *, weights_only: bool) -> object:
    loaded: object = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=weights_only)
    return loaded


def _warn_if_refused(key: str, kind: type, payload: bytes) -> None:
    try:
        tensor_in_archive(key, payload, allow_pickle=False)
    except UnsafeContent as error:
        warn_of_pickle(key, error.actual or f"{kind.__module__}.{kind.__qualname__}")
    except Error:  # the class itself can't read what it has written, for example without its device
        pass
