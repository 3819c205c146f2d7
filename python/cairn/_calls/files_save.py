"""Asynchronous saves of files: the files of all ranks in one directory, which appears when all of them are durable.

The steps are those of :mod:`cairn._calls.async_save`; there is no plan, and no ``.metadata``.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from cairn._async import pending_saves
from cairn._async.async_saver import DefaultSavers, Observer
from cairn._async.pending_saves import Follower, PendingSave
from cairn._calls.async_save import ASYNCHRONOUS_STAGING
from cairn._process import part
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._state.described_files import DescribedFiles
from cairn._telemetry import engine_use
from cairn.errors import Error


def begin_files(
    make_files: Callable[[], DescribedFiles],
    directory: str,
    when_written: Callable[[], None],
    *,
    function: str,
    asynchronous_staging: bool,
) -> PendingSave:
    """Begins a save by a writer process. All ranks of torch's default process group call this.

    An error of `make_files` reaches the remaining ranks. `when_written` is called in the thread that follows the save,
    after the commit and before the upload future is done; its error becomes the future's error. `function` is the name
    in ``cairn.report()``. Raises as :func:`cairn.async_save`.
    """

    def end(_save_id: str, _metadata: Metadata) -> None:
        when_written()

    def abandon(reason: Any, /, **options: Any) -> Any:
        saver.abandon(reason, of_files=True, **options)

    with as_checkpoint_exceptions() as here:
        ranks = Ranks()
        here.rank = ranks.rank
        saver = part(DefaultSavers).saver(True)
        try:
            with Follower(ranks.members) as follower:
                with ranks.preparing(abandon):
                    pending_saves.raise_unretrieved()
                    described = make_files()
                    follower.start()
                pending = saver.start(
                    described,
                    directory,
                    follower,
                    asynchronous_staging=asynchronous_staging,
                    observer=Observer(uploading=contextlib.nullcontext, on_written=end),
                    files=described.files,
                    **ranks.options,
                )
        except Error as error:
            pending_saves.note_report(error)
            raise
        how = "writer process" + (ASYNCHRONOUS_STAGING if asynchronous_staging else "")
        engine_use.note(function, directory, how)
        return pending
