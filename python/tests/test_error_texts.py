"""The texts of errors name the user's next step."""

import errno
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tool
import torch

import cairn

STATE = {"model": {"weight": torch.ones(2), "bias": torch.zeros(2)}, "step": 3}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `e` of checkpoints, named relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("step-100", "step-20", "step-3"):
        cairn.save({"step": 0}, checkpoint_id=f"e/{name}")
    return Path("e")


READERS: dict[str, Callable[[Any], Any]] = {
    "open": cairn.open,
    "verify": cairn.verify,
    "load": lambda path: cairn.load({"step": 0}, checkpoint_id=path),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_of_checkpoints_names_the_checkpoints_and_latest(reader: str, run: Path) -> None:
    with pytest.raises(cairn.NotFound) as caught:
        READERS[reader](run)
    assert str(caught.value) == (
        "no checkpoint in 'e' (no .metadata). It holds step-3, step-20, step-100: did you mean cairn.latest('e')?"
    )
    assert caught.value.file == ".metadata"


@pytest.mark.parametrize("reader", READERS)
def test_a_directory_that_does_not_exist_and_a_file(reader: str, run: Path) -> None:
    with pytest.raises(cairn.NotFound, match=r"^no checkpoint in 'e/step-4': there is no such directory\.") as caught:
        READERS[reader](run / "step-4")
    assert "'e' holds step-3, step-20, step-100" in str(caught.value)
    with pytest.raises(cairn.NotFound, match=r"it is not a directory\. The checkpoint is 'e/step-3'"):
        READERS[reader](run / "step-3" / ".metadata")


def test_a_directory_with_nothing_names_the_file_that_is_missing(tmp_path: Path) -> None:
    for read in READERS.values():
        with pytest.raises(cairn.NotFound) as caught:
            read(tmp_path)
        assert str(caught.value).startswith(f"no checkpoint in '{tmp_path}' (no .metadata)")
        assert "__0.metadata" not in str(caught.value)


def test_a_file_in_place_of_a_directory_asks_for_another_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "step-1"):
        with pytest.raises(cairn.UnusableDirectory, match="a file is in the place of the directory") as caught:
            cairn.save(STATE, checkpoint_id=target, no_dist=True)
        assert isinstance(caught.value, OSError)
        assert isinstance(caught.value, cairn.InvalidArgument)
        assert caught.value.errno == errno.ENOTDIR
        assert str(tmp_path / "file") in str(caught.value)


def test_an_error_names_the_expected_and_the_given_value_once(checkpoint: Path) -> None:
    with pytest.raises(cairn.InvalidArgument) as caught:
        cairn.async_save(STATE, checkpoint_id=checkpoint, async_checkpointer_type="process")  # type: ignore[arg-type]
    assert "AsyncCheckpointerType.PROCESS" in str(caught.value)
    assert str(caught.value).endswith("; found 'process'")
    cairn.save({"w": torch.ones(3, dtype=torch.int64)}, checkpoint_id=checkpoint, no_dist=True)
    with pytest.raises(cairn.InvalidArgument, match=r"\(allow_cast=True\)") as caught:
        cairn.load({"w": torch.ones(3)}, checkpoint_id=checkpoint, no_dist=True)
    assert str(caught.value).count("expected float32") == 1
    assert "(option" not in str(caught.value)


def test_a_linked_data_file_names_the_option_of_its_caller(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint, no_dist=True)
    (file,) = checkpoint.glob("*.distcp")
    file.rename(checkpoint.parent / "moved")
    file.symlink_to(checkpoint.parent / "moved")
    state = {"model": {"weight": torch.zeros(2), "bias": torch.zeros(2)}, "step": 0}
    with pytest.raises(cairn.UnsafeContent, match=r"\(follow_links=True\)"):
        cairn.load(state, checkpoint_id=checkpoint, no_dist=True)
    refused = tool.run("verify", checkpoint)
    assert b"(--follow-links)" in refused.stdout + refused.stderr
    monkeypatch.setenv("CAIRN_FOLLOW_LINKS", "1")
    cairn.load(state, checkpoint_id=checkpoint, no_dist=True)
    assert torch.equal(state["model"]["weight"], torch.ones(2))  # type: ignore[index]
    assert cairn.verify(checkpoint)
    with pytest.raises(cairn.UnsafeContent):
        cairn.load(state, checkpoint_id=checkpoint, no_dist=True, follow_links=False)


def test_the_tool_names_its_own_options(tmp_path: Path) -> None:
    torch.save({"odd": tool.run, "w": torch.ones(2)}, tmp_path / "a.pt")
    refused = tool.run("convert", tmp_path / "a.pt", tmp_path / "b", "--to", "dcp")
    assert b"(--allow-pickle)" in refused.stderr
    assert b"allow_pickle" not in refused.stderr
    refused = tool.run("convert", tmp_path / "a.pt", tmp_path / "c.safetensors")
    assert b"(--exclude)" in refused.stderr
    with pytest.raises(cairn.Unsupported, match=r"\(exclude=\.\.\.\)"):
        cairn.convert(tmp_path / "a.pt", tmp_path / "c.safetensors", to="safetensors")


def test_missing_keys_are_all_named_values_and_tensors(checkpoint: Path) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint)
    wanted = {"model": {"weihgt": torch.ones(2), "bias": torch.zeros(2)}, "stpe": 0, "other_thing": 1}
    with pytest.raises(cairn.MissingKey) as caught:
        cairn.load(wanted, checkpoint_id=checkpoint)
    text = str(caught.value)
    assert text.startswith("Missing key in checkpoint state_dict: model.weihgt (nearest: model.weight)"), text
    assert "stpe (nearest: step)" in text
    assert "other_thing" in text
    assert caught.value.key == "model.weihgt"
    assert sorted(caught.value.keys) == ["model.weihgt", "other_thing", "stpe"]
    assert f"'{checkpoint}'" in text


def test_many_missing_keys_are_counted(checkpoint: Path) -> None:
    cairn.save({f"layers.{i}.attention.weight": 0 for i in range(200)}, checkpoint_id=checkpoint)
    with pytest.raises(cairn.MissingKey) as caught:
        cairn.load({f"layers.{i}.attentoin.weight": 0 for i in range(200)}, checkpoint_id=checkpoint)
    assert "layers.0.attentoin.weight (nearest: layers.0.attention.weight, " in str(caught.value)
    assert str(caught.value).count("attentoin") == 9, "eight names, and the key"
    assert "and 192 more" in str(caught.value)
    assert set(caught.value.keys) == {f"layers.{i}.attentoin.weight" for i in range(200)}
    copied = pickle.loads(pickle.dumps(caught.value))
    assert copied.keys == caught.value.keys


@pytest.mark.parametrize(("saved", "loaded", "hint"), [("module.", "", "with"), ("", "module.", "without")])
def test_the_prefix_of_a_wrapper_is_named(saved: str, loaded: str, hint: str, checkpoint: Path) -> None:
    def state(prefix: str) -> dict[str, Any]:
        return {"model": {f"{prefix}{i}.weight": torch.ones(1) for i in range(3)}, "step": 1}

    cairn.save(state(saved), checkpoint_id=checkpoint)
    with pytest.raises(cairn.MissingKey, match=f"All 3 are in the checkpoint {hint} the prefix 'module.'") as caught:
        cairn.load(state(loaded), checkpoint_id=checkpoint)
    assert "DistributedDataParallel" in str(caught.value)


def test_a_key_of_an_open_checkpoint_that_is_missing(checkpoint: Path) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint)
    with pytest.raises(KeyError) as caught:
        cairn.open(checkpoint)["model.weihgt"]
    assert str(caught.value) == "no such key in the checkpoint: 'model.weihgt' (nearest: 'model.weight')"


SAVERS: dict[str, Callable[[Any, Path], Any]] = {
    "save": lambda state, path: cairn.save(state, checkpoint_id=path),
    "async_save": lambda state, path: cairn.async_save(state, checkpoint_id=path),
    "load": lambda state, path: cairn.load(state, checkpoint_id=path),
    "AsyncSaver.save": lambda state, path: cairn.AsyncSaver(process=False).save(state, path),
}


@pytest.mark.parametrize("call", SAVERS)
def test_a_state_dict_is_a_dict(call: str, checkpoint: Path) -> None:
    cairn.save(STATE, checkpoint_id=checkpoint)
    before = (checkpoint / ".metadata").read_bytes()
    for given, text in [
        ([torch.ones(1)], "state_dict must be a dict, got list"),
        (None, "state_dict must be a dict, got NoneType"),
        (torch.nn.Linear(1, 1), "state_dict must be a dict, got Linear; pass what its state_dict() returns"),
        (str(checkpoint), "state_dict must be a dict, got str; the directory is the argument checkpoint_id"),
    ]:
        with pytest.raises(cairn.InvalidArgument) as caught:
            SAVERS[call](given, checkpoint)
        assert str(caught.value).startswith(text)
    assert (checkpoint / ".metadata").read_bytes() == before


def test_swapped_arguments_say_so(tmp_path: Path) -> None:
    place = str(tmp_path / "c")
    for path in (place, Path(place)):
        with pytest.raises(cairn.InvalidArgument, match=r"the arguments of async_save\(\) are swapped"):
            cairn.async_save(path, checkpoint_id=STATE)  # type: ignore[call-overload]
        for call in (cairn.save, cairn.load):
            name = call.__name__
            with pytest.raises(cairn.InvalidArgument) as caught:
                call(path, STATE)
            right = f"{name}(state_dict, checkpoint_id='{place}')"
            with pytest.raises(cairn.InvalidArgument) as caught:
                call(path, checkpoint_id=STATE)
            assert str(caught.value) == f"the arguments of {name}() are swapped: call {right}"
            assert str(caught.value) == f"the arguments of {name}() are swapped: call {right}"
            with pytest.raises(cairn.InvalidArgument) as caught:
                call(STATE, path)
            assert str(caught.value) == f"{name}() takes the directory as checkpoint_id: call {right}"
        with pytest.raises(cairn.InvalidArgument) as caught:
            cairn.AsyncSaver(process=False).save(path, STATE)
        right = f"AsyncSaver.save(state_dict, '{place}')"
        assert str(caught.value) == f"the arguments of AsyncSaver.save() are swapped: call {right}"
    assert not Path(place).exists()


@pytest.mark.parametrize("call", [cairn.open, cairn.verify, cairn.saves_in_flight, cairn.latest])
def test_none_in_place_of_a_directory_says_where_none_comes_from(call: Any) -> None:
    with pytest.raises(cairn.InvalidArgument, match=r"the directory is None; cairn\.latest\(\) returns None"):
        call(None)
