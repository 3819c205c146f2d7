"""Values that name storages outside plain tensors: quantised models, subclasses, jagged tensors, storages, modules.

A value is compared and copied with all bytes that it refers to.
"""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tool
import torch
import torch.distributed.checkpoint as dcp

import cairn

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["archive", "legacy"])


class Plain(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A tensor that holds two plain tensors, as torchao's are."""

    inner: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, scale: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, inner: torch.Tensor, scale: torch.Tensor) -> None:
        self.inner, self.scale = inner, scale

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, Any]:
        return Wrapper, (self.inner, self.scale)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        raise NotImplementedError


def quantised(sign: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        return torch.quantize_per_tensor(sign * torch.arange(1.0, 65.0), 0.5, 0, torch.qint8)


def packed(sign: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        channels = torch.quantize_per_channel(
            sign * torch.arange(1.0, 17.0).reshape(4, 4), torch.full((4,), 0.5), torch.zeros(4).long(), 0, torch.qint8
        )
    return channels, None


def jagged(sign: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [sign * torch.arange(1.0, 4.0), sign * torch.arange(2.0)]
        return torch.nested.nested_tensor(rows, layout=torch.jagged)


def module(sign: int) -> Any:
    linear = torch.nn.Linear(2, 3)
    torch.nn.init.constant_(linear.weight, float(sign))
    torch.nn.init.constant_(linear.bias, float(sign))
    return linear


# Each makes an object whose bytes depend on the sign, and returns it; the second function gives tensors to compare.
KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], list[torch.Tensor]]]] = {
    "quantised tensor in a tuple": (lambda sign: (quantised(sign), 1), lambda made: [made[0].int_repr()]),
    "packed parameters": (packed, lambda made: [made[0].int_repr(), made[0].q_per_channel_scales()]),
    "subclass": (
        lambda sign: (sign * torch.arange(1.0, 9.0)).as_subclass(Plain),
        lambda made: [made.as_subclass(torch.Tensor)],
    ),
    "wrapper": (
        lambda sign: Wrapper(sign * torch.arange(1.0, 9.0), torch.ones(1)),
        lambda made: [made.inner, made.scale],
    ),
    "jagged": (jagged, lambda made: list(made.unbind())),
    "typed storage": (
        lambda sign: (sign * torch.arange(1.0, 9.0)).storage(),
        lambda made: [torch.tensor(made.tolist())],
    ),
    "untyped storage": (
        lambda sign: ((sign * torch.arange(1.0, 9.0)).untyped_storage(),),
        lambda made: [torch.frombuffer(bytearray(bytes(made[0])), dtype=torch.float32)],
    ),
    "module": (module, lambda made: list(made.state_dict().values())),
}
# torch has no legacy form of an UntypedStorage.
LEGACY = [kind for kind in KINDS if kind != "untyped storage"]


def save(state: Any, file: Path, zipped: bool = True) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(state, file, _use_new_zipfile_serialization=zipped)
    return file


def load(file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(file, weights_only=False)


def cases() -> list[Any]:
    return [pytest.param(kind, True, id=f"{kind}, archive") for kind in KINDS] + [
        pytest.param(kind, False, id=f"{kind}, legacy") for kind in LEGACY
    ]


@pytest.mark.parametrize(("kind", "zipped"), cases())
def test_a_difference_in_the_bytes_alone_is_found(kind: str, zipped: bool, tmp_path: Path) -> None:
    make, _ = KINDS[kind]
    a = save({"x": make(1), "n": 1}, tmp_path / "a.pt", zipped)
    same = save({"first": torch.ones(7), "x": make(1), "n": 1}, tmp_path / "same.pt")  # other names of records
    b = save({"x": make(-1), "n": 1}, tmp_path / "b.pt", zipped)
    assert [found.key for found in cairn.diff(a, b).differences] == ["x"]
    assert not cairn.diff(a, a)
    assert [found.key for found in cairn.diff(a, same).differences] == ["first"]


@pytest.mark.parametrize(("kind", "zipped"), cases())
def test_a_conversion_copies_all_bytes_or_refuses_the_key(kind: str, zipped: bool, tmp_path: Path) -> None:
    make, tensors_of = KINDS[kind]
    state = {"w": torch.arange(3.0), "x": make(1)}
    source = save(state, tmp_path / "source.pt", zipped)
    for target, options in (("out.pt", {"to": "torch"}), ("dcp", {"to": "dcp"})):
        with pytest.raises(cairn.Error, match="'x'"):
            cairn.convert(source, tmp_path / target, **options)  # type: ignore[arg-type]
        assert not (tmp_path / target).exists()
        cairn.convert(source, tmp_path / target, allow_pickle=True, **options)  # type: ignore[arg-type]
        assert not cairn.diff(source, tmp_path / target)
        assert cairn.verify(tmp_path / target)
    copy = load(tmp_path / "out.pt")
    assert type(copy["x"]) is type(state["x"])
    for expected, found in zip(tensors_of(state["x"]), tensors_of(copy["x"]), strict=True):
        assert torch.equal(expected.detach(), found.detach())
    found_in_dcp: dict[str, Any] = {"x": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cairn.load(found_in_dcp, checkpoint_id=tmp_path / "dcp", allow_pickle=True)
    for expected, found in zip(tensors_of(state["x"]), tensors_of(found_in_dcp["x"]), strict=True):
        assert torch.equal(expected.detach(), found.detach())
    # The same value from a DCP checkpoint.
    cairn.convert(tmp_path / "dcp", tmp_path / "back.pt", to="torch", allow_pickle=True)
    assert not cairn.diff(source, tmp_path / "back.pt")
    for expected, found in zip(tensors_of(state["x"]), tensors_of(load(tmp_path / "back.pt")["x"]), strict=True):
        assert torch.equal(expected.detach(), found.detach())


def test_the_bytes_of_values_in_two_dcp_checkpoints_are_compared(tmp_path: Path) -> None:
    for name, sign in (("a", 1), ("b", -1)):
        source = save({"w": torch.ones(2), "x": KINDS["subclass"][0](sign)}, tmp_path / f"{name}.pt")
        cairn.convert(source, tmp_path / name, to="dcp", allow_pickle=True)
    assert [found.key for found in cairn.diff(tmp_path / "a", tmp_path / "b").differences] == ["x"]
    assert tool.run("diff", tmp_path / "a", tmp_path / "b").returncode == tool.CHECK_FAILED
    assert "<tensor float32 [8]>" in tool.text_of("cat", tmp_path / "a", "x")


def test_an_eagerly_quantised_model(tmp_path: Path) -> None:
    def saved(sign: int, file: Path) -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = torch.nn.Sequential(torch.ao.nn.quantized.Linear(8, 8))
            weight = torch.quantize_per_tensor(sign * torch.arange(1.0, 65.0).reshape(8, 8), 0.5, 0, torch.qint8)
            model[0].set_weight_bias(weight, torch.ones(8))  # type: ignore[operator]
        return save(model.state_dict(), file)

    a, b = saved(1, tmp_path / "a.pt"), saved(-1, tmp_path / "b.pt")
    assert [found.key for found in cairn.diff(a, b).differences] == ["0._packed_params._packed_params"]
    with pytest.raises(cairn.Error, match="_packed_params"):
        cairn.convert(a, tmp_path / "out.pt", to="torch")
    cairn.convert(a, tmp_path / "out.pt", to="torch", allow_pickle=True)
    expected, found = load(a), load(tmp_path / "out.pt")
    name = "0._packed_params._packed_params"
    assert torch.equal(expected[name][0].int_repr(), found[name][0].int_repr())
    assert torch.equal(expected[name][1], found[name][1])


@FORMATS
def test_a_module_that_names_one_storage_many_times_stays_small_and_tied(zipped: bool, tmp_path: Path) -> None:
    flat = torch.arange(1 << 18, dtype=torch.float32)
    views = [flat[i * 16 : (i + 1) * 16].as_subclass(Plain) for i in range(512)]
    source = save({"views": views, "again": views[0]}, tmp_path / "source.pt", zipped)  # 1 MiB, named 513 times
    assert not cairn.diff(source, source)
    cairn.convert(source, tmp_path / "out.pt", to="torch", allow_pickle=True)
    assert (tmp_path / "out.pt").stat().st_size < 1.2 * source.stat().st_size
    copy = load(tmp_path / "out.pt")
    assert copy["views"][0] is copy["again"]
    assert len({view.untyped_storage().data_ptr() for view in copy["views"]}) == 1


def rewritten(file: Path, change: Callable[[str, bytes], tuple[str, bytes] | None], extra: dict[str, bytes]) -> Path:
    target = file.with_name("changed.pt")
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w") as out:
        for name in source.namelist():
            kept = change(name, source.read(name))
            if kept is not None:
                out.writestr(*kept)
        for name, content in extra.items():
            out.writestr(source.namelist()[0].split("/")[0] + "/" + name, content)
    return target


def test_a_record_that_no_key_names_fails_the_conversion_by_name(tmp_path: Path) -> None:
    source = save({"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "source.pt")
    for record in ("data/77", "extra/notes.json"):
        changed = rewritten(source, lambda name, content: (name, content), {record: b"abcd"})
        for target, form in (("out.pt", "torch"), ("dcp", "dcp"), ("out.safetensors", "safetensors")):
            with pytest.raises(cairn.Error, match=record):
                cairn.convert(changed, tmp_path / target, to=form)  # type: ignore[arg-type]
            assert not (tmp_path / target).exists()
    cairn.convert(source, tmp_path / "b.pt", to="torch", keys=["b"])  # left out by the selection


@pytest.mark.parametrize("kind", ["tensor", "parameter"])
def test_attributes_of_tensors_are_kept_in_a_torch_file_and_not_lost_without_a_word(kind: str, tmp_path: Path) -> None:
    attributed: Any = torch.nn.Parameter(torch.ones(2)) if kind == "parameter" else torch.ones(2)
    other = torch.zeros(3)
    attributed.extra, attributed.other, attributed.note = torch.arange(5.0), other, "text"
    source = save({"v": (other, 1), "a": attributed, "again": attributed, "b": other}, tmp_path / "source.pt")
    report = cairn.convert(source, tmp_path / "out.pt", to="torch")
    assert report.warnings == ()
    found = torch.load(tmp_path / "out.pt")
    assert type(found["a"]) is type(attributed)
    assert found["a"] is found["again"]
    assert found["a"].other is found["b"] is found["v"][0]
    assert torch.equal(found["a"].extra, torch.arange(5.0))
    assert found["a"].note == "text"
    assert torch.equal(found["a"].detach(), torch.ones(2))
    assert not cairn.diff(source, tmp_path / "out.pt")
    found = torch.load(cairn_converted(source, dtype="bfloat16"))
    assert (found["a"].dtype, found["a"].extra.dtype) == (torch.bfloat16, torch.float32)

    # No other format has attributes.
    for target, form in (("dcp", "dcp"), ("out.safetensors", "safetensors")):
        with pytest.raises(cairn.Error, match=r"'a'.*record data/"):
            cairn.convert(source, tmp_path / target, to=form, exclude=["v"])  # type: ignore[arg-type]
        cairn.convert(source, tmp_path / target, to=form, keys=["b"], overwrite=True)  # type: ignore[arg-type]
    report = cairn.convert(source, tmp_path / "left_out", to="dcp", exclude=["__cairn_shape__"])
    assert any("outside all its tensors" in warning and "attributes of a" in warning for warning in report.warnings)
    assert any("attributes of these tensors" in warning and "'a'" in warning for warning in report.warnings)
    del attributed.extra, attributed.other
    report = cairn.convert(save({"a": attributed}, tmp_path / "text.pt"), tmp_path / "text", to="dcp")
    assert any("attributes of these tensors" in warning and "'a'" in warning for warning in report.warnings)


class Opaque:
    """A class that torch.load(weights_only=True) refuses."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def cairn_converted(source: Path, **options: Any) -> Path:
    cairn.convert(source, source.with_name("converted.pt"), to="torch", overwrite=True, **options)
    return source.with_name("converted.pt")


def test_an_attribute_that_is_no_plain_data_is_not_lost_without_a_word(tmp_path: Path) -> None:
    attributed: Any = torch.ones(2)
    attributed.extra = Opaque(torch.arange(5.0))
    source = save({"a": attributed, "b": torch.zeros(3)}, tmp_path / "source.pt")
    with pytest.raises(cairn.Error, match=r"'a'.*record data/"):
        cairn.convert(source, tmp_path / "out.pt", to="torch")
    assert list(torch.load(cairn_converted(source, exclude=["a"]))) == ["b"]


def test_attributes_of_dicts_are_kept_in_a_torch_file_and_can_be_left_out(tmp_path: Path) -> None:
    model: Any = torch.nn.Linear(2, 2).state_dict()
    model._metadata["mean"] = torch.arange(5.0)
    model._metadata["weight"] = model["weight"]
    source = save({"model": model, "n": torch.zeros(3)}, tmp_path / "source.pt")
    report = cairn.convert(source, tmp_path / "out.pt", to="torch")
    assert report.warnings == ()
    found = torch.load(tmp_path / "out.pt")["model"]
    assert torch.equal(found._metadata["mean"], torch.arange(5.0))
    assert found._metadata["weight"] is found["weight"]
    assert not cairn.diff(source, tmp_path / "out.pt")

    with pytest.raises(cairn.Error, match=r"'model'.*record data/"):
        cairn.convert(source, tmp_path / "dcp", to="dcp")
    for number, options in enumerate(({"keys": ["model"]}, {"exclude": ["model"]}, {"exclude": ["__cairn_shape__"]})):
        cairn.convert(source, tmp_path / f"dcp{number}", to="dcp", **options)  # type: ignore[arg-type]


def test_diff_compares_attributes(tmp_path: Path) -> None:
    def saved(name: str, number: int, extra: Any) -> Path:
        model: Any = torch.nn.Linear(2, 2).state_dict()
        for tensor in model.values():
            tensor.zero_()
        model._metadata["number"] = number
        attributed: Any = torch.ones(2)
        if extra is not None:
            attributed.extra = extra
        return save({"model": model, "a": attributed}, tmp_path / name)

    source = saved("source.pt", 1, torch.arange(5.0))
    assert not cairn.diff(source, saved("same.pt", 1, torch.arange(5.0)))
    (found,) = cairn.diff(source, saved("dict.pt", 2, torch.arange(5.0))).differences
    assert (found.key, found.kind) == ("model._metadata", "value")
    for extra in (-torch.arange(5.0), "text", None):
        (found,) = cairn.diff(source, saved("tensor.pt", 1, extra)).differences
        assert (found.key, found.kind) == ("a", "value")
    # Plain attributes that only one file has are a part of the class, which no other format has; stored bytes are not.
    plain = {"model": dict(torch.load(source)["model"]), "a": torch.load(source)["a"]}
    torch.save(plain, tmp_path / "plain.pt")
    assert not cairn.diff(source, tmp_path / "plain.pt")
    with_tensor = torch.load(source)
    with_tensor["model"]._metadata["mean"] = torch.ones(1)
    torch.save(with_tensor, tmp_path / "mean.pt")
    (found,) = cairn.diff(tmp_path / "mean.pt", tmp_path / "plain.pt").differences
    assert (found.key, found.kind) == ("model._metadata", "only_in_a")
    assert not cairn.diff(tmp_path / "mean.pt", tmp_path / "plain.pt", keys=["a"])
    cairn.convert(source, tmp_path / "dcp", to="dcp", exclude=["a"])
    assert not cairn.diff(source, tmp_path / "dcp", keys=["model"])


def test_a_copy_of_all_bytes_warns_of_none(tmp_path: Path) -> None:
    base = torch.arange(100.0)
    state = {"x": Opaque(base[:10]), "y": (Opaque, base[5:20]), "w": torch.ones(3)}
    source = save(state, tmp_path / "source.pt")
    report = cairn.convert(source, tmp_path / "out.pt", to="torch", allow_pickle=True)
    assert report.warnings == ()
    found = load(tmp_path / "out.pt")
    assert found["x"].tensor.untyped_storage().data_ptr() == found["y"][1].untyped_storage().data_ptr()
    assert found["x"].tensor.untyped_storage().nbytes() == 400
    report = cairn.convert(source, tmp_path / "dcp", to="dcp", allow_pickle=True)
    (warning,) = report.warnings  # each value has a storage of its own
    assert "'x', 'y'" in warning
    assert "share elements" in warning
    # A plain value has copies of elements.
    source = save({"x": Opaque(base[:10]), "p": (base[5:20],)}, tmp_path / "plain.pt")
    report = cairn.convert(source, tmp_path / "out2.pt", to="torch", allow_pickle=True)
    assert any("'x'" in warning and "'p'" in warning and "share elements" in warning for warning in report.warnings)


@FORMATS
def test_bytes_outside_all_tensors_warn(zipped: bool, tmp_path: Path) -> None:
    base = torch.arange(100.0)
    columns = torch.arange(24.0).reshape(4, 6)
    state = {"head": base[:10], "tail": base[90:], "even": columns[:, ::2], "odd": columns[:, 1::2], "w": torch.ones(3)}
    source = save(state, tmp_path / "source.pt", zipped)
    report = cairn.convert(source, tmp_path / "dcp", to="dcp")
    (warning,) = [text for text in report.warnings if "outside all its tensors" in text]
    assert "'head (320 of 400 bytes" in warning
    assert "even" not in warning
    cairn.convert(source, tmp_path / "whole", to="dcp", keys=["w", "even"])
    report = cairn.convert(save({"t": columns.t()}, tmp_path / "t.pt", zipped), tmp_path / "t", to="dcp")
    assert report.warnings == ()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_copied_array_equals_its_source_for_every_protocol(protocol: int, tmp_path: Path) -> None:
    """Protocol 5 has an array as a bytearray, for which the copy of an earlier protocol has a call."""
    source, target = tmp_path / "s.pt", tmp_path / "t.pt"
    state: dict[str, Any] = {
        "v": [Path, np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros(0)]
    }
    torch.save(state, source, pickle_protocol=protocol)
    cairn.convert(source, target, to="torch", allow_pickle=True)
    assert not cairn.diff(source, target)
    found = torch.load(target, weights_only=False)["v"]
    assert all(np.array_equal(a, b) for a, b in zip(found[1:], state["v"][1:], strict=True))
    state["v"][1][1, 2] = -5.0
    torch.save(state, source, pickle_protocol=protocol)
    assert [difference.key for difference in cairn.diff(source, target).differences] == ["v"]


def quantised_pair(values: list[float], scale: float = 0.5, zero: int = 0) -> dict[str, torch.Tensor]:
    scales, zeros = torch.full((2,), scale), torch.full((2,), zero)
    tensor = torch.tensor(values).reshape(2, -1)
    return {
        "tensor": torch.quantize_per_tensor(tensor, scale, zero, torch.qint8),
        "channel": torch.quantize_per_channel(tensor, scales, zeros, 0, torch.qint8),
    }


def test_one_tensor_that_only_torch_reads_is_equal_in_the_files_of_all_writers(tmp_path: Path) -> None:
    """Each writer numbers the parts of a pickle, and names its records, in its own way."""
    state = quantised_pair([1.0, 2.0, 3.0, -4.0])
    dcp.save(state, checkpoint_id=tmp_path / "stock", no_dist=True)
    cairn.save(state, checkpoint_id=tmp_path / "cairn", no_dist=True)
    torch.save(state, tmp_path / "file.pt")
    cairn.convert(tmp_path / "file.pt", tmp_path / "copy", to="dcp")
    cairn.convert(tmp_path / "stock", tmp_path / "copy.pt", to="torch", allow_pickle=True)
    names = ["stock", "cairn", "file.pt", "copy", "copy.pt"]
    assert not [(a, b) for a in names for b in names if cairn.diff(tmp_path / a, tmp_path / b)]
    others: list[dict[str, Any]] = [
        {"values": [1.0, 2.0, 3.0, -4.5]},
        {"values": [2.0, 4.0, 6.0, -8.0], "scale": 1.0},
        {"values": [0.5, 1.5, 2.5, -4.5], "zero": 1},
    ]
    for i, options in enumerate(others):
        other = quantised_pair(**options)
        torch.save(other, tmp_path / f"other{i}.pt")
        dcp.save(other, checkpoint_id=tmp_path / f"other{i}", no_dist=True)
        for name in names:
            for changed in (f"other{i}.pt", f"other{i}"):
                found = cairn.diff(tmp_path / name, tmp_path / changed)
                assert sorted(difference.key for difference in found.differences) == sorted(state)
