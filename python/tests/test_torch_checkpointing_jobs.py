"""cairn.torch_checkpointing in jobs of several ranks: FSDP2 on other numbers of ranks, values of each rank, failures on
one rank, and the death of the trainer."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import checkpointing_managers as managers
import pytest
import torch
import torch.distributed as dist
import warm_python
from checkpointing_managers import ours
from ranks import Gang
from test_torch_checkpointing_files import assert_equal, save_theirs, state_of, trained, whole

import cairn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


# --- Other numbers of ranks -------------------------------------------------------------------------------------------


def sharded(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload without items of each rank: their manager gives "step" no resharder."""
    return {key: payload[key] for key in ("model", "optimizer")}


def save_ours(directory: Path, expected: Path) -> None:
    payload = sharded(state_of(*trained(1), 7))
    manager = managers.manager()
    managers.save(manager, directory, payload)
    manager.close()
    gathered = whole(payload)
    if dist.get_rank() == 0:
        torch.save(gathered, expected)


def load_and_save(directory: Path, expected: Path, target: Path | None) -> None:
    """Loads into another state, compares, and saves for the next job."""
    payload = sharded(state_of(*trained(2), 0))
    tensors = {name: id(tensor) for name, tensor in payload["model"].items()}
    manager = managers.manager()
    loaded = manager.load(directory, into=payload, strict=True)
    assert {name: id(tensor) for name, tensor in loaded["model"].items()} == tensors
    wanted = torch.load(expected)
    assert_equal(whole(loaded), sharded(wanted))
    if target is not None:
        managers.save(manager, target, payload)
    manager.close()


def test_our_files_go_from_four_ranks_to_two_and_three(four: Gang, two: Gang, three: Gang, tmp_path: Path) -> None:
    expected = tmp_path / "expected.pt"
    four.run(save_ours, tmp_path / "four", expected)
    two.run(load_and_save, tmp_path / "four", expected, tmp_path / "two")
    three.run(load_and_save, tmp_path / "two", expected, tmp_path / "three")
    state = cairn.read(tmp_path / "three")
    assert_equal(state, sharded(torch.load(expected)))
    assert not cairn.verify(tmp_path / "three").problems


def test_their_files_load_on_any_number_of_ranks(four: Gang, two: Gang, three: Gang, tmp_path: Path) -> None:
    directory, expected = tmp_path / "theirs", tmp_path / "expected.pt"
    four.run(save_theirs, directory, expected)
    four.run(load_and_save, directory, expected, None)  # each rank reads its own files
    two.run(load_and_save, directory, expected, tmp_path / "two")
    three.run(load_and_save, directory, expected, tmp_path / "three")
    three.run(load_and_save, tmp_path / "two", expected, None)


def stage_of(rank: int) -> dict[str, Any]:
    """A stage of a pipeline: each rank has another tensor under one key, and another step."""
    return {"model": {"w": torch.full((3,), float(rank)), "b": torch.ones(2)}, "step": 100 + rank}


def save_stages(directory: Path) -> None:
    managers.gather_on_cpu()
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(dist.get_rank()), str(dist.get_world_size())
    manager = managers.manager("theirs", asynchronous=False)
    managers.save(manager, directory, stage_of(dist.get_rank()))
    manager.close()
    del os.environ["RANK"], os.environ["WORLD_SIZE"]


def load_stages(directory: Path) -> None:
    rank = dist.get_rank()
    assert_equal(managers.manager().load(directory, into=stage_of(rank + 5), strict=True), stage_of(rank))


def load_stages_of_fewer(directory: Path) -> None:
    rank = dist.get_rank()
    manager = managers.manager()
    with pytest.raises(cairn.Error, match=r"model\.w"):  # two tensors under one key
        manager.load(directory, into={"model": stage_of(5)["model"]})
    part = manager.load(directory, into={"model": {"b": torch.zeros(2)}}, strict=True)
    assert torch.equal(part["model"]["b"], torch.ones(2))
    if rank < 2:
        assert manager.load(directory, into={"step": 0}) == {"step": 100 + rank}
        return
    with pytest.raises(FileNotFoundError, match=r"step_2\.pt.*resharder") as raised:
        manager.load(directory, into={"step": 0})
    assert isinstance(raised.value, cairn.NotFound) and raised.value.rank == 2


def test_stages_in_their_files_are_kept_apart(two: Gang, three: Gang, tmp_path: Path) -> None:
    two.run(save_stages, tmp_path / "stages")
    two.run(load_stages, tmp_path / "stages")
    three.run(load_stages_of_fewer, tmp_path / "stages")


# --- Values of each rank ----------------------------------------------------------------------------------------------


def own_values(rank: int) -> dict[str, Any]:
    """Items without a resharder, whose values and keys differ from rank to rank."""
    generator = torch.Generator().manual_seed(rank)
    sampler = {"position": rank * 10, "random": generator.get_state(), "order": [rank, rank + 1], "pair": (rank, "r")}
    return {"sampler": {**sampler, f"of_{rank}": {"deep": [torch.full((2,), float(rank)), rank]}}, "step": 7}


def save_own(directory: Path) -> None:
    manager = managers.manager()
    managers.save(manager, directory, own_values(dist.get_rank()))
    manager.close()


def load_own(directory: Path) -> None:
    rank = dist.get_rank()
    into = own_values(rank + 5)
    into["sampler"][f"of_{rank}"] = into["sampler"].pop(f"of_{rank + 5}")
    manager = managers.manager()
    assert_equal(manager.load(directory, into=into, strict=True), own_values(rank))
    assert_equal(manager.load(directory, into={"sampler": None, "step": None}), own_values(rank))


def load_of_fewer(directory: Path) -> str:
    try:
        managers.manager().load(directory, into=own_values(dist.get_rank()), strict=False)
    except FileNotFoundError as error:
        assert isinstance(error, cairn.NotFound) and error.rank == dist.get_rank()
        return str(error)
    return ""


def test_each_rank_gets_its_own_values(two: Gang, three: Gang, tmp_path: Path) -> None:
    two.run(save_own, tmp_path / "own")
    two.run(load_own, tmp_path / "own")
    first, second, third = three.run(load_of_fewer, tmp_path / "own")
    assert not first and not second
    assert "'sampler'" in third and "2 ranks have saved" in third and "resharder" in third
    alone = managers.manager().load(tmp_path / "own", into={"sampler": {"position": 5}, "step": 0}, strict=True)
    assert alone == {"sampler": {"position": 0}, "step": 7}  # a single process is rank 0


def test_values_of_one_rank_are_no_values_of_two(two: Gang, tmp_path: Path) -> None:
    manager = managers.manager()
    managers.save(manager, tmp_path / "own", own_values(0))
    manager.close()
    first, second = two.run(load_of_fewer, tmp_path / "own")
    assert not first and "1 ranks have saved" in second


def load_on_rank_zero(directory: Path) -> None:
    if dist.get_rank() == 0:
        assert managers.manager().load(directory, into={"step": 0}) == {"step": 7}


def test_one_rank_may_load_alone(two: Gang, tmp_path: Path) -> None:
    two.run(save_own, tmp_path / "own")
    two.run(load_on_rank_zero, tmp_path / "own")


# --- Failures on one rank ---------------------------------------------------------------------------------------------


def fails_on_rank_one(_: Any) -> None:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 refuses")


def save_after_a_failure(folder: Path) -> None:
    saver = ours.make_async_checkpoint_saver(files="ours", finalize_callback=fails_on_rank_one)
    items = managers.Items(w=torch.ones(2))
    _, first = saver.save(str(folder / "first"), items)
    assert isinstance(first.exception(), ValueError) is (dist.get_rank() == 1)
    with pytest.raises(ValueError, match="rank 1 refuses"):
        saver.save(str(folder / "second"), items)
    assert saver.staging_lock.locked_mode() is None
    _, third = saver.save(str(folder / "third"), items)
    third.exception()
    saver.close()


def test_an_error_of_one_rank_fails_the_next_save_on_all(two: Gang, tmp_path: Path) -> None:
    two.run(save_after_a_failure, tmp_path)
    assert not (tmp_path / "second/.metadata").exists()
    assert cairn.read(tmp_path / "third")["w"]["__rank_1"].tolist() == [1, 1]


def wait_on_rank_one(folder: Path) -> None:
    saver = ours.make_async_checkpoint_saver(ours.AsyncCheckpointSaverConfig(wait_timeout_secs=0), files="ours")
    if dist.get_rank() == 1:
        saver.staging_lock.read.acquire()
    with pytest.raises(cairn.Unavailable, match="wait_timeout_secs"):
        saver.save(str(folder / "c"), managers.Items(w=torch.ones(2)))
    if dist.get_rank() == 1:
        saver.staging_lock.read.release()
    assert saver.staging_lock.locked_mode() is None
    _, written = saver.save(str(folder / "c"), managers.Items(w=torch.ones(2)))
    written.result()
    saver.close()


def test_a_time_out_of_one_rank_leaves_none_waiting(two: Gang, tmp_path: Path) -> None:
    two.run(wait_on_rank_one, tmp_path)
    assert cairn.open(tmp_path / "c").notes == {"torch_checkpointing": {"world_size": 2}}


def save_with_a_layout_on_rank_one(directory: Path) -> None:
    from torch_checkpointing.checkpoint_layout import LayoutInfo, RawSerialization

    saver = ours.make_async_checkpoint_saver(files="ours")
    layout = LayoutInfo("raw", RawSerialization()) if dist.get_rank() == 1 else None
    items = managers.Items(w=torch.ones(2))
    items.layout = layout
    with pytest.raises(cairn.Unsupported, match="the layout of item 'w'"):
        saver.save(str(directory), items)
    saver.close()


def test_an_item_that_one_rank_refuses_fails_all(two: Gang, tmp_path: Path) -> None:
    two.run(save_with_a_layout_on_rank_one, tmp_path / "c")
    assert not (tmp_path / "c/.metadata").exists()


# --- Death of the trainer ---------------------------------------------------------------------------------------------

DYING = """
    import os, signal, sys
    import torch
    from cairn import torch_checkpointing as ours
    torch.set_num_threads(1)
    directory, when = sys.argv[1:]
    saver = ours.make_async_checkpoint_saver(files="ours")

    class Items(ours.CheckpointBase):
        def __init__(self, value):
            self.value = value

        def get_items(self):
            tensors = {f"t{i}": torch.full((1 << 20,), self.value) for i in range(4)}
            return {"state": ours.CheckpointItem({**tensors, "value": self.value})}

        def load_state_dict(self, state_dict):
            raise AssertionError

    saver.save(directory, Items(1.0))[1].result()
    staged, written = saver.save(directory, Items(2.0))
    if when == "staged":
        staged.result()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["at once", "staged"])
def test_a_killed_trainer_leaves_a_whole_checkpoint(when: str, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    command = [sys.executable, "-c", textwrap.dedent(DYING), str(directory), when]
    done = warm_python.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=240)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert cairn.latest(directory, wait=240) == str(directory)
    state = cairn.read(directory)["state"]
    value = state.pop("value")
    assert value == 2 or when == "at once"
    assert len(state) == 4 and all(torch.equal(each, torch.full((1 << 20,), value)) for each in state.values())
    assert not cairn.verify(directory).problems
