"""Values in files of ``torch.save``: repeated texts, files of Python 2, inner tensors, and torch's own values."""

import pickle
import types
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed.checkpoint as dcp
from same import assert_same
from torch.distributed.checkpoint.api import CheckpointException

import cairn


def written(state: Any, file: Path, **options: Any) -> Path:
    torch.save(state, file, **options)
    return file


def load(file: Path) -> Any:
    return torch.load(file, weights_only=True)


def bytes_read() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


def test_a_long_text_that_a_list_repeats_is_stored_once(tmp_path: Path) -> None:
    texts = [letter * 180 for letter in "abc"]
    state = {"labels": [texts[i % 3] for i in range(20000)], "w": torch.ones(2)}
    file = written(state, tmp_path / "a.pt")
    opened = cairn.open(file)["labels"]
    assert opened == state["labels"]
    assert len({id(text) for text in opened}) == 3
    cairn.convert(file, tmp_path / "dcp", to="dcp")
    cairn.convert(tmp_path / "dcp", tmp_path / "b.pt", to="torch")
    assert load(tmp_path / "b.pt")["labels"] == state["labels"]
    assert (tmp_path / "b.pt").stat().st_size < 2 * file.stat().st_size
    target: dict[str, Any] = {"labels": None}
    dcp.load(target, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert target["labels"] == state["labels"]


def test_texts_that_references_repeat_without_bound_are_refused(tmp_path: Path) -> None:
    state = {"labels": ["x" * 100000] * 100000}
    with pytest.raises(cairn.UnsafeContent, match="refers to the same objects too often"):
        cairn.open(written(state, tmp_path / "a.pt"))["labels"]


class _PicklerOfPython2(pickle._Pickler):  # type: ignore[misc]
    """Writes ``str`` as Python 2 wrote it, and an OrderedDict with a list of its pairs."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def _save_str(self, text: str) -> None:
        encoded = text.encode()
        is_short = len(encoded) < 256
        size = bytes([len(encoded)]) if is_short else len(encoded).to_bytes(4, "little")
        self.write((b"U" if is_short else b"T") + size + encoded)
        self.memoize(text)

    dispatch[str] = _save_str

    def reducer_override(self, value: Any) -> Any:
        if type(value) is OrderedDict:
            return OrderedDict, ([list(pair) for pair in value.items()],)
        return NotImplemented


def _dump(value: Any, file: Any, protocol: int) -> None:
    _PicklerOfPython2(file, protocol).dump(value)


PYTHON_2: Any = types.ModuleType("pickle_of_python_2")
PYTHON_2.Pickler, PYTHON_2.dump = _PicklerOfPython2, _dump


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "legacy"])
def test_a_file_of_python_2_is_read(zipped: bool, tmp_path: Path) -> None:
    w = torch.randn(3, 4)
    model = OrderedDict([("w", w), ("tied", w), ("é", torch.arange(3)), ("step", 7), ("in", (OrderedDict(a=1),))])
    state = {"model": model, "arch": "resnet", "none": OrderedDict()}
    options = {"pickle_module": PYTHON_2, "_use_new_zipfile_serialization": zipped}
    file = written(state, tmp_path / "a.pt", **options)
    assert b"U\x06resnet" in file.read_bytes()
    assert_same(load(file), state)
    opened = cairn.open(file, tensors="torch")
    assert list(opened) == ["model.w", "model.tied", "model.é", "model.step", "model.in", "arch"]
    assert torch.equal(opened["model.tied"], w)
    assert opened["arch"] == "resnet"
    cairn.convert(file, tmp_path / "b.pt", to="torch")
    found = load(tmp_path / "b.pt")
    assert_same(found, state)
    assert found["model"]["w"].data_ptr() == found["model"]["tied"].data_ptr()
    written({"long": "x" * 300}, file, **options)
    assert cairn.open(file)["long"] == "x" * 300  # weights_only refuses this opcode of Python 2


def test_views_inside_values_are_read_and_checked_once(tmp_path: Path) -> None:
    """Each entry has tensors of its own in one storage of 20 MB."""
    whole = torch.arange(5_000_000.0)
    views = [{"t": (whole[i : i + 1], whole[i::100_000])} for i in range(0, 200, 2)]
    file = written({"list": views}, tmp_path / "a.pt")
    opened = cairn.open(file, tensors="torch")
    before = bytes_read()
    for i in range(0, 100, 10):
        one, strided = opened[f"list.{i}.t"]
        assert torch.equal(one, views[i]["t"][0])
        assert torch.equal(strided, views[i]["t"][1])
    del opened
    several_windows = 10 * 20_000_000
    assert bytes_read() - before < several_windows + 3 * 20_000_000
    dense = {"list": [{"t": (whole[i : i + 1],)} for i in range(200)]}
    file = written(dense, tmp_path / "b.pt")
    before = bytes_read()
    cairn.convert(file, tmp_path / "dcp", to="dcp")
    assert bytes_read() - before < 3 * 20_000_000
    content = bytearray(file.read_bytes())
    content[content.index(whole[1000:1100].numpy().tobytes())] ^= 1
    file.write_bytes(content)
    with pytest.raises(cairn.Corrupt, match="data/0 is damaged"):
        cairn.open(file)["list.0.t"]


ACCEPTED: dict[str, Any] = {
    "size": torch.Size((2, 3)),
    "none": torch.Size(()),
    "dtype": [torch.bfloat16, torch.float8_e4m3fn, torch.int4, torch.quint8],
    "device": {"all": (torch.device("cpu"), torch.device("cuda:1"))},
    "layout": (torch.sparse_coo, torch.per_channel_affine),
    "counter": (Counter("aab"), Counter()),
    "bytes": (bytearray(b"\x00\xff"), bytearray(), b"x"),
    "ordered": (OrderedDict(a=torch.Size((1,))), {1, 2}, 1 + 2j),
    "grad": (torch.ones(2, requires_grad=True), torch.zeros(1)),
    "parameter": [(torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(1), requires_grad=False))],
}


@pytest.mark.parametrize("protocol", [2, 4])
def test_all_values_that_weights_only_accepts_are_written_natively(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ACCEPTED["ordered"][0].attribute = torch.device("cpu")
    state = {"v": ACCEPTED, "w": torch.ones(2)}
    file = written(state, tmp_path / "a.pt", pickle_protocol=protocol)
    cairn.convert(file, tmp_path / "b.pt", to="torch")
    cairn.convert(file, tmp_path / "dcp", to="dcp")
    cairn.convert(tmp_path / "dcp", tmp_path / "c.pt", to="torch")
    with monkeypatch.context() as patched:
        patched.setattr(torch, "load", None)  # the engine alone converts
        cairn.format_utils.torch_save_to_dcp(file, tmp_path / "torch dcp")
        cairn.format_utils.dcp_to_torch_save(tmp_path / "torch dcp", tmp_path / "d.pt")
    for name in ("b.pt", "c.pt", "d.pt"):
        found = load(tmp_path / name)["v"]
        assert repr(found) == repr(ACCEPTED), name
        assert_same(found["grad"], ACCEPTED["grad"])
        assert [type(tensor) for tensor in found["parameter"][0]] == [torch.nn.Parameter] * 2
        assert [tensor.requires_grad for tensor in found["parameter"][0]] == [True, False]
        assert found["grad"][0].requires_grad
        assert found["ordered"][0].attribute == torch.device("cpu")
    target: dict[str, Any] = {"v": dict.fromkeys(ACCEPTED)}
    target["v"]["device"] = {"all": None}
    target["v"]["grad"] = target["v"]["counter"] = None
    cairn.load(target, checkpoint_id=tmp_path / "dcp")
    assert repr(target["v"]["size"]) == "torch.Size([2, 3])"
    assert target["v"]["device"] == ACCEPTED["device"]


class SizeOf:
    def __init__(self, callable_: Any, *arguments: Any) -> None:
        self.call = (callable_, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("call", [(torch.Size, [print]), (bytearray, "x", "rot13"), (torch.nn.Linear, 1, 1), (len, ())])
def test_another_call_is_refused(call: Any, tmp_path: Path) -> None:
    file = written({"v": (SizeOf(*call),)}, tmp_path / "a.pt")
    for to in ("torch", "dcp"):
        with pytest.raises(cairn.UnsafeContent, match="'v'"):
            cairn.convert(file, tmp_path / "target", to=to)  # type: ignore[arg-type]


def test_tensors_inside_values_that_stay_neither_tied_nor_converted_are_named(tmp_path: Path) -> None:
    w = torch.arange(12.0)
    state = {
        "w": w,
        "tied": (w,),
        "views": (w[:3], 1),
        "own": (torch.ones(2), torch.arange(2)),
        "int": (torch.arange(2),),
    }
    file = written(state, tmp_path / "a.pt")
    for to in ("torch", "dcp"):
        report = cairn.convert(file, tmp_path / f"target {to}", to=to, dtype="bfloat16")  # type: ignore[arg-type]
        assert any("keep their dtype: 'tied', 'views', 'own'" in text for text in report.warnings)
        assert any("are copies in the target: 'tied', 'views'" in text for text in report.warnings)
    assert cairn.convert(file, tmp_path / "other.pt", to="torch", keys=["own", "w"]).warnings == ()


def test_a_template_with_empty_dicts_is_filled_from_a_converted_checkpoint(tmp_path: Path) -> None:
    """Stock's load takes an empty dict in a list of the template for a missing key, also of its own checkpoints."""
    lists = [{}, {"a": torch.ones(2)}, [], {3: {}}, {"b": {}}]
    state = {
        "sgd": {"state": {}, "param_groups": [{"lr": 0.5, "params": [0]}]},
        "numbers": {7: torch.ones(3), 8: {}},
        "list": lists,
    }
    file = written(state, tmp_path / "a.pt")
    cairn.convert(file, tmp_path / "with shape", to="dcp")
    cairn.format_utils.torch_save_to_dcp(file, tmp_path / "without")
    dcp.save(state, checkpoint_id=tmp_path / "stock", no_dist=True)
    assert "__cairn_shape__" in cairn.open(tmp_path / "with shape")
    for checkpoint in (tmp_path / "with shape", tmp_path / "without", tmp_path / "stock"):
        template: dict[str, Any] = {
            "sgd": {"state": {}, "param_groups": [{"lr": 0, "params": None}]},
            "numbers": {7: torch.zeros(3), 8: {}},
        }
        dcp.load(template, checkpoint_id=checkpoint, no_dist=True)
        assert repr(template) == repr({key: state[key] for key in ("sgd", "numbers")})
        template["list"] = [{}, {"a": torch.zeros(2)}, None, {3: {}}, {"b": {}}]
        with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: list\.0"):
            dcp.load(template, checkpoint_id=checkpoint, no_dist=True)
        cairn.load(template, checkpoint_id=checkpoint)
        assert repr(template) == repr(state)


@pytest.mark.parametrize("form", ["torch", "dcp", "stock", "safetensors", "legacy"])
def test_a_read_of_rows_reads_only_the_rows(form: str, tmp_path: Path) -> None:
    w = torch.arange(4_000_000.0).reshape(4000, 1000)
    place = tmp_path / ("w.safetensors" if form == "safetensors" else "w")
    if form in ("torch", "legacy"):
        written({"w": w}, place, _use_new_zipfile_serialization=form == "torch")
    elif form == "stock":
        dcp.save({"w": w}, checkpoint_id=place, no_dist=True)
    elif form == "dcp":
        cairn.save({"w": w}, checkpoint_id=place)
    else:
        cairn.save({"w": w}, checkpoint_id=tmp_path / "dcp")
        cairn.convert(tmp_path / "dcp", place, to="safetensors")
    opened = cairn.open(place, tensors="torch")
    before = bytes_read()
    assert torch.equal(opened.read("w", slice(1000, 1002)), w[1000:1002])
    assert bytes_read() - before < 1_000_000
