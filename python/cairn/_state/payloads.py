"""Archives of ``torch.save`` inside a checkpoint: made of an object, and the rules by which torch reads them.

Before torch 2.6 an archive can run code in spite of the rules of ``torch.load(weights_only=True)`` (CVE-2025-32434).
With these versions Cairn never relies on the rules: data that only torch can read needs the caller's consent.
"""

import io
import pickle
import re
from typing import Any

import torch
from torch.torch_version import TorchVersion

from cairn._settings import line_that_allows
from cairn._state.tensor_memory import check_memory
from cairn.errors import UnsafeContent

REFUSED_CLASS = re.compile(r"GLOBAL (\S+) was not an allowed global")  # in torch's message; group 1 is the class

_HOLD_SINCE = (2, 6)


def rules_hold() -> bool:
    """Returns whether ``torch.load(weights_only=True)`` of the installed torch runs no code from a file."""
    return bool(TorchVersion(torch.__version__) >= _HOLD_SINCE)  # type: ignore[operator]


def check_rules_hold(what: str, key: str | None = None, file: str | None = None) -> None:
    """Raises UnsafeContent, about `what`, if ``torch.load(weights_only=True)`` of the installed torch may run code."""
    if not rules_hold():
        raise UnsafeContent(
            f"only torch can read {what}, and torch {torch.__version__} may run code from it in spite of "
            f"weights_only=True (CVE-2025-32434): upgrade torch to 2.6; or, if you trust its author: "
            f"{line_that_allows()}",
            key=key,
            file=file,
        )


def refused_class(error: BaseException) -> str | None:
    """Returns the class that torch's rules refused with `error`; None for another error."""
    if not isinstance(error, pickle.UnpicklingError):
        return None
    found = REFUSED_CLASS.search(str(error))
    return found[1] if found else "class or function that torch's rules refuse"


def payload_of(key: str, value: Any) -> bytes:
    """Returns the archive of the value under `key`.

    Raises as check_memory() for a tensor inside the value, and passes on the exceptions of ``torch.save``.
    """
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=_PickleModule(key))
    return stream.getvalue()


class _PickleModule:
    """Stands for the module ``pickle`` in ``torch.save``."""

    __name__ = "pickle"

    def __init__(self, key: str) -> None:
        class Pickler(pickle.Pickler):
            def reducer_override(self, value: Any) -> Any:
                if isinstance(value, torch.Tensor):
                    check_memory(key, value)
                return NotImplemented

        self.Pickler = Pickler

    def __getattr__(self, name: str) -> Any:
        return getattr(pickle, name)
