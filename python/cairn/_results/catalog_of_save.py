"""The catalog of a save, for a rank that does not keep it: read from the directory when a caller asks for it."""

import os

from cairn import _engine
from cairn._directory.opening import open_checkpoint
from cairn.errors import Replaced


def catalog_of_save(directory: str | os.PathLike[str], save_id: str, rank: int | None = None) -> _engine.Catalog:
    """Reads the catalog of save `save_id` in `directory`; `rank` is the rank that saved alone, or None. Raises Replaced
    if a later save has replaced the checkpoint, and the engine's errors."""
    checkpoint = open_checkpoint(directory, rank)
    if checkpoint.save_id != save_id:
        raise Replaced(
            f"a later save replaced this checkpoint in '{os.fspath(directory)}', and its metadata of more than 1 MiB "
            "was not kept in memory"
        )
    return _engine.catalog_of(checkpoint)
