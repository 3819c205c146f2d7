"""cairn.load in one process: DCP's semantics, and Cairn's additions."""

import copy
import io
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same
from torch.distributed.checkpoint.api import CheckpointException

import cairn


class Counter:
    """A Stateful that notes its calls."""

    def __init__(self, **state: Any) -> None:
        self.state = state
        self.calls: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        self.calls.append("state_dict")
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.calls.append("load_state_dict")
        self.state = state_dict


def test_tensors_are_filled_in_place_and_values_replaced(checkpoint: Path) -> None:
    cairn.save({"w": torch.arange(4.0), "step": 7, "inner": {"lr": 0.1}}, checkpoint_id=checkpoint)
    weight, inner = torch.zeros(4), {"lr": 0.0}
    alias = weight.view(2, 2)
    state = {"w": weight, "step": 0, "inner": inner}
    assert cairn.load(state, checkpoint_id=checkpoint) is None
    assert state["w"] is weight
    assert alias.tolist() == [[0, 1], [2, 3]]
    assert state["step"] == 7
    assert state["inner"] is inner
    assert inner == {"lr": 0.1}


def test_autograd_notices_the_change(checkpoint: Path) -> None:
    cairn.save({"w": torch.ones(3)}, checkpoint_id=checkpoint)
    weight = torch.zeros(3, requires_grad=True)
    loss = (weight * weight).sum()
    cairn.load({"w": weight}, checkpoint_id=checkpoint)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_statefuls_are_called_once_and_get_the_state_back(checkpoint: Path) -> None:
    saved = Counter(w=torch.ones(2), n=5)
    cairn.save({"app": saved}, checkpoint_id=checkpoint)
    assert saved.calls == ["state_dict"]
    loaded = Counter(w=torch.zeros(2), n=0)
    cairn.load({"app": loaded}, checkpoint_id=checkpoint)
    assert loaded.calls == ["state_dict", "load_state_dict"]
    assert_same(loaded.state, {"w": torch.ones(2), "n": 5})


def test_modules_and_optimizers_are_statefuls(checkpoint: Path) -> None:
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    cairn.save({"model": model}, checkpoint_id=checkpoint)
    cairn.load({"model": other}, checkpoint_id=checkpoint)
    assert_same(other.state_dict(), model.state_dict())


def test_a_stateful_is_left_alone_when_the_load_fails(checkpoint: Path) -> None:
    cairn.save({"app": {"w": torch.ones(2)}}, checkpoint_id=checkpoint)
    loaded = Counter(w=torch.zeros(3))
    with pytest.raises(cairn.InvalidArgument):
        cairn.load({"app": loaded}, checkpoint_id=checkpoint)
    assert loaded.calls == ["state_dict"]


def test_values_return_to_their_key(checkpoint: Path) -> None:
    cairn.save({"d": {1: "one", 2: {3: "three"}}}, checkpoint_id=checkpoint)
    state: dict[str, Any] = {"d": {1: None, 2: {3: None}}}
    cairn.load(state, checkpoint_id=checkpoint)
    assert state == {"d": {1: "one", 2: {3: "three"}}}


def test_keys_of_the_checkpoint_that_are_not_asked_for_are_ignored(checkpoint: Path) -> None:
    cairn.save({"a": torch.ones(1), "b": torch.ones(1)}, checkpoint_id=checkpoint)
    state = {"b": torch.zeros(1)}
    cairn.load(state, checkpoint_id=checkpoint)
    assert_same(state, {"b": torch.ones(1)})


def test_partial_load_leaves_missing_keys_unchanged(checkpoint: Path) -> None:
    cairn.save({"a": torch.ones(1), "n": 1}, checkpoint_id=checkpoint)
    state = {"a": torch.zeros(1), "extra": torch.zeros(1), "n": 0, "m": "mine"}
    cairn.load(state, checkpoint_id=checkpoint, planner=cairn.DefaultLoadPlanner(allow_partial_load=True))
    assert_same(state, {"a": torch.ones(1), "extra": torch.zeros(1), "n": 1, "m": "mine"})


def test_unflattened_states(checkpoint: Path, tmp_path: Path) -> None:
    state = {"w": torch.ones(2), "config": {"a": [1, {"b": 2}]}}
    planners: dict[str, Any] = {"planner": cairn.DefaultSavePlanner(flatten_state_dict=False)}
    cairn.save(state, checkpoint_id=checkpoint, **planners)
    stock.save(state, tmp_path / "stock", **planners)
    assert stock.metadata_of(checkpoint).planner_data == stock.metadata_of(tmp_path / "stock").planner_data
    for directory in (checkpoint, tmp_path / "stock"):
        for load in (stock.load, lambda state, path, **more: cairn.load(state, checkpoint_id=path, **more)):
            loaded = {"w": torch.zeros(2), "config": None}
            # With flatten_sharded_tensors stock torch loads values into an internal dict and drops the dict.
            planner = cairn.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
            load(loaded, directory, planner=planner)
            assert_same(loaded, state)


def test_checkpoints_from_before_torch_2_4(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.checkpoint import _version

    state = {"model": {"w": torch.ones(2)}, "config": {"lr": 0.5, "names": ["a", {"b": 1}]}}
    with monkeypatch.context() as patch:
        patch.setattr(_version, "_derived_version", "2_3")
        stock.save(state, checkpoint)
    assert set(stock.metadata_of(checkpoint).planner_data) == {"model.w", "config"}
    loaded = {"model": {"w": torch.zeros(2)}, "config": {"lr": None, "names": None}}
    cairn.load(loaded, checkpoint_id=checkpoint)
    assert_same(loaded, state)


def test_meta_tensors_are_materialized(checkpoint: Path) -> None:
    cairn.save({"model": {"w": torch.arange(6.0).reshape(2, 3)}}, checkpoint_id=checkpoint)
    state = {"model": {"w": torch.empty(2, 3, device="meta")}}
    cairn.load(state, checkpoint_id=checkpoint)
    assert state["model"]["w"].device.type == "cpu"
    assert_same(state, {"model": {"w": torch.arange(6.0).reshape(2, 3)}})


def test_meta_tensors_stay_when_the_load_fails(checkpoint: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=checkpoint)
    state = {"w": torch.empty(2, device="meta"), "absent": 1}
    with pytest.raises(cairn.MissingKey):
        cairn.load(state, checkpoint_id=checkpoint)
    assert state["w"].is_meta


def test_floats_are_converted_with_one_warning(checkpoint: Path) -> None:
    values = torch.tensor([1.0, 1.0 + 2**-9, 3e38, float("inf"), -0.0])
    cairn.save({"a": values, "b": values.double(), "c": values}, checkpoint_id=checkpoint)
    state = {"a": torch.zeros(5, dtype=torch.bfloat16), "b": torch.zeros(5), "c": torch.zeros(5)}
    with pytest.warns(cairn.ConversionWarning) as caught:
        cairn.load(state, checkpoint_id=checkpoint)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "'a' from torch.float32 to torch.bfloat16" in text
    assert "'b' from torch.float64 to torch.float32" in text
    assert "'c'" not in text
    assert_same(state, {"a": values.bfloat16(), "b": values, "c": values})


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.filterwarnings("ignore::cairn.ConversionWarning")
@pytest.mark.parametrize("saved", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
def test_conversions_equal_the_conversions_of_torch(saved: torch.dtype, target: torch.dtype, checkpoint: Path) -> None:
    torch.manual_seed(5)
    special = torch.tensor([0.0, -0.0, 1.0, 448.0, 449.0, 464.0, 1e5, 1e-7, float("inf"), float("-inf")])
    source = torch.cat([torch.randn(500) * 10 ** torch.linspace(-9, 6, 500), special]).double().to(saved)
    cairn.save({"x": source}, checkpoint_id=checkpoint)
    state = {"x": torch.zeros(510, dtype=target)}
    cairn.load(state, checkpoint_id=checkpoint)
    expected = torch.zeros(510, dtype=target).copy_(source)
    if not torch.isnan(expected.double()).any():
        assert_same(state["x"], expected)
    else:  # the bits of a NaN differ between machines
        assert torch.equal(torch.isnan(state["x"].double()), torch.isnan(expected.double()))
        assert torch.equal(state["x"].double().nan_to_num(7), expected.double().nan_to_num(7))


@pytest.mark.parametrize("target", [torch.int64, torch.bool])
def test_other_changes_of_dtype_need_permission(target: torch.dtype, checkpoint: Path) -> None:
    source = torch.tensor([0.0, 1.0, 2.5])
    cairn.save({"x": source}, checkpoint_id=checkpoint)
    state = {"x": torch.zeros(3, dtype=target)}
    with pytest.raises(cairn.InvalidArgument, match="allow_cast") as caught:
        cairn.load(state, checkpoint_id=checkpoint)
    assert caught.value.key == "x"
    assert (caught.value.expected, caught.value.actual) == (str(target).removeprefix("torch."), "float32")
    assert_same(state["x"], torch.zeros(3, dtype=target))
    with pytest.warns(cairn.ConversionWarning):
        cairn.load(state, checkpoint_id=checkpoint, allow_cast=True)
    assert_same(state["x"], source.to(target))


def test_real_numbers_become_complex_and_back(checkpoint: Path) -> None:
    cairn.save({"x": torch.ones(3), "y": torch.full((3,), 2 + 1j)}, checkpoint_id=checkpoint)
    state = {"x": torch.zeros(3, dtype=torch.complex64), "y": torch.zeros(3)}
    with pytest.warns(cairn.ConversionWarning):
        cairn.load(state, checkpoint_id=checkpoint, allow_cast=True)
    assert_same(state, {"x": torch.full((3,), 1 + 0j), "y": torch.full((3,), 2.0)})


@pytest.mark.parametrize("verify", ["needed", "full", "none"])
def test_verify_has_three_words(verify: Any, checkpoint: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=checkpoint)
    state = {"w": torch.zeros(2)}
    cairn.load(state, checkpoint_id=checkpoint, verify=verify)
    assert_same(state, {"w": torch.ones(2)})
    with pytest.raises(cairn.InvalidArgument, match="needed"):
        cairn.load(state, checkpoint_id=checkpoint, verify="always")  # type: ignore[arg-type]


def test_exceptions_that_dcp_callers_catch(checkpoint: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=checkpoint)
    with pytest.raises(CheckpointException) as caught:
        cairn.load({"w": torch.ones(2), "absent": torch.ones(1)}, checkpoint_id=checkpoint)
    error = caught.value
    assert isinstance(error, cairn.MissingKey)
    assert isinstance(error, KeyError)
    assert list(error.failures) == [0]
    cause, trace = error.failures[0]
    assert type(cause) is cairn.MissingKey
    assert cause.key == error.key == "absent"
    assert [frame.name for frame in trace]
    assert "absent" in str(error)
    assert str(error)[0] not in "'\"", "not the quoted text of a KeyError"


def test_targets_that_are_views_of_other_numbers(checkpoint: Path) -> None:
    values = torch.randn(4, dtype=torch.complex64)
    cairn.save({"conjugate": values, "negative": values.imag}, checkpoint_id=checkpoint)
    first, second = torch.zeros(4, dtype=torch.complex64), torch.zeros(4, dtype=torch.complex64)
    state = {"conjugate": first.conj(), "negative": second.conj().imag}
    assert state["conjugate"].is_conj()
    assert state["negative"].is_neg()
    cairn.load(state, checkpoint_id=checkpoint)
    assert_same(first, values.conj())
    assert_same(second.imag, -values.imag)


def test_targets_with_sizes_of_one_and_strides_of_zero(checkpoint: Path) -> None:
    cairn.save({"w": torch.ones(1, 3)}, checkpoint_id=checkpoint)
    target = torch.zeros(3).as_strided((1, 3), (0, 1))
    cairn.load({"w": target}, checkpoint_id=checkpoint)
    assert_same(target, torch.ones(1, 3))


def test_elements_that_share_memory_cannot_be_targets(checkpoint: Path) -> None:
    cairn.save({"w": torch.arange(3.0)}, checkpoint_id=checkpoint)
    with pytest.raises(cairn.InvalidArgument, match="'w' have a single memory location") as caught:
        cairn.load({"w": torch.zeros(1).expand(3)}, checkpoint_id=checkpoint)
    assert caught.value.key == "w"


class Refusing(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(f"no place for {key}")


def load_into_a_container_that_refuses(checkpoint: Path, refusing: int) -> str:
    values = {"step": 1}
    state = {"values": Refusing(values) if dist.get_rank() == refusing else values}
    try:
        cairn.load(state, checkpoint_id=checkpoint)
    except CheckpointException as error:
        return str(error)
    return "loaded"


def test_a_rank_that_cannot_store_a_value_fails_every_rank(two: Gang, checkpoint: Path) -> None:
    cairn.save({"values": {"step": 7}}, checkpoint_id=checkpoint)
    for text in two.run(load_into_a_container_that_refuses, checkpoint, 1):
        assert "no place for step" in text


def test_inference_tensors_and_parameters(checkpoint: Path) -> None:
    cairn.save({"a": torch.ones(2), "b": torch.ones(2)}, checkpoint_id=checkpoint)
    with torch.inference_mode():
        inference = torch.zeros(2)
    state = {"a": inference, "b": torch.nn.Parameter(torch.zeros(2))}
    cairn.load(state, checkpoint_id=checkpoint)
    assert_same(state, {"a": torch.ones(2), "b": torch.ones(2)})
    assert state["b"].requires_grad


def test_without_a_checkpoint_id(checkpoint: Path) -> None:
    with pytest.raises(RuntimeError, match="checkpoint_id"):
        cairn.load({})
    with pytest.raises(RuntimeError, match="checkpoint_id"):
        cairn.save({})


def test_loads_from_checkpoints_of_several_ranks(checkpoint: Path) -> None:
    """Chunks in the files of several ranks, as two ranks write the files."""
    stock.save({"w": torch.arange(12.0).reshape(4, 3)}, checkpoint)
    metadata = stock.metadata_of(checkpoint)
    parts = {0: torch.arange(6.0).reshape(2, 3), 2: torch.arange(6.0, 12.0).reshape(2, 3)}
    chunks, storage = [], {}
    for rank, (row, part) in enumerate(parts.items()):
        stream = io.BytesIO()
        torch.save(part, stream)
        (checkpoint / f"__{rank}_0.distcp").write_bytes(stream.getvalue())
        offset = torch.Size([row, 0])
        chunks.append(stock.dcp.ChunkStorageMetadata(offset, part.size()))
        place = stock.dcp.filesystem._StorageInfo(f"__{rank}_0.distcp", 0, len(stream.getvalue()))
        storage[stock.dcp.metadata.MetadataIndex("w", offset, rank)] = place
    metadata.state_dict_metadata["w"].chunks = chunks
    metadata.storage_data = storage
    stock.rewrite_metadata(checkpoint, metadata)
    state = {"w": torch.zeros(4, 3)}
    cairn.load(state, checkpoint_id=checkpoint)
    assert_same(state["w"], torch.arange(12.0).reshape(4, 3))


def test_containers_of_the_template_keep_their_identity(checkpoint: Path) -> None:
    state = {"ordered": OrderedDict(b=1, a=torch.ones(1)), "list": [torch.ones(1), 2]}
    cairn.save(state, checkpoint_id=checkpoint)
    template = copy.deepcopy(state)
    kept = template["list"]
    cairn.load(template, checkpoint_id=checkpoint)
    assert template["list"] is kept
    assert_same(template, state)


def test_a_load_without_findings_is_silent(checkpoint: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.save({"w": torch.ones(1), "n": [1]}, checkpoint_id=checkpoint)
        cairn.save({"w": torch.ones(1), "n": [1]}, checkpoint_id=checkpoint)
        cairn.load({"w": torch.ones(1), "n": None}, checkpoint_id=checkpoint)
