"""Elements of a checkpoint as NumPy arrays.

Dtypes that NumPy lacks (bfloat16, the float8 kinds) are those of ml_dtypes if it is installed; otherwise, and for those
that ml_dtypes lacks too (complex32, float4, bits), the elements come as unsigned integers of the same width.
"""

from typing import TYPE_CHECKING, Any

from cairn import _engine

if TYPE_CHECKING:
    import numpy as np

    NDArray = np.ndarray[Any, np.dtype[Any]]

_PLAIN = "float16 float32 float64 complex64 complex128 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_NUMPY_NAMES = frozenset(_PLAIN.split())
_ITEM_BYTES = dict(zip(_engine.DTYPE_NAMES, _engine.DTYPE_ITEM_BYTES, strict=True))


def numpy_dtype(name: str) -> "np.dtype[Any]":
    """NumPy's dtype for torch's dtype of that name (without ``torch.``)."""
    import numpy as np

    if name in _NUMPY_NAMES:
        return np.dtype(name)
    # A float4 pair is two elements to ml_dtypes, one to torch.
    if name != "float4_e2m1fn_x2":
        try:
            import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError:
            pass
        else:
            scalar = getattr(ml_dtypes, name, None)
            if scalar is not None:
                named: np.dtype[Any] = np.dtype(scalar)
                return named
    unsigned: np.dtype[Any] = np.dtype(f"uint{8 * _ITEM_BYTES[name]}")
    return unsigned


def empty(name: str, shape: tuple[int, ...]) -> "NDArray":
    """A new row-major array for elements of torch's dtype of that name."""
    import numpy as np

    return np.empty(shape, numpy_dtype(name))


def from_bytes(name: str, shape: tuple[int, ...], data: bytes, is_scalar: bool) -> Any:
    """A writable array with these row-major bytes, or the scalar that they hold."""
    import numpy as np

    array = np.frombuffer(bytearray(data), numpy_dtype(name)).reshape(shape)
    return array[()] if is_scalar else array
