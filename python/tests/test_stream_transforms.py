"""Checkpoints with stream-transformed items: torch's ZStandard, and transforms unknown to the reader."""

import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import threading
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import gang
from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension, ZStandard
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn._torch_protocol import transformed_items

pytest.importorskip("zstandard")


def shown_by_verify(*words: str | Path) -> str:
    found = shutil.which("cairn")
    assert found is not None
    return subprocess.run([found, "verify", *map(str, words)], capture_output=True, text=True, check=True).stdout


class Opaque:
    """A class that every rule for plain data refuses."""

    called = False

    def __reduce__(self) -> Any:
        return (_run, ())


def _run() -> str:
    Opaque.called = True
    return "code ran"


class Plain(StreamTransformExtension):
    """An identity transform. Its name is in no registry unless a test adds the name."""

    @staticmethod
    def registry_name() -> str:
        return "test.plain"

    @staticmethod
    def from_descriptor(version: str) -> "Plain":
        return Plain()

    def get_descriptor(self) -> str:
        return "test.plain/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        return output

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        return input


def sample() -> dict[str, Any]:
    torch.manual_seed(1)
    return {
        "model": {"w": torch.randn(64, 33), "b": torch.arange(7, dtype=torch.bfloat16), "i": torch.arange(5)},
        "step": 3,
        "betas": [0.9, 0.99],
    }


def blank() -> dict[str, Any]:
    model = {name: torch.zeros_like(tensor) for name, tensor in sample()["model"].items()}
    return {"model": model, "step": 0, "betas": [0.0, 0.0]}


def assert_same(state: dict[str, Any]) -> None:
    expected = sample()
    for name, tensor in expected["model"].items():
        assert state["model"][name].dtype == tensor.dtype
        assert torch.equal(state["model"][name], tensor)
    assert (state["step"], state["betas"]) == (expected["step"], expected["betas"])


def save(directory: Path, state: dict[str, Any], extension: StreamTransformExtension | None = None) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, _extensions=[extension or ZStandard()]))


def stored(directory: Path, key: str) -> tuple[Path, int, int]:
    """Returns the file, offset and length of the key's item."""
    metadata = pickle.loads((directory / ".metadata").read_bytes())
    info = next(info for index, info in metadata.storage_data.items() if index.fqn == key)
    return directory / info.relative_path, info.offset, info.length


@pytest.mark.usefixtures("fresh_report")
@pytest.mark.parametrize("writer", [cairn.FileSystemWriter, dcp.FileSystemWriter])
def test_zstandard_files_load(writer: Any, tmp_path: Path) -> None:
    cairn.save(sample(), storage_writer=writer(tmp_path, _extensions=[ZStandard()]))
    for given in (
        {"checkpoint_id": tmp_path},
        {"storage_reader": cairn.FileSystemReader(tmp_path)},
        {"storage_reader": dcp.FileSystemReader(tmp_path)},
    ):
        state = blank()
        cairn.load(state, **given)
        assert_same(state)
        assert "stream transforms" in cairn.report().calls[-1].how
    state = blank()
    dcp.load(state, storage_reader=cairn.FileSystemReader(tmp_path))
    assert_same(state)


def test_verify_names_the_unchecked_keys(tmp_path: Path) -> None:
    save(tmp_path, sample())
    report = cairn.verify(tmp_path)
    assert report
    assert set(report.unchecked_keys) >= {"model.w", "model.b", "model.i", "step"}
    assert set(report.unchecked_keys.values()) == {"stream.zstd/1"}
    assert report.bytes_unchecked > 0 == report.bytes_checked
    told = shown_by_verify(tmp_path)
    assert f"{len(report.unchecked_keys)} keys not checked: stored through stream transforms" in told
    assert "stream.zstd/1" in told
    shown = shown_by_verify("--json", tmp_path)
    assert {"key": "model.w", "transforms": "stream.zstd/1"} in json.loads(shown)["unchecked_keys"]


def test_verify_finds_a_compressed_file_that_was_cut(tmp_path: Path) -> None:
    save(tmp_path, sample())
    file, _, _ = stored(tmp_path, "model.w")
    file.write_bytes(file.read_bytes()[:-10])
    assert any("ends before an item" in str(problem) for problem in cairn.verify(tmp_path).problems)
    with pytest.raises(cairn.Corrupt, match="ends before an item"):
        cairn.load(blank(), checkpoint_id=tmp_path)


def test_no_code_of_a_transformed_value_runs(tmp_path: Path) -> None:
    save(tmp_path, {"x": Opaque()})
    Opaque.called = False
    for load in (cairn.load, dcp.load):
        with pytest.raises(CheckpointException, match="can't be read without running code"):
            load({"x": None}, storage_reader=cairn.FileSystemReader(tmp_path))
    with pytest.raises(cairn.UnsafeContent, match="'x'"):
        cairn.load({"x": None}, checkpoint_id=tmp_path)
    assert not Opaque.called
    state: dict[str, Any] = {"x": None}
    cairn.load(state, checkpoint_id=tmp_path, allow_pickle=True)
    assert state["x"] == "code ran"


def test_no_code_of_a_transformed_tensor_runs(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.zeros(1000)}, Plain())
    registry = ExtensionRegistry()
    registry.register(Plain)
    file, offset, length = stored(tmp_path, "w")
    archive = io.BytesIO()
    torch.save(Opaque(), archive)
    assert archive.tell() <= length
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).length = archive.tell()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    whole = bytearray(file.read_bytes())
    whole[offset : offset + archive.tell()] = archive.getvalue()
    file.write_bytes(whole)
    Opaque.called = False
    with pytest.raises(cairn.Unsupported, match="torch can't read the tensor under 'w'"):
        cairn.load({"w": torch.zeros(1000)}, storage_reader=cairn.FileSystemReader(tmp_path, registry))
    assert not Opaque.called


def test_a_flipped_byte_raises(tmp_path: Path) -> None:
    save(tmp_path, sample())
    file, offset, length = stored(tmp_path, "model.w")
    whole = file.read_bytes()
    for place in (offset, offset + length // 2, offset + length // 3):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file.write_bytes(damaged)
        with pytest.raises(cairn.Corrupt, match=r"'model\.w' can't be decoded by stream\.zstd/1"):
            cairn.load(blank(), checkpoint_id=tmp_path)


@pytest.mark.parametrize("key", ["model.w", "step"])
def test_a_stream_that_expands_too_far_raises(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zstandard

    monkeypatch.setattr(transformed_items, "_VALUE_BYTES_MAX", 1 << 20)
    save(tmp_path, sample() | {"step": list(range(1000))})
    file, offset, length = stored(tmp_path, key)
    bomb = zstandard.ZstdCompressor().compress(bytes(4 << 20))
    assert len(bomb) <= length
    whole = bytearray(file.read_bytes())
    whole[offset : offset + len(bomb)] = bomb
    file.write_bytes(whole)
    with pytest.raises(cairn.Corrupt, match="decompresses to more bytes than its tensor"):
        cairn.load(blank(), checkpoint_id=tmp_path)


def test_a_transform_that_the_reader_lacks_is_named(tmp_path: Path) -> None:
    save(tmp_path, sample(), Plain())
    with pytest.raises(cairn.Unsupported, match=r"went through the stream transforms test\.plain/1"):
        cairn.load(blank(), checkpoint_id=tmp_path)
    registry = ExtensionRegistry()
    registry.register(Plain)
    state = blank()
    cairn.load(state, storage_reader=cairn.FileSystemReader(tmp_path, registry))
    assert_same(state)


def test_dtypes_are_converted_as_in_any_load(tmp_path: Path) -> None:
    save(tmp_path, {"f": torch.arange(4.0), "i": torch.arange(4)})
    state = {"f": torch.zeros(4, dtype=torch.float64)}
    with pytest.warns(cairn.ConversionWarning):
        cairn.load(state, checkpoint_id=tmp_path)
    assert torch.equal(state["f"], torch.arange(4.0, dtype=torch.float64))
    with pytest.raises(cairn.InvalidArgument, match="the dtype of the checkpoint differs"):
        cairn.load({"i": torch.zeros(4)}, checkpoint_id=tmp_path)


def test_a_data_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    save(directory, sample())
    file, _, _ = stored(directory, "model.w")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(cairn.Corrupt, match="symbolic link"):
        cairn.load(blank(), checkpoint_id=directory)
    state = blank()
    cairn.load(state, checkpoint_id=directory, follow_links=True)
    assert_same(state)


def test_a_link_that_takes_the_place_of_a_folder_meanwhile_is_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    name = tmp_path / "name"
    is_done = threading.Event()

    def swap() -> None:
        while not is_done.is_set():
            inside.rename(name)
            name.rename(inside)
            name.symlink_to(outside)
            name.unlink()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        opened = 0
        while opened < 50:
            with contextlib.suppress(OSError):
                descriptor = transformed_items._open_below(tmp_path, PurePosixPath("name/file"), follow_links=False)
                with os.fdopen(descriptor) as stream:
                    assert stream.read() == "inside"
                opened += 1
    finally:
        is_done.set()
        swapping.join()


def load_on_two_ranks(directory: Path) -> None:
    state = blank()
    cairn.load(state, checkpoint_id=directory)
    assert_same(state)


def test_ranks_load_together(tmp_path: Path) -> None:
    save(tmp_path, sample())
    with gang(2) as ranks:
        ranks.run(load_on_two_ranks, tmp_path)


def test_a_compressed_item_is_no_damage(tmp_path: Path) -> None:
    """The bytes of a compressed tensor are fewer than its elements."""
    state = {"zeros": torch.zeros(100, 1000)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path, _extensions=[ZStandard()]), no_dist=True)
    for read in (lambda: cairn.open(tmp_path)["zeros"], lambda: cairn.read(tmp_path)):
        with pytest.raises(cairn.Unsupported, match="stream transform"):
            read()
