"""The files of torch_checkpointing, one for each item and rank, written by the engine.

The engine can't write these files yet: why_not_native() says so, every saver of such files runs torch_checkpointing's
own code, and no function below is called. A writer of the engine replaces the three functions, and nothing else.
"""

from cairn._async.pending_saves import PendingSave
from cairn.torch_checkpointing.saver_terms import ItemsToSave, refuse_unknown_write


def why_not_native() -> str:
    """Returns the reason for torch_checkpointing's own code; "" if the engine writes the files."""
    return "torch_checkpointing's own code writes its files"


def begin_save(save: ItemsToSave, *, asynchronous_staging: bool) -> PendingSave:
    """Begins a save by a writer process. The staging future is done when the state may change, and the upload future
    when the files are durable and in place and ``save.finish()`` has returned."""
    refuse_unknown_write()


def save_now(save: ItemsToSave) -> None:
    """Saves, and returns when the files are durable and in place and ``save.finish()`` has returned."""
    refuse_unknown_write()
