"""The strides of a tensor in the metadata of a checkpoint, which torch records since 2.15."""

import torch
from torch.distributed.checkpoint.metadata import TensorProperties

TORCH_RECORDS_STRIDES = "strides" in TensorProperties.__dataclass_fields__


def strides_to_record(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the strides that torch records for a tensor; None if this torch records none, and for a tensor without
    strides."""
    if not TORCH_RECORDS_STRIDES or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return tensor.stride()
