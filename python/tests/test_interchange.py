"""Stock torch reads Cairn's checkpoints, and Cairn reads stock torch's: the bits are equal."""

import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch
import torch.distributed.checkpoint as dcp
from same import assert_same, blank

import cairn

PLAIN = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex32, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint32,
    torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]  # fmt: skip


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size) if shape else (size,), dtype=torch.uint8)
    return raw.view(dtype) if shape else raw.view(dtype).reshape(())


def cairn_load(state: dict[str, Any], directory: Path) -> None:
    cairn.load(state, checkpoint_id=directory)


def cairn_save(state: dict[str, Any], directory: Path) -> None:
    cairn.save(state, checkpoint_id=directory)


DIRECTIONS = [
    pytest.param(cairn_save, stock.load, id="cairn-to-torch"),
    pytest.param(stock.save, cairn_load, id="torch-to-cairn"),
    pytest.param(cairn_save, cairn_load, id="cairn-to-cairn"),
]
Save = Callable[[dict[str, Any], Path], Any]
Load = Callable[[dict[str, Any], Path], None]
both_ways = pytest.mark.parametrize(("save", "load"), DIRECTIONS)


def round_trip(save: Save, load: Load, state: dict[str, Any], directory: Path) -> dict[str, Any]:
    save(state, directory)
    loaded = blank(state)
    load(loaded, directory)
    return loaded


@both_ways
@pytest.mark.parametrize("dtype", PLAIN, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_every_dtype(save: Save, load: Load, dtype: torch.dtype, checkpoint: Path) -> None:
    torch.manual_seed(1)
    state = {
        "matrix": random_tensor(dtype, 5, 8),
        "scalar": random_tensor(dtype),
        "empty": torch.empty((0, 3), dtype=dtype),
        "large": random_tensor(dtype, 70, 1000),
    }
    assert_same(round_trip(save, load, state, checkpoint), state)


@both_ways
def test_layouts(save: Save, load: Load, checkpoint: Path) -> None:
    big = torch.arange(10_000, dtype=torch.float32)
    state = {
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "stepped": big[3:5000:7],
        "view": big[100:200],
        "expanded": torch.tensor([1.0, 2.0]).expand(5, 2),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "five_dimensions": torch.rand(2, 1, 3, 1, 2),
        "ones": torch.rand(1, 1, 1),
        "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
        "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
        "permuted": torch.rand(4, 5, 6).permute(2, 0, 1),
        "zero_sized": torch.empty(3, 0, 2),
    }
    assert_same(round_trip(save, load, state, checkpoint), state)


@both_ways
def test_targets_may_have_any_strides(save: Save, load: Load, checkpoint: Path) -> None:
    source = torch.rand(6, 8)
    save({"a": source, "b": source, "c": source.t(), "d": source}, checkpoint)
    around = torch.full((10, 20), -1.0)
    state = {
        "a": torch.zeros(8, 6).t(),
        "b": around[1:7, 2:18:2],
        "c": torch.zeros(8, 6),
        "d": torch.nn.Parameter(torch.zeros(6, 8)),
    }
    load(state, checkpoint)
    assert_same(state["a"], source)
    assert_same(state["b"], source)
    assert_same(state["c"], source.t())
    assert_same(state["d"], source)
    untouched = torch.ones(10, 20, dtype=torch.bool)
    untouched[1:7, 2:18:2] = False
    assert (around[untouched] == -1).all(), "elements outside the view changed"


@both_ways
def test_parameters_keep_requires_grad_in_the_properties(save: Save, load: Load, checkpoint: Path) -> None:
    state = {"w": torch.nn.Parameter(torch.rand(3)), "frozen": torch.nn.Parameter(torch.rand(3), requires_grad=False)}
    assert_same(round_trip(save, load, state, checkpoint), state)
    described = stock.metadata_of(checkpoint).state_dict_metadata
    assert described["w"].properties.requires_grad is True
    assert described["frozen"].properties.requires_grad is False


@both_ways
def test_quantized_tensors(save: Save, load: Load, checkpoint: Path) -> None:
    saved = torch.quantize_per_tensor(torch.linspace(-1, 1, 32).reshape(4, 8), 0.1, 3, torch.qint8)
    save({"q": saved}, checkpoint)
    loaded = torch.quantize_per_tensor(torch.zeros(4, 8), 0.1, 3, torch.qint8)
    load({"q": loaded}, checkpoint)
    assert_same(loaded, saved)
    assert loaded.q_scale() == saved.q_scale()


VALUES = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 255, 256, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**200, -(2**200), -(2**71)],
    "floats": [0.0, -0.0, 1e-320, 3.14, float("inf"), float("-inf")],
    "not_a_number": float("nan"),
    "complex": 1.5 - 2j,
    "text": "",
    "unicode": "é\U0001f600\x00\n",
    "bytes": bytes(range(256)),
    "empty_list": [],
    "nested": [1, [2, [3, (4, {5})]]],
    "tuple": (1, ("a", None)),
    "one_tuple": (1,),
    "set": {1, 2, 3},
    "array": np.arange(12, dtype=np.int32).reshape(3, 4),
    "array_f16": np.linspace(0, 1, 7, dtype=np.float16),
    "array_0d": np.array(3.0),
    "array_empty": np.empty((0, 3)),
    "array_fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "array_bool": np.array([True, False]),
    "array_complex": np.array([1 + 2j]),
    "np_float64": np.float64(0.1),
    "np_int": np.int64(-3),
    "np_bool": np.bool_(True),
    "tuple_with_tensor": (torch.arange(3), "x"),
    "ordered_tuple": (OrderedDict(b=1, a=2),),
    "list_of_names": ["a", "b"],
    "bytearray": bytearray(b"abc"),
    "size": torch.Size([1, 2]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
}


@both_ways
@pytest.mark.parametrize("name", VALUES)
def test_values(save: Save, load: Load, name: str, checkpoint: Path) -> None:
    state = {"value": VALUES[name], "tensor": torch.ones(1)}
    assert_same(round_trip(save, load, state, checkpoint), state)


def test_every_numpy_has_the_written_names(checkpoint: Path) -> None:
    """NumPy before 1.26 lacks ``numpy._core``; NumPy 2 keeps the older names to read old pickles."""
    cairn.save({"v": (np.arange(3.0), np.float64(1))}, checkpoint_id=checkpoint)
    written = b"".join(path.read_bytes() for path in checkpoint.glob("*.distcp"))
    assert b"numpy.core.multiarray\n_reconstruct\n" in written
    assert b"numpy.core.multiarray\nscalar\n" in written
    assert b"numpy._core" not in written
    state: dict[str, Any] = {"v": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    assert_same(state["v"], (np.arange(3.0), np.float64(1)))


@both_ways
def test_nesting(save: Save, load: Load, checkpoint: Path) -> None:
    state = {
        "model": {"layers": [{"w": torch.rand(2), "b": None}, {"w": torch.rand(3), "b": 1}]},
        "lists": [[torch.rand(1), 5], [1, 2], []],
        "a": {"b": {"c": {"d": torch.rand(1)}}},
        "betas": [0.9, 0.999],
    }
    loaded = round_trip(save, load, state, checkpoint)
    assert_same(loaded, state)


def test_an_empty_mapping_in_a_list(checkpoint: Path) -> None:
    """Stock torch can't load the list: flattening of sharded tensors loses the empty mapping."""
    cairn.save({"list": [{}, 1]}, checkpoint_id=checkpoint)
    state: dict[str, Any] = {"list": [{}, None]}
    cairn.load(state, checkpoint_id=checkpoint)
    assert state == {"list": [{}, 1]}


@both_ways
@pytest.mark.parametrize(
    "name", ["a.b.c", "a/b", "../up", "/root", "éß", "日本語", "😀", " ", "", ".", "a\nb", "a\x00b", "x" * 5000]
)
def test_names(save: Save, load: Load, name: str, checkpoint: Path) -> None:
    state = {name: torch.rand(3), "outer": {name: 7}}
    assert_same(round_trip(save, load, state, checkpoint), state)


@both_ways
def test_integer_keys_become_strings(save: Save, load: Load, checkpoint: Path) -> None:
    save({"state": {0: {"step": torch.tensor(4.0)}, 1: {"step": torch.tensor(5.0)}}}, checkpoint)
    assert set(stock.metadata_of(checkpoint).planner_data) == {"state.0.step", "state.1.step"}
    loaded = {"state": {0: {"step": torch.tensor(0.0)}, 1: {"step": torch.tensor(0.0)}}}
    load(loaded, checkpoint)
    assert_same(loaded, {"state": {0: {"step": torch.tensor(4.0)}, 1: {"step": torch.tensor(5.0)}}})


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        model(torch.rand(16, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model, optimizer, scheduler


@both_ways
def test_model_optimizer_and_scheduler(save: Save, load: Load, checkpoint: Path) -> None:
    model, optimizer, scheduler = trained()
    # The optimizer's state has integer keys. Values in it that are not tensors would come back under text keys.
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    save(state, checkpoint)
    other_model, other_optimizer, other_scheduler = trained()
    with torch.no_grad():
        for parameter in other_model.parameters():
            parameter.fill_(7)
        for moments in other_optimizer.state.values():
            for moment in moments.values():
                moment.fill_(9)
    other_scheduler.last_epoch = 99
    loaded = {
        "model": other_model.state_dict(),
        "optimizer": other_optimizer.state_dict(),
        "scheduler": other_scheduler.state_dict(),
    }
    load(loaded, checkpoint)
    assert_same(loaded["model"], state["model"])
    assert_same(loaded["optimizer"], state["optimizer"])
    assert_same(loaded["scheduler"], state["scheduler"])
    assert_same(next(iter(other_model.parameters())), next(iter(model.parameters())))


def test_dcp_to_torch_save_takes_our_files(checkpoint: Path, tmp_path: Path) -> None:
    state = {
        "model": {"w": torch.rand(3, 4, dtype=torch.float64), "layers": [{"b": torch.rand(2)}, {"b": torch.rand(1)}]},
        "step": 12,
        "betas": [0.9, 0.99],
        "text": "é",
        "flags": (True, None),
    }
    cairn.save(state, checkpoint_id=checkpoint)
    stock.dcp_to_torch_save(checkpoint, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert_same({key: whole[key] for key in state}, state)


def test_the_metadata_is_that_of_stock_torch(checkpoint: Path, tmp_path: Path) -> None:
    state = {"a": {"w": torch.rand(2, 3), "s": torch.tensor(1)}, "n": 3, "l": [torch.rand(1), {"x": None}]}
    cairn.save(state, checkpoint_id=checkpoint)
    stock.save(state, tmp_path / "stock")
    ours, theirs = stock.metadata_of(checkpoint), stock.metadata_of(tmp_path / "stock")
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    assert ours.version == theirs.version
    assert type(ours.storage_meta) is type(theirs.storage_meta)


def test_a_checkpoint_holds_only_files_of_dcp(checkpoint: Path) -> None:
    cairn.save({"w": torch.rand(3), "n": 1}, checkpoint_id=checkpoint)
    assert sorted(path.name for path in checkpoint.iterdir()) == [".metadata", "__0_0.distcp"]


@pytest.mark.slow
@both_ways
def test_a_hundred_thousand_keys(save: Save, load: Load, checkpoint: Path) -> None:
    if save is stock.save and load is cairn_load:
        state: dict[str, Any] = {f"layer.{i}.weight": torch.tensor([i]) for i in range(5000)}  # torch is slow here
    else:
        values = torch.arange(100_000)
        state = {f"layer.{i}.weight": values[i] for i in range(100_000)}
    save(state, checkpoint)
    wanted = state if load is cairn_load else dict(list(state.items())[::100])
    loaded = {key: torch.zeros_like(value) for key, value in wanted.items()}
    load(loaded, checkpoint)
    assert all(int(loaded[key]) == int(wanted[key]) for key in wanted)


@pytest.mark.huge
@pytest.mark.parametrize(("save", "load"), DIRECTIONS[:2])
def test_a_tensor_of_more_than_four_gibibytes(save: Save, load: Load, checkpoint: Path) -> None:
    count = (1 << 32) + 12_345
    big = torch.empty(count, dtype=torch.uint8)
    for start in range(0, count, 1 << 28):
        part = big[start : start + (1 << 28)]
        part.copy_(torch.arange(len(part), dtype=torch.int64).mul_(2654435761).add_(start).bitwise_right_shift_(7))
    save({"big": big, "after": torch.arange(5)}, checkpoint)
    loaded = {"big": torch.zeros_like(big), "after": torch.zeros(5, dtype=torch.int64)}
    load(loaded, checkpoint)
    assert torch.equal(loaded["big"], big)
    assert torch.equal(loaded["after"], torch.arange(5))


@pytest.mark.parametrize("verify", ["needed", "full"])
def test_elements_that_share_memory_are_read_though_the_rest_of_their_storage_is_not(
    verify: str, tmp_path: Path
) -> None:
    """Each tensor has as many elements as its storage, and does not reach all of the storage."""
    count = 1 << 17
    state = {
        "one": torch.arange(2.0)[:1].expand(2),
        "ends": torch.arange(2.0 * count).as_strided((count, 2), (0, 2 * count - 1)),
        "gap": torch.arange(2.0 * count).as_strided((2, 2, count // 2), (2 * count - count // 2, 0, 1)),
    }
    stock.save(state, tmp_path)
    target = {key: torch.zeros(value.shape) for key, value in state.items()}
    cairn.load(target, checkpoint_id=tmp_path, verify=verify)
    for key, value in state.items():
        assert torch.equal(target[key], value), key


def test_a_save_removes_no_file_of_a_checkpoint_below(tmp_path: Path) -> None:
    """The metadata that the save replaces names a data file in a folder."""
    below = tmp_path / "step-10"
    cairn.save({"w": torch.ones(2)}, checkpoint_id=below)
    metadata = dcp.FileSystemReader(below).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = f"step-10/{info.relative_path}"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    cairn.save({"w": torch.zeros(2)}, checkpoint_id=tmp_path)
    state = {"w": torch.zeros(2)}
    cairn.load(state, checkpoint_id=below)
    assert torch.equal(state["w"], torch.ones(2))
