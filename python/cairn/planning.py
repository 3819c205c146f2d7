"""What the planners of DCP were asked to do, as options of the engine."""

from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner


def save_planner_is_native(planner: object | None) -> bool:
    """Whether the engine plans as this planner would: there is none, or it is torch's default one and no subclass."""
    return planner is None or type(planner) is DefaultSavePlanner


def load_planner_is_native(planner: object | None) -> bool:
    """As save_planner_is_native()."""
    return planner is None or type(planner) is DefaultLoadPlanner


def save_planning(planner: DefaultSavePlanner | None) -> dict[str, Any]:
    """The engine's options for a native planner. It plans anew each time, so there is no plan to cache."""
    if planner is None:
        return {"record_paths": True}
    return {
        "record_paths": planner.flatten_state_dict,
        "dedup_to_lowest_rank": planner.dedup_save_to_lowest_rank,
    }


def load_planner_options(planner: DefaultLoadPlanner | None) -> tuple[bool, bool]:
    """Of a native planner: whether nested containers are taken apart, and whether keys may be missing."""
    if planner is None:
        return True, False
    return planner.flatten_state_dict, planner.allow_partial_load
