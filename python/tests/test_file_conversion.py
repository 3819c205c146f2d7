"""``cairn.format_utils``: the conversions of torch's functions, without running code from the files."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import same
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cairn
from cairn import format_utils


class MakesAFolder:
    """Makes a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def state() -> dict[str, Any]:
    return {"model": {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)}, "step": 7}


def assert_same(found: Any) -> None:
    expected = state()
    assert found["step"] == expected["step"]
    assert found["model"].keys() == expected["model"].keys()
    for name, tensor in expected["model"].items():
        assert torch.equal(found["model"][name], tensor)


@pytest.mark.parametrize("save", [stock.save, lambda state, where: cairn.save(state, checkpoint_id=where)])
def test_a_checkpoint_becomes_a_file_as_by_torch(save: Any, checkpoint: Path, tmp_path: Path) -> None:
    save(state(), checkpoint)
    format_utils.dcp_to_torch_save(checkpoint, tmp_path / "ours.pt")
    assert_same(torch.load(tmp_path / "ours.pt", weights_only=True))
    stock.dcp_to_torch_save(checkpoint, tmp_path / "theirs.pt")
    assert_same(torch.load(tmp_path / "theirs.pt", weights_only=True))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_becomes_a_checkpoint(zipped: bool, checkpoint: Path, tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "file.pt", _use_new_zipfile_serialization=zipped)
    format_utils.torch_save_to_dcp(tmp_path / "file.pt", checkpoint)
    target = {"model": {name: torch.zeros_like(it) for name, it in state()["model"].items()}, "step": 0}
    stock.load(target, checkpoint)
    assert_same(target)


def test_neither_way_runs_code(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "code ran"
    hostile = {"w": torch.ones(2), "value": MakesAFolder(folder)}
    stock.save(hostile, checkpoint)
    torch.save(hostile, tmp_path / "file.pt")
    with pytest.raises(cairn.UnsafeContent, match="allow_pickle=True"):
        format_utils.dcp_to_torch_save(checkpoint, tmp_path / "merged.pt")
    with pytest.raises(cairn.UnsafeContent, match="allow_pickle=True"):
        format_utils.torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "split")
    assert not folder.exists()
    assert not (tmp_path / "merged.pt").exists()
    assert not (tmp_path / "split").exists()
    format_utils.dcp_to_torch_save(checkpoint, tmp_path / "merged.pt", allow_pickle=True)
    assert folder.exists()
    folder.rmdir()
    monkeypatch.setenv("CAIRN_ALLOW_PICKLE", "1")
    format_utils.torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "split")
    assert folder.exists()


def test_tied_tensors_nesting_and_optimizer_states_survive_both_ways(checkpoint: Path, tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    w = torch.randn(4)
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "w": w, "tied": w, "lr": 0.5, "n": None}
    torch.save(whole, tmp_path / "in.pt")
    format_utils.torch_save_to_dcp(tmp_path / "in.pt", checkpoint)
    format_utils.dcp_to_torch_save(checkpoint, tmp_path / "out.pt")
    stock.dcp_to_torch_save(checkpoint, tmp_path / "theirs.pt")
    ours = torch.load(tmp_path / "out.pt", weights_only=True)
    same.assert_same(ours, torch.load(tmp_path / "theirs.pt", weights_only=False))
    assert torch.equal(ours["tied"], w)


def test_a_flipped_byte_is_found_in_either_direction(checkpoint: Path, tmp_path: Path) -> None:
    w = torch.arange(1000.0)
    file = tmp_path / "file.pt"
    torch.save({"w": w, "part": w[:10]}, file)
    flip(file, w)
    with pytest.raises(cairn.Corrupt, match="checksum"):
        format_utils.torch_save_to_dcp(file, checkpoint)
    assert not checkpoint.exists()
    cairn.save({"w": w}, checkpoint_id=checkpoint)
    flip(checkpoint / "__0_0.distcp", w)
    file.write_bytes(b"old")
    with pytest.raises(cairn.Corrupt, match="checksum"):
        format_utils.dcp_to_torch_save(checkpoint, file)
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if ".cairn-" in path.name] == []


def flip(file: Path, tensor: torch.Tensor) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(tensor.numpy().tobytes()) + 500] ^= 1
    file.write_bytes(content)


def test_a_pipe_is_refused_at_once(checkpoint: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    for allow_pickle in (False, True):
        with pytest.raises(cairn.UnsafeContent, match=r"'.*pipe\.pt' is not a regular file"):
            format_utils.torch_save_to_dcp(tmp_path / "pipe.pt", checkpoint, allow_pickle=allow_pickle)
    assert not checkpoint.exists()


def test_hostile_metadata_runs_no_code(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "code ran"
    stock.save(state(), checkpoint)
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    metadata.planner_data["extra"] = MakesAFolder(folder)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    for read in (
        lambda: format_utils.dcp_to_torch_save(checkpoint, tmp_path / "merged.pt"),
        lambda: stock.load({"step": 0}, checkpoint, storage_reader=cairn.FileSystemReader(checkpoint)),
    ):
        with contextlib.suppress(cairn.Error, stock.dcp.CheckpointException):
            read()
        assert not folder.exists()


def test_before_torch_2_6_the_rules_of_weights_only_are_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Cairn reads plain content by its own decoder, and copies a quantised tensor without reading the tensor. Cairn
    # leaves a sparse tensor inside a value to torch.
    opaque = {"q": torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.quint8)}
    sparse = {"v": (torch.eye(2).to_sparse(), 1)}
    torch.save({**state(), **opaque, **sparse}, tmp_path / "file.pt")
    torch.save({**state(), **opaque}, tmp_path / "copied.pt")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu124")
    with pytest.raises(cairn.UnsafeContent, match="CVE-2025-32434"):
        format_utils.torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "split")
    format_utils.torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "split", allow_pickle=True)
    format_utils.torch_save_to_dcp(tmp_path / "copied.pt", tmp_path / "copied")
    cairn.save(opaque, checkpoint_id=tmp_path / "opaque")
    for saved in ("opaque", "copied"):
        with pytest.raises(cairn.UnsafeContent, match="CVE-2025-32434"):
            cairn.load(opaque, checkpoint_id=tmp_path / saved)
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    for saved in ("opaque", "copied"):
        cairn.load(opaque, checkpoint_id=tmp_path / saved)


def broadcast(file: Path, allow_pickle: bool, size: int = 3) -> list[float]:
    target = {"w": torch.zeros(size)}
    reader = format_utils.BroadcastingTorchSaveReader(allow_pickle=allow_pickle)
    planner = format_utils.DynamicMetaLoadPlanner()
    stock.dcp.load(target, checkpoint_id=file, storage_reader=reader, planner=planner)
    found: list[float] = target["w"].tolist()
    return found


def broadcast_refused(file: Path, size: int = 3) -> str:
    with pytest.raises(stock.dcp.CheckpointException) as caught:
        broadcast(file, False, size)
    return str(caught.value)


def on_the_coordinator_alone(call: Any, file: Path, *arguments: Any) -> Any:
    """Calls `call`; the ranks other than 0 are given a path that has no file."""
    return call(file if dist.get_rank() == 0 else file.with_name("missing.pt"), *arguments)


@pytest.fixture(params=["every rank sees the file", "the coordinator sees the file"])
def on_ranks(request: pytest.FixtureRequest, two: Gang) -> Any:
    """Runs a function of a file on two ranks."""
    if request.param.startswith("every"):
        return two.run
    return lambda call, file, *arguments: two.run(on_the_coordinator_alone, call, file, *arguments)


def test_the_broadcasting_reader_runs_no_code_without_consent(on_ranks: Any, tmp_path: Path) -> None:
    """A tensor is read from a file that names code, and the code does not run; a tensor that needs code is refused."""
    plain, code = tmp_path / "plain.pt", tmp_path / "code.pt"
    torch.save({"w": torch.arange(3.0)}, plain)
    torch.save({"w": torch.arange(3.0), "code": MakesAFolder(tmp_path / "made")}, code)
    assert on_ranks(broadcast, plain, False) == [[0.0, 1.0, 2.0]] * 2
    assert on_ranks(broadcast, code, False) == [[0.0, 1.0, 2.0]] * 2
    torch.save({"w": MakesAFolder(tmp_path / "made")}, code)
    for told in on_ranks(broadcast_refused, code):
        assert "allow_pickle=True" in told
    assert not (tmp_path / "made").exists()


def test_all_ranks_of_the_broadcasting_reader_fail_together(on_ranks: Any, tmp_path: Path) -> None:
    torch.save({"w": torch.arange(3.0)}, tmp_path / "file.pt")
    for told in on_ranks(broadcast_refused, tmp_path / "file.pt", 4):
        assert "Size mismatch between saved (3,) and current (4,) for w" in told
    torch.save({"v": torch.arange(3.0)}, tmp_path / "file.pt")
    for told in on_ranks(broadcast_refused, tmp_path / "file.pt"):
        assert "Missing key in checkpoint state_dict: w." in told
    for told in on_ranks(broadcast_refused, tmp_path / "none.pt"):
        assert "none.pt" in told


def load_sharded(file: Path, parameters: int, fails_on: int | None = None) -> list[float]:
    """Fills a sharded model; returns the sum of each parameter, and checks the local parts."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    placements = ([Shard(0)], [Shard(1)], [Replicate()])
    state = {f"p{i}": distribute_tensor(torch.zeros(8, 6), mesh, placements[i % 3]) for i in range(parameters)}
    planner = format_utils.DynamicMetaLoadPlanner()
    if dist.get_rank() == fails_on:
        planner.resolve_tensor = failing
    reader = format_utils.BroadcastingTorchSaveReader()
    stock.dcp.load(state, checkpoint_id=file, storage_reader=reader, planner=planner)
    return [tensor.full_tensor().sum().item() for tensor in state.values()]


def failing(*_: Any) -> Any:
    raise RuntimeError("no memory on this device")


def test_distributed_tensors_are_filled(on_ranks: Any, tmp_path: Path) -> None:
    state = {f"p{i}": torch.randn(8, 6) for i in range(6)}
    torch.save(state, tmp_path / "model.pt")
    expected = [tensor.sum().item() for tensor in state.values()]
    for found in on_ranks(load_sharded, tmp_path / "model.pt", 6):
        assert found == pytest.approx(expected, abs=1e-4)


def load_as(file: Path, key: str, target: torch.Tensor) -> torch.Tensor:
    state = {key: target}
    reader = format_utils.BroadcastingTorchSaveReader()
    planner = format_utils.DynamicMetaLoadPlanner()
    stock.dcp.load(state, checkpoint_id=file, storage_reader=reader, planner=planner)
    return state[key]


def test_dtypes_are_converted_alike_wherever_the_file_is_seen(on_ranks: Any, tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.25, 1e20, 3.14159265358979, float("inf")], dtype=torch.float64)
    torch.save({"w": values}, tmp_path / "file.pt")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        expected: dict[str, Any] = {"w": torch.zeros(5, dtype=dtype)}
        cairn.load(expected, checkpoint_id=tmp_path / "file.pt", allow_cast=True)
        for found in on_ranks(load_as, tmp_path / "file.pt", "w", torch.zeros(5, dtype=dtype)):
            assert torch.equal(found, expected["w"])


def load_quantised_refused(file: Path) -> str:
    with pytest.raises(stock.dcp.CheckpointException) as caught:
        load_as(file, "q", torch.zeros(3))
    return str(caught.value)


def test_a_quantised_tensor_is_refused_wherever_the_file_is_seen(on_ranks: Any, tmp_path: Path) -> None:
    torch.save({"q": torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.quint8)}, tmp_path / "file.pt")
    for told in on_ranks(load_quantised_refused, tmp_path / "file.pt"):
        assert "'q' is a quantised or sparse tensor" in told


def load_many(file: Path, count: int) -> int:
    """Returns the number of messages that the ranks' boxes were parsed from, over a read of many keys."""
    from cairn._torch_files import torch_save_tensors

    parsed = 0
    loads = torch_save_tensors.json.loads

    def counting(text: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return loads(text)

    torch_save_tensors.json = SimpleNamespace(loads=counting, dumps=json.dumps)  # type: ignore[attr-defined]
    torch_save_tensors._BATCH_BYTES = 64
    try:
        state = {f"k{i}": torch.zeros(16) for i in range(count)}
        reader = format_utils.BroadcastingTorchSaveReader()
        planner = format_utils.DynamicMetaLoadPlanner()
        stock.dcp.load(state, checkpoint_id=file, storage_reader=reader, planner=planner)
        assert all(tensor[0] == 1 for tensor in state.values())
    finally:
        torch_save_tensors.json = json
        torch_save_tensors._BATCH_BYTES = 32 << 20
    return parsed


def test_the_coordinator_parses_the_boxes_of_a_rank_once(two: Gang, tmp_path: Path) -> None:
    torch.save({f"k{i}": torch.ones(16) for i in range(20)}, tmp_path / "file.pt")
    # of the coordinator: the boxes of two ranks, and the announcement
    assert two.run(on_the_coordinator_alone, load_many, tmp_path / "file.pt", 20) == [3, 1]


def load_sharded_refused(file: Path, fails_on: int) -> str:
    with pytest.raises(stock.dcp.CheckpointException) as caught:
        load_sharded(file, 3, fails_on)
    return str(caught.value)


@pytest.mark.parametrize("fails_on", [0, 1])
def test_a_rank_that_cannot_put_a_tensor_into_place_fails_all_ranks(
    fails_on: int, on_ranks: Any, tmp_path: Path
) -> None:
    torch.save({f"p{i}": torch.randn(8, 6) for i in range(3)}, tmp_path / "model.pt")
    for told in on_ranks(load_sharded_refused, tmp_path / "model.pt", fails_on):
        assert "no memory on this device" in told


def load_fsdp(file: Path) -> tuple[float, int]:
    """Fills an FSDP2 model of 64 parameters. Returns the error, and the bytes that this process has read meanwhile."""
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(32)))
    fully_shard(model)
    state = model.state_dict()
    before = bytes_read()
    reader = format_utils.BroadcastingTorchSaveReader()
    planner = format_utils.DynamicMetaLoadPlanner()
    stock.dcp.load(state, checkpoint_id=file, storage_reader=reader, planner=planner)
    read = bytes_read() - before
    expected = torch.load(file, weights_only=True)
    differences = [(state[key].full_tensor() - expected[key]).abs().max().item() for key in expected]
    return max(differences), read


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def test_each_rank_reads_its_own_half_of_a_sharded_model(two: Gang, tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(32)))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    needed = sum(tensor.nbytes for tensor in model.state_dict().values()) / 2
    for difference, read in two.run(load_fsdp, tmp_path / "model.pt"):
        assert difference == 0
        assert read <= 1.1 * needed


def program(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "error", "-m", "cairn.format_utils", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_the_program(checkpoint: Path, tmp_path: Path) -> None:
    stock.save(state(), checkpoint)
    done = program("dcp_to_torch", checkpoint, tmp_path / "file.pt")
    assert (done.returncode, done.stderr) == (0, "")
    assert_same(torch.load(tmp_path / "file.pt", weights_only=True))
    missing = program("torch_to_dcp", tmp_path / "none.pt", tmp_path / "split")
    assert missing.returncode == 1
    assert "none.pt" in missing.stderr
    assert "Traceback" not in missing.stderr


# --- Cairn's reader, driven by stock torch


class ReaderOfAnotherFileSystem(cairn.FileSystemReader):
    """A reader with its own `fs`, as a subclass for an object store would have."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        own = type("OwnFileSystem", (type(self.fs),), {"exists": lambda self, path: True, "create_stream": _stream})
        self.fs = own()


def _stream(self: Any, path: Any, mode: str) -> Any:
    return Path(path).open(mode)


@pytest.mark.parametrize("kind", [cairn.FileSystemReader, ReaderOfAnotherFileSystem])
def test_stock_load_by_our_reader_runs_no_code(
    kind: Any, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code ran"
    stock.save({**state(), "value": MakesAFolder(folder)}, checkpoint)
    target = {"model": {name: torch.zeros_like(it) for name, it in state()["model"].items()}, "step": 0}
    stock.dcp.load(target, storage_reader=kind(checkpoint))
    assert_same(target)
    with pytest.raises(stock.dcp.CheckpointException, match="without running code"):
        stock.dcp.load({"value": None}, storage_reader=kind(checkpoint))
    assert not folder.exists()
    monkeypatch.setenv("CAIRN_ALLOW_PICKLE", "1")
    stock.dcp.load({"value": None}, storage_reader=kind(checkpoint))
    assert folder.exists()


def test_the_installed_functions_run_no_code(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "code ran"
    stock.save({"value": MakesAFolder(folder)}, checkpoint)
    code = """
import sys, cairn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
cairn.install()
try:
    from torch.distributed.checkpoint import format_utils
    assert format_utils.dcp_to_torch_save is dcp_to_torch_save
    dcp_to_torch_save(sys.argv[1], sys.argv[2])
except cairn.UnsafeContent as error:
    print("refused:", error)
"""
    command = [sys.executable, "-c", code, str(checkpoint), str(tmp_path / "merged.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert "refused:" in done.stdout, done.stderr
    assert "cairn.install(allow_pickle=True)" in done.stdout
    assert not folder.exists()
