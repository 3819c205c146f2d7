"""Keys of one dict that have the same text, and places with the same flat name: refused, or kept apart."""

from pathlib import Path
from typing import Any

import pytest
import stock
import torch
import torch.distributed as dist
from same import assert_same
from test_checkpointer import alone
from tool import CHECK_FAILED, run, text_of
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

import cairn

A, B = torch.ones(1), torch.zeros(1)

# Two keys each, and the words of the error.
TWINS: dict[str, tuple[Any, Any, str]] = {
    "int": (1, "1", "1 (int)"),
    "bool": (True, "True", "True (bool)"),
    "None": (None, "None", "None (NoneType)"),
    "float": (1.5, "1.5", "1.5 (float)"),
    "bytes": (b"x", "b'x'", "b'x' (bytes)"),
    "tuple": ((1, "a"), "(1, 'a')", "(1, 'a') (tuple)"),
}


def merged(first: Any, second: Any, *, nested: bool) -> dict[str, Any]:
    one, other = ({"a": A}, {"b": B}) if nested else (A, B)
    return {"state": {second: one, first: other}, "more": 3}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("twins", TWINS.values(), ids=TWINS)
def test_a_save_refuses_keys_with_one_text(twins: tuple[Any, Any, str], nested: bool, checkpoint: Path) -> None:
    first, second, words = twins
    state = merged(first, second, nested=nested)
    for save in (cairn.save, cairn.async_save):
        with pytest.raises(cairn.InvalidArgument) as caught:
            save(state, checkpoint_id=checkpoint)
        assert words in str(caught.value)
        assert f"{second!r} (str)" in str(caught.value)
        assert caught.value.key == f"state.{second}"
    assert not checkpoint.exists()


class OnePlanner(DefaultSavePlanner):
    """A planner of the caller: torch's code drives the save, and flattens the state."""

    def finish_plan(self, new_plan: Any) -> Any:
        return super().finish_plan(new_plan)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_every_way_to_save_refuses(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = merged(1, "1", nested=True)
    with pytest.raises(cairn.InvalidArgument, match="same text"):
        cairn.save(state, checkpoint_id=checkpoint, planner=OnePlanner())
    with pytest.raises(cairn.InvalidArgument, match="same text"):
        cairn.save({1: A, "1": B}, checkpoint_id=checkpoint, planner=DefaultSavePlanner(flatten_state_dict=False))
    with pytest.raises(cairn.InvalidArgument, match="same text"):
        alone().save(str(checkpoint), state)
    cairn.install()
    try:
        with pytest.raises(cairn.InvalidArgument, match="same text"):
            stock.dcp.save(state, checkpoint_id=checkpoint)
    finally:
        cairn.uninstall()


def test_keys_of_several_types_with_texts_of_their_own_are_saved(checkpoint: Path) -> None:
    state = {"state": {1: A, "2": B, None: A + 1, (1, 2): A + 2, 2.5: A + 3, b"x": A + 4, True + 2: A + 5}}
    cairn.save(state, checkpoint_id=checkpoint)
    target = {"state": {key: torch.full((1,), 9.0) for key in state["state"]}}
    stock.load(target, checkpoint)
    assert_same(target, state)


def test_distributed_tensors_with_one_flat_name_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = dist.init_device_mesh("cpu", (1,))
        one, other = (distribute_tensor(torch.full((4,), float(i)), mesh, [Shard(0)]) for i in range(2))
        state = {"a.b": one, "a": {"b": other}}
        for call in (cairn.save, cairn.load):
            with pytest.raises(cairn.InvalidArgument, match=r"duplicated flatten key a\.b"):
                call(state, checkpoint_id=checkpoint)
            cairn.save({"a.b": one}, checkpoint_id=checkpoint)
        with pytest.raises(cairn.InvalidArgument, match="same text"):
            cairn.save({"a": {1: one, "1": other}}, checkpoint_id=checkpoint)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("twins", TWINS.values(), ids=TWINS)
def test_a_torch_file_keeps_the_keys_apart(twins: tuple[Any, Any, str], nested: bool, tmp_path: Path) -> None:
    first, second, words = twins
    source = tmp_path / "a.pt"
    torch.save(merged(first, second, nested=nested), source)
    kind = type(first).__name__
    below = (".a", ".b") if nested else ("", "")
    keys = [f"state.{second}{below[0]}", f"state.{second}:{kind}{below[1]}", "more"]
    opened = cairn.open(source)
    assert list(opened) == keys
    assert [opened[key].tolist() for key in keys[:2]] == [[1.0], [0.0]]
    assert f"{second}:{kind}" in text_of("ls", source)
    assert cairn.verify(source)

    report = cairn.convert(source, tmp_path / "b.pt", to="torch")
    assert not report.warnings
    assert_same(torch.load(tmp_path / "b.pt"), merged(first, second, nested=nested))
    assert not cairn.diff(source, tmp_path / "b.pt")
    cairn.convert(source, tmp_path / "b.safetensors", to="safetensors", exclude=["more"])
    assert sorted(cairn.open(tmp_path / "b.safetensors")) == sorted(keys[:2])

    for options in ({}, {"keep_shape": False}, {"exclude": ["__cairn_shape__"]}):
        with pytest.raises(cairn.InvalidArgument) as caught:
            cairn.convert(source, tmp_path / "dcp", to="dcp", **options)
        assert words in str(caught.value)
        assert "(str)" in str(caught.value)
    assert not (tmp_path / "dcp").exists()
    with pytest.raises(cairn.InvalidArgument, match="same text"):
        cairn.convert(source, tmp_path / "c.pt", to="torch", exclude=["__cairn_shape__"])


def test_a_conversion_to_dcp_goes_on_without_one_of_the_keys_or_with_a_new_name(tmp_path: Path) -> None:
    source = tmp_path / "a.pt"
    torch.save(merged(1, "1", nested=True), source)
    cairn.convert(source, tmp_path / "one", to="dcp", exclude=["state.1:int.*"])
    assert list(cairn.open(tmp_path / "one")) == ["state.1.a", "more"]
    cairn.convert(source, tmp_path / "both", to="dcp", renames={"state.1:int": "state.one"})
    assert list(cairn.open(tmp_path / "both")) == ["state.1.a", "state.one.b", "more"]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("twins", TWINS.values(), ids=TWINS)
def test_the_ways_out_of_the_refusal_work_for_either_key(
    twins: tuple[Any, Any, str], nested: bool, tmp_path: Path
) -> None:
    first, second, _ = twins
    source = tmp_path / "a.pt"
    torch.save(merged(first, second, nested=nested), source)
    kind = type(first).__name__
    below = (".a", ".b") if nested else ("", "")
    text = f"state.{second}{below[0]}"
    typed = f"state.{second}:{kind}{below[1]}"

    cairn.convert(source, tmp_path / "text", to="dcp", exclude=[typed])
    assert list(cairn.open(tmp_path / "text")) == [text, "more"]
    # The other key alone has the name that a save of its dict gives it.
    cairn.convert(source, tmp_path / "typed", to="dcp", exclude=[text])
    assert list(cairn.open(tmp_path / "typed")) == [f"state.{second}{below[1]}", "more", "__cairn_shape__"]
    cairn.convert(tmp_path / "typed", tmp_path / "typed.pt", to="torch")
    assert_same(torch.load(tmp_path / "typed.pt"), {"state": {first: {"b": B} if nested else B}, "more": 3})
    stock_form = {"state": {first: {"b": torch.full((1,), 9.0)} if nested else torch.full((1,), 9.0)}}
    stock.load(stock_form, tmp_path / "typed")
    assert_same(stock_form, {"state": {first: {"b": B} if nested else B}})
    cairn.convert(source, tmp_path / "c.pt", to="torch", exclude=[text, "__cairn_shape__"])
    assert_same(torch.load(tmp_path / "c.pt"), {"state": {second: {"b": B} if nested else B}, "more": 3})

    for key in (text, typed):
        target = tmp_path / f"renamed {key == text}"
        cairn.convert(source, target, to="dcp", renames={key: f"state.other{below[0]}"})
        assert {f"state.other{below[0]}", "more"} < set(cairn.open(target))
    refused = run("convert", source, tmp_path / "dcp", "--to", "dcp")
    assert b"(--exclude)" in refused.stderr
    assert b"(--rename)" in refused.stderr


def test_files_differ_in_the_type_of_a_twin(tmp_path: Path) -> None:
    torch.save(merged(1, "1", nested=True), tmp_path / "a.pt")
    torch.save({"state": {"1": {"a": A, "b": B}}, "more": 3}, tmp_path / "b.pt")
    report = cairn.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert {difference.key for difference in report.differences} == {"state.1:int.b", "state.1.b"}
    assert run("diff", tmp_path / "a.pt", tmp_path / "b.pt").returncode == CHECK_FAILED


def test_a_name_that_a_text_has_already_is_not_given_again(tmp_path: Path) -> None:
    state = {"s": {"1:int": A, 1: B, "1": A + 1, (): {}, "()": {}}}
    torch.save(state, tmp_path / "a.pt")
    assert list(cairn.open(tmp_path / "a.pt")) == ["s.1:int", "s.1:int:int", "s.1"]
    cairn.convert(tmp_path / "a.pt", tmp_path / "b.pt", to="torch")
    assert_same(torch.load(tmp_path / "b.pt"), state)


def test_keys_with_one_text_and_type_are_refused(tmp_path: Path) -> None:
    torch.save({"s": {float("nan"): A, float("nan") * 1: B}}, tmp_path / "a.pt")
    with pytest.raises(cairn.Unsupported, match="one text and one type") as caught:
        cairn.open(tmp_path / "a.pt")
    assert caught.value.key == "s"


def test_two_places_with_one_flat_name_are_refused_in_every_file(tmp_path: Path) -> None:
    state = {"a.b": A, "a": {"b": B}}
    torch.save(state, tmp_path / "a.pt")
    for call in (cairn.open, cairn.verify, lambda file: cairn.diff(file, file)):
        with pytest.raises(cairn.Unsupported, match="one flat key") as caught:
            call(tmp_path / "a.pt")
        assert caught.value.key == "a.b"
    # Other flat names: the nested places stay apart.
    state = {"a.b": {"c": A}, "a": {"b": {"d": B}}}
    torch.save(state, tmp_path / "b.pt")
    cairn.convert(tmp_path / "b.pt", tmp_path / "dcp", to="dcp")
    cairn.convert(tmp_path / "dcp", tmp_path / "c.pt", to="torch")
    assert_same(torch.load(tmp_path / "c.pt"), state)


def test_a_file_of_torchs_checkpointer_keeps_the_keys_apart(checkpoint: Path) -> None:
    state = {"s": {"1": A, 1: B}}
    checkpoint.mkdir()
    torch.save(state, checkpoint / "checkpoint_0.pt")
    assert_same(alone().load(str(checkpoint)), state)
    target = {"s": {1: torch.full((1,), 9.0)}}
    alone().load(str(checkpoint), target)
    assert_same(target, {"s": {1: B}})
