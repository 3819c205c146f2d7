"""Objects that several keys of a file of torch.save share: their identity, their cost, and cycles."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tool
import torch

import cairn


class Cyclic:
    """As the hyperparameters of a Lightning checkpoint: refers to itself by way of other objects."""

    def __init__(self) -> None:
        self.children: list[Any] = [self]
        self.table: dict[str, Any] = {"parent": self, "w": torch.arange(4.0)}


def save(state: Any, file: Path, **options: Any) -> Path:
    torch.save(state, file, **options)
    return file


def converted(source: Path, **options: Any) -> Any:
    target = source.with_name("out.pt")
    cairn.convert(source, target, to="torch", overwrite=True, **options)
    return torch.load(target, weights_only=not options.get("allow_pickle"))


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "legacy"])
def test_one_object_under_two_keys_stays_one_object(zipped: bool, tmp_path: Path) -> None:
    tensor, parameter, values = torch.arange(4.0), torch.nn.Parameter(torch.ones(2)), [1, [2.5], ("a",)]
    state = {
        "a": tensor,
        "b": {"again": tensor, "inside": (tensor, 1)},
        "p": parameter,
        "q": [parameter, tensor],
        "values": values,
        "more": {"values": values},
    }
    found = converted(save(state, tmp_path / "s.pt", _use_new_zipfile_serialization=zipped))
    assert found["a"] is found["b"]["again"] is found["b"]["inside"][0] is found["q"][1]
    assert found["p"] is found["q"][0]
    assert found["values"] is found["more"]["values"]
    assert torch.equal(found["a"], tensor)
    assert found["values"] == values
    report = cairn.convert(tmp_path / "s.pt", tmp_path / "again.pt", to="torch")
    assert report.warnings == ()


@pytest.mark.parametrize("kind", ["tensor", "parameter", "requires_grad"])
def test_a_value_before_the_key_of_its_tensor_shares_the_bytes_of_the_key(kind: str, tmp_path: Path) -> None:
    tensor = torch.arange(1000.0)
    if kind == "parameter":
        tensor = torch.nn.Parameter(tensor)
    if kind == "requires_grad":
        tensor.requires_grad_()
    state = {"v": (tensor, 1), "w": [(tensor,)], "opaque": (Cyclic, tensor), "t": tensor, "after": (tensor,)}
    source = save(state, tmp_path / "s.pt")
    out = tmp_path / "out.pt"
    for options in ({"exclude": ["opaque"]}, {"allow_pickle": True}):
        report = cairn.convert(source, out, to="torch", overwrite=True, **options)  # type: ignore[arg-type]
        assert report.warnings == ()
        found = torch.load(out, weights_only=False)
        assert found["t"] is found["v"][0] is found["w"][0][0] is found["after"][0]
        assert type(found["t"]) is type(tensor)
        assert found["t"].requires_grad == tensor.requires_grad
        assert torch.equal(found["t"], tensor)
        assert out.stat().st_size < 1.5 * source.stat().st_size
        assert cairn.verify(out)
        cairn.convert(out, tmp_path / "again.pt", to="torch", overwrite=True, allow_pickle=True)
        assert not cairn.diff(source, tmp_path / "again.pt", keys=["v", "w", "t", "after"])
    assert found["opaque"][1] is found["t"]


def test_a_parameter_stays_a_parameter(tmp_path: Path) -> None:
    state = {
        "p": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "tensor": torch.ones(2, requires_grad=True),
        "tied": torch.nn.Parameter(torch.ones(3)),
    }
    state["view"] = state["tied"].detach()[1:]
    source = save(state, tmp_path / "s.pt")
    for found in (converted(source), converted(source, dtype="bfloat16")):
        assert [type(found[key]) for key in state] == [type(value) for value in state.values()]
        assert [found[key].requires_grad for key in state] == [value.requires_grad for value in state.values()]
        assert found["view"].untyped_storage().data_ptr() == found["tied"].untyped_storage().data_ptr()


def test_a_converted_tensor_does_not_change_the_same_tensor_inside_a_value(tmp_path: Path) -> None:
    tensor = torch.arange(4.0)
    found = converted(save({"a": tensor, "b": (tensor, 1)}, tmp_path / "s.pt"), dtype="bfloat16")
    assert (found["a"].dtype, found["b"][0].dtype) == (torch.bfloat16, torch.float32)


def test_a_cycle_is_copied_with_consent_or_its_key_can_be_left_out(tmp_path: Path) -> None:
    source = save({"w": torch.ones(2), "hparams": Cyclic()}, tmp_path / "s.pt")
    with pytest.raises(cairn.Error, match=r"'hparams'.*\(exclude=\.\.\.\).*\(allow_pickle=True\)"):
        cairn.convert(source, tmp_path / "out.pt", to="torch")
    refused = tool.run("convert", source, tmp_path / "out.pt", "--to", "torch")
    assert b"(--exclude)" in refused.stderr
    assert b"(--allow-pickle)" in refused.stderr
    assert list(converted(source, exclude=["hparams"])) == ["w"]
    found = converted(source, allow_pickle=True)["hparams"]
    assert found.children[0] is found
    assert found.table["parent"] is found
    assert torch.equal(found.table["w"], torch.arange(4.0))
    cairn.convert(source, tmp_path / "dcp", to="dcp", allow_pickle=True)
    in_dcp: dict[str, Any] = {"hparams": None}
    cairn.load(in_dcp, checkpoint_id=tmp_path / "dcp", allow_pickle=True)
    assert in_dcp["hparams"].children[0] is in_dcp["hparams"]
    assert not cairn.diff(source, tmp_path / "out.pt")
    other = Cyclic()
    other.table["w"] = -other.table["w"]
    changed = save({"w": torch.ones(2), "hparams": other}, tmp_path / "changed.pt")
    assert [difference.key for difference in cairn.diff(source, changed).differences] == ["hparams"]


def amplifier(file: Path, value: Any, keys: int) -> Path:
    """A file of torch.save with one value under many keys."""
    state = {f"k{i}": value for i in range(keys)}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    file.write_bytes(buffer.getvalue())
    return file


@pytest.mark.parametrize("kind", ["plain", "opaque"])
def test_one_value_under_many_keys_has_one_budget(kind: str, tmp_path: Path) -> None:
    value: Any = tuple(float(i) for i in range(4000))
    if kind == "opaque":
        value = (torch.arange(10_000.0).untyped_storage(),)
    source = amplifier(tmp_path / "s.pt", value, 3000)
    assert source.stat().st_size < 150_000
    with pytest.raises(cairn.UnsafeContent, match=r"values of the file together.*Select some of the keys"):
        cairn.convert(source, tmp_path / "out", to="dcp", allow_pickle=True)
    assert not (tmp_path / "out").exists()
    if kind == "opaque":  # a file of torch.save has the storage once
        cairn.convert(source, tmp_path / "out.pt", to="torch", allow_pickle=True)
        assert (tmp_path / "out.pt").stat().st_size < 300_000
    else:
        with pytest.raises(cairn.UnsafeContent):
            cairn.convert(source, tmp_path / "out.pt", to="torch")
        with pytest.raises(cairn.UnsafeContent):
            cairn.diff(source, source)
    cairn.convert(source, tmp_path / "some", to="dcp", keys=["k1", "k22"], allow_pickle=True)
    opened = cairn.open(source)
    for _ in range(300):  # one key counts once
        opened["k7"]


def test_a_pickle_of_protocol_1_is_read(tmp_path: Path) -> None:
    state = {
        "w": torch.arange(6.0).reshape(2, 3),
        "n": {"yes": True, "no": False, "long": 1 << 40, "longer": -(1 << 100), "small": -(1 << 31), "none": None},
        "many": list(range(300)),
        "text": "é" * 300,
        "bytes": b"abc" * 100,
        "set": {1, 2},
    }
    for zipped in (True, False):
        source = save(state, tmp_path / f"{zipped}.pt", pickle_protocol=1, _use_new_zipfile_serialization=zipped)
        plain = save(state, tmp_path / "plain.pt")
        assert not cairn.diff(source, plain)
        cairn.convert(source, tmp_path / f"dcp{zipped}", to="dcp")
        assert not cairn.diff(tmp_path / f"dcp{zipped}", plain)
        found = converted(source)
        assert found.pop("w").equal(state["w"])
        assert found == {key: value for key, value in state.items() if key != "w"}


def test_a_tensor_of_an_unknown_dtype_leaves_the_others_readable(tmp_path: Path) -> None:
    tensor = torch.ones(4).to(torch.float8_e8m0fnu)
    source = save({"a": torch.ones(2), "x": tensor, "n": (1, tensor)}, tmp_path / "s.pt")
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(tmp_path / "new.pt", "w") as out:
        for name in archive.namelist():
            out.writestr(name, archive.read(name).replace(b"float8_e8m0fnu", b"float9_e9m9xyz"))
    changed = tmp_path / "new.pt"
    assert cairn.verify(changed)
    found = {"a": torch.zeros(2)}
    cairn.load(found, checkpoint_id=changed)
    assert torch.equal(found["a"], torch.ones(2))
    with pytest.raises(cairn.Error, match="'x'"):
        cairn.convert(changed, tmp_path / "dcp", to="dcp")
    cairn.convert(changed, tmp_path / "dcp", to="dcp", exclude=["x", "n"])


def test_pickles_of_protocol_1_with_unusual_numbers(tmp_path: Path) -> None:
    items = {b"a": b"I-5", b"b": b"L0L", b"c": b"L-9223372036854775809L", b"d": b"I01"}
    text = b"}(" + b"".join(b"X\x01\x00\x00\x00" + key + item + b"\n" for key, item in items.items()) + b"u."
    assert pickle.loads(text) == {"a": -5, "b": 0, "c": -(1 << 63) - 1, "d": True}

    def with_pickle(content: bytes) -> Path:
        torch.save({}, tmp_path / "s.pt")
        with zipfile.ZipFile(tmp_path / "s.pt") as archive, zipfile.ZipFile(tmp_path / "new.pt", "w") as out:
            for name in archive.namelist():
                out.writestr(name, content if name.endswith("data.pkl") else archive.read(name))
        return tmp_path / "new.pt"

    assert dict(cairn.open(with_pickle(text))) == {"a": -5, "b": 0, "c": -(1 << 63) - 1, "d": True}
    for number in (b"I1x\n", b"L\n", b"I\n", b"L" + b"9" * 5000 + b"L\n"):
        with pytest.raises(cairn.Error, match="decimal"):
            cairn.open(with_pickle(b"}(X\x01\x00\x00\x00a" + number + b"u."))


def test_one_dict_or_list_under_two_keys_stays_one_object(tmp_path: Path) -> None:
    tensor = torch.arange(4.0)
    shared: dict[str, Any] = {"w": tensor, "n": 1, 5: {"deep": tensor}}
    listed = [tensor, {"m": 2}]
    state = {"v": (shared, 1), "a": shared, "b": {"again": shared}, "l": listed, "m": [listed]}
    source = save(state, tmp_path / "s.pt")
    found = converted(source)
    assert found["a"] is found["b"]["again"] is found["v"][0]
    assert found["l"] is found["m"][0]
    assert found["a"]["w"] is found["l"][0] is found["a"][5]["deep"]
    assert list(found["a"]) == ["w", "n", 5]
    assert cairn.convert(source, tmp_path / "again.pt", to="torch").warnings == ()
    assert not cairn.diff(source, tmp_path / "again.pt")

    # The one dict is no longer the other, or the target has another dict than the source.
    for options, has_one in (({"exclude": ["b.again.n"]}, True), ({"renames": {"b.again.n": "b.again.k"}}, True)):
        report = cairn.convert(source, tmp_path / "out.pt", to="torch", overwrite=True, **options)  # type: ignore[arg-type]
        found = torch.load(tmp_path / "out.pt")
        assert "n" in found["a"]
        assert "n" not in found["b"]["again"]
        assert any("'b.again'" in warning and "several" in warning for warning in report.warnings) == has_one
    cairn.convert(source, tmp_path / "out.pt", to="torch", overwrite=True, exclude=["*.n"])
    found = torch.load(tmp_path / "out.pt")
    assert "n" not in found["a"]
    assert found["v"][0]["n"] == 1


def test_a_dict_that_an_opaque_value_names_stays_without_the_excluded_keys(tmp_path: Path) -> None:
    shared = {"w": torch.arange(4.0), "n": 1}
    source = save({"first": (Cyclic, shared), "a": shared, "last": (Cyclic, shared)}, tmp_path / "s.pt")
    found = converted(source, allow_pickle=True)
    assert found["a"] is found["first"][1] is found["last"][1]
    found = converted(source, allow_pickle=True, exclude=["a.n"])
    assert list(found["a"]) == ["w"]
    assert found["first"][1] is found["last"][1]
    assert found["first"][1]["n"] == 1
    assert found["first"][1]["w"] is found["a"]["w"]
