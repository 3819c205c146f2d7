"""Memory for the first asynchronous save, prepared before the save by a thread of the engine.

1. The program declares asynchronous saving: it makes a stager, or gives ``cairn.install`` a type of asynchronous saves.
   (An ``AsyncCheckpointer`` prepares for its own saves.)
2. The program loads a checkpoint. The bytes that this rank loaded are about the bytes that this rank will save.
3. When both have happened, in either order, the engine begins to prepare memory of that size
   (``AsyncCheckpointer::prepare_ahead``). Loads from one directory count together.

A program that declares nothing, for example an evaluation, is given no memory. The environment variable
CAIRN_PREPARE_AFTER_LOAD=0 turns the preparation off.
"""

import contextlib
import os
import threading

from cairn import _engine
from cairn._async.async_saver import AsyncSaver, DefaultSavers
from cairn._process import ProcessPart, part
from cairn._settings import Installation
from cairn._torch_names.torch_floor import AsyncCheckpointerType
from cairn.errors import Error

IDLE_SECONDS = 1800.0  # memory that no save has used is given back after this time
_HEADER_BYTES = 512  # of an item in a data file, at most about
_FILE_BYTES = 1 << 20  # beside the items


class Preparation(ProcessPart):
    """What this process has declared and loaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_declared = False
        self.directory: bytes | None = None
        self.sizes: dict[frozenset[str], int] = {}  # bytes to save, by the keys of a load from the directory

    def begin(self) -> None:
        """Step 3. Called with the lock."""
        if self.is_declared and self.sizes:
            kind = part(Installation).async_checkpointer_type
            begin(part(DefaultSavers).saver(kind is AsyncCheckpointerType.PROCESS), sum(self.sizes.values()))


def declare() -> None:
    """The program will save asynchronously."""
    preparation = part(Preparation)
    with preparation.lock:
        if not preparation.is_declared:
            preparation.is_declared = True
            preparation.begin()


def renew() -> None:
    """Prepares anew what was prepared for savers that are closed now."""
    preparation = part(Preparation)
    with preparation.lock:
        preparation.begin()


def note_load(directory: bytes, keys: frozenset[str], size: int) -> None:
    """This rank has loaded `keys` of a checkpoint; a save of them takes `size` bytes.

    Of loads whose keys include the keys of another load, the largest counts.
    """
    preparation = part(Preparation)
    with preparation.lock:
        if preparation.directory != directory:
            preparation.directory = directory
            preparation.sizes.clear()
        if not any(keys < others for others in preparation.sizes):
            for others in [others for others in preparation.sizes if others < keys]:
                del preparation.sizes[others]
            preparation.sizes[keys] = size
        preparation.begin()


def size_of_save(state: _engine.StateDict, ranks: int) -> int:
    """Returns the bytes that one of `ranks` ranks writes of a state: chunks, and its share of the whole tensors."""
    whole, chunks = state.tensor_bytes()
    return whole // ranks + chunks + len(state) * _HEADER_BYTES + _FILE_BYTES


def begin(saver: AsyncSaver, size: int) -> None:
    """Lets `saver` prepare, unless the environment forbids it. A failure leaves the work to the first save."""
    if os.environ.get("CAIRN_PREPARE_AFTER_LOAD") != "0":
        with contextlib.suppress(Error):
            saver.prepare_ahead(size, IDLE_SECONDS)
