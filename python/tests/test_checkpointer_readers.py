"""Loads of a rank's checkpoint: whole, by a template, to chosen devices; and of files of torch's own checkpointers."""

import importlib
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from same import assert_same
from test_checkpointer import STATE, alone

import cairn
from cairn.checkpointer import Mismatch, MissingKeys

Save = Callable[[Path, dict[str, Any]], None]


def by_cairn(directory: Path, state: dict[str, Any]) -> None:
    alone().save(str(directory), state)


def by_torch(directory: Path, state: dict[str, Any]) -> None:
    experimental = pytest.importorskip("torch.distributed.checkpoint._experimental")
    writer = importlib.import_module(f"{experimental.__name__}.checkpoint_writer")
    info = experimental.RankInfo(global_rank=0, global_world_size=1)
    writer.CheckpointWriter(writer.CheckpointWriterConfig(), info).write(str(directory), state)


@pytest.fixture(params=[by_cairn, by_torch])
def save(request: pytest.FixtureRequest) -> Save:
    """The writer of each library in turn."""
    writer: Save = request.param
    return writer


def load(directory: Path, *arguments: Any, **options: Any) -> dict[str, Any]:
    return alone().load(str(directory), *arguments, **options)


def test_a_read_without_a_template(save: Save, checkpoint: Path) -> None:
    save(checkpoint, STATE)
    assert_same(load(checkpoint), STATE)


def test_whether_gradients_are_wanted_comes_back(save: Save, checkpoint: Path) -> None:
    save(checkpoint, {"w": torch.nn.Parameter(torch.ones(2)), "n": torch.ones(2)})
    loaded = load(checkpoint)
    assert loaded["w"].requires_grad
    assert not loaded["n"].requires_grad


def test_a_template_selects_the_keys(save: Save, checkpoint: Path) -> None:
    save(checkpoint, STATE)
    w = torch.zeros(2, 3)
    template: dict[str, Any] = {
        "model": {"w": w},
        "optimizer": {"state": {0: {"step": None}, 1: None}, "param_groups": [{"lr": 1.0}]},
        "step": 0,
    }
    inner = template["model"]
    loaded = load(checkpoint, template)
    assert loaded is template
    assert loaded["model"] is inner
    assert loaded["model"]["w"] is w, "in place"
    assert_same(
        loaded,
        {
            "model": {"w": STATE["model"]["w"]},
            "optimizer": {
                "state": {0: {"step": torch.tensor(3.0)}, 1: {"step": torch.tensor(4.0)}},
                "param_groups": [{"lr": 0.1}],
            },
            "step": 7,
        },
    )


def test_an_empty_dict_of_the_template_takes_nothing_with_a_warning(save: Save, checkpoint: Path) -> None:
    save(checkpoint, {"optimizer": {"state": {0: {"step": 1, "m": torch.ones(2)}}, "lr": 0.1}, "n": 1})
    with pytest.warns(cairn.IgnoredKeysWarning, match=r"2 below 'optimizer\.state'.*None in place"):
        loaded = load(checkpoint, {"optimizer": {"state": {}, "lr": 0.0}})
    assert loaded == {"optimizer": {"state": {}, "lr": 0.1}}
    with pytest.warns(cairn.IgnoredKeysWarning, match="4 below 'the top'"):
        assert load(checkpoint, {}) == {}


def test_a_list_of_the_template_is_completed(save: Save, checkpoint: Path) -> None:
    save(checkpoint, STATE)
    first = torch.zeros(2)
    template: dict[str, Any] = {"parts": [first]}
    loaded = load(checkpoint, template)
    assert loaded["parts"][0] is first
    assert_same(loaded, {"parts": STATE["parts"]})


def test_strided_and_gradient_targets_are_filled(save: Save, checkpoint: Path) -> None:
    save(checkpoint, {"w": torch.arange(6.0).reshape(2, 3), "v": torch.ones(2)})
    columns = torch.zeros(3, 4)
    parameter = torch.nn.Parameter(torch.zeros(2))
    load(checkpoint, {"w": columns.t()[:2], "v": parameter})
    assert_same(columns[:, :2], torch.arange(6.0).reshape(2, 3).t())
    assert_same(parameter, torch.ones(2))


def test_missing_keys_leave_the_template_unchanged(save: Save, checkpoint: Path) -> None:
    save(checkpoint, STATE)
    template = {"model": {"w": torch.zeros(2, 3), "new": torch.ones(1)}, "other": {"x": 1}}
    loaded = load(checkpoint, template)
    assert_same(loaded, {"model": {"w": STATE["model"]["w"], "new": torch.ones(1)}, "other": {"x": 1}})
    with pytest.raises(RuntimeError) as caught:
        load(checkpoint, template, strict=True)
    assert str(caught.value) == f"Checkpoint at {checkpoint} is missing keys: ['model.new', 'other']"
    assert isinstance(caught.value, MissingKeys)
    assert isinstance(caught.value, cairn.MissingKey)
    assert load(checkpoint, {"step": 0}, strict=True) == {"step": 7}


@pytest.mark.parametrize(
    ("template", "key", "expected", "actual"),
    [
        ({"model": {"w": torch.zeros(3, 2)}}, "model.w", "(2, 3) torch.float32", "(3, 2) torch.float32"),
        ({"model": {"w": torch.zeros(2, 3).half()}}, "model.w", "(2, 3) torch.float32", "(2, 3) torch.float16"),
        ({"model": {"w": 5}}, "model.w", "Tensor", "int"),
        ({"model": 5}, "model", "dict", "int"),
        ({"step": torch.zeros(1)}, "step", "int", "Tensor"),
        ({"step": "7"}, "step", "int", "str"),
        ({"parts": {}}, "parts", "list", "dict"),
        ({"parts": [None, "5"]}, "parts[1]", "int", "str"),
        ({"parts": [None, 5, {}, 1]}, "parts", "at most 3 items", "4"),
    ],
)
def test_a_mismatch_is_named_and_changes_nothing(
    template: dict[str, Any], key: str, expected: str, actual: str, save: Save, checkpoint: Path
) -> None:
    save(checkpoint, STATE)
    untouched = torch.zeros(2)
    template = {"parts": [untouched], "optimizer": {"state": {0: {"m": None}}}, **template}
    with pytest.raises(RuntimeError, match=f"'{key}'".replace("[", r"\[")) as caught:
        load(checkpoint, template)
    assert isinstance(caught.value, Mismatch)
    assert (caught.value.key, caught.value.expected, caught.value.actual) == (key, expected, actual)
    assert untouched.sum() == 0
    assert template["optimizer"] == {"state": {0: {"m": None}}}


@pytest.mark.parametrize(
    "location",
    [
        "meta",
        torch.device("meta"),
        {"cpu": "meta"},
        lambda storage, location: torch.UntypedStorage(storage.nbytes(), device="meta") if location == "cpu" else None,
    ],
    ids=["name", "device", "dict", "function"],
)
def test_new_tensors_go_to_map_location(location: Any, save: Save, checkpoint: Path) -> None:
    save(checkpoint, STATE)
    loaded = load(checkpoint, default_map_location=location)
    assert loaded["model"]["w"].device.type == "meta"
    w = torch.zeros(2, 3)
    loaded = load(checkpoint, {"model": {"w": w, "half": None}}, default_map_location=location)
    assert loaded["model"]["half"].device.type == "meta"
    assert_same(w, STATE["model"]["w"])


def test_places_that_are_none(save: Save, checkpoint: Path) -> None:
    save(checkpoint, STATE)
    assert_same(load(checkpoint, default_map_location={"cuda:0": "meta"}), STATE)
    assert_same(load(checkpoint, default_map_location=lambda storage, _: None), STATE)
    with pytest.raises(TypeError, match="map_location"):
        load(checkpoint, default_map_location=3)


def test_nothing_there(checkpoint: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(checkpoint)
    alone(1).save(str(checkpoint), STATE)
    with pytest.raises(FileNotFoundError, match=r"rank 0 .* neither __0\.metadata nor checkpoint_0\.pt"):
        load(checkpoint)


def test_cairns_own_comes_before_torchs(checkpoint: Path) -> None:
    by_torch(checkpoint, {"step": 1})
    assert load(checkpoint) == {"step": 1}
    by_cairn(checkpoint, {"step": 2})
    assert load(checkpoint) == {"step": 2}


def test_a_load_never_mixes_two_saves(checkpoint: Path) -> None:
    names = [str(i) for i in range(20)]

    def save_step(step: int) -> None:
        by_cairn(checkpoint, {"step": step, **{name: torch.full((1000,), float(step)) for name in names}})

    def save_steps() -> None:
        for step in range(1, 40):
            save_step(step)

    save_step(0)
    with ThreadPoolExecutor(1) as thread:
        saving = thread.submit(save_steps)
        while not saving.done():
            loaded = load(checkpoint)
            assert {float(loaded[name].unique()) for name in names} == {float(loaded["step"])}
        saving.result()


def test_damage_is_found(checkpoint: Path) -> None:
    by_cairn(checkpoint, {"w": torch.arange(1000.0)})
    file = checkpoint / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    place = content.index(torch.arange(1000.0).numpy().tobytes())
    content[place + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(cairn.Corrupt, match="w"):
        load(checkpoint)


class Odd:
    """A class that is not plain data."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore::cairn.PickleWarning")
def test_objects_need_to_be_allowed(save: Save, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"odd": Odd(3), "w": torch.ones(2)}
    save(checkpoint, state)
    with pytest.raises(cairn.UnsafeContent, match="allow_pickle=True"):
        load(checkpoint)
    assert load(checkpoint, allow_pickle=True) == {"odd": Odd(3), "w": pytest.approx(torch.ones(2))}
    assert load(checkpoint, {"odd": None}, weights_only=False) == {"odd": Odd(3)}
    monkeypatch.setenv("CAIRN_ALLOW_PICKLE", "1")
    assert load(checkpoint, {"odd": None}) == {"odd": Odd(3)}
    with pytest.raises(TypeError, match="'pickle'"):
        load(checkpoint, pickle=True)


def test_nothing_in_a_file_of_torchs_is_run(checkpoint: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (mark,))

    checkpoint.mkdir()
    torch.save({"x": Evil()}, checkpoint / "checkpoint_0.pt")
    for template in (None, {"x": None}):
        with pytest.raises(cairn.UnsafeContent):
            load(checkpoint, template)
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"no archive at all", pickle.dumps({"x": 1})])
def test_a_file_that_is_none_of_torchs(content: bytes, checkpoint: Path) -> None:
    checkpoint.mkdir()
    (checkpoint / "checkpoint_0.pt").write_bytes(content)
    with pytest.raises(cairn.Error, match=r"checkpoint_0\.pt"):
        load(checkpoint)


def test_only_the_requested_tensors_of_a_torch_file_are_read(checkpoint: Path) -> None:
    """The elements of unwanted tensors may be damaged."""
    by_torch(checkpoint, {"good": torch.arange(1000.0), "bad": torch.full((1 << 20,), 7.5)})
    file = checkpoint / "checkpoint_0.pt"
    content = file.read_bytes()
    bad = torch.full((1 << 20,), 7.5).numpy().tobytes()
    file.write_bytes(content.replace(bad, bytes(len(bad))))
    assert_same(load(checkpoint, {"good": None}), {"good": torch.arange(1000.0)})


def test_a_value_with_tensors_inside(save: Save, checkpoint: Path) -> None:
    state = {"pair": (torch.ones(2), 5)}
    save(checkpoint, state)
    assert_same(load(checkpoint), state)
    assert_same(load(checkpoint, {"pair": None}, default_map_location="cpu"), state)


def test_quantised_tensors(checkpoint: Path) -> None:
    state = {"q": torch.quantize_per_tensor(torch.arange(4.0), 0.5, 3, torch.qint8)}
    by_cairn(checkpoint, state)
    assert_same(load(checkpoint), state)
    target = torch.quantize_per_tensor(torch.zeros(4), 0.5, 3, torch.qint8)
    load(checkpoint, {"q": target})
    assert_same(target, state["q"])
