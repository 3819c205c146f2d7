"""Reading a checkpoint into NumPy arrays."""

import sys
from pathlib import Path

import numpy as np
import pytest
import stock
import torch
from hypothesis import given
from hypothesis import strategies as st
from same import assert_same, bits
from torch.distributed.checkpoint import DefaultSavePlanner

import cairn
from cairn.checkpoint import TensorInfo, _box_of

STATE = {
    "w": torch.arange(60, dtype=torch.float32).reshape(3, 4, 5),
    "half": torch.rand(7).bfloat16(),
    "eight": torch.rand(2, 2).to(torch.float8_e4m3fn),
    "flag": torch.tensor(True),
    "c": torch.rand(2, dtype=torch.complex64),
    "config": {"lr": 0.1, "names": ["a", "b"]},
}


@pytest.fixture(params=["cairn", "torch"])
def opened(request: pytest.FixtureRequest, checkpoint: Path) -> cairn.Checkpoint:
    if request.param == "cairn":
        cairn.save(STATE, checkpoint_id=checkpoint)
    else:
        stock.save(STATE, checkpoint)
    return cairn.open(checkpoint)


def test_is_a_mapping(opened: cairn.Checkpoint) -> None:
    assert set(opened) == {"w", "half", "eight", "flag", "c", "config.lr", "config.names"}
    assert len(opened) == 7
    assert "w" in opened
    assert "config" not in opened
    assert 3 not in opened
    assert opened["config.lr"] == 0.1
    assert opened.get("absent", "default") == "default"
    with pytest.raises(KeyError) as caught:
        opened["absent"]
    assert caught.value.key == "absent"


def test_reads_tensors(opened: cairn.Checkpoint) -> None:
    array = opened["w"]
    assert isinstance(array, np.ndarray)
    assert_same(array, STATE["w"].numpy())
    array += 1  # the caller's own
    assert_same(opened["flag"], np.array(True))
    assert_same(opened["c"], STATE["c"].numpy())


NUMPY_LACKS = {
    "half": torch.rand(7).bfloat16(),
    "eight": torch.rand(2, 2).to(torch.float8_e4m3fn),
    "scaled": torch.rand(3).to(torch.float8_e5m2),
    "complex": torch.rand(3, dtype=torch.complex64).to(torch.complex32),
    "in a value": {"bfloat16": (torch.rand(3).bfloat16(),)},
}
FOUR = torch.tensor([[1, 2]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)


@pytest.fixture
def without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # an import of ml_dtypes fails now


def test_dtypes_that_numpy_lacks_come_from_ml_dtypes(opened: cairn.Checkpoint) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for key, kind in [("half", ml_dtypes.bfloat16), ("eight", ml_dtypes.float8_e4m3fn)]:
        array = opened[key]
        assert array.dtype == np.dtype(kind)
        assert array.shape == STATE[key].shape
        assert array.tobytes() == bits(STATE[key])
        assert array.astype(np.float32).tolist() == STATE[key].float().tolist()


@pytest.mark.usefixtures("without_ml_dtypes")
def test_without_ml_dtypes_the_error_names_the_extra(opened: cairn.Checkpoint) -> None:
    for key in ("half", "eight"):
        with pytest.raises(cairn.Unsupported, match=r"pip install 'cairn-checkpoint\[ml-dtypes\]'") as caught:
            opened[key]
        assert caught.value.key == key
        assert "tensors='torch'" in str(caught.value)
    assert_same(opened["w"], STATE["w"].numpy())


def test_dtypes_that_ml_dtypes_lacks_raise(checkpoint: Path) -> None:
    cairn.save(NUMPY_LACKS | {"four": FOUR}, checkpoint_id=checkpoint)
    for key in ("complex", "four"):
        with pytest.raises(cairn.Unsupported, match="tensors='torch'") as caught:
            cairn.open(checkpoint)[key]
        assert caught.value.key == key


@pytest.mark.usefixtures("without_ml_dtypes")
def test_tensors_of_every_dtype_as_torch_tensors_or_as_integers(checkpoint: Path) -> None:
    cairn.save(STATE | NUMPY_LACKS | {"four": FOUR, "empty": torch.empty(0, 3)}, checkpoint_id=checkpoint)
    by_torch = cairn.open(checkpoint, tensors="torch")
    by_numpy = cairn.open(checkpoint, tensors="integers")
    for key in ("w", "half", "eight", "scaled", "complex", "four", "flag", "c", "empty"):
        saved = {**STATE, **NUMPY_LACKS, "four": FOUR, "empty": torch.empty(0, 3)}[key]
        tensor = by_torch[key]
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.dtype, tensor.shape) == (saved.dtype, saved.shape)
        assert bits(tensor) == bits(saved)
        array = by_numpy[key]
        assert isinstance(array, np.ndarray | np.generic)
        assert array.shape == saved.shape
        assert array.tobytes() == bits(saved)
    assert by_numpy["half"].dtype == np.uint16
    part = by_torch.read("w", np.s_[1, ..., 2:4])
    assert part.tolist() == STATE["w"][1, ..., 2:4].tolist()
    with pytest.raises(cairn.InvalidArgument, match="tensors must be"):
        cairn.open(checkpoint, tensors="jax")  # type: ignore[arg-type]


def test_tensors_inside_values_come_in_the_same_form(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = NUMPY_LACKS["in a value"]["bfloat16"][0]
    stock.save({"value": (saved, [torch.ones(2)])}, checkpoint, planner=DefaultSavePlanner(flatten_state_dict=False))
    half, (ones,) = cairn.open(checkpoint, tensors="torch")["value"]
    assert torch.equal(half, saved)
    assert torch.equal(ones, torch.ones(2))
    half, (ones,) = cairn.open(checkpoint, tensors="integers")["value"]
    assert half.dtype == np.uint16
    assert ones.dtype == np.float32
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(cairn.Unsupported, match="ml-dtypes") as caught:
        cairn.open(checkpoint)["value"]
    assert caught.value.key == "value"


def test_keys_complete_in_ipython(opened: cairn.Checkpoint) -> None:
    assert opened._ipython_key_completions_() == list(opened)


@pytest.mark.parametrize(
    "index",
    [
        np.s_[1], np.s_[-1], np.s_[0:2], np.s_[1:, 2], np.s_[..., 3], np.s_[1, ..., 2:4], np.s_[1, 2, 3],
        np.s_[:, :, -2:], np.s_[5:], np.s_[2:1], np.s_[...], (), np.s_[np.int64(1)],
    ],
    ids=repr,
)  # fmt: skip
def test_reads_boxes(opened: cairn.Checkpoint, index: object) -> None:
    expected = STATE["w"].numpy()[index]
    actual = opened.read("w", index)
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


def test_bad_boxes(opened: cairn.Checkpoint) -> None:
    for index, word in [(np.s_[3], "outside"), (np.s_[::2], "step 1"), (np.s_[0, 0, 0, 0], "too many")]:
        with pytest.raises(ValueError, match=word) as caught:
            opened.read("w", index)
        assert caught.value.key == "w"
    with pytest.raises(ValueError, match="not a tensor"):
        opened.read("config.lr", 0)


@given(st.data())
def test_boxes_select_as_in_numpy(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    bound = st.none() | st.integers(-6, 6)
    part = st.builds(slice, bound, bound) | st.integers(-4, 3)
    index = tuple(data.draw(st.lists(part, max_size=len(shape))))
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(index)))
        index = (*index[:place], Ellipsis, *index[place:])
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    info = TensorInfo("x", shape, "int64", False, ())
    try:
        expected = array[index]
    except IndexError:
        with pytest.raises(cairn.InvalidArgument):
            _box_of(info, index)
        return
    offsets, sizes, kept = _box_of(info, index)
    box = array[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
    assert box.shape == sizes
    assert np.array_equal(box.reshape([sizes[d] for d in kept]), expected)


def test_attributes_equal_the_metadata(opened: cairn.Checkpoint) -> None:
    info = opened.info("w")
    assert isinstance(info, TensorInfo)
    assert (info.shape, info.dtype, info.nbytes) == ((3, 4, 5), "float32", 240)
    (chunk,) = info.chunks
    assert (chunk.offsets, chunk.sizes) == ((0, 0, 0), (3, 4, 5))
    assert info.files == opened.files == ("__0_0.distcp",)
    raw = (Path(opened.directory) / "__0_0.distcp").read_bytes()[chunk.offset : chunk.offset + chunk.length]
    assert raw.startswith(b"PK")
    value = opened.info("config.lr")
    assert isinstance(value, cairn.ValueInfo)
    assert value.file == "__0_0.distcp"
    assert "5 tensors" in repr(opened)
    assert "2 values" in repr(opened)


def test_only_a_checkpoint_of_cairn_has_a_save_id(checkpoint: Path) -> None:
    stock.save({"w": torch.ones(1)}, checkpoint)
    assert cairn.open(checkpoint).save_id is None
    cairn.save({"w": torch.ones(1)}, checkpoint_id=checkpoint)
    assert len(cairn.open(checkpoint).save_id or "") == 32


def test_verify_reports(opened: cairn.Checkpoint) -> None:
    report = cairn.verify(opened.directory)
    assert report
    assert report.problems == ()
    assert (report.files, report.tensors, report.values) == (1, 5, 2)
    assert report.bytes_checked > 240
    assert report.has_commit_record == (opened.save_id is not None)
