"""save_state_dict_async_plan in the form of Megatron-core up to 0.16: the caller keeps the plans, and gets five values.

Newer versions of Megatron-core call NVRx's function, which keeps the plans in a CheckpointMetadataCache.
"""

from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.utils import _DistWrapper
from torch.distributed.distributed_c10d import ProcessGroup

from cairn.nvrx.async_ckpt.filesystem_async import FileSystemWriterAsync
from cairn.nvrx.planning import KeptPlans, make_plans


def save_state_dict_async_plan(
    state_dict: dict[str, Any],
    storage_writer: FileSystemWriterAsync,
    process_group: ProcessGroup | None = None,
    coordinator_rank: int = 0,
    planner: SavePlanner | None = None,
    cached_ckpt_structure: tuple[SavePlan | None, SavePlan | None, bool] | None = None,
    loaded_all_plans: list[SavePlan] | None = None,
) -> tuple[tuple[FileSystemWriterAsync, Metadata | None, _DistWrapper], SavePlan, SavePlan, bool, bool]:
    """Plans a save. All ranks of the group call this; a failure on one rank is raised on all.

    `cached_ckpt_structure`: the second to fourth value of the previous call. `loaded_all_plans`: the plans in the
    metadata of the loaded checkpoint. Returns the arguments of save_state_dict_async_finalize(), the central plan, the
    local plan, whether the central plan equals that of the previous call, and whether the local plans of all ranks fit
    `loaded_all_plans`.
    """
    central, local, is_validated = cached_ckpt_structure or (None, None, False)
    kept = KeptPlans(central, local, is_validated, loaded_all_plans)
    plans = make_plans(state_dict, storage_writer, process_group, coordinator_rank, planner, kept)
    planned: Any = (storage_writer, plans.metadata, plans.wrapper)
    return planned, plans.central, plans.local, bool(central == plans.central), plans.fits_loaded
