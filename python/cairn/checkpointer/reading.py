"""The options of reading a checkpoint."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cairn.checkpoint import Verify


class Reading(NamedTuple):
    """The options of a call of ``CheckpointReader.read``."""

    place: Callable[[torch.Tensor], torch.Tensor]  # moves a new tensor from the CPU to the requested device
    map_location: Any
    allow_pickle: bool
    verify: Verify


def placement(map_location: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns `Reading.place`. `map_location` is as in ``torch.load``: None, a device, a device's name, a dict, or a
    function."""
    if map_location is None:
        return lambda tensor: tensor
    if isinstance(map_location, dict):
        target = map_location.get("cpu", "cpu")
        return lambda tensor: tensor.to(target)
    if isinstance(map_location, (str, torch.device)):
        return lambda tensor: tensor.to(map_location)
    if not callable(map_location):
        raise TypeError(f"map_location is a device, its name, a dict or a function, not {type(map_location).__name__}")

    def by_function(tensor: torch.Tensor) -> torch.Tensor:
        storage = map_location(tensor.untyped_storage(), "cpu")
        return tensor if storage is None else tensor.to(storage.device)

    return by_function
