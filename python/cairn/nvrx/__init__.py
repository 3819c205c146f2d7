"""The asynchronous checkpoints of NVIDIA's resiliency extension (NVRx), by their names, on Cairn's engine.

``cairn.nvrx.async_ckpt`` has NVRx's modules; NVRx itself is not needed. :func:`install` puts them where Megatron-core
and other programs import NVRx's, or Megatron-core's own, and switches ``torch.distributed.checkpoint`` too.
``LocalCheckpointManager`` needs NVRx, whose states and replication strategies it takes.
"""

from typing import TYPE_CHECKING, Any

from cairn._torch_names import modules
from cairn.nvrx.installing import install, uninstall

if TYPE_CHECKING:
    from cairn.nvrx.local.local_checkpoints import LocalCheckpointManager

__all__ = ["LocalCheckpointManager", "install", "uninstall"]

if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    _of_torch, __dir__ = modules.names_of(__name__)

    def __getattr__(name: str) -> Any:
        if name != "LocalCheckpointManager":
            return _of_torch(name)
        from cairn.nvrx.local.local_checkpoints import LocalCheckpointManager  # imports NVRx

        return LocalCheckpointManager
