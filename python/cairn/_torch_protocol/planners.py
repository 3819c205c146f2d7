"""The settings of DCP's planners, as options of the engine."""

from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from cairn._torch_protocol.hooks import hooks_of, name_of, why_not_native

_SAVE_HOOKS = hooks_of(DefaultSavePlanner)
# Megatron-core's save planner. Its hooks make the plan of an unflattened state, whose values are bytes already.
_MEGATRONS = "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlanner"
_LOAD_HOOKS = hooks_of(DefaultLoadPlanner)


def why_save_planner_is_foreign(planner: object | None) -> str:
    """Returns why the engine can't plan for this planner: its class and the overridden hooks. "" if the engine can."""
    if planner is None or takes_raw_values(planner):
        return ""
    return why_not_native(planner, _SAVE_HOOKS, (DefaultSavePlanner,))


def takes_raw_values(planner: object | None) -> bool:
    """Returns whether the planner is Megatron-core's, for an unflattened state: values are ``BytesIO`` objects, and
    their bytes are the items."""
    return (
        isinstance(planner, DefaultSavePlanner)
        and name_of(type(planner)) == _MEGATRONS
        and not planner.flatten_state_dict
        and not why_not_native(planner, _SAVE_HOOKS, (DefaultSavePlanner, type(planner)))
    )


def why_load_planner_is_foreign(planner: object | None) -> str:
    """As why_save_planner_is_foreign()."""
    return "" if planner is None else why_not_native(planner, _LOAD_HOOKS, (DefaultLoadPlanner,))


def save_planning(planner: DefaultSavePlanner | None) -> dict[str, Any]:
    """Returns the engine's options for a native planner. The engine plans anew at each save and ignores the planner's
    cache."""
    if planner is None:
        return {"record_paths": True}
    return {
        "record_paths": planner.flatten_state_dict,
        "dedup_to_lowest_rank": planner.dedup_save_to_lowest_rank,
    }


def load_planner_options(planner: DefaultLoadPlanner | None) -> tuple[bool, bool]:
    """Returns, for a native planner, whether nested containers are flattened, and whether keys may be missing."""
    if planner is None:
        return True, False
    return planner.flatten_state_dict, planner.allow_partial_load
