"""The files of torch_checkpointing as the engine writes them: read by the package itself, in jobs and after kills."""

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import checkpointing_managers as managers
import hanging
import pytest
import torch
import torch.distributed as dist
import warm_python
from checkpointing_managers import Items, ours
from ranks import Gang
from same import assert_same
from test_torch_checkpointing_files import assert_equal, save_theirs, state_of, trained, whole
from test_torch_checkpointing_jobs import load_and_save, load_own, own_values, sharded
from torch_checkpointing.checkpoint_layout import (
    JsonSerialization,
    LayoutInfo,
    RawSerialization,
    SafetensorsSerialization,
)
from torch_checkpointing.checkpoint_manager import CheckpointManager as StockManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

import cairn

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def stock_manager(items: Any = None) -> Any:
    items = {"model": managers.SHARDED, "optimizer": managers.SHARDED} if items is None else items
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    return StockManager(StockManager.Config(items=items, save=ours.SyncCheckpointSaverConfig(), storage_config=storage))


def names_in(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


def expect_soon(directory: Path, names: set[str]) -> None:
    """The writer process withdraws a failed save after the call has raised."""
    limit = time.monotonic() + 60
    while names_in(directory) != names:
        assert time.monotonic() < limit, names_in(directory)
        time.sleep(0.02)


# --- One process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_the_package_reads_every_save(asynchronous: bool, tmp_path: Path, fresh_report: None) -> None:
    with_manager = managers.manager("theirs", asynchronous=asynchronous)
    for value in (3, 4):  # torch_checkpointing itself leaves metadata.pkl out of the second blocking save
        managers.save(with_manager, tmp_path / "step", managers.state(value))
        files = {"extra_0.pt", "metadata.pkl", "model_0.pt", "optimizer_0.pt", "step_0.pt"}
        assert names_in(tmp_path / "step") == files | {".cairn-record"}
        assert names_in(tmp_path) == {"step"}
        reader = stock_manager()
        assert_same(reader.load(tmp_path / "step", into=managers.state(1), strict=True), managers.state(value))
        reader.close()
    with_manager.close()
    assert cairn.latest(tmp_path) == str(tmp_path / "step")
    assert not cairn.verify(tmp_path / "step").problems
    assert {count.engine for count in cairn.report().calls} == {True}


def test_objects_of_any_class_are_stored(tmp_path: Path) -> None:
    shared = torch.arange(10.0)
    value = {
        "views": [shared[2:5], shared[:3].view(3, 1)],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "half": torch.ones(7, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "conjugate": torch.full((3,), 1j).conj(),
        "set": {1, 2},
        "device": torch.device("cpu"),
        "size": torch.Size([1, 2]),
        "storage": torch.arange(4.0).untyped_storage(),
        "bits": shared.view(torch.int32),  # the same memory under another dtype
    }
    with_manager = managers.manager("theirs")
    managers.save(with_manager, tmp_path / "c", {"all": value})
    with_manager.close()
    loaded = torch.load(tmp_path / "c/all_0.pt", weights_only=False, mmap=True)
    for key in ("parameter", "half", "empty", "conjugate", "bits"):
        assert torch.equal(loaded[key], value[key]), key
    assert isinstance(loaded["parameter"], torch.nn.Parameter)
    first, second = loaded["views"]
    assert torch.equal(first, shared[2:5]) and torch.equal(second, shared[:3].view(3, 1))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert (loaded["set"], loaded["device"], loaded["size"]) == (value["set"], value["device"], value["size"])
    assert bytes(loaded["storage"]) == bytes(value["storage"])


def test_a_state_may_change_after_the_staging(tmp_path: Path) -> None:
    saver = ours.make_async_checkpoint_saver(files="theirs")
    tensor, listed = torch.full((1 << 20,), 1.0), [1]
    staged, written = saver.save(str(tmp_path / "c"), Items(tensor=tensor, listed=listed))
    staged.result()
    tensor.fill_(2)
    listed.append(2)
    written.result()
    saver.close()
    assert torch.load(tmp_path / "c/tensor_0.pt").unique().tolist() == [1]
    assert torch.load(tmp_path / "c/listed_0.pt") == [1]


def test_a_freed_storage_is_refused(tmp_path: Path) -> None:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    with_manager = managers.manager("theirs")
    with pytest.raises(cairn.InvalidArgument, match=r"model_0\.pt"):
        managers.save(with_manager, tmp_path / "c", {"model": {"layers": [{"w": tensor}]}})
    with_manager.close()
    expect_soon(tmp_path, set())


LAYOUTS = {
    "config": ours.ItemSpec(layout=LayoutInfo("config_{rank}.json", JsonSerialization())),
    "raw": ours.ItemSpec(layout=LayoutInfo("raw_{rank}.bin", RawSerialization())),
    "flat": ours.ItemSpec(layout=LayoutInfo("flat_{rank}.safetensors", SafetensorsSerialization({"by": "us"}))),
}


def test_layouts_are_those_of_the_package(tmp_path: Path) -> None:
    payload = {
        "config": {"lr": 0.1, "names": ["a", "b"]},
        "raw": b"\x00\x01raw",
        "flat": {"layer": {"w": torch.arange(6.0).view(2, 3).t(), "b": torch.ones(3, dtype=torch.bool)}},
    }
    with_manager = managers.manager("theirs", items=LAYOUTS)
    managers.save(with_manager, tmp_path / "c", payload)
    assert json.loads((tmp_path / "c/config_0.json").read_text()) == payload["config"]
    into = {
        "config": None,
        "raw": None,
        "flat": {"layer": {"w": torch.zeros(3, 2), "b": torch.zeros(3, dtype=torch.bool)}},
    }
    reader = stock_manager(LAYOUTS)
    assert_same(reader.load(tmp_path / "c", into=into, strict=True), payload)
    reader.close()
    into["flat"]["layer"]["w"].zero_()  # type: ignore[index]
    assert_same(with_manager.load(tmp_path / "c", into=into, strict=True), payload)
    with_manager.close()


def test_a_file_in_a_folder_is_left_to_the_package(tmp_path: Path, fresh_report: None) -> None:
    items = {"raw": ours.ItemSpec(layout=LayoutInfo("rank_{rank}/raw.bin", RawSerialization()))}
    with_manager = managers.manager("theirs", items=items, asynchronous=False)
    managers.save(with_manager, tmp_path / "c", {"raw": b"x"})
    with_manager.close()
    assert (tmp_path / "c/rank_0/raw.bin").read_bytes() == b"x"
    (count,) = cairn.report().calls
    assert not count.engine and "the layout of item 'raw': its file is in a folder" in count.how


def test_metadata_follows_a_changed_state(tmp_path: Path) -> None:
    """torch_checkpointing keeps the metadata of the first save."""
    with_manager = managers.manager("theirs")
    managers.save(with_manager, tmp_path / "one", {"model": {"w": torch.ones(3)}})
    managers.save(with_manager, tmp_path / "two", {"model": {"w": torch.ones(3), "more": torch.ones(2)}})
    with_manager.close()
    paths = []
    for name in ("one", "two"):
        metadata = pickle.loads((tmp_path / name / "metadata.pkl").read_bytes())
        paths.append(set(metadata["metadata"]["model"]["nested_path_to_metadata"]))
    assert paths == [{'["w"]'}, {'["w"]', '["more"]'}]


def test_files_of_others_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/thesis.tex").write_text("irreplaceable")
    with_manager = managers.manager("theirs")
    with pytest.raises(cairn.InvalidArgument, match=r"thesis\.tex"):
        managers.save(with_manager, tmp_path / "c", managers.state(1))
    with_manager.close()
    expect_soon(tmp_path, {"c"})
    assert names_in(tmp_path / "c") == {"thesis.tex"}


@pytest.mark.parametrize(
    ("layout", "value", "message"),
    [
        (LayoutInfo("folder/raw.bin", RawSerialization()), b"x", "puts its file into a folder"),
        (LayoutInfo("raw.bin", RawSerialization()), "text", "takes bytes"),
        (LayoutInfo("c.json", JsonSerialization()), {1, 2}, "not JSON serializable"),
        (LayoutInfo("../raw.bin", RawSerialization()), b"x", "puts its file into a folder"),
    ],
)
def test_a_refused_item_leaves_nothing(layout: LayoutInfo, value: Any, message: str, tmp_path: Path) -> None:
    saver = ours.make_async_checkpoint_saver(files="theirs")
    items = Items(item=value)
    items.layout = layout
    with pytest.raises((cairn.Error, TypeError), match=message):
        saver.save(str(tmp_path / "c"), items)
    assert saver.staging_lock.locked_mode() is None
    saver.close()
    expect_soon(tmp_path, set())


# --- Jobs -------------------------------------------------------------------------------------------------------------


def save_by_engine(directory: Path, expected: Path) -> None:
    payload = state_of(*trained(1), 7) | {"own": own_values(dist.get_rank())}
    with_manager = managers.manager("theirs")
    for _ in range(2):  # an overwrite, with the metadata of the first save
        managers.save(with_manager, directory, payload)
    with_manager.close()
    assert {count.engine for count in cairn.report().calls} == {True}
    gathered = whole(sharded(payload))
    if dist.get_rank() == 0:
        torch.save(gathered, expected)


def load_by_package(directory: Path, expected: Path) -> None:
    payload = sharded(state_of(*trained(2), 0))
    reader = stock_manager()
    reader.load(directory, into=payload, strict=True)
    reader.close()
    assert_equal(whole(payload), torch.load(expected))


def test_files_of_four_ranks_load_on_two_and_three(four: Gang, two: Gang, three: Gang, tmp_path: Path) -> None:
    directory, expected = tmp_path / "run/four", tmp_path / "expected.pt"
    four.run(save_by_engine, directory, expected)
    assert names_in(directory.parent) == {"four"}
    assert len(names_in(directory)) == 4 * 4 + 2
    for gang in (four, two, three):
        gang.run(load_by_package, directory, expected)
        gang.run(load_and_save, directory, expected, None)
    assert not cairn.verify(directory).problems
    opened = cairn.open(directory, tensors="torch")
    assert torch.equal(opened["model.0.weight"], torch.load(expected)["model"]["0.weight"])


def test_metadata_is_that_of_the_package(two: Gang, tmp_path: Path) -> None:
    two.run(save_theirs, tmp_path / "stock", tmp_path / "expected.pt")
    two.run(save_by_engine, tmp_path / "engine", tmp_path / "expected.pt")
    stock, engine = (pickle.loads((tmp_path / name / "metadata.pkl").read_bytes()) for name in ("stock", "engine"))
    assert engine == stock


def save_own_values(directory: Path) -> None:
    with_manager = managers.manager("theirs")
    managers.save(with_manager, directory, own_values(dist.get_rank()))
    with_manager.close()


def load_own_by_package(directory: Path) -> None:
    reader = stock_manager({})
    loaded = reader.load(directory, into={"sampler": None, "step": None})
    reader.close()
    assert_equal(loaded, own_values(dist.get_rank()))


def test_each_rank_has_files_of_its_own(two: Gang, tmp_path: Path) -> None:
    two.run(save_own_values, tmp_path / "own")
    two.run(load_own, tmp_path / "own")
    two.run(load_own_by_package, tmp_path / "own")


def save_with_one_failure(folder: Path) -> str:
    """Rank 1 has a value that JSON lacks; then both ranks give one name."""
    rank = dist.get_rank()
    saver = ours.make_async_checkpoint_saver(files="theirs")
    good = Items(w=torch.full((3,), 1.0))
    saver.save(str(folder / "c"), good)[1].result()
    bad = Items(w={rank} if rank == 1 else [rank])
    bad.layout = LayoutInfo(f"w_{rank}.json", JsonSerialization())
    with pytest.raises(Exception, match="not JSON serializable"):
        saver.save(str(folder / "c"), bad)
    same = Items(w=b"x")
    same.layout = LayoutInfo("w.bin", RawSerialization())
    with pytest.raises(cairn.InvalidArgument, match=r"two files of the save have one name.*w\.bin"):
        saver.save(str(folder / "c"), same)
    saver.close()
    return ""


def test_a_failure_of_one_rank_fails_all(two: Gang, tmp_path: Path) -> None:
    two.run(save_with_one_failure, tmp_path)
    expect_soon(tmp_path, {"c"})
    assert names_in(tmp_path / "c") == {".cairn-record", "w_0.pt", "w_1.pt"}


# --- Death ------------------------------------------------------------------------------------------------------------

DYING = """
    import os, signal, sys, time
    import torch
    from cairn import torch_checkpointing as ours
    from checkpointing_managers import Items
    torch.set_num_threads(1)
    directory, dies = sys.argv[1:]
    saver = ours.make_async_checkpoint_saver(files="theirs")
    for value in (1.0, 2.0):
        staged, written = saver.save(directory, Items(**{f"t{i}": torch.full((1 << 20,), value) for i in range(4)}))
        staged.result()
        if value == 1:
            written.result()
    if dies == "writer":
        from cairn._async.async_saver import DefaultSavers
        from cairn._process import part
        part(DefaultSavers).saver(True).kill_writer()
        print(repr(written.exception()))
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def value_in(directory: Path) -> float:
    """The one value of all tensors; a mixture of two saves fails."""
    files = names_in(directory) - {".cairn-record", ".cairn-lock"}  # a killed process may leave its lock file
    assert files == {f"t{i}_0.pt" for i in range(4)}
    (value,) = {value for name in files for value in torch.load(directory / name).unique().tolist()}
    return float(value)


def die(directory: Path, dies: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-c", textwrap.dedent(DYING), str(directory), dies]
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return warm_python.run(program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)


def test_a_save_outlives_its_trainer(tmp_path: Path) -> None:
    assert die(tmp_path / "run/c", "trainer").returncode == -signal.SIGKILL
    expect_soon(tmp_path / "run", {"c"})
    assert value_in(tmp_path / "run/c") == 2


def test_a_killed_writer_leaves_a_whole_save(tmp_path: Path) -> None:
    ended = die(tmp_path / "run/c", "writer")
    assert ended.returncode == 0, ended.stderr
    value = value_in(tmp_path / "run/c")
    assert value == 2 if ended.stdout == "None\n" else value in (1, 2)
    with_manager = managers.manager("theirs", items={})
    managers.save(with_manager, tmp_path / "run/c", {f"t{i}": torch.full((2,), 3.0) for i in range(4)})
    with_manager.close()
    assert value_in(tmp_path / "run/c") == 3 and names_in(tmp_path / "run") == {"c"}


# The second save hangs right before its commit. Prints the process that writes and how the save looks then, and dies.
HANGING = """
    import os, pathlib, signal, sys, time
    import torch
    import cairn
    from cairn import torch_checkpointing as ours
    from checkpointing_managers import Items
    run, hang = map(pathlib.Path, sys.argv[1:])
    saver = ours.make_async_checkpoint_saver(files="theirs")
    for value in (1.0, 2.0):
        if value == 2:
            hang.touch()
        items = Items(**{f"t{i}": torch.full((4,), value) for i in range(4)})
        written = saver.save(str(run / "c"), items)[1]
        if value == 1:
            written.result()
    while not hang.with_name(hang.name + ".reached").exists():
        time.sleep(0.01)
    (save,) = cairn.saves_in_flight(run)
    print(save.writers[0].pid)
    print(save.directory, save.is_leftover, [writer.state for writer in save.writers])
    begun = time.monotonic()
    print(cairn.latest(run, wait=0.3), time.monotonic() - begun >= 0.3, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_dead_save_is_listed_and_cleaned(tmp_path: Path) -> None:
    run = tmp_path / "run"
    variables = {"LD_PRELOAD": str(hanging.library(tmp_path)), "HANG": f"exchange:{tmp_path / 'hang'}"}
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(HANGING), str(run), str(tmp_path / "hang")]
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    writer, *told = done.stdout.splitlines()
    os.kill(int(writer), signal.SIGKILL)
    assert told == [f"{run / 'c'} False ['alive']", f"{run / 'c'} True"]
    while not (dead := cairn.saves_in_flight(run / "c")[0]).is_leftover:
        time.sleep(0.01)
    assert dead.directory == str(run / "c")
    tried = cairn.clean(run / "c", dry_run=True)
    assert {name for name, _ in tried.saves[0].files} > {f"t{i}_0.pt" for i in range(4)}
    assert cairn.clean(run / "c") == tried
    assert names_in(run) == {"c"} and value_in(run / "c") == 1
    assert not cairn.saves_in_flight(run)
