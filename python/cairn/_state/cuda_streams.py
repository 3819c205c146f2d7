"""The current streams of CUDA devices, as the engine takes them: integers."""

from collections.abc import Callable

import torch


def current_cuda_streams() -> Callable[[int], int] | None:
    """Returns the function that reads the current stream of a CUDA device; None if this process uses no CUDA.

    The streams are those of the thread that calls the function.
    """
    if torch.version.cuda is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return lambda ordinal: torch.cuda.current_stream(ordinal).cuda_stream
