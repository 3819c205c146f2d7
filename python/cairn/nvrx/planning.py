"""The plan of an asynchronous save: made together by all ranks, or kept from an earlier save.

The ranks agree on what they do by one all-reduce of a few integers, at every save:

1. Each rank makes its local plan, and compares it with the local plan of the previous save, and with its plan in the
   metadata that the job has loaded.
2. One all-reduce: do all ranks have a local plan, do all plans fit the previous save's, do all fit the loaded ones?
3. If all fit the previous save and its plan was validated: that central plan is used again. Otherwise, if planner and
   writer can plan without a coordinator: each rank finishes its own plan, and the local plans are gathered for the
   metadata unless all fit the loaded ones. Otherwise: the coordinator plans for all (gather, scatter).

In NVRx each rank decides alone whether it plans again, and ranks that decide differently wait for each other; and a
validated plan is not compared again, so that a changed state is written by an old plan.
"""

import dataclasses
import pickle
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.utils import _DistWrapper

from cairn._ranks.ranks import Ranks
from cairn.nvrx.staged_save import SaveTerms

_STANDARD_ATTRIBUTES = frozenset(field.name for field in dataclasses.fields(Metadata))
_KEPT = "_cairn_metadata_attributes"  # of a central plan: those of the metadata that was made with the plan


class KeptPlans(NamedTuple):
    """What earlier saves and a load have left for the next plan. Each may be missing."""

    central: SavePlan | None = None
    local: SavePlan | None = None
    is_validated: bool = False  # two saves in a row had equal central plans
    loaded: list[SavePlan] | None = None  # the local plans of all ranks, from the metadata of the loaded checkpoint


class NewPlans(NamedTuple):
    """The plan of a save."""

    wrapper: _DistWrapper
    central: SavePlan
    local: SavePlan
    metadata: Metadata | None  # None: not made anew, or this rank is not the coordinator
    fits_loaded: bool  # on every rank; nothing was gathered


def make_plans(state_dict: Any, writer: Any, group: Any, coordinator: int, planner: Any, kept: KeptPlans) -> NewPlans:
    """Plans the save, and has `writer` prepare its data. All ranks of `group` call this; all raise if one fails."""
    use_dist = dist.is_available() and dist.is_initialized()
    wrapper = _DistWrapper(group, use_dist, coordinator)
    ranks = Ranks(group)
    planner = DefaultSavePlanner() if planner is None else planner
    writer.set_terms(SaveTerms(group, coordinator))
    local = _local_plan(state_dict, writer, planner, wrapper, ranks)
    fits_kept, fits_loaded = ranks.smallest([_fits_kept(local, kept), _fits_loaded(local, kept.loaded, ranks)])
    metadata: Metadata | None = None
    attributes = b""
    if fits_kept:
        assert kept.central is not None
        assert kept.local is not None
        central, local = kept.central, kept.local
        fits_loaded = 0
        attributes = getattr(central, _KEPT, b"")
    elif _plans_alone(planner) and _plans_alone(writer):
        if fits_loaded:
            attributes = _pickled({"all_local_plans": kept.loaded}) if wrapper.is_coordinator else b""
        else:
            metadata = _metadata_of_gathered(local, planner, wrapper, ranks)
        with ranks.all_fail_together("plan"):
            local = writer.prepare_decentralized_global_plan(planner.create_decentralized_global_plan(local))
        central = local
    else:
        fits_loaded = 0
        central, metadata = _planned_centrally(local, writer, planner, wrapper)
    if metadata is not None:
        attributes = attributes_of(metadata)
    with ranks.all_fail_together("plan"):
        central = planner.finish_plan(central)
        object.__setattr__(central, _KEPT, attributes)  # SavePlan is frozen, and compares its fields alone
        writer.set_terms(SaveTerms(group, coordinator, attributes))
        writer.prepare_write_data(central, planner)
    return NewPlans(wrapper, central, local, metadata, bool(fits_loaded))


def fits(local: SavePlan, earlier: SavePlan) -> bool:
    """Whether two local plans agree in everything but the writer's own data."""
    return all(
        getattr(local, field.name) == getattr(earlier, field.name, None)
        for field in dataclasses.fields(local)
        if field.name != "storage_data"
    )


def attributes_of(metadata: Metadata) -> bytes:
    """The attributes that programs have added to `metadata`, as the pickle that the engine takes; b"" if none."""
    return _pickled({name: value for name, value in vars(metadata).items() if name not in _STANDARD_ATTRIBUTES})


def _pickled(attributes: dict[str, Any]) -> bytes:
    if not attributes:
        return b""
    carrier = Metadata({})
    vars(carrier).update(attributes)
    return pickle.dumps(carrier, protocol=4)


def _local_plan(state_dict: Any, writer: Any, planner: Any, wrapper: _DistWrapper, ranks: Ranks) -> SavePlan:
    with ranks.all_fail_together("plan"):
        planner.set_up_planner(state_dict, is_coordinator=wrapper.is_coordinator)
        writer.set_up_storage_writer(wrapper.is_coordinator)
        local: SavePlan = writer.prepare_local_plan(planner.create_local_plan())
    return local


def _fits_kept(local: SavePlan, kept: KeptPlans) -> int:
    if not kept.is_validated or kept.central is None or kept.local is None:
        return 0
    return int(fits(local, kept.local))


def _fits_loaded(local: SavePlan, loaded: list[SavePlan] | None, ranks: Ranks) -> int:
    return int(bool(loaded) and loaded is not None and len(loaded) == ranks.count and fits(local, loaded[ranks.rank]))


def _plans_alone(planner_or_writer: Any) -> bool:
    return bool(getattr(planner_or_writer, "can_run_decentralized_global_plan", False))


def _metadata_of_gathered(local: SavePlan, planner: Any, wrapper: _DistWrapper, ranks: Ranks) -> Metadata | None:
    plans = wrapper.gather_object(local)
    metadata: Metadata | None = None
    with ranks.all_fail_together("plan"):
        if wrapper.is_coordinator:
            _, metadata = planner.create_global_plan(plans)
            vars(metadata)["all_local_plans"] = plans  # NVRx's name, for the next start of the job
    return metadata


def _planned_centrally(
    local: SavePlan, writer: Any, planner: Any, wrapper: _DistWrapper
) -> tuple[SavePlan, Metadata | None]:
    made: list[Metadata] = []

    def plan_for_all(plans: list[SavePlan]) -> list[SavePlan]:
        plans, metadata = planner.create_global_plan(plans)
        made.append(metadata)
        prepared: list[SavePlan] = writer.prepare_global_plan(plans)
        return prepared

    central: SavePlan = wrapper.reduce_scatter("plan", lambda: local, plan_for_all)
    return central, made[0] if made else None
