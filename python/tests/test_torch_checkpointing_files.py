"""Reading the directories of Meta's package torch_checkpointing: put together, refused, converted."""

import importlib.util
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import tool
import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard
from torch_checkpointing_files import (
    layout,
    local_of,
    mesh_of,
    of_dtensor,
    write_metadata,
    write_sharded,
)

import cairn


def has_package() -> bool:
    """Whether torch_checkpointing 0.1.1 or later is installed."""
    is_there = importlib.util.find_spec("torch_checkpointing") is not None
    return is_there and importlib.util.find_spec("torch_checkpointing.default_resharder") is not None


needs_package = pytest.mark.skipif(not has_package(), reason="torch_checkpointing 0.1.1 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def opened_in(directory: Path) -> cairn.Checkpoint:
    return cairn.open(directory, tensors="torch")


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(7, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 3, bias=False)]
    model = torch.nn.Sequential(*layers)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model


def parallel_model() -> Any:
    """FSDP over tensor parallelism: StridedShard before Shard, and shards of both dimensions."""
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = torch.nn.Sequential(torch.nn.Linear(7, 10), torch.nn.Linear(10, 6))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def trained(seed: int) -> tuple[Any, torch.optim.Optimizer]:
    model = model_of(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.full((2, 7), float(seed))).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model: Any, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    return {"model": get_model_state_dict(model), "optimizer": optimizer.state_dict(), "step": step}


def whole(state: Any) -> Any:
    """The state with whole tensors in place of DTensors: a collective call."""
    if isinstance(state, DTensor):
        return state.full_tensor()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, list) else state


def assert_equal(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype and torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert set(actual) == set(expected)
        for key in expected:
            assert_equal(actual[key], expected[key])
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
    else:
        assert actual == expected


def save_theirs(directory: Path, expected: Path, tensor_parallel: bool = False) -> None:
    """A rank of a job that saves with the package. Its metadata manager gathers over tensors of CUDA devices."""
    import torch_checkpointing
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.metadata_manager import DefaultMetadataManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    def gather(_: Any, data: Any, *__: Any, **___: Any) -> dict[int, Any]:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, data)
        return dict(enumerate(gathered))

    of_the_package = DefaultMetadataManager._all_gather_pickled_data
    DefaultMetadataManager._all_gather_pickled_data = gather
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(dist.get_rank()), str(dist.get_world_size())
    config = torch_checkpointing.CheckpointManager.Config.with_sync_save()
    spec = torch_checkpointing.ItemSpec
    config.items = {name: spec(resharder=DefaultResharder(), required=False) for name in ("model", "optimizer")}
    config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
    manager = config.build()
    saved = {"model": get_model_state_dict(parallel_model())} if tensor_parallel else state_of(*trained(1), 7)
    assert manager.save(str(directory), saved) is None
    manager.close()
    DefaultMetadataManager._all_gather_pickled_data = of_the_package
    gathered = whole(saved)
    if dist.get_rank() == 0:
        torch.save(gathered, expected)


def load_ours(directory: Path, expected: Path) -> None:
    model, optimizer = trained(2)
    state = state_of(model, optimizer, 0)
    cairn.load(state, checkpoint_id=directory)
    assert_equal(whole(state), torch.load(expected))


@needs_package
@pytest.mark.parametrize("ranks", ["four", "two"])
def test_a_job_of_other_ranks_loads_their_save(
    ranks: str, three: Gang, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    directory, expected = tmp_path / "theirs", tmp_path / "expected.pt"
    gang: Gang = request.getfixturevalue(ranks)
    gang.run(save_theirs, directory, expected)
    assert (directory / "metadata.pkl").exists()
    three.run(load_ours, directory, expected)
    opened = opened_in(directory)
    wanted = torch.load(expected)
    assert torch.equal(opened["model.0.weight"], wanted["model"]["0.weight"])
    assert torch.equal(opened["optimizer.state.1.exp_avg"], wanted["optimizer"]["state"][1]["exp_avg"])
    assert opened["step"] == 7 and opened["optimizer.param_groups.0.betas"] == (0.9, 0.999)
    report = cairn.verify(directory)
    assert not report.problems and report.bytes_checked > 0


@needs_package
def test_a_save_of_fsdp_over_tensor_parallelism_is_read(four: Gang, tmp_path: Path) -> None:
    directory, expected = tmp_path / "theirs", tmp_path / "expected.pt"
    four.run(save_theirs, directory, expected, True)
    wanted = torch.load(expected)["model"]
    opened = opened_in(directory)
    for name, tensor in wanted.items():
        assert torch.equal(opened[f"model.{name}"], tensor), name


@needs_package
def test_their_save_converts_with_keys_that_are_integers(two: Gang, tmp_path: Path) -> None:
    directory, expected = tmp_path / "theirs", tmp_path / "expected.pt"
    two.run(save_theirs, directory, expected)
    for target in ("state.pt", "dcp"):
        form = "torch" if target.endswith(".pt") else "dcp"
        cairn.convert(directory, tmp_path / target, to=form)
        assert tool.run("diff", directory, tmp_path / target).returncode == tool.OK
    assert_equal(torch.load(tmp_path / "state.pt"), torch.load(expected))
    assert_equal(cairn.read(directory), torch.load(expected))
    cairn.convert(tmp_path / "dcp", tmp_path / "again.pt", to="torch")
    assert_equal(torch.load(tmp_path / "again.pt"), torch.load(expected))
    cairn.convert(directory, tmp_path / "model.safetensors", to="safetensors", keys=["model"])
    assert torch.equal(
        opened_in(tmp_path / "model.safetensors")["model.1.bias"], torch.load(expected)["model"]["1.bias"]
    )


# --- Geometry ---------------------------------------------------------------------------------------------------------


def random_placement(random_numbers: random.Random, dimensions: int) -> Any:
    kind = random_numbers.randrange(3)
    dim = random_numbers.randrange(dimensions)
    if kind == 0:
        return Replicate()
    return Shard(dim) if kind == 1 else _StridedShard(dim, split_factor=random_numbers.randrange(1, 4))


@pytest.mark.parametrize("seed", range(60))
def test_tensors_of_random_meshes_are_put_together(seed: int, tmp_path: Path) -> None:
    numbers = random.Random(seed)
    shape = tuple(numbers.randrange(1, 4) for _ in range(numbers.randrange(1, 4)))
    count = torch.Size(shape).numel()
    ranks = numbers.sample(range(count + numbers.randrange(3)), count)
    sizes = [numbers.randrange(0, 9) for _ in range(numbers.randrange(1, 4))]
    tensor = torch.randn(sizes, dtype=numbers.choice([torch.float32, torch.bfloat16, torch.float64]))
    placements = tuple(random_placement(numbers, len(sizes)) for _ in shape)
    write_sharded(tmp_path / "c", tensor, mesh_of(shape, ranks), placements)
    opened = opened_in(tmp_path / "c")
    assert torch.equal(opened["model.w"], tensor), placements
    first = tuple(slice(0, (size + 1) // 2) for size in sizes)
    assert torch.equal(opened.read("model.w", first, verify="full"), tensor[first])
    assert not cairn.verify(tmp_path / "c").problems


def test_the_boxes_of_a_class_of_the_callers_are_put_together(tmp_path: Path) -> None:
    table = torch.arange(40.0).reshape(8, 5)
    data = {
        "global_shape": [8, 5],
        "global_offsets": [[0, 0], [6, 0]],
        "local_offsets": [[1, 0], [4, 0]],
        "local_sizes": [[3, 5], [2, 5]],
        "dtype": "torch.float32",
    }
    second = {**data, "global_offsets": [[3, 0]], "local_offsets": [[0, 0]], "local_sizes": [[3, 5]]}
    of = [
        {"sharding_metadata": {"type": "default_tensor_v1", "data": each}, "ranks": (rank,)}
        for rank, each in enumerate((data, second))
    ]
    write_metadata(tmp_path, {"model": {("t",): of}}, 2)
    padding = torch.full((1, 5), -1.0)
    torch.save({"t": torch.cat([padding, table[0:3], table[6:8]])}, tmp_path / "model_0.pt")
    torch.save({"t": table[3:6].clone()}, tmp_path / "model_1.pt")
    assert torch.equal(opened_in(tmp_path)["model.t"], table)
    assert torch.equal(opened_in(tmp_path).read("model.t", (slice(2, 7), slice(1, 3))), table[2:7, 1:3])


def test_version_1_and_other_forms_of_items_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensor = torch.arange(12.0).reshape(6, 2)
    mesh = mesh_of((2,), [0, 1])
    layouts: dict[str, Any] = {
        "model": {rank: layout(f"parts/m{rank}.st", "SafetensorsSerialization") for rank in range(2)},
        "config": {
            0: layout("c.json", "JsonSerialization", cls="os.system"),
            1: layout("c1.json", "JsonSerialization"),
        },
        "raw": {0: layout("raw.bin", "RawSerialization")},
    }
    write_metadata(tmp_path, {"model": {("a", "w"): of_dtensor(tensor, mesh, (Shard(0),))}}, 2, layouts, "1.0")
    (tmp_path / "parts").mkdir()
    for rank in range(2):
        save_file({"a.w": local_of(tensor, mesh, (Shard(0),), rank)}, tmp_path / f"parts/m{rank}.st")
    (tmp_path / "c.json").write_text('{"lr": 0.5, "names": ["a", "b"], "parts": [{"n": 12345678901234567890}]}')
    (tmp_path / "raw.bin").write_bytes(b"\0\1bytes")
    torch.save([3, 4], tmp_path / "step_0.pt")
    opened = opened_in(tmp_path)
    assert torch.equal(opened["model.a.w"], tensor)
    assert opened["config.lr"] == 0.5 and opened["config.names"] == ["a", "b"]
    assert opened["config.parts.0.n"] == 12345678901234567890
    assert opened["raw"] == b"\0\1bytes" and opened["step"] == [3, 4]
    assert not cairn.verify(tmp_path).problems
    assert "torch_checkpointing" in tool.text_of("inspect", tmp_path)
    state: dict[str, Any] = {"model": {"a": {"w": torch.zeros(6, 2)}}, "config": {"lr": 0.0}, "raw": b""}
    cairn.load(state, checkpoint_id=tmp_path)
    assert (
        torch.equal(state["model"]["a"]["w"], tensor) and state["config"]["lr"] == 0.5 and state["raw"] == b"\0\1bytes"
    )


def test_one_rank_without_metadata_opens_whole(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3), "t": (torch.zeros(2), 5)}, tmp_path / "model_0.pt")
    torch.save(9, tmp_path / "step_0.pt")
    opened = opened_in(tmp_path)
    assert set(opened) == {"model.w", "model.t", "step"}
    assert torch.equal(opened["model.w"], torch.ones(3)) and opened["step"] == 9
    assert opened["model.t"][1] == 5


@pytest.mark.parametrize("other", ["config.json", "best.pt", "step-1/.metadata", "model_2.pt"])
def test_names_alone_identify_no_directory_with_other_files(tmp_path: Path, other: str) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "model_0.pt")
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes(b"{}")
    with pytest.raises(cairn.NotFound, match="no checkpoint"):
        opened_in(tmp_path)


# --- Refused ----------------------------------------------------------------------------------------------------------

TENSOR = torch.arange(24.0).reshape(8, 3)


def two_ranks(directory: Path) -> Path:
    write_sharded(directory, TENSOR, mesh_of((2,), [0, 1]), (Shard(0),))
    return directory


def test_several_ranks_without_metadata_are_refused(tmp_path: Path) -> None:
    (two_ranks(tmp_path) / "metadata.pkl").unlink()
    with pytest.raises(cairn.Unsupported, match=r"without the metadata\.pkl.*Open the file of one rank") as caught:
        opened_in(tmp_path)
    assert "model_0.pt and model_1.pt" in str(caught.value)
    assert torch.equal(opened_in(tmp_path / "model_1.pt")["w"], TENSOR[4:])


def test_keys_that_differ_between_ranks_are_refused_alone(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    for rank in range(2):
        torch.save({"seed": rank, "epoch": 4, "nan": float("nan")}, tmp_path / f"loader_{rank}.pt")
    opened = opened_in(tmp_path)
    assert torch.equal(opened["model.w"], TENSOR) and opened["loader.epoch"] == 4
    assert opened["loader.nan"] != opened["loader.nan"]
    with pytest.raises(cairn.Unsupported, match=r"different values.*loader_0\.pt and loader_1\.pt"):
        opened["loader.seed"]
    assert "loader.seed" in tool.text_of("verify", tmp_path)


def test_replicas_of_different_elements_are_refused_alone(tmp_path: Path) -> None:
    """Two stages of a pipeline may save two tensors under one key, each on a mesh of its own."""
    stages = [of_dtensor(TENSOR, mesh_of((1,), [rank]), (Replicate(),)) for rank in range(2)]
    write_metadata(tmp_path, {"stage": {(name,): stages[0] + stages[1] for name in "vw"}}, 2)
    for rank in range(2):
        torch.save({"v": TENSOR.clone(), "w": TENSOR + rank}, tmp_path / f"stage_{rank}.pt")
    opened = opened_in(tmp_path)
    assert torch.equal(opened["stage.v"], TENSOR)
    with pytest.raises(cairn.Unsupported, match=r"different elements of one part.*ranks 0 and 1"):
        opened["stage.w"]
    assert "stage.w" in tool.text_of("verify", tmp_path)


def test_a_part_of_a_tensor_inside_a_value_is_refused_alone(tmp_path: Path) -> None:
    whole, mesh = torch.zeros(4), mesh_of((2,), [0, 1])
    write_metadata(tmp_path, {"pair": {(0,): of_dtensor(whole, mesh, (Shard(0),))}}, 2)
    for rank in range(2):
        torch.save((local_of(whole, mesh, (Shard(0),), rank), 1), tmp_path / f"pair_{rank}.pt")
    with pytest.raises(cairn.Unsupported, match="a value holds a part of a tensor"):
        opened_in(tmp_path)["pair"]


def test_a_json_file_of_another_program_is_refused_alone(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    (tmp_path / "metrics.json").write_text('{"a": 1}\n{"a": 2}\n')
    opened = opened_in(tmp_path)
    assert torch.equal(opened["model.w"], TENSOR)
    with pytest.raises(cairn.Unsupported, match=r"can't be decoded.*metrics\.json"):
        opened["metrics"]


def test_a_sharding_of_an_unknown_class_is_of_its_key(tmp_path: Path) -> None:
    mesh = mesh_of((2,), [0, 1])
    unknown = [{"sharding_metadata": {"type": "theirs.Ragged", "data": {"x": 1}}, "ranks": (0, 1)}]
    write_metadata(tmp_path, {"model": {("w",): of_dtensor(TENSOR, mesh, (Shard(0),)), ("r",): unknown}}, 2)
    for rank in range(2):
        local = local_of(TENSOR, mesh, (Shard(0),), rank)
        torch.save({"w": local, "r": torch.ones(rank + 1)}, tmp_path / f"model_{rank}.pt")
    opened = opened_in(tmp_path)
    assert torch.equal(opened["model.w"], TENSOR)
    with pytest.raises(cairn.Unsupported, match=r"theirs\.Ragged") as caught:
        opened["model.r"]
    assert caught.value.key == "model.r"


def test_a_replica_of_another_shape_is_refused_alone(tmp_path: Path) -> None:
    mesh = mesh_of((2,), [0, 1])
    write_metadata(tmp_path, {"model": {("w",): of_dtensor(torch.ones(1), mesh, (Replicate(),))}}, 2)
    for rank in range(2):
        torch.save({"w": torch.ones(rank + 1), "x": 1}, tmp_path / f"model_{rank}.pt")
    opened = opened_in(tmp_path)
    assert opened["model.x"] == 1
    with pytest.raises(cairn.Unsupported, match="differs from metadata"):
        opened["model.w"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_file_of_a_rank_is_named(tmp_path: Path, rank: int) -> None:
    (two_ranks(tmp_path) / f"model_{rank}.pt").unlink()
    with pytest.raises(cairn.Corrupt, match=rf"file of a rank is missing.*rank {rank} of 2") as caught:
        opened_in(tmp_path)
    assert (
        caught.value.key == "model.w" and caught.value.file == f"model_{rank}.pt" and str(tmp_path) in str(caught.value)
    )


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    file = two_ranks(tmp_path) / "model_1.pt"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(cairn.Corrupt, match=r"was cut.*model_1\.pt"):
        opened_in(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"w": torch.zeros(4, 3, dtype=torch.float64)}, r"expected float32 \[4, 3\].*found float64 \[4, 3\]"),
        ({"w": torch.zeros(3, 3)}, r"expected float32 \[4, 3\].*found float32 \[3, 3\]"),
        ({"v": torch.zeros(4, 3)}, "lacks a tensor"),
        ({"w": 5}, "value"),
    ],
)
def test_a_file_that_contradicts_the_metadata_is_refused(tmp_path: Path, wrong: Any, match: str) -> None:
    torch.save(wrong, two_ranks(tmp_path) / "model_1.pt")
    if "value" in match:
        with pytest.raises(cairn.Unsupported, match=match):
            opened_in(tmp_path)["model.w"]
        return
    with pytest.raises(cairn.Corrupt, match=match) as caught:
        opened_in(tmp_path)
    assert caught.value.key == "model.w" and caught.value.file == "model_1.pt"


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    file = two_ranks(tmp_path) / "model_1.pt"
    data = bytearray(file.read_bytes())
    at = data.index(TENSOR[4:].numpy().tobytes())
    data[at + 5] ^= 1
    file.write_bytes(data)
    with pytest.raises(cairn.Corrupt, match=r"model_1\.pt"):
        opened_in(tmp_path)["model.w"]
    assert cairn.verify(tmp_path).problems


class Hostile:
    """Its pickle makes the file `marker` if it is run."""

    def __init__(self, marker: Path | None = None) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (os.system, (f"touch '{self.marker}'",))


@pytest.mark.parametrize("what", [Hostile(), {"metadata": Hostile(), "world_size": 1}])
def test_a_class_in_the_metadata_is_refused_by_name(tmp_path: Path, what: Any) -> None:
    torch.save({}, tmp_path / "model_0.pt")
    (tmp_path / "metadata.pkl").write_bytes(pickle.dumps(what))
    with pytest.raises(cairn.UnsafeContent, match=r"posix\.system"):
        opened_in(tmp_path)


@pytest.mark.parametrize("what", [{"step": 1}, [1, 2], None, {"metadata": {}, "world_size": 10**9, "version": "2.0"}])
def test_a_metadata_of_something_else_is_said(tmp_path: Path, what: Any) -> None:
    torch.save({}, tmp_path / "model_0.pt")
    (tmp_path / "metadata.pkl").write_bytes(pickle.dumps(what))
    with pytest.raises(cairn.Corrupt, match=r"no metadata of torch_checkpointing.*metadata\.pkl"):
        opened_in(tmp_path)


@pytest.mark.parametrize("path", ["../out.pt", "/etc/passwd", "", "a/../../b"])
def test_a_file_outside_the_directory_is_refused(tmp_path: Path, path: str) -> None:
    write_metadata(tmp_path, {"model": {}}, 1, {"model": {0: layout(path, "TorchSerialization")}})
    with pytest.raises(cairn.UnsafeContent, match="outside the directory"):
        opened_in(tmp_path)


def test_a_link_of_a_rank_is_not_followed(tmp_path: Path) -> None:
    directory = two_ranks(tmp_path / "c")
    (directory / "model_1.pt").rename(tmp_path / "elsewhere.pt")
    (directory / "model_1.pt").symlink_to(tmp_path / "elsewhere.pt")
    with pytest.raises(cairn.UnsafeContent, match="link"):
        opened_in(directory)


def test_code_in_a_file_of_a_rank_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    torch.save({"w": torch.ones(2), "code": Hostile(marker)}, tmp_path / "model_0.pt")
    opened = opened_in(tmp_path)
    assert torch.equal(opened["model.w"], torch.ones(2))
    assert isinstance(opened["model.code"], cairn.UnknownObject)
    assert not marker.exists()


def test_a_model_beside_another_metadata_stays_a_model(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "metadata.pkl").write_bytes(pickle.dumps({"notes": 1}))
    assert torch.equal(opened_in(tmp_path)["w"], torch.ones(2))


def test_a_checkpoint_of_dcp_stays_one(tmp_path: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "c")
    two_ranks(tmp_path / "c")
    assert set(opened_in(tmp_path / "c")) == {"w"}


# --- A root of such directories ---------------------------------------------------------------------------------------


def test_the_directories_of_a_root_do_not_count(tmp_path: Path) -> None:
    """Nothing in them tells the newest: the package writes metadata.pkl in some saves and not in others."""
    cairn.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "step-1")
    two_ranks(tmp_path / "step-2")
    for name, content in (("notes", {"a": 1}), ("lists", [1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.pkl").write_bytes(pickle.dumps(content))
    (tmp_path / "states").mkdir()
    torch.save({"w": torch.ones(1)}, tmp_path / "states" / "rng_0.pt")
    assert cairn.latest(tmp_path) == str(tmp_path / "step-1")
    assert [Path(each.directory).name for each in cairn.checkpoints(tmp_path)] == ["step-1"]


def test_a_directory_is_listed_by_keys(tmp_path: Path) -> None:
    directory = two_ranks(tmp_path / "c")
    assert "model.w" in tool.text_of("ls", directory)
    assert tool.json_of("inspect", directory)["format"] == "torch_checkpointing"
    (tmp_path / "alone").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "alone" / "model_0.pt")
    assert "model.w" in tool.text_of("ls", tmp_path / "alone")
    assert "mean" in tool.text_of("cat", directory, "model.w")


def test_very_many_files_are_opened_one_by_one(tmp_path: Path) -> None:
    ranks = 80
    table = torch.arange(float(2 * ranks + 1))
    mesh = mesh_of((ranks,), list(range(ranks)))
    placements = (_StridedShard(0, split_factor=2),)
    write_metadata(tmp_path, {"model": {("w",): of_dtensor(table, mesh, placements)}}, ranks)
    for rank in range(ranks):
        torch.save({"w": local_of(table, mesh, placements, rank), "step": 3}, tmp_path / f"model_{rank}.pt")
    opened = opened_in(tmp_path)
    assert torch.equal(opened["model.w"], table) and opened["model.step"] == 3
    again = opened_in(tmp_path)
    torch.save({"w": torch.zeros(2), "step": 4}, tmp_path / "model_70.pt")
    with pytest.raises((cairn.Corrupt, cairn.Replaced), match=r"changed|replaced"):
        again["model.w"]
