"""Damaged and hostile checkpoints through `cairn.convert` and `cairn.diff`, in every direction.

Each is an error that names the file, and the key if the damage is in a tensor. No target appears, an old target stays,
nothing is left behind, and no code from a file runs.
"""

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from tool import CHECK_FAILED, run

import cairn
from cairn.conversion import Format

FORMATS: tuple[Format, ...] = ("dcp", "torch", "safetensors")
RAN = Path(os.environ.get("TMPDIR", "/tmp")) / f"cairn-code-ran-{os.getpid()}"


class RunsCode:
    """Makes the folder RAN when unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(RAN),)


def tensors() -> dict[str, torch.Tensor]:
    return {"first": torch.zeros(8), "w": torch.arange(1, 5001, dtype=torch.float32), "last": torch.ones(8)}


def flip(file: Path) -> None:
    """Flips a bit in the middle of `w`."""
    content = bytearray(file.read_bytes())
    content[content.index(tensors()["w"].numpy().tobytes()) + 9_999] ^= 4
    file.write_bytes(content)


def flip_key(file: Path) -> Path:
    """Flips a bit in the name of the tensor `first`."""
    content = bytearray(file.read_bytes())
    content[content.index(b"first")] ^= 1
    file.write_bytes(content)
    return file


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - 3000])


def dcp_of(writer: Any, folder: Path) -> Path:
    writer.save(tensors(), checkpoint_id=folder / "source", no_dist=True)
    return folder / "source"


def flipped_dcp(folder: Path) -> Path:
    flip(dcp_of(cairn, folder) / "__0_0.distcp")
    return folder / "source"


def flipped_stock(folder: Path) -> Path:
    flip(dcp_of(dcp, folder) / "__0_0.distcp")
    return folder / "source"


def cut_dcp(folder: Path) -> Path:
    cut(dcp_of(cairn, folder) / "__0_0.distcp")
    return folder / "source"


def dcp_without_data(folder: Path) -> Path:
    (dcp_of(cairn, folder) / "__0_0.distcp").unlink()
    return folder / "source"


def dcp_with_hostile_pickle_as_metadata(folder: Path) -> Path:
    (dcp_of(dcp, folder) / ".metadata").write_bytes(pickle.dumps(RunsCode()))
    return folder / "source"


def torch_file(folder: Path) -> Path:
    torch.save(tensors(), folder / "model.pt")
    return folder / "model.pt"


def flipped_torch(folder: Path) -> Path:
    flip(torch_file(folder))
    return folder / "model.pt"


def cut_torch(folder: Path) -> Path:
    cut(torch_file(folder))
    return folder / "model.pt"


def torch_with_flipped_pickle(folder: Path) -> Path:
    return flip_key(torch_file(folder))


def directory_entry(archive: bytearray) -> int:
    """The offset of the entry of `w` in the directory of the archive."""
    return archive.rindex(b"PK\1\2", 0, archive.index(b"/data/1", archive.index(b"PK\1\2")))


def torch_with_record_size(folder: Path, difference: int) -> Path:
    """The directory of the archive gives the record of `w` `difference` bytes more."""
    content = bytearray(torch_file(folder).read_bytes())
    place = directory_entry(content)
    for field in (20, 24):  # compressed and uncompressed size
        (size,) = struct.unpack_from("<I", content, place + field)
        struct.pack_into("<I", content, place + field, size + difference)
    (folder / "model.pt").write_bytes(content)
    return folder / "model.pt"


def torch_with_lying_size(folder: Path) -> Path:
    """The directory of the archive says that the record of `w` has 2^31 bytes more."""
    return torch_with_record_size(folder, 1 << 31)


def torch_with_short_record(folder: Path) -> Path:
    """The directory of the archive says that the record of `w` has 4 bytes less than the pickle says."""
    return torch_with_record_size(folder, -4)


def torch_of_an_object(folder: Path) -> Path:
    torch.save(RunsCode(), folder / "model.pt")
    return folder / "model.pt"


def model(folder: Path) -> Path:
    """A safetensors file with checksums."""
    torch.save(tensors(), folder / "intact.pt")
    cairn.convert(folder / "intact.pt", folder / "model.safetensors", to="safetensors")
    return folder / "model.safetensors"


def flipped_safetensors(folder: Path) -> Path:
    flip(model(folder))
    return folder / "model.safetensors"


def safetensors_with_flipped_header(folder: Path) -> Path:
    return flip_key(model(folder))


def cut_safetensors(folder: Path) -> Path:
    cut(model(folder))
    return folder / "model.safetensors"


def model_without_a_shard(folder: Path) -> Path:
    (folder / "model").mkdir()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"w": tensors()["w"]}, folder / "model" / names[0])
    index = {"metadata": {"total_size": 1}, "weight_map": {"w": names[0], "last": names[1]}}
    (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder / "model"


def with_header(folder: Path, header: str, data: int = 8, claimed: int | None = None) -> Path:
    text = header.encode()
    length = struct.pack("<Q", len(text) if claimed is None else claimed)
    (folder / "model.safetensors").write_bytes(length + text + bytes(data))
    return folder / "model.safetensors"


def entry(name: str, begin: int, end: int, dtype: str = "U8") -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":[{end - begin}],"data_offsets":[{begin},{end}]}}'


def overlapping(folder: Path) -> Path:
    return with_header(folder, f"{{{entry('a', 0, 6)},{entry('w', 4, 8)}}}")


def beyond_the_file(folder: Path) -> Path:
    return with_header(folder, f"{{{entry('a', 0, 4)},{entry('w', 4, 1 << 40)}}}")


def duplicate(folder: Path) -> Path:
    return with_header(folder, f"{{{entry('w', 0, 4)},{entry('w', 4, 8)}}}")


def unknown_dtype(folder: Path) -> Path:
    return with_header(folder, f"{{{entry('w', 0, 8, 'F99')}}}")


def header_of_100_mb(folder: Path) -> Path:
    return with_header(folder, "{}", claimed=100_000_000)


def header_of_all_memory(folder: Path) -> Path:
    return with_header(folder, "{}", claimed=(1 << 64) - 1)


class Case(NamedTuple):
    make: Callable[[Path], Path]
    error: type[cairn.Error]
    file: str  # named by the error
    key: str | None = None


CASES = [
    Case(flipped_dcp, cairn.Corrupt, "__0_0.distcp", "w"),
    Case(flipped_stock, cairn.Corrupt, "__0_0.distcp", "w"),
    Case(cut_dcp, cairn.Corrupt, "__0_0.distcp"),
    Case(dcp_without_data, cairn.NotFound, "__0_0.distcp"),
    Case(dcp_with_hostile_pickle_as_metadata, cairn.Corrupt, ".metadata"),
    Case(flipped_torch, cairn.Corrupt, "model.pt", "w"),
    Case(cut_torch, cairn.Error, "model.pt"),
    Case(torch_with_flipped_pickle, cairn.Corrupt, "model.pt"),
    Case(torch_with_lying_size, cairn.Corrupt, "model.pt"),
    Case(torch_with_short_record, cairn.Corrupt, "model.pt"),
    Case(torch_of_an_object, cairn.Unsupported, "model.pt"),
    Case(flipped_safetensors, cairn.Corrupt, "model.safetensors", "w"),
    Case(safetensors_with_flipped_header, cairn.Corrupt, "model.safetensors"),
    Case(cut_safetensors, cairn.Corrupt, "model.safetensors"),
    Case(model_without_a_shard, cairn.NotFound, "model-00002-of-00002.safetensors"),
    Case(overlapping, cairn.Corrupt, "model.safetensors"),
    Case(beyond_the_file, cairn.Corrupt, "model.safetensors"),
    Case(duplicate, cairn.Corrupt, "model.safetensors", "w"),
    Case(unknown_dtype, cairn.Corrupt, "model.safetensors", "w"),
    Case(header_of_100_mb, cairn.Corrupt, "model.safetensors"),
    Case(header_of_all_memory, cairn.Corrupt, "model.safetensors"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.make.__name__)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(folder.rglob("*"))}


def old_targets(folder: Path) -> dict[Format, Path]:
    """Targets of each format, which hold an old state."""
    (folder / "old").mkdir()
    targets: dict[Format, Path] = {
        "dcp": folder / "old" / "dcp",
        "torch": folder / "old" / "file.pt",
        "safetensors": folder / "old" / "file.safetensors",
    }
    cairn.save({"old": torch.ones(3)}, checkpoint_id=targets["dcp"])
    for form in ("torch", "safetensors"):
        cairn.convert(targets["dcp"], targets[form], to=form)
    return targets


def assert_names(error: cairn.Error, case: Case) -> None:
    assert case.file in str(error), error
    assert case.key is None or error.key == case.key, error
    assert not RAN.exists()


@each_case
def test_no_conversion_of_a_damaged_source_leaves_a_trace(case: Case, tmp_path: Path) -> None:
    source = case.make(tmp_path)
    targets = old_targets(tmp_path)
    before = tree(tmp_path)
    for to in FORMATS:
        for target in (targets[to], targets[to].with_stem("new")):
            with pytest.raises(case.error) as caught:
                cairn.convert(source, target, to=to, overwrite=True)
            assert_names(caught.value, case)
            assert tree(tmp_path) == before, to


@each_case
def test_a_damaged_side_is_no_difference(case: Case, tmp_path: Path) -> None:
    source = case.make(tmp_path)
    intact = tmp_path / "other.pt"
    torch.save(tensors(), intact)
    for sides in ((source, intact), (intact, source), (source, source)):
        with pytest.raises(case.error) as caught:
            cairn.diff(*sides)
        assert_names(caught.value, case)


@pytest.mark.parametrize("writer", ["torch", "dcp"])
def test_a_value_that_names_code_needs_consent_and_never_runs_in_a_conversion(writer: str, tmp_path: Path) -> None:
    state = {**tensors(), "code": {"inner": RunsCode()}}
    source = tmp_path / "source.pt"
    if writer == "torch":
        torch.save(state, source)
    else:
        source = tmp_path / "source"
        dcp.save(state, checkpoint_id=source, no_dist=True)
    targets = {"dcp": tmp_path / "dcp", "torch": tmp_path / "file.pt"}
    if writer == "dcp":
        del targets["dcp"]  # the stored bytes are copied
    for to, target in targets.items():
        with pytest.raises(cairn.UnsafeContent, match="allow_pickle") as caught:
            cairn.convert(source, target, to=to)
        assert (caught.value.key, caught.value.actual) == ("code.inner", "posix.mkdir")
        done = run("convert", source, target, "--to", to)
        assert done.returncode == CHECK_FAILED
        assert all(text in done.stderr for text in (b"'code.inner'", b"posix.mkdir", b"--allow-pickle"))
        assert not target.exists()
    with pytest.raises(cairn.Unsupported) as refused:
        cairn.convert(source, tmp_path / "model.safetensors", to="safetensors")
    assert refused.value.key == "code.inner"
    assert not cairn.diff(source, source)
    targets["dcp"] = tmp_path / "dcp"
    for to, target in targets.items():
        cairn.convert(source, target, to=to, allow_pickle=True)
        assert not RAN.exists()
        with pytest.raises(cairn.UnsafeContent):
            cairn.load({"code": {"inner": None}}, checkpoint_id=target)
        assert not cairn.diff(source, target)
    found = torch.load(targets["torch"], weights_only=False)
    assert RAN.is_dir()
    RAN.rmdir()
    assert torch.equal(found["w"], state["w"])


def test_code_in_the_planner_data_of_metadata_is_neither_run_nor_copied(tmp_path: Path) -> None:
    source = dcp_of(dcp, tmp_path)
    metadata = pickle.loads((source / ".metadata").read_bytes())
    metadata.planner_data["extra"] = RunsCode()
    (source / ".metadata").write_bytes(pickle.dumps(metadata))
    torch.save(tensors(), tmp_path / "intact.pt")
    for to, target in {"dcp": tmp_path / "dcp", "torch": tmp_path / "file.pt"}.items():
        cairn.convert(source, target, to=to)
        assert not cairn.diff(target, tmp_path / "intact.pt")
    assert not cairn.diff(source, tmp_path / "intact.pt")
    assert b"mkdir" not in (tmp_path / "dcp" / ".metadata").read_bytes()
    assert not RAN.exists()


def test_the_bytes_of_a_stock_value_are_copied_between_dcp_checkpoints(tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(3), "code": RunsCode()}, checkpoint_id=tmp_path / "a", no_dist=True)
    cairn.convert(tmp_path / "a", tmp_path / "b", to="dcp")
    assert not RAN.exists()
    assert not cairn.diff(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_expanded_tensors_are_read_within_a_bound(form: Any, tmp_path: Path) -> None:
    """A record of a few bytes may hold a tensor of many elements, which is no damage."""
    state = {"row": torch.arange(2.0).expand(50, 2), "mask": torch.ones(1, dtype=torch.bool).expand(100, 100)}
    torch.save(state, tmp_path / "small.pt")
    opened, whole = (call(tmp_path / "small.pt", tensors=form) for call in (cairn.open, cairn.read))
    for found in (opened, whole):
        for key, tensor in state.items():
            assert torch.equal(torch.as_tensor(found[key]), tensor)
    torch.save({"w": torch.zeros(1).expand(1 << 40), "v": (1, 2)}, tmp_path / "bomb.pt")
    bomb = cairn.open(tmp_path / "bomb.pt", tensors=form)
    with pytest.raises(cairn.UnsafeContent, match="very often"):
        bomb["w"]
    assert bomb.read("w", slice(0, 3)).shape == (3,)
    with pytest.raises(cairn.UnsafeContent, match="very often"):
        cairn.read(tmp_path / "bomb.pt", tensors="numpy")


def test_expanded_tensors_are_compared_and_shown_within_a_bound(tmp_path: Path) -> None:
    torch.save({"mask": torch.zeros(1).expand(1000, 1000)}, tmp_path / "small.pt")
    assert not cairn.diff(tmp_path / "small.pt", tmp_path / "small.pt")
    assert run("cat", tmp_path / "small.pt", "mask").returncode == 0
    torch.save({f"w{i}": torch.zeros(1).expand(1 << 40) for i in range(2)}, tmp_path / "bomb.pt")
    with pytest.raises(cairn.UnsafeContent, match="repeat few elements") as caught:
        cairn.diff(tmp_path / "bomb.pt", tmp_path / "bomb.pt")
    assert caught.value.file == "bomb.pt"
    for words in ([], ["--npy", tmp_path / "w.npy"]):
        done = run("cat", tmp_path / "bomb.pt", "w1", *words)
        assert b"repeat few elements" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bomb.pt", "small.pt"]
