"""Stagers, as DCP's ``async_save`` takes them, and a fence that lets a training step run while bytes are copied.

With these stagers and with torch's own, ``cairn.async_save`` copies directly into the memory from which the files are
written; the stager's options decide only whether the caller waits. A direct call of ``stage`` makes a copy, as in
torch. A stager of the caller's own class stages by its own code.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict
from torch.distributed.checkpoint.staging import BlockingAsyncStager as StockBlockingStager

from cairn._async import pending_saves, preparation
from cairn._torch_names import modules, replacements
from cairn._torch_names.torch_floor import DefaultStager as StockDefaultStager
from cairn._torch_names.torch_floor import StagingOptions as StagingOptions  # noqa: PLC0414 - also exported here

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


@replacements.stands_for_base
class DefaultStager(StockDefaultStager):
    """Stages by the options of `config`, as torch's class: with ``use_async_staging``, returns before the copy is made.

    Without an accelerator, ``use_pinned_memory`` and ``use_non_blocking_copy`` have no effect; torch's class fails
    without an accelerator, even with its own defaults.
    """

    def __init__(self, config: StagingOptions = StagingOptions()) -> None:  # noqa: B008 - as in torch; never modified
        if not torch.accelerator.is_available():
            config = replace(config, use_pinned_memory=False, use_non_blocking_copy=False)
        super().__init__(config)
        preparation.declare()


@replacements.stands_for_base
class BlockingAsyncStager(StockBlockingStager):
    """Stages on the CPU while the caller waits; ``cache_staged_state_dict`` reuses the staging memory.

    The staging memory is pinned if CUDA is available; torch's class fails without CUDA.
    """

    def __init__(self, cache_staged_state_dict: bool = False, type_check: bool = False) -> None:
        # Under cairn.install also the constructor of torch's FileSystemWriter calls this function, for its own object.
        StockBlockingStager.__init__(self, cache_staged_state_dict, type_check)
        if BlockingAsyncStager in type(self).__mro__:
            preparation.declare()

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of `state_dict` on the CPU."""
        if not self.cache_staged_state_dict:
            return super().stage(state_dict)
        if self.state_dict_cache is None:
            self.state_dict_cache = _create_cpu_state_dict(state_dict, pin_memory=torch.cuda.is_available())
        staged: dict[str, Any] = _copy_state_dict(state_dict, self.state_dict_cache, type_check=self.type_check)
        return staged


def staging_fence(optimizer: torch.optim.Optimizer) -> "RemovableHandle":
    """Makes every ``optimizer.step()`` wait until all pending saves have copied their tensors.

    For tensors of CUDA devices, the current streams wait on the device, and the caller's thread goes on.
    The fence is for saves with asynchronous staging. Forward and backward only read the parameters and run during the
    copy. Code that changes other tensors in place (buffers of BatchNorm, an average of the weights) must wait for the
    staging future. A staging error is raised by the save's futures, never by the fence. Returns the handle that removes
    the fence.
    """

    def wait(*_: Any) -> None:
        pending_saves.fence_staging()

    return optimizer.register_step_pre_hook(wait)


__getattr__, __dir__ = modules.names_of(__name__)
