"""FileSystemWriterAsync, with the names of ``nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async``."""

import logging
import os
import queue
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from cairn._ranks.checkpoint_exceptions import failure_of
from cairn._ranks.ranks import Ranks
from cairn._results.lazy_dict import LazyDict
from cairn.errors import InvalidArgument, Unsupported
from cairn.filesystem import FileSystemWriter, save_options
from cairn.nvrx.staged_save import AwaitCommit, PlannedItems, SavePlace, SaveTerms, StagedSave, StageSave

_PathLike = str | os.PathLike[str]
_log = logging.getLogger("cairn")

_results_queue = None  # NVRx's name; programs that reset NVRx's state look at it


def get_write_results_queue(mp_mode: str = "spawn") -> "queue.SimpleQueue[Any]":
    """Returns a new, empty queue. Results of Cairn's saves travel with their own save, and in no queue."""
    return queue.SimpleQueue()


_get_write_results_queue = get_write_results_queue  # the name in NVRx 0.4.1


class FileSystemWriterAsync(FileSystemWriter):
    """A writer of one checkpoint, whose write goes on while the trainer trains. As in NVRx.

    The arguments are NVRx's; those not listed are :class:`cairn.FileSystemWriter`'s. A native process writes: it needs
    no device memory, no pickling, and completes the checkpoint if the trainer is killed after the request was
    scheduled. `use_cached_data_structure`, `use_cpu_shm_for_gpu_tensors` and `is_multiproc_io` are ignored: every save
    copies the tensors that it is given, into shared memory that later saves use again. `separation_hint` is ignored,
    with a warning: each rank writes one file. `use_msc` must be False.
    """

    can_run_decentralized_global_plan = True

    def __init__(
        self,
        path: _PathLike,
        *args: Any,
        separation_hint: str | None = None,
        use_msc: bool = False,
        is_multiproc_io: bool = False,
        use_cached_data_structure: bool = False,
        use_cpu_shm_for_gpu_tensors: bool = False,
        **kwargs: Any,
    ) -> None:
        if use_msc or str(path).startswith("msc://"):
            raise Unsupported(
                "Cairn's writer reaches directories, and not the storages of the Multi-Storage Client",
                expected="a directory, and use_msc=False",
                actual=str(path),
            )
        kwargs.pop("open_file", None)
        super().__init__(path, *args, **kwargs)
        if not self.single_file_per_rank:
            raise NotImplementedError("FileSystemWriterAsync writes one file per rank: single_file_per_rank=True")
        if separation_hint is not None:
            _log.warning("separation_hint=%r is ignored: each rank writes one file", separation_hint)
        self.checkpoint_dir = path
        self.separation_hint = separation_hint
        self.use_msc = use_msc
        self._cairn_terms = SaveTerms()
        self._cairn_plan = SavePlan([])
        self._cairn_save: StagedSave | None = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Sets ``is_coordinator``, which this class alone has a use for."""
        self.is_coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan unchanged. The directory is made when the save begins."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Returns the plans with the prefixes of the ranks' files, as DCP's writer."""
        return [replace(plan, storage_data=_StoragePrefix(f"__{rank}_")) for rank, plan in enumerate(plans)]

    def prepare_decentralized_global_plan(self, local_plan: SavePlan) -> SavePlan:
        """As prepare_global_plan(), for this rank's plan alone."""
        rank = Ranks(self._cairn_terms.group).rank
        return replace(local_plan, storage_data=_StoragePrefix(f"__{rank}_"))

    def set_terms(self, terms: SaveTerms) -> None:
        """For drivers, before prepare_write_data(): the ranks of the save. Without a call: all ranks, rank 0
        coordinates."""
        self._cairn_terms = terms

    def prepare_write_data(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Makes `planner` resolve the data of the plan's items. Tensors are copied only when the request is scheduled:
        they must not change until then."""
        directory, options = save_options(None, self)
        options.pop("file_per_item")
        items = [(item, planner.resolve_data(item)) for item in plan.items]
        place = SavePlace(directory, options, type(self).__name__)
        self._cairn_plan = plan
        self._cairn_save = StagedSave(place, self._cairn_terms, PlannedItems(items, plan.planner_data))

    def get_save_function_and_args(self) -> tuple[Callable[..., None], Callable[[], Any], list[Any]]:
        """Returns the ``async_fn``, ``preload_fn`` and ``async_fn_args`` of an AsyncRequest.

        A rank without items gets functions too: it takes part in the save. The request may be made on every rank and
        scheduled in an AsyncCallsQueue, or executed by execute_sync().
        """
        return AwaitCommit(), StageSave(self._save()), [Ranks(self._cairn_terms.group).rank, None, None]

    def retrieve_write_results(self) -> Any:
        """Waits for the commit, and returns a WriteResult for each item of this rank.

        A failure is returned, and not raised, as in NVRx since 0.6: the exception and its traceback, which
        ``torch.distributed.checkpoint.utils._get_failure_dict`` recognises.
        """
        try:
            metadata = self._save().await_commit()
            return [_result(metadata, item) for item in self._cairn_plan.items]
        except Exception as error:
            return failure_of(error)

    def await_commit(self) -> Metadata:
        """Returns the metadata when the checkpoint is durable and in place. Raises the save's failure."""
        return self._save().await_commit()

    def finish(self, metadata: Metadata | None, results: list[list[WriteResult]]) -> None:
        """Sets the attributes of `metadata` that DCP's writer sets. The checkpoint is committed already; raises the
        save's failure if it is not."""
        committed = self.await_commit()
        if metadata is not None and metadata is not committed:
            metadata.storage_data = LazyDict(lambda: committed.storage_data or {})
            metadata.storage_meta = self.storage_meta()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Not supported, as in NVRx: ``torch.distributed.checkpoint.save`` takes a FileSystemWriter."""
        raise NotImplementedError("FileSystemWriterAsync writes by an AsyncRequest; cairn.save takes FileSystemWriter")

    @property
    def checkpoint_id(self) -> str:
        """The directory."""
        return str(self.checkpoint_dir)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _PathLike) -> bool:
        """True, as in NVRx."""
        return True

    def _save(self) -> StagedSave:
        if self._cairn_save is None:
            raise InvalidArgument("prepare_write_data() comes first")
        return self._cairn_save


def _result(metadata: Metadata, item: Any) -> WriteResult:
    places: dict[Any, _StorageInfo] = metadata.storage_data
    index = item.index
    if item.type is WriteItemType.BYTE_IO:
        index = replace(index, offset=None, index=None)
    elif index.offset is None:  # a tensor that one rank holds whole has its only chunk at 0
        assert item.tensor_data is not None
        index = replace(index, offset=item.tensor_data.chunk.offsets)
    place = places[index]
    return WriteResult(item.index, place.length, place)
