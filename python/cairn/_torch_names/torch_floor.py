"""The oldest supported torch, and the names of ``torch.distributed.checkpoint`` that older versions lack.

Cairn's modules import these names from here: an older torch then gives a single message, in any import order.
``./dev compat`` runs the tests on the oldest torch (docs/torch-versions.md).
"""

import importlib.util

import torch

OLDEST = (2, 9)


def check_version(version: str) -> None:
    """Raises ImportError for a torch below `OLDEST`."""
    numbers = tuple(int(number) for number in version.split(".")[:2] if number.isdigit())
    if len(numbers) == 2 and numbers < OLDEST:
        raise ImportError(
            f"Cairn needs torch ≥ {'.'.join(map(str, OLDEST))}; this is {version}. cairn.open, verify, latest and "
            f"saves_in_flight, and the tool cairn, work without torch"
        )


check_version(str(torch.__version__))

from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension  # noqa: E402
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, SerializationFormat  # noqa: E402
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse  # noqa: E402

# The module with FsspecWriter and FsspecReader. Torch 2.15 gave the module a public name, and warns of the old name.
_PUBLIC_FSSPEC = "torch.distributed.checkpoint.fsspec_filesystem"
_HAS_PUBLIC_FSSPEC = importlib.util.find_spec(_PUBLIC_FSSPEC) is not None
FSSPEC_MODULE = _PUBLIC_FSSPEC if _HAS_PUBLIC_FSSPEC else "torch.distributed.checkpoint._fsspec_filesystem"
FSSPEC_FILE_SYSTEM = "_FileSystem" if _HAS_PUBLIC_FSSPEC else "FileSystem"  # the class of their `fs`

__all__ = [
    "CURRENT_DCP_VERSION",
    "FSSPEC_FILE_SYSTEM",
    "FSSPEC_MODULE",
    "AsyncCheckpointerType",
    "AsyncSaveResponse",
    "DefaultStager",
    "ExtensionRegistry",
    "SerializationFormat",
    "StagingOptions",
    "StreamTransformExtension",
]
