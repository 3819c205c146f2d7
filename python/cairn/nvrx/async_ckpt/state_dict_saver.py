"""Plan and finalize, with the names of ``nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver``."""

import logging
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.distributed_c10d import ProcessGroup

from cairn._ranks.ranks import Ranks
from cairn.nvrx.async_ckpt.filesystem_async import FileSystemWriterAsync
from cairn.nvrx.planning import KeptPlans, fits, make_plans

_log = logging.getLogger("cairn")


class CheckpointMetadataCache:
    """The plans and the metadata of earlier saves, for the next save. As in NVRx.

    Plans are used again from the third save of an unchanged state on; a state that has changed is planned anew, on all
    ranks together. After :meth:`set_cached_global_metadata` with the metadata of a loaded checkpoint, the first save
    gathers no plans, if the planner can plan alone (Megatron's) and the state is built as when it was saved.
    """

    def __init__(self) -> None:
        self.cached_central_plan: SavePlan | None = None
        self.cached_local_plan: SavePlan | None = None
        self.cached_global_metadata: Metadata | None = None  # on the coordinator
        self.validated_cache_reuse: bool = False
        self.validated_loaded_metadata_reuse: bool = False
        self.loaded_all_plans: list[SavePlan] | None = None

    def set_cached_global_metadata(self, cached_global_metadata: Metadata | None) -> None:
        """Takes the metadata of a loaded checkpoint, with the plans of all ranks if it has them."""
        self.cached_global_metadata = cached_global_metadata
        self.loaded_all_plans = getattr(cached_global_metadata, "all_local_plans", None)
        if self.loaded_all_plans is None:
            _log.debug("the loaded metadata has no plans of the ranks: the first save gathers the plans")

    def set_cache_metadata(self, central_plan: SavePlan, local_plan: SavePlan, global_md_verify_reuse: bool) -> None:
        """Takes the plans of a save. `global_md_verify_reuse`: they fitted the loaded metadata on every rank."""
        self.validated_loaded_metadata_reuse = global_md_verify_reuse
        self.validated_cache_reuse = bool(central_plan == self.cached_central_plan)
        self.cached_central_plan = central_plan
        self.cached_local_plan = local_plan

    def prepare_save_state_dict_ret(self, rank: int, coordinator: int, save_state_dict_ret: Any) -> Any:
        """Returns the result of save_state_dict_async_plan(), on the coordinator with the kept metadata if the save
        made none."""
        is_loaded = bool(self.loaded_all_plans and self.cached_global_metadata and self.validated_loaded_metadata_reuse)
        if not is_loaded and not self.validated_cache_reuse:
            return save_state_dict_ret
        writer, metadata, *rest = save_state_dict_ret
        if metadata and not is_loaded:
            self.cached_global_metadata = metadata
        elif rank == coordinator:
            metadata = self.cached_global_metadata
        return (writer, metadata, *rest)

    def get_cache_metadata(self) -> tuple[SavePlan | None, SavePlan | None, bool, list[SavePlan] | None]:
        """Returns the central plan, the local plan, whether they may be used again, and the loaded plans."""
        return (
            self.cached_central_plan,
            self.cached_local_plan,
            self.validated_cache_reuse,
            self.loaded_all_plans,
        )

    def get_metadata_caching_status(self) -> tuple[bool, bool]:
        """Returns whether the plan of the last save equalled the plan before, and whether it fitted the loaded
        metadata."""
        return self.validated_cache_reuse, self.validated_loaded_metadata_reuse


_checkpoint_metadata_cache: CheckpointMetadataCache | None = None  # NVRx's name for the cache of the process


def init_checkpoint_metadata_cache(cached_global_metadata: Metadata | None = None) -> None:
    """Makes the cache of the process, unless it exists, and gives it the metadata of a loaded checkpoint."""
    global _checkpoint_metadata_cache  # noqa: PLW0603 - NVRx's name
    if _checkpoint_metadata_cache is None:
        _checkpoint_metadata_cache = CheckpointMetadataCache()
    _checkpoint_metadata_cache.set_cached_global_metadata(cached_global_metadata)


def get_metadata_caching_status() -> tuple[bool, bool] | None:
    """The status of the cache of the process; None without a cache."""
    cache = _checkpoint_metadata_cache
    return None if cache is None else cache.get_metadata_caching_status()


def save_state_dict_async_plan(
    state_dict: dict[str, Any],
    storage_writer: FileSystemWriterAsync,
    process_group: ProcessGroup | None = None,
    coordinator_rank: int = 0,
    planner: SavePlanner | None = None,
    enable_cache: bool = False,
    metadata_cache: CheckpointMetadataCache | None = None,
) -> tuple[FileSystemWriterAsync, Metadata | None, _DistWrapper]:
    """Plans a save, as in NVRx. All ranks of the group call this; a failure on one rank is raised on all.

    The result is for save_state_dict_async_finalize(), after the request that
    ``storage_writer.get_save_function_and_args()`` describes was written. The metadata is None except on the
    coordinator. `metadata_cache` (None: the cache of the process) is used only if `enable_cache`.
    """
    cache = metadata_cache if metadata_cache is not None else _checkpoint_metadata_cache
    if not enable_cache:
        cache = None
    kept = KeptPlans() if cache is None else KeptPlans(*cache.get_cache_metadata())
    plans = make_plans(state_dict, storage_writer, process_group, coordinator_rank, planner, kept)
    planned = (storage_writer, plans.metadata, plans.wrapper)
    if cache is None:
        return planned
    cache.set_cache_metadata(plans.central, plans.local, plans.fits_loaded)
    rank = Ranks(process_group).rank
    result: tuple[FileSystemWriterAsync, Metadata | None, _DistWrapper] = cache.prepare_save_state_dict_ret(
        rank, coordinator_rank, planned
    )
    return result


def verify_global_md_reuse(
    loaded_all_plans: list[SavePlan] | None, local_plan: SavePlan, rank: int, dist_wrapper: _DistWrapper
) -> bool:
    """Returns whether every rank's local plan fits its plan in the loaded metadata, as in NVRx.

    All ranks of the wrapper's group call this. False if the metadata comes from another number of ranks. The ranks
    agree by one all-reduce on the CPU if the group has a backend for the CPU; in NVRx, on the default group and a CUDA
    device, and not at all on ranks without loaded plans.
    """
    ranks = Ranks(dist_wrapper.group, no_dist=not dist_wrapper.use_dist)
    is_same = bool(loaded_all_plans) and loaded_all_plans is not None and len(loaded_all_plans) == ranks.count
    if is_same and loaded_all_plans is not None:
        is_same = fits(local_plan, loaded_all_plans[rank])
    return bool(ranks.smallest([int(is_same)])[0])


def save_state_dict_async_finalize(
    storage_writer: FileSystemWriterAsync, global_metadata: Metadata | None, dist_wrapper: _DistWrapper
) -> None:
    """Returns when the checkpoint is durable and in place; sets the places of the items in `global_metadata`.

    All ranks of the group call this, with the result of save_state_dict_async_plan(). A failure is raised on every
    rank, as a CheckpointException with the failures by rank. The writer process commits the checkpoint without this
    call; here the ranks learn the outcome.
    """
    ranks = Ranks(dist_wrapper.group, no_dist=not dist_wrapper.use_dist)
    with ranks.all_fail_together("write"):
        storage_writer.await_commit()
    if dist_wrapper.is_coordinator:
        storage_writer.finish(global_metadata, [])
