"""Elements of a checkpoint as NumPy arrays or torch tensors.

For dtypes that NumPy lacks (bfloat16, the float8 kinds), the optional package ml_dtypes supplies the NumPy dtype.
Without ml_dtypes, and for dtypes that ml_dtypes lacks too (complex32, float4, bits), reading raises Unsupported: a
caller would mistake integers for the numbers that the integers encode. The form "integers" returns integers on request.
"""

import ctypes
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cairn import _engine
from cairn._torch_names import modules
from cairn.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    import numpy as np

#: The form in which tensors are read. "integers": NumPy arrays, of unsigned integers where NumPy lacks the dtype.
Form: TypeAlias = Literal["numpy", "torch", "integers"]

_PLAIN = "float16 float32 float64 complex64 complex128 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_NUMPY_NAMES = frozenset(_PLAIN.split())
# A float4 pair, which ml_dtypes has too, is two elements in ml_dtypes and one element in torch.
_ML_DTYPES = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
_ML_DTYPES_NAMES = frozenset(_ML_DTYPES.split())
_ITEM_BYTES = dict(zip(_engine.DTYPE_NAMES, _engine.DTYPE_ITEM_BYTES, strict=True))
_QUANTISED = frozenset({"quint8", "qint8", "qint32", "quint4x2", "quint2x4"})
_OTHER_FORMS = "cairn.open(directory, tensors='torch') reads torch tensors, and tensors='integers' the bits"


def check_form(tensors: str) -> Form:
    """Returns `tensors` if the string is a Form; raises InvalidArgument otherwise."""
    if tensors in ("numpy", "torch", "integers"):
        return tensors  # type: ignore[return-value]
    raise InvalidArgument("tensors must be 'numpy', 'torch' or 'integers'", actual=repr(tensors))


def default_form() -> Form:
    """Returns "torch" if torch is installed, else "numpy"."""
    return "torch" if modules.has_torch() else "numpy"


def numpy_dtype(name: str) -> "np.dtype[Any]":
    """Returns the dtype of NumPy or of ml_dtypes for the torch dtype `name` (without ``torch.``).

    Raises Unsupported, with the next step, if neither has the dtype.
    """
    import numpy as np

    if name in _NUMPY_NAMES:
        return np.dtype(name)
    if name not in _ML_DTYPES_NAMES:
        raise Unsupported(f"NumPy has no dtype {name}; {_OTHER_FORMS}", actual=name)
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise Unsupported(
            f"NumPy has the dtype {name} only with ml_dtypes: pip install 'cairn-checkpoint[ml-dtypes]'; or "
            f"{_OTHER_FORMS}",
            actual=name,
        ) from None
    if not hasattr(ml_dtypes, name):
        raise Unsupported(f"ml_dtypes {ml_dtypes.__version__} has no dtype {name}: upgrade it; or {_OTHER_FORMS}")
    named: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return named


def empty(name: str, shape: tuple[int, ...], form: Form) -> tuple[Any, int]:
    """Returns a new row-major array or tensor of torch's dtype `name`, and the address of its first byte."""
    if form == "torch" and name not in _QUANTISED:
        torch = _torch()
        tensor = torch.empty(shape, dtype=getattr(torch, name))
        return tensor, tensor.data_ptr()
    import numpy as np

    # the engine refuses quantised tensors
    array = np.empty(shape, _dtype(name, "integers" if name in _QUANTISED else form))
    return array, array.ctypes.data


def from_bytes(name: str, shape: tuple[int, ...], data: bytes, is_scalar: bool, form: Form) -> Any:
    """Returns a writable array or tensor, or a scalar, from the row-major bytes `data`."""
    if form == "torch":
        tensor, address = empty(name, shape, form)
        ctypes.memmove(address, data, len(data))
        return tensor
    import numpy as np

    array = np.frombuffer(bytearray(data), _dtype(name, form)).reshape(shape)
    return array[()] if is_scalar else array


def _dtype(name: str, form: Form) -> "np.dtype[Any]":
    import numpy as np

    if form == "integers" and name not in _NUMPY_NAMES:
        return np.dtype(f"uint{8 * _ITEM_BYTES[name]}")
    return numpy_dtype(name)


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tensors='torch' needs torch, which is not installed", name=error.name) from error
    return torch


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
