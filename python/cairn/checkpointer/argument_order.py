"""Path and state dict in either order: torch 2.8 took the state first, later versions take the path first."""

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any


def path_and_state(path: Any, state_dict: Any) -> tuple[str, Any]:
    """Returns path and state, distinguished by type; the state may be a future of a state. Returns the path as text.

    Raises TypeError if neither is a path.
    """
    if isinstance(path, (Mapping, Future)) and isinstance(state_dict, (str, os.PathLike)):
        path, state_dict = state_dict, path
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"the path of a checkpoint is a str or a PathLike, not a {type(path).__name__}")
    return os.fsdecode(path), state_dict
