"""What the planners of DCP were asked to do, as options of the engine."""

from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from cairn._native.hooks import hooks_of, why_not_native

_SAVE_HOOKS = hooks_of(DefaultSavePlanner)
_LOAD_HOOKS = hooks_of(DefaultLoadPlanner)


def why_save_planner_is_foreign(planner: object | None) -> str:
    """Why the engine can't plan as this planner would: its class and the hooks that it overrides. "" if it can."""
    return "" if planner is None else why_not_native(planner, _SAVE_HOOKS, (DefaultSavePlanner,))


def why_load_planner_is_foreign(planner: object | None) -> str:
    """As why_save_planner_is_foreign()."""
    return "" if planner is None else why_not_native(planner, _LOAD_HOOKS, (DefaultLoadPlanner,))


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
