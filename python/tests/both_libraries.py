"""Cairn and stock DCP by name, and the parts that a test of both needs."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import stock
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.device_mesh import DeviceMesh

import cairn

LIBRARIES = {"cairn": cairn, "torch": stock.dcp}


class CallersSavePlanner(DefaultSavePlanner):
    """A planner with a hook of its own: torch's driver plans."""

    def create_local_plan(self) -> Any:
        return super().create_local_plan()


class CallersLoadPlanner(DefaultLoadPlanner):
    """A planner with a hook of its own: torch's driver plans."""

    def create_local_plan(self) -> Any:
        return super().create_local_plan()


@functools.cache
def mesh() -> DeviceMesh:
    """The mesh of all ranks. The processes of a gang keep their group."""
    return DeviceMesh("cpu", list(range(dist.get_world_size())))


@contextmanager
def quietly() -> Iterator[None]:
    """A block in which stock's warnings are no errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
