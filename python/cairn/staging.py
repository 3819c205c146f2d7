"""Stagers, as DCP's ``async_save`` takes them, and the fence that lets a training step run while bytes are copied.

``cairn.async_save`` copies straight into the memory from which the files are written, for these stagers and for torch's
own: what their options say decides only whether the caller waits. ``stage`` itself, which others may call, makes a copy
as torch does. A stager of the caller's own class stages as it likes.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint.staging import BlockingAsyncStager as StockBlockingStager
from torch.distributed.checkpoint.staging import DefaultStager as StockDefaultStager
from torch.distributed.checkpoint.staging import StagingOptions as StagingOptions  # noqa: PLC0414 - from here too

from cairn._mirror import modules, replacements
from cairn._pending import pending_saves

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


@replacements.stands_for_base
class DefaultStager(StockDefaultStager):
    """Stages as `config` says, as torch's class does: ``use_async_staging`` returns before the copy is made.

    Where there is no accelerator, ``use_pinned_memory`` and ``use_non_blocking_copy`` have no effect; torch's class
    fails then, even with its own defaults.
    """

    def __init__(self, config: StagingOptions = StagingOptions()) -> None:  # noqa: B008 - as in torch; nobody changes it
        if not torch.accelerator.is_available():
            config = replace(config, use_pinned_memory=False, use_non_blocking_copy=False)
        super().__init__(config)


@replacements.stands_for_base
class BlockingAsyncStager(StockBlockingStager):
    """Stages on the CPU while the caller waits; with ``cache_staged_state_dict`` into the same memory each time.

    That memory is pinned if there is CUDA; torch's class fails where there is none.
    """

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy of `state_dict` on the CPU."""
        if not self.cache_staged_state_dict:
            return super().stage(state_dict)
        if self.state_dict_cache is None:
            self.state_dict_cache = _create_cpu_state_dict(state_dict, pin_memory=torch.cuda.is_available())
        staged: dict[str, Any] = _copy_state_dict(state_dict, self.state_dict_cache, type_check=self.type_check)
        return staged


def staging_fence(optimizer: torch.optim.Optimizer) -> "RemovableHandle":
    """Makes every ``optimizer.step()`` wait until what is being staged has been copied.

    For saves with asynchronous staging: forward and backward, which only read the parameters, go on meanwhile. What
    else changes in place (buffers of BatchNorm, an average of the weights) needs a wait of its own: the staging future.
    Errors of a staging are not raised here but by the save's futures. Returns the handle that takes the fence away.
    """

    def wait(*_: Any) -> None:
        pending_saves.wait_for_staging()

    return optimizer.register_step_pre_hook(wait)


__getattr__, __dir__ = modules.names_of(__name__)
