"""A save of planned items by Cairn's engine, in the steps of an AsyncRequest.

1. Plan (``save_state_dict_async_plan``): the planner has resolved the data of this rank's items.
2. Stage (`StageSave`, the request's ``preload_fn``): the engine copies the data into memory of a writer process. From
   now on the save needs no trainer.
3. Write (`AwaitCommit`, the request's ``async_fn``): the writer process writes, syncs and commits the checkpoint.
4. Finalize (``save_state_dict_async_finalize``): the outcome of step 3, on every rank.
"""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem

from cairn._async.async_saver import AsyncSaver, DefaultSavers
from cairn._async.pending_saves import Follower, PendingSave
from cairn._process import part
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._telemetry import engine_use
from cairn._torch_protocol.write_items import ResolvedItems
from cairn.errors import InvalidArgument


class SavePlace(NamedTuple):
    """Where and how a planned save is written."""

    directory: str | os.PathLike[str]
    options: dict[str, Any]  # of the engine: durable, overwrite, thread_count, checkpoint_id
    writer: str  # the class of the writer, for the counts of calls


class SaveTerms(NamedTuple):
    """The ranks that make the save together, and what only the coordinator knows."""

    group: Any = None
    coordinator: int = 0  # its number in the group
    metadata_attributes: bytes = b""  # pickled Metadata whose extra attributes go into `.metadata`


class PlannedItems(NamedTuple):
    """This rank's items with their data, and the places of the keys in the nested state."""

    items: Sequence[tuple[WriteItem, Any]]
    planner_data: Any


class StagedSave:
    """A planned save, and from step 2 on its `pending` save."""

    def __init__(self, place: SavePlace, terms: SaveTerms, items: PlannedItems) -> None:
        self.terms = terms
        self.pending: PendingSave | None = None
        self._place = place
        self._items: PlannedItems | None = items  # until the data is staged

    def stage(self, saver: AsyncSaver) -> PendingSave:
        """Step 2. All ranks of the group call this. Raises the failures up to the return."""
        if self._items is None:
            raise InvalidArgument("this request is staged already: a new save needs a new plan")
        ranks = Ranks(self.terms.group)
        directory, options, writer = self._place
        together = {**ranks.options, "coordinator_rank": self.terms.coordinator} if ranks.are_many else {}
        ranks.options = together  # also for a failure before the engine's call
        with as_checkpoint_exceptions() as here, Follower(ranks.members) as follower:
            here.rank = ranks.rank
            with ranks.preparing(saver.abandon):
                state = ResolvedItems(*self._items)
                follower.start()
            self.pending = saver.start(
                state,
                directory,
                follower,
                asynchronous_staging=False,
                record_paths=bool(self._items.planner_data),
                metadata_attributes=self.terms.metadata_attributes,
                **options,
                **together,
            )
        self._items = None
        engine_use.note(writer, directory, "writer process")
        return self.pending

    def await_commit(self) -> Metadata:
        """Step 3 and 4. Returns when the checkpoint is durable and in place. Raises the save's failure."""
        if self.pending is None:
            raise InvalidArgument(
                f"the save into '{self._place.directory}' was never staged: schedule its AsyncRequest, or call its "
                f"execute_sync(), before it is finalized"
            )
        return self.pending.upload.result()


class StageSave:
    """The ``preload_fn`` of a save's request: stages, and returns the save."""

    def __init__(self, save: StagedSave) -> None:
        self._save = save

    def start(self, saver: AsyncSaver) -> PendingSave:
        """Stages for the writer process of `saver`."""
        return self._save.stage(saver)

    def __call__(self) -> StagedSave:
        """Stages for the writer process that ``cairn.async_save`` uses."""
        self._save.stage(part(DefaultSavers).saver(process=True))
        return self._save

    def __reduce__(self) -> NoReturn:
        _refuse_other_process()


class AwaitCommit:
    """The ``async_fn`` of a save's request: returns when the checkpoint is committed."""

    def __call__(self, rank: int, staged: StagedSave, results_queue: Any = None, **_: Any) -> None:
        """`staged` is the result of the request's ``preload_fn``."""
        staged.await_commit()

    def __reduce__(self) -> NoReturn:
        _refuse_other_process()


def _refuse_other_process() -> NoReturn:
    raise InvalidArgument(
        "the request belongs to Cairn's writer, and the queue to another package: make the AsyncCallsQueue after "
        "cairn.nvrx.install()"
    )
