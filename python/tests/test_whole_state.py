"""cairn.read: the whole nested state of a checkpoint, without a state dict to fill."""

import dataclasses
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stock
import torch
from programs import WITHOUT_TORCH, run
from same import assert_same
from torch import nn

import cairn


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


class Prints:
    """Its pickle prints."""

    def __reduce__(self) -> Any:
        return print, ("run",)


STATE: dict[str, Any] = {
    "model": {"layer.0.w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)},
    "empty": torch.zeros(0, 3),
    "scalar": torch.tensor(7),
    "list": [{"a": torch.ones(2)}, {"a": torch.zeros(2), "b": "text"}],
    "values": {"step": 3, "lr": 1e-4, "tags": ["x", None], "pair": (1, 2.5)},
}


@pytest.mark.parametrize("save", [lambda state, place: cairn.save(state, checkpoint_id=place), stock.save])
def test_a_checkpoint_comes_back_nested(save: Any, tmp_path: Path) -> None:
    save(STATE, tmp_path)
    assert_same(cairn.read(tmp_path), STATE)


def test_the_form_of_the_tensors_is_the_callers(tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path)
    read = cairn.read(tmp_path, tensors="numpy")
    assert_same(read["list"][0]["a"], np.ones(2, np.float32))
    assert read["model"]["half"].dtype == ml_dtypes.bfloat16
    assert cairn.read(tmp_path, tensors="integers")["model"]["half"].tolist() == [0x3F80] * 3
    with pytest.raises(cairn.InvalidArgument, match="tensors must be"):
        cairn.read(tmp_path, tensors="jax")  # type: ignore[arg-type]


def test_a_new_job_resumes_by_the_whole_state(tmp_path: Path) -> None:
    """The numbers of the parameters are integers: ``load_state_dict`` would keep a state under a text apart."""
    model, optimizer = trained()
    cairn.save({"model": model, "job": {"optimizer": optimizer.state_dict()}}, checkpoint_id=tmp_path)
    saved = cairn.read(tmp_path)
    assert list(saved["job"]["optimizer"]["state"]) == [0, 1, 2, 3]
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(saved["job"]["optimizer"])
    assert_same(other.state_dict()["state"], optimizer.state_dict()["state"])
    part = cairn.read(tmp_path, ["job.optimizer.state"])
    assert list(part) == ["job"] and list(part["job"]["optimizer"]["state"]) == [0, 1, 2, 3]


def test_patterns_select_keys(tmp_path: Path) -> None:
    cairn.save(STATE, checkpoint_id=tmp_path)
    assert_same(
        cairn.read(tmp_path, ["model.layer*", "values.step"]),
        {
            "model": {"layer.0.w": STATE["model"]["layer.0.w"]},
            "values": {"step": 3},
        },
    )
    assert_same(cairn.read(tmp_path, ["list.1.b", "list.0"]), {"list": STATE["list"]})  # a list is read whole
    with pytest.raises(cairn.MissingKey, match=r"no key .* matches 'modell'"):
        cairn.read(tmp_path, ["model", "modell"])
    with pytest.raises(cairn.InvalidArgument, match="a list of patterns"):
        cairn.read(tmp_path, "model")


def test_a_safetensors_model_is_flat(tmp_path: Path) -> None:
    cairn.save({"a.b": torch.ones(2), "c": torch.zeros(1, 2)}, checkpoint_id=tmp_path / "dcp")
    cairn.convert(tmp_path / "dcp", tmp_path / "model.safetensors", to="safetensors")
    assert_same(cairn.read(tmp_path / "model.safetensors"), {"a.b": torch.ones(2), "c": torch.zeros(1, 2)})


def test_a_file_of_torch_save_keeps_keys_and_types(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), 5: {7: "x"}, "size": torch.Size([2, 3])}
    torch.save(state, tmp_path / "a.pt")
    read = cairn.read(tmp_path / "a.pt")
    assert_same({**read, "model": OrderedDict(read["model"])}, {**state, "model": OrderedDict(state["model"])})
    part = cairn.read(tmp_path / "a.pt", ["5", "model.0.*"])
    assert list(part) == ["model", 5] and list(part["model"]) == ["0.weight", "0.bias"]
    as_numpy = cairn.read(tmp_path / "a.pt", tensors="numpy")
    assert list(as_numpy["optimizer"]["state"]) == [0, 1, 2, 3] and as_numpy["5"] == {"7": "x"}


def test_a_converted_checkpoint_keeps_keys_and_empty_dicts(tmp_path: Path) -> None:
    torch.save({"a": {1: torch.ones(2), 2: {}}, "b": {}}, tmp_path / "a.pt")
    cairn.convert(tmp_path / "a.pt", tmp_path / "dcp", to="dcp")
    assert_same(cairn.read(tmp_path / "dcp"), {"a": {1: torch.ones(2), 2: {}}, "b": {}})


def test_nothing_in_the_checkpoint_is_run(tmp_path: Path) -> None:
    value = Prints()
    with pytest.warns(cairn.PickleWarning):
        cairn.save({"w": torch.ones(1), "value": value}, checkpoint_id=tmp_path / "dcp")
    torch.save({"w": torch.ones(1), "value": value}, tmp_path / "a.pt")
    for place in ("dcp", "a.pt"):
        read = cairn.read(tmp_path / place)
        assert isinstance(read["value"], cairn.UnknownObject) and read["w"].tolist() == [1]


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_a_flipped_bit_is_found(form: Any, tmp_path: Path) -> None:
    cairn.save({"model": {"w": torch.arange(1000.0)}}, checkpoint_id=tmp_path)
    chunk = cairn.open(tmp_path).info("model.w").chunks[0]  # type: ignore[union-attr]
    assert chunk.file is not None
    file = tmp_path / chunk.file
    content = bytearray(file.read_bytes())
    content[chunk.offset + chunk.length // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(cairn.Corrupt) as error:
        cairn.read(tmp_path, tensors=form)
    assert error.value.key == "model.w"


def test_few_bytes_under_many_names_are_refused(tmp_path: Path) -> None:
    stock.save({"big": torch.ones(1 << 18), "n": 1}, tmp_path)
    metadata = stock.metadata_of(tmp_path)
    (index, place), *_ = [(i, p) for i, p in (metadata.storage_data or {}).items() if i.fqn == "big"]
    for number in range(100):
        name = f"copy{number}"
        metadata.state_dict_metadata[name] = metadata.state_dict_metadata["big"]
        metadata.storage_data[dataclasses.replace(index, fqn=name)] = place
        metadata.planner_data[name] = (name,)
    stock.rewrite_metadata(tmp_path, metadata)
    with pytest.raises(cairn.UnsafeContent, match=r"read single keys by cairn\.open"):
        cairn.read(tmp_path)
    assert list(cairn.read(tmp_path, ["copy1*"])) == ["copy1", *(f"copy1{n}" for n in range(10))]


def test_quantised_tensors_are_read_by_torch(tmp_path: Path) -> None:
    tensor = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, torch.qint8)
    cairn.save({"q": tensor, "w": torch.ones(1)}, checkpoint_id=tmp_path)
    assert_same(cairn.read(tmp_path)["q"].int_repr(), tensor.int_repr())
    with pytest.raises(cairn.Unsupported) as error:
        cairn.read(tmp_path, tensors="numpy")
    assert error.value.key == "q"
    assert list(cairn.read(tmp_path, ["w"], tensors="numpy")) == ["w"]


def test_a_missing_checkpoint_names_the_next_step(tmp_path: Path) -> None:
    cairn.save({"n": 1}, checkpoint_id=tmp_path / "step-1")
    with pytest.raises(cairn.NotFound, match="latest"):
        cairn.read(tmp_path)


def test_without_torch_the_tensors_are_arrays(tmp_path: Path) -> None:
    model, optimizer = trained()
    cairn.save({"model": model, "optimizer": optimizer, "step": 4}, checkpoint_id=tmp_path / "dcp")
    torch.save({"w": torch.ones(2), "n": {3: 4}}, tmp_path / "a.pt")
    program = WITHOUT_TORCH + (
        "import cairn\n"
        "state = cairn.read(sys.argv[1] + '/dcp')\n"
        "assert state['step'] == 4 and state['model']['0.weight'].shape == (2, 3)\n"
        "assert list(state['optimizer']['state']) == [0, 1, 2, 3]\n"
        "state = cairn.read(sys.argv[1] + '/a.pt', ['w'])\n"
        "assert state['w'].tolist() == [1, 1] and list(state) == ['w']\n"
        "assert 'torch' not in sys.modules"
    )
    run(program, tmp_path)
