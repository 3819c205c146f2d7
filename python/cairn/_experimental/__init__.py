"""Cairn's package ``torch.distributed.checkpoint._experimental``: :mod:`cairn.checkpointer`, under torch's name.

``cairn._experimental`` and its modules are aliases of ``cairn.checkpointer``, not copies. The aliases do not need
torch's package ``_experimental``, which later versions of torch lack.
"""

import importlib
import pkgutil
import sys

from cairn import checkpointer

for _found in pkgutil.iter_modules(checkpointer.__path__):
    sys.modules[f"{__name__}.{_found.name}"] = importlib.import_module(f"{checkpointer.__name__}.{_found.name}")
for _name in ("types", "utils"):
    sys.modules[f"{__name__}.{_name}"] = getattr(checkpointer, _name)
sys.modules[__name__] = checkpointer
