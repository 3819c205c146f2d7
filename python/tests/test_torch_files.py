"""Files of ``torch.save`` opened as checkpoints: ``cairn.open``, ``load``, ``verify`` and the tool."""

import collections
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from same import assert_same
from tool import json_of, text_of
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

import cairn
from cairn import _engine

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["archive", "legacy"])

# Without quantised dtypes and those of which torch makes no plain tensor.
PLAIN_DTYPES = [
    name for name in _engine.DTYPE_NAMES if hasattr(torch, name) and not name.startswith(("q", "bits", "float4"))
]


class Subclass(torch.Tensor):
    pass


class Unknown:
    pass


def save(state: Any, file: Path, zipped: bool = True, **options: Any) -> Path:
    torch.save(state, file, _use_new_zipfile_serialization=zipped, **options)
    return file


def nested() -> dict[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    w = torch.randn(4, 5)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "w": w,
        "tied": w,
        "view": w[1:3, 2:],
        "transposed": w.t(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "empty tensor": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "list of values": [1, [2, None]],
        "list of all": [1, w, {"a": 2}, [3, [torch.ones(2)]]],
        "tuple": (1, torch.ones(2)),
        "empty": {},
        1: "one",
        (1, 2): "pair",
        2.5: "real",
        None: 0,
        "default": collections.defaultdict(int, {"z": 1}),
        "counter": collections.Counter("aab"),
        "step": 7,
    }


@FORMATS
def test_keys_paths_and_tensors_are_those_of_dcps_flattening(zipped: bool, tmp_path: Path) -> None:
    state = nested()
    flat, paths = flatten_state_dict(state)
    opened = cairn.open(save(state, tmp_path / "model.bin", zipped), tensors="torch")
    assert list(opened) == list(flat)
    assert _engine.catalog_of(opened._native).paths() == paths
    for key, value in flat.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(opened[key], value.detach()), key
            assert opened.info(key).requires_grad == value.requires_grad
    assert_same(opened["tuple"], state["tuple"])
    assert opened["list of values"] == [1, [2, None]]
    places = {(opened.info(key).chunks[0].offset) for key in ("w", "tied", "view", "transposed")}
    assert len(places) == 1


@pytest.mark.parametrize("dtype", PLAIN_DTYPES)
@FORMATS
def test_every_dtype(dtype: str, zipped: bool, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    raw = torch.arange(48, dtype=torch.uint8)
    tensor = (raw % 2).view(torch.bool) if kind is torch.bool else raw.view(kind)
    opened = cairn.open(save({"t": tensor}, tmp_path / "t.pt", zipped), tensors="torch")
    assert opened.info("t").dtype == dtype
    assert opened["t"].dtype == kind
    assert torch.equal(opened["t"].view(torch.uint8), tensor.view(torch.uint8))


@FORMATS
def test_load_fills_tensors_and_values(zipped: bool, tmp_path: Path) -> None:
    state = {"model": {"w": torch.randn(3, 4)}, "lr": 0.5, "groups": [{"params": [0, 1]}]}
    file = save(state, tmp_path / "s.pt", zipped)
    target: dict[str, Any] = {"model": {"w": torch.zeros(3, 4)}, "lr": 0, "groups": [{"params": []}]}
    cairn.load(target, checkpoint_id=file)
    assert_same(target, state)


@FORMATS
def test_an_unknown_class_is_refused_when_its_key_is_read(zipped: bool, tmp_path: Path) -> None:
    state = {"w": torch.ones(2), "unknown": Unknown(), "subclass": torch.ones(2).as_subclass(Subclass)}
    file = save(state, tmp_path / "s.pt", zipped)
    opened = cairn.open(file, tensors="torch")
    assert list(opened) == list(state)
    assert torch.equal(opened["w"], state["w"])
    assert "Unknown" in repr(opened["unknown"])
    target = {"w": torch.zeros(2)}
    cairn.load(target, checkpoint_id=file)
    assert torch.equal(target["w"], state["w"])
    with pytest.raises(cairn.UnsafeContent, match=r"'unknown' holds a .*Unknown.*allow_pickle=True"):
        cairn.load({"unknown": None}, checkpoint_id=file)
    found: dict[str, Any] = {"unknown": None}
    cairn.load(found, checkpoint_id=file, allow_pickle=True)
    assert isinstance(found["unknown"], Unknown)


def test_a_quantised_and_a_sparse_tensor_are_read_by_torchs_rules(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.quint8)
        file = save({"q": quantised, "s": torch.eye(3).to_sparse()}, tmp_path / "s.pt")
        target = {"q": torch.quantize_per_tensor(torch.zeros(4), 0.5, 0, torch.quint8), "s": None}
        cairn.load(target, checkpoint_id=file)
        assert torch.equal(target["q"].dequantize(), torch.ones(4))  # type: ignore[union-attr]
        assert torch.equal(target["s"].to_dense(), torch.eye(3))  # type: ignore[attr-defined]
        with pytest.raises(cairn.Unsupported, match="quantised"):
            cairn.open(file)["q"]


@pytest.mark.parametrize("top", [torch.ones(2), [torch.ones(2)], 7, torch.nn.Linear(1, 1)], ids=type)
@FORMATS
def test_only_a_dict_is_a_state_dict(top: Any, zipped: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = save(top, tmp_path / "s.pt", zipped)
    with pytest.raises(cairn.Unsupported, match=r"holds no state dict.*s\.pt"):
        cairn.open(file)


@pytest.mark.parametrize("content", [b"", b"PK", b"no pickle", b"\x80\x02}."])
def test_another_file_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(cairn.NotFound, match=r"nor a file of torch\.save"):
        cairn.open(tmp_path / "file")


def test_every_flipped_byte_of_a_record_is_found(tmp_path: Path) -> None:
    """Of the pickle by opening the file; of a tensor by a load of the whole tensor, and with "full" by a load of a
    part; of any record by verify()."""
    w = torch.arange(1000.0)
    file = save({"w": w, "part": w[:10], "step": 7}, tmp_path / "s.pt")
    whole = file.read_bytes()
    for place, opens in ((whole.index(b"step"), False), (whole.index(w.numpy().tobytes()) + 3999, True)):
        content = bytearray(whole)
        content[place] ^= 16
        file.write_bytes(content)
        if not opens:
            with pytest.raises(cairn.Corrupt, match=r"data\.pkl is damaged"):
                cairn.open(file)
            continue
        with pytest.raises(cairn.Corrupt, match=r"checksum differs.*'w'"):
            cairn.load({"w": torch.zeros(1000)}, checkpoint_id=file)
        target = {"part": torch.zeros(10)}
        with pytest.raises(cairn.Corrupt, match=r"checksum differs.*'part'"):
            cairn.load(target, checkpoint_id=file, verify="full")
        assert not target["part"].any()
        (problem,) = cairn.verify(file).problems
        assert "data/0" in str(problem)
    file.write_bytes(whole)
    assert cairn.verify(file)
    file.write_bytes(whole[:-100])
    with pytest.raises(cairn.Error, match=r"s\.pt"):
        cairn.open(file)


@FORMATS
def test_the_tool(zipped: bool, tmp_path: Path) -> None:
    file = save({"w": torch.ones(2, 3), "step": 7}, tmp_path / "model.pth", zipped)
    assert "float32 [2, 3]" in text_of("ls", file)
    assert [key["key"] for key in json_of("ls", "--json", file)["keys"]] == ["w", "step"]
    shown = text_of("inspect", file)
    assert "a file of torch.save" in shown
    assert "= 7" in shown
    assert "1 tensor, 1 value in 1 file" in text_of("verify", file)


def test_a_checkpoint_process_state_of_torchs_own_is_checked(tmp_path: Path) -> None:
    """A flipped byte of ``checkpoint_{rank}.pt`` raises, also in a view and in a tuple."""
    from cairn.checkpointer import CheckpointReader, RankInfo

    w = torch.arange(1000.0)
    state = {"view": w[:10], "tuple": (torch.full((500,), 7.5), 1), "w": torch.ones(300)}
    file = save(state, tmp_path / "checkpoint_0.pt")
    reader = CheckpointReader(RankInfo(global_rank=0, global_world_size=1))
    assert_same(reader.read(str(tmp_path))[0], state)
    whole = file.read_bytes()
    for key, content in (("view", w), ("tuple", state["tuple"][0]), ("w", state["w"])):
        damaged = bytearray(whole)
        damaged[whole.index(content.numpy().tobytes()) + 500] ^= 1  # type: ignore[union-attr]
        file.write_bytes(damaged)
        with pytest.raises(cairn.Corrupt):
            reader.read(str(tmp_path), {key: None})
        others = {other: None for other in state if other != key}
        reader.read(str(tmp_path), others)


KEYS: list[Any] = [
    *(100000.0, 1e-4, 1e-5, 1e16, 1e15, 123456789012345.6, -0.0, 0.1, 5e-324, 1.5e300, float("inf"), float("nan")),
    *(2**63, -(2**63) - 1, -(2**70), 2**64, 10**40, 256**20, -1, True, None),
    *(b"abc", b"it's", b"\x00\n\xff\"'", b""),
    *(("it's", 1), ("a\n", "\x7f"), ("'\"",), (), (1.5, (None, (b"x",))), ("é", "ш", "語"), tuple(range(500))),
]


@pytest.mark.parametrize("protocol", [2, 4])
def test_keys_have_the_text_of_str(protocol: int, tmp_path: Path) -> None:
    state = {"d": dict.fromkeys(KEYS, 1)}
    assert list(cairn.open(save(state, tmp_path / "s.pt", pickle_protocol=protocol))) == list(
        flatten_state_dict(state)[0]
    )


@pytest.mark.parametrize("key", [1 + 2j, frozenset({1}), ("\u2028",), (1, 1j)], ids=repr)
def test_a_key_whose_text_needs_python_is_left_to_torch(key: Any, checkpoint: Path, tmp_path: Path) -> None:
    file = save({key: torch.ones(2)}, tmp_path / "s.pt")
    with pytest.raises(cairn.Unsupported, match="whose text only Python knows"):
        cairn.open(file)
    cairn.format_utils.torch_save_to_dcp(file, checkpoint, allow_pickle=True)
    assert list(cairn.open(checkpoint)) == [str(key)]


class DefaultDictByArguments:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __reduce__(self) -> Any:
        return collections.defaultdict, self.arguments


@FORMATS
def test_a_default_dict_keeps_the_content_of_its_arguments(zipped: bool, tmp_path: Path) -> None:
    state = {"d": DefaultDictByArguments(None, {"a": torch.ones(2)}), "e": DefaultDictByArguments({"a": 1})}
    opened = cairn.open(save(state, tmp_path / "s.pt", zipped), tensors="torch")
    assert list(opened) == ["d.a", "e"]  # the second is no call that Python can make
    assert torch.equal(opened["d.a"], torch.ones(2))


def test_a_large_dict_of_small_values_converts(tmp_path: Path) -> None:
    seen = dict.fromkeys(range(60000), True)
    file = save({"a": {"b": {"c": {"seen": seen}}}}, tmp_path / "s.pt")
    assert cairn.convert(file, tmp_path / "dcp", to="dcp").values == 60000
    cairn.convert(tmp_path / "dcp", tmp_path / "back.pt", to="torch")
    assert torch.load(tmp_path / "back.pt", weights_only=True)["a"]["b"]["c"]["seen"] == seen


def test_a_deep_dict_of_small_values_is_opened(tmp_path: Path) -> None:
    state: Any = dict.fromkeys(range(5000), True)
    for _ in range(15):
        state = {"a": state}
    assert len(cairn.open(save(state, tmp_path / "s.pt"))) == 5000


def test_a_tensor_may_have_hundreds_of_names(tmp_path: Path) -> None:
    w = torch.randn(10000)
    file = save({f"layer {i}": w for i in range(300)}, tmp_path / "s.pt")
    cairn.convert(file, tmp_path / "tied.pt", to="torch")
    found = torch.load(tmp_path / "tied.pt", weights_only=True)
    assert len({tensor.data_ptr() for tensor in found.values()}) == 1
    assert cairn.convert(file, tmp_path / "dcp", to="dcp").tensors == 300
    assert torch.equal(cairn.open(tmp_path / "dcp", tensors="torch")["layer 299"], w)


def test_requires_grad_stays_only_where_torch_keeps_the_flag(checkpoint: Path, tmp_path: Path) -> None:
    state = {"w": torch.ones(2, requires_grad=True)}
    cairn.save(state, checkpoint_id=checkpoint)
    cairn.convert(checkpoint, tmp_path / "ours.pt", to="torch")
    assert not torch.load(tmp_path / "ours.pt", weights_only=True)["w"].requires_grad
    cairn.convert(save(state, tmp_path / "in.pt"), tmp_path / "out.pt", to="torch")
    assert torch.load(tmp_path / "out.pt", weights_only=True)["w"].requires_grad
