"""What a conversion keeps of a state, what it leaves out, and what it warns of."""

from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed.checkpoint as dcp
from cairn.format_utils import dcp_to_torch_save, torch_save_to_dcp
from tool import CHECK_FAILED, OK, USAGE, json_of, run

import cairn
from cairn._torch_names import replacements


def trained() -> tuple[torch.nn.Module, torch.optim.Adam]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    adam = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    adam.step()
    return model, adam


def written(state: dict[str, Any], file: Path) -> Path:
    torch.save(state, file)
    return file


def load(file: Path) -> Any:
    return torch.load(file, weights_only=True)


def test_an_optimizer_continues_from_a_converted_file(tmp_path: Path) -> None:
    model, adam = trained()
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)  # without a step its state is an empty dict
    state = {"adam": adam.state_dict(), "sgd": sgd.state_dict(), "model": model.state_dict()}
    written(state, tmp_path / "a.pt")
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch")
    assert report.warnings == ()
    through = cairn.convert(tmp_path / "a.pt", tmp_path / "dcp", to="dcp")
    assert len(through.warnings) == 1
    assert "model (OrderedDict)" in through.warnings[0]
    assert cairn.convert(tmp_path / "dcp", tmp_path / "again", to="dcp").warnings == ()
    assert cairn.convert(tmp_path / "again", tmp_path / "c.pt", to="torch").warnings == ()
    for name in ("b.pt", "c.pt"):
        found = load(tmp_path / name)
        fresh = torch.optim.Adam(model.parameters())
        fresh.load_state_dict(found["adam"])
        for parameter, expected in adam.state.items():
            assert fresh.state[parameter].keys() == expected.keys()
            assert torch.equal(fresh.state[parameter]["exp_avg"], expected["exp_avg"])
        torch.optim.SGD(model.parameters(), lr=0.1).load_state_dict(found["sgd"])
        assert found["sgd"]["state"] == {}
        model.load_state_dict(found["model"])
    kept = load(tmp_path / "b.pt")
    assert type(kept["model"]) is OrderedDict
    assert kept["model"]._metadata == state["model"]._metadata
    assert [*kept["sgd"]] == [*state["sgd"]]


def test_keys_of_every_plain_type_and_empty_containers_stay(tmp_path: Path) -> None:
    tensor = torch.ones(2)
    state = {
        "first": {},
        "keys": {0: 1, True: {"t": tensor}, None: 3, 2.5: 4, (1, "x"): 5, -7: {}, 2**70: 6},
        "list": [{}, tensor, [], {3: {}}],
        "lists": [],
        "ordered": OrderedDict([("b", OrderedDict()), ("a", 2)]),
        "last": OrderedDict(),
    }
    state["keys"].pop(True)
    written(state, tmp_path / "a.pt")
    assert cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch").warnings == ()
    found = load(tmp_path / "b.pt")
    assert [*found] == [*state]
    assert [*found["keys"]] == [*state["keys"]]
    assert repr(found) == repr(state)
    cairn.convert(tmp_path / "a.pt", tmp_path / "dcp", to="dcp")
    target = {"lists": None, "ordered": {"a": 0}}
    dcp.load(target, checkpoint_id=tmp_path / "dcp", no_dist=True)  # stock passes over the additional value
    assert target == {"lists": [], "ordered": {"a": 2}}
    cairn.convert(tmp_path / "dcp", tmp_path / "c.pt", to="torch")
    plain = {**state, "ordered": {"b": {}, "a": 2}, "last": {}}
    assert repr(load(tmp_path / "c.pt")) == repr(plain)
    assert run("diff", tmp_path / "a.pt", tmp_path / "dcp").returncode == OK


def test_the_order_of_keys_stays_through_dcp(tmp_path: Path) -> None:
    ones = torch.ones(1)
    state = {"a": 1, "w": ones, "none": {}, "c": "x", "b": {"q": 5, "deep": {"e": {}, "t": ones}, "u": 6}, "z": ones}
    written(state, tmp_path / "a.pt")
    for files in (1, 3):
        cairn.convert(tmp_path / "a.pt", tmp_path / "dcp", to="dcp", file_count=files, overwrite=True)
        cairn.convert(tmp_path / "dcp", tmp_path / "again", to="dcp", overwrite=True)
        cairn.convert(tmp_path / "again", tmp_path / "b.pt", to="torch", overwrite=True)
        assert repr(load(tmp_path / "b.pt")) == repr(state)
    flat = {key: value for key, value in state.items() if key not in ("none", "b")}
    cairn.save(flat, checkpoint_id=tmp_path / "saved")
    cairn.convert(tmp_path / "again", tmp_path / "copy", to="dcp", exclude=["b"])
    assert [key for key in cairn.open(tmp_path / "copy") if key in flat] == [*cairn.open(tmp_path / "saved")]
    torch_save_to_dcp(tmp_path / "a.pt", tmp_path / "ours")
    replacements.original("format_utils", "torch_save_to_dcp")(tmp_path / "a.pt", tmp_path / "stock")
    for name in ("ours", "stock"):
        dcp_to_torch_save(tmp_path / name, tmp_path / f"{name}.pt")
    assert repr(load(tmp_path / "ours.pt")) == repr(load(tmp_path / "stock.pt"))


def test_excluding_the_shape_value_needs_no_value_in_the_source(tmp_path: Path) -> None:
    written({"a": {1: torch.ones(1)}, "none": {}}, tmp_path / "a.pt")
    cairn.convert(tmp_path / "a.pt", tmp_path / "dcp", to="dcp", exclude=["__cairn_shape__"])
    assert [*cairn.open(tmp_path / "dcp")] == ["a.1"]


def test_renames_and_selections_carry_the_types_of_keys(tmp_path: Path) -> None:
    state = {"optim": {"state": {0: {"m": torch.ones(2)}, 1: {}}, "none": {}}, "other": {5: 1}}
    written(state, tmp_path / "a.pt")
    for middle in (tmp_path / "a.pt", tmp_path / "dcp"):
        if middle.name == "dcp":
            cairn.convert(tmp_path / "a.pt", middle, to="dcp")
        renames = {"optim.state": "adam.s"}
        cairn.convert(middle, tmp_path / "b.pt", to="torch", keys=["optim"], renames=renames, overwrite=True)
        found = load(tmp_path / "b.pt")
        assert repr(found) == repr({"adam": {"s": {0: {"m": torch.ones(2)}, 1: {}}}, "optim": {"none": {}}})


def test_the_classes_that_a_target_lacks_are_warned_of(tmp_path: Path) -> None:
    state = {"d": defaultdict(int, x=torch.ones(1)), "c": Counter(a=2), 7: torch.ones(1), "none": {}}
    written(state, tmp_path / "a.pt")
    (warning,) = cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch").warnings
    assert "d (a collections.defaultdict)" in warning
    assert "c (a collections.Counter)" in warning
    assert {type(load(tmp_path / "b.pt")[key]) for key in "dc"} == {dict}
    lost = cairn.convert(tmp_path / "a.pt", tmp_path / "dcp", to="dcp", keep_shape=False).warnings
    assert any("that are no text by text: '7'" in text for text in lost)
    assert any("lacks empty dicts: 'none'" in text for text in lost)
    assert "__cairn_shape__" not in cairn.open(tmp_path / "dcp")


def test_a_damaged_shape_is_an_error_that_exclude_avoids(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(1), "__cairn_shape__": 3}, checkpoint_id=tmp_path / "a")
    with pytest.raises(cairn.Corrupt, match="__cairn_shape__"):
        cairn.convert(tmp_path / "a", tmp_path / "b.pt", to="torch")
    cairn.convert(tmp_path / "a", tmp_path / "b.pt", to="torch", exclude=["__cairn_shape__"])
    assert [*load(tmp_path / "b.pt")] == ["a"]


def test_a_torch_target_has_no_bytes_of_keys_left_out(tmp_path: Path) -> None:
    flat = torch.arange(24, dtype=torch.uint8)
    flat[16:] = torch.tensor(list(b"SECRET!!"), dtype=torch.uint8)
    both = flat.view(4, 6)
    state = {"a": flat[:8], "b": flat[8:16], "inner": flat[2:4], "secret": flat[16:], "column": both[:, 0]}
    written(state, tmp_path / "a.pt")
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch", exclude=["secret", "column"])
    assert [(set(keys), stay) for keys, stay in report.tied] == [({"a", "inner"}, True)]
    found = load(tmp_path / "b.pt")
    assert b"SECRET" not in (tmp_path / "b.pt").read_bytes()
    assert all(torch.equal(found[key], state[key]) for key in found)
    assert found["a"].untyped_storage().data_ptr() == found["inner"].untyped_storage().data_ptr()
    assert found["a"].untyped_storage().nbytes() == found["b"].untyped_storage().nbytes() == 8
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "c.pt", to="torch", keys=["a", "column"])
    assert b"SECRET" not in (tmp_path / "c.pt").read_bytes()
    assert [stay for _, stay in report.tied] == [False]
    assert torch.equal(load(tmp_path / "c.pt")["column"], state["column"])


def test_equal_windows_with_gaps_stay_tied(tmp_path: Path) -> None:
    whole = torch.arange(100.0).view(10, 10)
    part = whole[:, 3:5]
    written({"a": part, "b": part, "whole": whole}, tmp_path / "a.pt")
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch", keys=["a", "b"])
    assert [(set(keys), stay) for keys, stay in report.tied] == [({"a", "b"}, True)]
    found = load(tmp_path / "b.pt")
    assert torch.equal(found["a"], part)
    assert torch.equal(found["b"], part)
    assert found["a"].untyped_storage().nbytes() == 80
    assert found["a"].untyped_storage().data_ptr() == found["b"].untyped_storage().data_ptr()
    cairn.convert(tmp_path / "a.pt", tmp_path / "c.pt", to="torch")
    assert len({tensor.untyped_storage().data_ptr() for tensor in load(tmp_path / "c.pt").values()}) == 1


def test_values_that_a_dtype_cannot_hold_are_warned_of(tmp_path: Path) -> None:
    state = {
        "w": torch.tensor([70000.0, -70000.0, 1e-9, 0.5]),
        "infinite": torch.tensor([float("inf"), 0.0, 0.5]),
        "step": torch.tensor(1001.0),
        "fine": torch.randn(1000),
    }
    cairn.save(state, checkpoint_id=tmp_path / "a")
    half = cairn.convert(tmp_path / "a", tmp_path / "half", to="dcp", dtype=torch.float16).warnings
    (text,) = half
    assert "'w' as float16: 2 elements beyond" in text
    assert "1 element below" in text
    (text,) = cairn.convert(tmp_path / "a", tmp_path / "bf16.pt", to="torch", dtype="bfloat16").warnings
    assert "'step' as bfloat16: 1 element with whole numbers" in text
    cairn.save({f"k{i:02}": torch.tensor(1001.0) for i in range(20)}, checkpoint_id=tmp_path / "many")
    many = cairn.convert(tmp_path / "many", tmp_path / "many.safetensors", to="safetensors", dtype="bfloat16").warnings
    assert len(many) == 9
    assert "12 more tensors" in many[-1]


def test_a_dtype_for_some_keys(tmp_path: Path) -> None:
    cairn.save({"model": {"w": torch.ones(2)}, "optim": {"step": torch.tensor(1001.0)}}, checkpoint_id=tmp_path / "a")
    found = json_of("convert", tmp_path / "a", tmp_path / "b.pt", "--dtype", "model=bf16")
    assert found["warnings"] == []
    loaded = load(tmp_path / "b.pt")
    assert (loaded["model"]["w"].dtype, loaded["optim"]["step"].dtype) == (torch.bfloat16, torch.float32)
    dtypes = {"optim": torch.float64, "*": "float16"}
    cairn.convert(tmp_path / "a", tmp_path / "c.pt", to="torch", dtype=dtypes)
    loaded = load(tmp_path / "c.pt")
    assert (loaded["model"]["w"].dtype, loaded["optim"]["step"].dtype) == (torch.float16, torch.float64)
    assert run("convert", tmp_path / "a", tmp_path / "d.pt", "--dtype", "x=bf16").returncode == CHECK_FAILED
    assert run("convert", tmp_path / "a", tmp_path / "d.pt", "--dtype", "bf16", "--dtype", "fp16").returncode == USAGE


def test_packed_floats_and_scales_stay_and_are_named(tmp_path: Path) -> None:
    raw = torch.arange(8, dtype=torch.uint8)
    state = {
        "packed": raw.view(torch.float4_e2m1fn_x2),
        "scale": raw.view(torch.float8_e8m0fnu),
        "q.weight": raw.view(torch.float8_e4m3fn),
        "q.weight_scale_inv": torch.ones(1),
        "w": torch.ones(3),
    }
    written(state, tmp_path / "a.pt")
    report = cairn.convert(tmp_path / "a.pt", tmp_path / "b.safetensors", to="safetensors", dtype=torch.bfloat16)
    named, scaled = report.warnings
    assert "'packed', 'scale'" in named
    assert "'q.weight'" in scaled
    found = cairn.open(tmp_path / "b.safetensors", tensors="torch")
    assert found["packed"].dtype == torch.float4_e2m1fn_x2
    assert found["scale"].view(torch.uint8).tolist() == raw.tolist()
    assert {found["q.weight"].dtype, found["w"].dtype} == {torch.bfloat16}


def test_exclude_leaves_values_out_of_a_model(tmp_path: Path) -> None:
    model = {"a.w": torch.ones(2), "a._extra_state": {"x": 1}, "b.w": torch.ones(2)}
    torch.save(model, tmp_path / "a.pt")
    refused = run("convert", tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert b"--exclude" in refused.stderr
    found = json_of("convert", tmp_path / "a.pt", tmp_path / "b.safetensors", "--exclude", "*._extra_state")
    assert (found["tensors"], found["values"]) == (2, 0)
    cairn.convert(tmp_path / "a.pt", tmp_path / "c", to="dcp", keys=["a"], exclude=["*._extra_state"])
    assert [*cairn.open(tmp_path / "c")] == ["a.w"]
    with pytest.raises(cairn.MissingKey, match="nothing"):
        cairn.convert(tmp_path / "a.pt", tmp_path / "d", to="dcp", exclude=["nothing*"])


@pytest.mark.parametrize("to", ["dcp", "torch"])
def test_a_rename_into_the_place_of_a_tensor_is_refused(to: Any, tmp_path: Path) -> None:
    written({"m": {"x": torch.ones(1)}, "w": torch.ones(1), "list": [torch.ones(1)]}, tmp_path / "a.pt")
    for renames in ({"m": "w"}, {"m": "list"}):
        with pytest.raises(cairn.InvalidArgument, match="nested place") as raised:
            cairn.convert(tmp_path / "a.pt", tmp_path / "b", to=to, renames=renames)
        assert raised.value.key in ("w", "list.0", "m.x")
    assert not (tmp_path / "b").exists()


def test_numbers_out_of_range_and_units_in_small_letters(tmp_path: Path) -> None:
    cairn.save({"a": torch.ones(300), "b": torch.ones(300)}, checkpoint_id=tmp_path / "a")
    for number in ({"thread_count": -1}, {"thread_count": 0}, {"file_count": 0}, {"max_shard_bytes": -1}):
        with pytest.raises(ValueError, match=next(iter(number))):
            cairn.convert(tmp_path / "a", tmp_path / "b", to="dcp", **number)  # type: ignore[arg-type]
    words = ("--to", "safetensors", "--max-shard-size", "2kb")
    assert len(json_of("convert", tmp_path / "a", tmp_path / "hf", *words)["files"]) == 3


def test_a_damaged_value_of_a_stock_checkpoint_is_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    stock.save({"w": torch.ones(3), "v": slice(torch.arange(4), 2)}, source)
    (file,) = source.glob("*.distcp")
    whole = file.read_bytes()
    (place,) = (place for index, place in stock.metadata_of(source).storage_data.items() if index.fqn == "v")
    begin, end = place.offset, place.offset + place.length
    name = whole.rindex(b"data/0", begin, end)
    signature, in_directory, content = begin, name, whole.index(b"data.pkl", begin) + 80
    for offset in (signature, in_directory, content):
        damaged = bytearray(whole)
        damaged[offset] ^= 1
        file.write_bytes(damaged)
        assert cairn.verify(source).problems
        with pytest.raises(cairn.Corrupt):
            cairn.convert(source, tmp_path / "copy", to="dcp")
        assert not (tmp_path / "copy" / ".metadata").exists()
    file.write_bytes(whole)
    cairn.convert(source, tmp_path / "copy", to="dcp")


def test_a_list_that_lacks_a_part_gives_a_warning(tmp_path: Path) -> None:
    """DCP has no empty dicts: the parts behind keep their positions, and the place has None."""
    state = {"l": [{}, 1, torch.ones(2)], "n": {"m": [[torch.ones(1), 2], 3]}, "whole": [torch.ones(1), 4]}
    dcp.save(state, checkpoint_id=tmp_path / "a", no_dist=True)
    report = cairn.convert(tmp_path / "a", tmp_path / "a.pt", to="torch", exclude=["n.m.0.0"])
    found = torch.load(tmp_path / "a.pt")
    assert found["l"][:2] == [None, 1]
    assert found["n"]["m"] == [[None, 2], 3]
    [warning] = report.warnings
    assert warning.endswith("that the target lacks: 'l', 'n.m.0'")
    torch.save(state, tmp_path / "b.pt")
    assert cairn.convert(tmp_path / "b.pt", tmp_path / "out.pt", to="torch").warnings == ()
    assert cairn.convert(tmp_path / "b.pt", tmp_path / "b", to="dcp").warnings == ()
    assert cairn.convert(tmp_path / "b", tmp_path / "again.pt", to="torch").warnings == ()
    assert torch.load(tmp_path / "again.pt")["l"][0] == {}
