"""What the planners of DCP were asked to do, as options of the engine."""

from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from cairn.errors import Unsupported


def save_planning(planner: object | None) -> dict[str, Any]:
    """The engine's options for a save planner. Raises Unsupported for planners that are not DCP's default one."""
    if planner is None:
        return {"record_paths": True}
    if type(planner) is not DefaultSavePlanner:
        raise Unsupported(f"save planners of class {_name(planner)} are not supported yet")
    return {
        "record_paths": planner.flatten_state_dict,
        "dedup_to_lowest_rank": planner.dedup_save_to_lowest_rank,
    }


def load_planner_options(planner: object | None) -> tuple[bool, bool]:
    """Whether nested containers are taken apart, and whether keys may be missing. Raises like save_planning."""
    if planner is None:
        return True, False
    if type(planner) is not DefaultLoadPlanner:
        raise Unsupported(f"load planners of class {_name(planner)} are not supported yet")
    return planner.flatten_state_dict, planner.allow_partial_load


def _name(instance: object) -> str:
    return f"{type(instance).__module__}.{type(instance).__qualname__}"
