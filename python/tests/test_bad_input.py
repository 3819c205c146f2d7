"""Damaged checkpoints: each gives an error that names the place, and changes nothing."""

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stock
import torch
from same import assert_same
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
)

import cairn

WRITERS = pytest.mark.parametrize("writer", ["cairn", "torch"])


def save(writer: str, state: dict[str, Any], directory: Path) -> None:
    if writer == "cairn":
        cairn.save(state, checkpoint_id=directory)
    else:
        stock.save(state, directory)


def state_of(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {"w": torch.rand(8, 4, generator=generator), "b": torch.rand(4, generator=generator)},
        "step": seed,
    }


def zeros() -> dict[str, Any]:
    return {"model": {"w": torch.zeros(8, 4), "b": torch.zeros(4)}, "step": -1}


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def load_fails(directory: Path, state: dict[str, Any] | None = None, **options: Any) -> cairn.Error:
    """Loads, must fail, and must leave the state and the directory unchanged; returns the error."""
    wanted = zeros() if state is None else state
    before = {path: value.clone() for path, value in tensors_of(wanted)}
    files = files_of(directory)
    with pytest.raises(cairn.Error) as caught:
        cairn.load(wanted, checkpoint_id=directory, **options)
    for path, value in tensors_of(wanted):
        assert_same(value, before[path], path)
    assert files_of(directory) == files
    if "step" in wanted:
        assert wanted["step"] == -1
    return caught.value


def tensors_of(state: dict[str, Any], prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    found = []
    for key, value in state.items():
        if isinstance(value, dict):
            found += tensors_of(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            found.append((prefix + key, value))
    return found


@pytest.mark.parametrize("what", ["directory", "metadata"])
def test_missing_checkpoint(what: str, checkpoint: Path) -> None:
    if what == "metadata":
        checkpoint.mkdir()
        (checkpoint / "__0_0.distcp").write_bytes(b"alone")
    with pytest.raises(cairn.NotFound) as caught:
        cairn.load(zeros(), checkpoint_id=checkpoint)
    assert str(checkpoint) in str(caught.value)


@WRITERS
def test_missing_data_file(writer: str, checkpoint: Path) -> None:
    save(writer, state_of(1), checkpoint)
    (checkpoint / "__0_0.distcp").unlink()
    error = load_fails(checkpoint)
    assert isinstance(error, cairn.NotFound)
    assert error.file == "__0_0.distcp"
    assert not cairn.verify(checkpoint)


@WRITERS
@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, -1])
def test_short_data_file(writer: str, keep: float, checkpoint: Path) -> None:
    save(writer, state_of(1), checkpoint)
    path = checkpoint / "__0_0.distcp"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)] if isinstance(keep, float) else data[:keep])
    error = load_fails(checkpoint)
    assert isinstance(error, cairn.Corrupt)
    assert error.file == "__0_0.distcp"
    report = cairn.verify(checkpoint)
    assert not report
    assert any(problem.file == "__0_0.distcp" for problem in report.problems)


def test_longer_data_file(checkpoint: Path) -> None:
    save("cairn", state_of(1), checkpoint)
    with (checkpoint / "__0_0.distcp").open("ab") as file:
        file.write(bytes(4096))
    error = load_fails(checkpoint)
    assert isinstance(error, cairn.Corrupt)
    assert error.file == "__0_0.distcp"


def test_data_file_of_another_step(checkpoint: Path, tmp_path: Path) -> None:
    save("cairn", state_of(1), checkpoint)
    save("cairn", state_of(2), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "__0_0.distcp", checkpoint)
    error = load_fails(checkpoint)
    assert isinstance(error, cairn.Corrupt)
    assert error.file == "__0_0.distcp"
    assert not cairn.verify(checkpoint)


def test_swapped_data_files(checkpoint: Path) -> None:
    cairn.save(
        {"a": torch.zeros(4), "b": torch.ones(4)},
        storage_writer=cairn.FileSystemWriter(checkpoint, single_file_per_rank=False),
    )
    one, two = sorted(checkpoint.glob("*.distcp"))
    one.rename(checkpoint / "swap")
    two.rename(one)
    (checkpoint / "swap").rename(two)
    error = load_fails(checkpoint, {"a": torch.full((4,), 5.0), "b": torch.full((4,), 6.0)})
    assert isinstance(error, cairn.Corrupt)
    assert error.file in (one.name, two.name)


@WRITERS
@pytest.mark.parametrize(
    "shape", [(4, 8), (8, 5), (8, 3), (9, 4), (32,), (8, 4, 1), ()], ids=lambda shape: "x".join(map(str, shape))
)
def test_other_shape(writer: str, shape: tuple[int, ...], checkpoint: Path) -> None:
    save(writer, state_of(1), checkpoint)
    state = zeros()
    state["model"]["w"] = torch.zeros(shape)
    error = load_fails(checkpoint, state)
    assert isinstance(error, ValueError)
    assert error.key == "model.w"
    assert error.expected == str(list(shape))
    assert error.actual == "[8, 4]"


@WRITERS
def test_missing_key(writer: str, checkpoint: Path) -> None:
    save(writer, state_of(1), checkpoint)
    state = zeros()
    state["model"]["extra"] = torch.zeros(1)
    error = load_fails(checkpoint, state)
    assert isinstance(error, KeyError)
    assert error.key == "model.extra"
    error = load_fails(checkpoint, {**zeros(), "more": {"deep": None}})
    assert error.key == "more.deep"


@WRITERS
def test_key_of_another_kind(writer: str, checkpoint: Path) -> None:
    save(writer, state_of(1), checkpoint)
    state = zeros()
    state["model"]["w"] = 5
    error = load_fails(checkpoint, state)
    assert isinstance(error, ValueError)
    assert error.key == "model.w"
    state = {"model": zeros()["model"], "step": torch.zeros(1)}
    with pytest.raises(cairn.InvalidArgument) as caught:
        cairn.load(state, checkpoint_id=checkpoint)
    assert caught.value.key == "step"
    assert_same(state["step"], torch.zeros(1))


def edit(directory: Path, change: Callable[[Metadata], None]) -> None:
    metadata = stock.metadata_of(directory)
    change(metadata)
    stock.rewrite_metadata(directory, metadata)


def set_chunks(*chunks: tuple[list[int], list[int]]) -> Callable[[Metadata], None]:
    """Replaces the chunks of "model.w". Each new chunk points to the bytes of the original chunk."""

    def change(metadata: Metadata) -> None:
        place = metadata.storage_data.pop(MetadataIndex("model.w", [0, 0]))
        boxes = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
        metadata.state_dict_metadata["model.w"].chunks = boxes
        for i, (offsets, _) in enumerate(chunks):
            metadata.storage_data[MetadataIndex("model.w", offsets, i)] = place

    return change


def set_size(*size: int) -> Callable[[Metadata], None]:
    def change(metadata: Metadata) -> None:
        metadata.state_dict_metadata["model.w"].size = torch.Size(size)

    return change


def place(key: str, **changes: Any) -> Callable[[Metadata], None]:
    """Changes the recorded place of the key's item."""

    def change(metadata: Metadata) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == key:
                metadata.storage_data[index] = dataclasses.replace(info, **changes)

    return change


def without_storage(metadata: Metadata) -> None:
    del metadata.storage_data[MetadataIndex("model.w", [0, 0])]


def without_kind(metadata: Metadata) -> None:
    metadata.state_dict_metadata["model.w"] = BytesStorageMetadata()


LIES: dict[str, Callable[[Metadata], None]] = {
    "half_the_chunks": set_chunks(([0, 0], [4, 4])),
    "no_chunks": set_chunks(),
    "hole_between_chunks": set_chunks(([0, 0], [3, 4]), ([4, 0], [4, 4])),
    "chunk_outside": set_chunks(([4, 0], [8, 4])),
    "chunk_far_outside": set_chunks(([2**60, 0], [8, 4])),
    "chunk_of_2^60": set_chunks(([0, 0], [2**60, 4])),
    "chunk_of_negative_size": set_chunks(([0, 0], [-8, 4])),
    "chunk_at_negative_offset": set_chunks(([-1, 0], [8, 4])),
    "chunk_of_other_dimensions": set_chunks(([0], [32])),
    "size_2^60": set_size(2**60, 4),
    "size_2^60_squared": set_size(2**60, 2**60),
    "no_storage": without_storage,
    "kind": without_kind,
    "tensor_length_2^50": place("model.w", length=2**50),
    "tensor_length_negative": place("model.w", length=-5),
    "tensor_length_0": place("model.w", length=0),
    "tensor_length_short": place("model.w", length=600),
    "tensor_offset_2^62": place("model.w", offset=2**62),
    "tensor_offset_negative": place("model.w", offset=-64),
    "tensor_offset_off_by_one": place("model.w", offset=1),
    "value_length_2^50": place("step", length=2**50),
    "value_offset_2^62": place("step", offset=2**62),
    "value_offset_negative": place("step", offset=-1),
    "offset_beyond_64_bits": place("step", offset=2**70),
}


LIES_ABOUT_THE_VALUE = ("value_length_2^50", "value_offset_2^62")  # the tensor stays readable


@WRITERS
@pytest.mark.parametrize("lie", LIES)
def test_inconsistent_metadata(writer: str, lie: str, checkpoint: Path) -> None:
    save(writer, state_of(1), checkpoint)
    edit(checkpoint, LIES[lie])
    error = load_fails(checkpoint)
    assert error.key in ("model.w", "step") or error.file == ".metadata"
    assert error.code in ("kCorrupt", "kInvalidArgument", "kUnsupported"), error
    # In a stock file only the metadata says whether an archive that holds a tensor was saved as a value.
    says_value = (writer, lie) == ("torch", "kind")
    try:
        report = cairn.verify(checkpoint)
    except cairn.Error:
        pass
    else:
        assert bool(report) == says_value
    try:
        weight = cairn.open(checkpoint)["model.w"]
    except cairn.Error:
        assert not says_value
    else:
        assert says_value or lie in LIES_ABOUT_THE_VALUE
        assert np.array_equal(weight, state_of(1)["model"]["w"])


def test_claims_do_not_fill_the_memory(checkpoint: Path) -> None:
    import resource

    save("torch", state_of(1), checkpoint)
    edit(checkpoint, place("step", length=2**50))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    load_fails(checkpoint)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_metadata_of_another_save(checkpoint: Path, tmp_path: Path) -> None:
    """The metadata of step 2 with the data of step 1."""
    save("cairn", state_of(1), checkpoint)
    save("cairn", state_of(2), tmp_path / "other")
    shutil.copy(tmp_path / "other" / ".metadata", checkpoint)
    error = load_fails(checkpoint)
    assert isinstance(error, cairn.Corrupt)


@pytest.mark.parametrize("content", [b"", b"\x80", b"not a pickle", b"\x80\x04N.", b"\x80\x04}.", bytes(5000)])
def test_metadata_that_is_none(content: bytes, checkpoint: Path) -> None:
    checkpoint.mkdir()
    (checkpoint / ".metadata").write_bytes(content)
    with pytest.raises(cairn.Corrupt) as caught:
        cairn.load(zeros(), checkpoint_id=checkpoint)
    assert caught.value.file == ".metadata"
    with pytest.raises(cairn.Error):
        cairn.open(checkpoint)


def test_metadata_that_is_a_folder(checkpoint: Path) -> None:
    (checkpoint / ".metadata").mkdir(parents=True)
    with pytest.raises(cairn.Error):
        cairn.load(zeros(), checkpoint_id=checkpoint)


def test_a_file_instead_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(cairn.Error):
        cairn.load(zeros(), checkpoint_id=tmp_path / "file")
    with pytest.raises(cairn.Error):
        cairn.save(state_of(1), checkpoint_id=tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"x"


class TestOutsideTheDirectory:
    """Paths that lead outside, links, and files that are not regular."""

    @pytest.mark.parametrize(
        "name", ["../secret/data", "{root}/secret/data", "sub/../../secret/data", "./../secret/data"]
    )
    def test_paths(self, name: str, checkpoint: Path, tmp_path: Path) -> None:
        save("torch", state_of(1), checkpoint)
        (tmp_path / "secret").mkdir()
        (checkpoint / "sub").mkdir()
        (checkpoint / "__0_0.distcp").rename(tmp_path / "secret" / "data")
        edit(checkpoint, lambda metadata: [place(k, relative_path=name.format(root=tmp_path))(metadata)
                                           for k in ("model.w", "model.b", "step")] and None)  # fmt: skip
        error = load_fails(checkpoint)
        assert isinstance(error, cairn.UnsafeContent)
        assert error.file == name.format(root=tmp_path)
        error = load_fails(checkpoint, follow_links=True)
        assert isinstance(error, cairn.UnsafeContent)

    @WRITERS
    def test_links(self, writer: str, checkpoint: Path, tmp_path: Path) -> None:
        save(writer, state_of(1), checkpoint)
        (checkpoint / "__0_0.distcp").rename(tmp_path / "elsewhere")
        (checkpoint / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
        error = load_fails(checkpoint)
        assert isinstance(error, cairn.UnsafeContent)
        assert error.file == "__0_0.distcp"
        with pytest.raises(cairn.UnsafeContent):
            cairn.open(checkpoint)["model.w"]
        assert not cairn.verify(checkpoint)
        state = zeros()
        cairn.load(state, checkpoint_id=checkpoint, follow_links=True)
        assert_same(state, state_of(1))
        assert_same(cairn.open(checkpoint, follow_links=True)["model.b"], state_of(1)["model"]["b"].numpy())
        assert cairn.verify(checkpoint, follow_links=True)

    def test_subfolders_are_inside(self, checkpoint: Path) -> None:
        save("torch", state_of(1), checkpoint)
        (checkpoint / "sub").mkdir()
        (checkpoint / "__0_0.distcp").rename(checkpoint / "sub" / "data")
        for key in ("model.w", "model.b", "step"):
            edit(checkpoint, place(key, relative_path="sub/data"))
        state = zeros()
        cairn.load(state, checkpoint_id=checkpoint)
        assert_same(state, state_of(1))

    @WRITERS
    @pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "device"])
    def test_special_files(self, writer: str, kind: str, checkpoint: Path) -> None:
        save(writer, state_of(1), checkpoint)
        path = checkpoint / "__0_0.distcp"
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "socket":
            import socket

            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(os.path.relpath(path))
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(cairn.Error) as caught:
            cairn.load(zeros(), checkpoint_id=checkpoint, follow_links=kind == "device")
        assert caught.value.file == "__0_0.distcp"
        assert not cairn.verify(checkpoint)

    def test_planted_links_are_not_written_through(self, checkpoint: Path, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(b"mine")
        checkpoint.mkdir()
        for name in ("__0_0.distcp", ".metadata.tmp", ".metadata"):
            (checkpoint / name).symlink_to(secret)
        try:
            cairn.save(state_of(1), checkpoint_id=checkpoint)
        except cairn.Error:
            pass
        else:
            state = zeros()
            cairn.load(state, checkpoint_id=checkpoint)
            assert_same(state, state_of(1))
        assert secret.read_bytes() == b"mine"
