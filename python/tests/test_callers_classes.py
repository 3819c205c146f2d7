"""Classes of the caller's that derive from DCP's: Cairn leaves their comparisons, slots and attributes alone."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same
from stock import dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager

import cairn

pytestmark = pytest.mark.filterwarnings("ignore:(torch.distributed is|Detected an existing)")


def sample(step: int = 1) -> dict[str, Any]:
    return {"w": torch.arange(600.0).reshape(20, 30) * step, "step": step}


def blank() -> dict[str, Any]:
    return {"w": torch.zeros(20, 30), "step": 0}


# --- objects that are equal, or have no hash


class Equal:
    """All instances are equal."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")


class Slots:
    """No attributes and no weak references, except those of the remaining classes of the instance."""

    __slots__ = ("_a_slot",)


class PlansAsTorch:
    """Overrides a hook of planners: torch's driver carries out the call."""

    def create_local_plan(self) -> Any:
        return super().create_local_plan()  # type: ignore[misc]


def made(*kinds: type) -> Any:
    return type("".join(kind.__name__ for kind in kinds), kinds, {"__slots__": ()})


KINDS = pytest.mark.parametrize("kind", [Equal, Unhashable, Slots])


@KINDS
@pytest.mark.parametrize("storage", [cairn, dcp], ids=["of cairn", "of torch"])
@pytest.mark.parametrize("mixed_in", [(), (PlansAsTorch,)], ids=["by the engine", "by torch's driver"])
def test_two_instances_share_nothing(kind: type, storage: Any, mixed_in: Any, tmp_path: Path) -> None:
    """Both writers exist before the first save; the writers save twice, in turn. The readers load twice, in turn."""
    writers = [made(kind, storage.FileSystemWriter)(tmp_path / str(i)) for i in range(2)]
    planners = [made(kind, *mixed_in, DefaultSavePlanner)() for _ in range(2)]
    for step in (1, 2):
        for i in range(2):
            cairn.save(sample(10 * i + step), storage_writer=writers[i], planner=planners[i])
    assert writers[0].save_id != writers[1].save_id
    readers = [made(kind, storage.FileSystemReader)(tmp_path / str(i)) for i in range(2)]
    load_planners = [made(kind, *mixed_in, DefaultLoadPlanner)() for _ in range(2)]
    for i in (0, 1, 0, 1):
        state = blank()
        cairn.load(state, storage_reader=readers[i], planner=load_planners[i])
        assert_same(state, sample(10 * i + 2))


@KINDS
def test_two_asynchronous_saves_share_nothing(kind: type, tmp_path: Path) -> None:
    stagers = [made(kind, BlockingAsyncStager)() for _ in range(2)]
    writers = [made(kind, dcp.FileSystemWriter)(tmp_path / str(i)) for i in range(2)]
    futures: list[Any] = [
        cairn.async_save(sample(i + 1), storage_writer=writers[i], async_stager=stagers[i]) for i in range(2)
    ]
    for i, future in enumerate(futures):
        future.result()
        state = blank()
        stock.load(state, tmp_path / str(i))
        assert_same(state, sample(i + 1))
    assert writers[0].save_id != writers[1].save_id


# --- attributes whose names Cairn might have taken

# Attribute names that Cairn's classes use or used. Attributes of torch's classes belong to torch.
NAMES = ("_allow_pickle", "_checkpoint", "_claim", "_is_alone", "_open", "_options", "_read_by_torch", "_threads_min")
TAKEN = {name: f"the caller's {name}" for name in (*NAMES, "check_committed", "done_reading", "give_up", "reading")}


def own_storages(module: Any, on_class: bool) -> tuple[Any, Any]:
    """A writer's and a reader's class that override a hook and have attributes named as in TAKEN."""

    class OwnWriter(module.FileSystemWriter):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            vars(self).update({} if on_class else TAKEN)

        def finish(self, metadata: Any, results: Any) -> None:
            super().finish(metadata, results)

    class OwnReader(module.FileSystemReader):  # type: ignore[misc]
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            vars(self).update({} if on_class else TAKEN)

        def read_metadata(self, *arguments: Any, **kwargs: Any) -> Any:
            return super().read_metadata(*arguments, **kwargs)

    for name, value in TAKEN.items() if on_class else ():
        setattr(OwnWriter, name, value)
        setattr(OwnReader, name, value)
    return OwnWriter, OwnReader


@pytest.mark.parametrize("storage", [cairn, dcp], ids=["of cairn", "of torch"])
@pytest.mark.parametrize("on_class", [True, False], ids=["of the class", "of the instance"])
def test_names_of_the_callers_are_left_alone(storage: Any, on_class: bool, checkpoint: Path) -> None:
    writer, reader = (kind(checkpoint) for kind in own_storages(storage, on_class))
    for step in (1, 2):
        cairn.save(sample(step), storage_writer=writer)
        assert cairn.open(checkpoint).save_id is not None, "the engine wrote"
        state = blank()
        cairn.load(state, storage_reader=reader)
        assert_same(state, sample(step))
    for own in (writer, reader):
        assert {name: getattr(own, name) for name in TAKEN} == TAKEN


class Pickles(dcp.FileSystemWriter):
    """Pickles itself during a save, as a writer does that is sent to a different process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._options = {"of": "the caller"}
        self._claim = "the caller's"
        self.copied = b""

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self.copied = pickle.dumps(self)


def test_names_of_the_callers_are_pickled(checkpoint: Path) -> None:
    writer = Pickles(checkpoint)
    cairn.save(sample(), storage_writer=writer)
    copied = pickle.loads(writer.copied)
    assert (copied._options, copied._claim) == ({"of": "the caller"}, "the caller's")
    assert not [name for name in vars(copied) if name.startswith("_cairn")]


# --- consent is a call's


@dataclass
class Config:
    """Needs a class of the caller's to load."""

    depth: int = 3


class Meets(cairn.FileSystemReader):
    """A reader in which two loads run at the same time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.barrier = threading.Barrier(2, timeout=240)

    def read_data(self, plan: Any, planner: Any) -> Any:
        self.barrier.wait()
        try:
            return super().read_data(plan, planner)
        finally:
            self.barrier.wait()


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
@pytest.mark.parametrize("denied", [False, None])
def test_consent_is_not_that_of_another_thread_with_the_same_reader(denied: bool | None, checkpoint: Path) -> None:
    cairn.save({"config": Config(5)}, checkpoint_id=checkpoint)
    reader = Meets(checkpoint)

    def loaded(allow_pickle: bool | None) -> Any:
        state: dict[str, Any] = {"config": None}
        try:
            cairn.load(state, storage_reader=reader, allow_pickle=allow_pickle)
        except cairn.UnsafeContent as error:
            return str(error)
        return state["config"]

    with ThreadPoolExecutor(2) as threads:
        allowed, refused = threads.map(loaded, [True, denied])
    assert allowed == Config(5)
    assert "allow_pickle=True" in str(refused)


class Delegates(cairn.FileSystemReader):
    """Loads its checkpoint a second time, by an inner reader, in the middle of a load."""

    def read_data(self, plan: Any, planner: Any) -> Any:
        self.inner: dict[str, Any] = {"config": None}
        with pytest.raises(CheckpointException, match="config"):
            dcp.load(self.inner, storage_reader=cairn.FileSystemReader(self.path), no_dist=True)
        return super().read_data(plan, planner)


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
def test_consent_is_not_for_another_reader(checkpoint: Path) -> None:
    cairn.save({"config": Config(5)}, checkpoint_id=checkpoint)
    state: dict[str, Any] = {"config": None}
    cairn.load(state, storage_reader=Delegates(checkpoint), allow_pickle=True)
    assert state["config"] == Config(5)


# --- what fails on one rank fails on all


class FailsOnRank0:
    """A mixin before a storage class of Cairn: the hook of the given name raises on the coordinator alone."""

    def __init__(self, path: Path, hook: str) -> None:
        super().__init__(path)  # type: ignore[call-arg]
        self.hook = hook

    def _act(self, hook: str) -> None:
        if hook == self.hook and dist.get_rank() == 0:
            raise KeyError(f"of the caller: {hook}")

    def reset(self, checkpoint_id: Any = None) -> None:
        self._act("reset")
        super().reset(checkpoint_id)  # type: ignore[misc]


class WriterFailsOnRank0(FailsOnRank0, cairn.FileSystemWriter):
    """With "no finish", `finish` returns without a call of super().finish()."""

    def set_up_storage_writer(self, is_coordinator: bool, *arguments: Any, **kwargs: Any) -> None:
        self._act("set_up_storage_writer")
        super().set_up_storage_writer(is_coordinator, *arguments, **kwargs)

    def finish(self, metadata: Any, results: Any) -> None:
        self._act("finish")
        if self.hook != "no finish":
            super().finish(metadata, results)
        self._act("after finish")


class StateFails(dict[str, Any]):
    def state_dict(self) -> Any:
        if dist.get_rank() == 0:
            raise KeyError("of the caller: state_dict")
        return dict(self)

    def load_state_dict(self, state: Any) -> None:
        self.update(state)


def told_of_a_save(directory: Path, hook: str) -> tuple[str, list[int], str]:
    state = {**sample(9), "more": StateFails(a=1)} if hook == "state_dict" else sample(9)
    try:
        cairn.save(state, checkpoint_id=directory, storage_writer=WriterFailsOnRank0(directory, hook))
    except CheckpointException as error:
        return type(error).__name__, list(error.failures), str(error)
    return "saved", [], ""


HOOKS = ["reset", "set_up_storage_writer", "finish", "no finish", "after finish", "state_dict"]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_writer_that_fails_on_the_coordinator_fails_every_rank(hook: str, two: Gang, checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    first, second = two.run(told_of_a_save, checkpoint, hook)
    assert first[1] == second[1] == [0]
    text = "returned without a call of super().finish()" if hook == "no finish" else f"of the caller: {hook}"
    assert text in first[2]
    assert text in second[2]
    assert cairn.open(checkpoint)["step"] == (9 if hook == "after finish" else 1)
    assert cairn.verify(checkpoint)


class ReaderFailsOnRank0(FailsOnRank0, cairn.FileSystemReader):
    def prepare_global_plan(self, plans: Any) -> Any:
        self._act("prepare_global_plan")
        return super().prepare_global_plan(plans)

    def read_data(self, plan: Any, planner: Any) -> Any:
        self._act("read_data")
        return super().read_data(plan, planner)


def told_of_a_load(directory: Path, hook: str) -> tuple[list[int], str]:
    state = {**blank(), "more": StateFails(a=1)} if hook == "state_dict" else blank()
    try:
        cairn.load(state, checkpoint_id=directory, storage_reader=ReaderFailsOnRank0(directory, hook))
    except CheckpointException as error:
        return list(error.failures), str(error)
    return [], "loaded"


@pytest.mark.parametrize("hook", ["reset", "prepare_global_plan", "read_data", "state_dict"])
def test_a_reader_that_fails_on_the_coordinator_fails_every_rank(hook: str, two: Gang, checkpoint: Path) -> None:
    cairn.save(sample(), checkpoint_id=checkpoint)
    for failures, text in two.run(told_of_a_load, checkpoint, hook):
        assert failures == [0]
        assert f"of the caller: {hook}" in text


def told_of_an_unknown_storage(save: bool) -> str:
    with pytest.raises(RuntimeError, match="Cannot detect") as caught:
        if save:
            cairn.save(sample(), checkpoint_id="abc://abc.abc")
        else:
            cairn.load(blank(), checkpoint_id="abc://abc.abc")
    return type(caught.value).__name__


@pytest.mark.parametrize("save", [True, False])
def test_a_failure_of_every_rank_outside_torchs_driver_is_raised_as_by_torch(save: bool, two: Gang) -> None:
    assert two.run(told_of_an_unknown_storage, save) == ["RuntimeError"] * 2
