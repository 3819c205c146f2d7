"""The dtypes of torch and the codes that the engine has for them."""

import torch

from cairn import _engine

DTYPES: dict[int, torch.dtype] = {
    code: getattr(torch, name) for code, name in enumerate(_engine.DTYPE_NAMES) if hasattr(torch, name)
}
CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}
QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def dtype_name(code: int) -> str:
    """'torch.float32' for its code."""
    return f"torch.{_engine.DTYPE_NAMES[code]}"
