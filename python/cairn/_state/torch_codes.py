"""Objects of torch as the engine takes them: dtypes as codes, the current streams of CUDA devices as integers."""

from collections.abc import Callable

import torch

from cairn import _engine
from cairn.errors import InvalidArgument

DTYPES: dict[int, torch.dtype] = {
    code: getattr(torch, name) for code, name in enumerate(_engine.DTYPE_NAMES) if hasattr(torch, name)
}
CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}
QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def dtype_name(code: int) -> str:
    """'torch.float32' for its code."""
    return f"torch.{_engine.DTYPE_NAMES[code]}"


def dtype_change(key: str, saved: int, target: torch.dtype, allow_cast: bool) -> list[tuple[str, int, int]]:
    """Returns the conversion of a load as the engine reports it (key, saved code, target code); none for equal dtypes.

    Raises InvalidArgument, as the engine, unless both are float dtypes or `allow_cast`.
    """
    if dtype_name(saved) == str(target):
        return []
    both_float = target.is_floating_point and saved in DTYPES and DTYPES[saved].is_floating_point
    if not allow_cast and not both_float:
        raise InvalidArgument(
            "the dtype of the checkpoint differs from the target's (allow_cast=True converts)",
            key=key,
            expected=str(target),
            actual=dtype_name(saved),
        )
    return [(key, saved, CODES[target])]


def current_cuda_streams() -> Callable[[int], int] | None:
    """Returns the function that reads the current stream of a CUDA device; None if this process uses no CUDA.

    The streams are those of the thread that calls the function.
    """
    if torch.version.cuda is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return lambda ordinal: torch.cuda.current_stream(ordinal).cuda_stream
