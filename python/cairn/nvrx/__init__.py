"""The asynchronous checkpoints of NVIDIA's resiliency extension (NVRx), by their names, on Cairn's engine.

``cairn.nvrx.async_ckpt`` has NVRx's modules; NVRx itself is not needed. :func:`install` puts them where Megatron-core
and other programs import NVRx's, or Megatron-core's own, and switches ``torch.distributed.checkpoint`` too.
"""

from typing import TYPE_CHECKING

from cairn._mirror import modules
from cairn.nvrx.installing import install, uninstall

__all__ = ["install", "uninstall"]

if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
