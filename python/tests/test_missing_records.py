"""``verify`` of values whose tensors lack bytes: a missing, short or long record, at any depth, in any container."""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tool
import torch
import torch.distributed.checkpoint as dcp

import cairn


class Subclass(torch.Tensor):
    pass


INSIDE: dict[str, Any] = {
    "tuple": (torch.arange(5.0), 1),
    "deep": [[({"a": (torch.arange(5.0),)},)]],
    "subclass": (torch.arange(5.0).as_subclass(Subclass),),
}
CHANGES = {"missing": None, "short": -4, "long": 4}


def changed(content: bytes, by: int | None) -> bytes | None:
    if by is None:
        return None
    return content[:by] if by < 0 else content + bytes(by)


def rewrite(file: Path, record: str, by: int | None) -> None:
    """Changes the length of a record; its checksum fits."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(file.with_name("new"), "w") as out:
        for name in source.namelist():
            content: bytes | None = source.read(name)
            if name.endswith(record):
                assert content is not None
                content = changed(content, by)
            if content is not None:
                out.writestr(name, content)
    file.with_name("new").replace(file)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", INSIDE)
def test_a_file_of_torch_save(kind: str, change: str, tmp_path: Path) -> None:
    file = tmp_path / "s.pt"
    torch.save({"w": torch.ones(4), "t": INSIDE[kind]}, file)
    assert cairn.verify(file)
    rewrite(file, "data/1", CHANGES[change])
    (problem,) = cairn.verify(file).problems
    assert isinstance(problem, cairn.Corrupt)
    assert "data/1" in str(problem)
    assert "'t'" in str(problem)
    assert tool.run("verify", file).returncode == tool.CHECK_FAILED


@pytest.mark.parametrize("change", CHANGES)
def test_a_value_of_a_dcp_checkpoint(change: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    dcp.save({"t": INSIDE["deep"], "w": torch.ones(2)}, checkpoint_id=checkpoint, no_dist=True)
    assert cairn.verify(checkpoint)
    metadata = dcp.FileSystemReader(checkpoint).read_metadata()
    (place,) = [info for index, info in metadata.storage_data.items() if index.fqn == "t"]
    data = checkpoint / place.relative_path
    content = data.read_bytes()
    item = tmp_path / "item"
    item.write_bytes(content[place.offset : place.offset + place.length])
    rewrite(item, "data/0", CHANGES[change])
    # The item takes the end of a data file: the place in the metadata gets the new length.
    data.write_bytes(content + item.read_bytes())
    place.offset, place.length = len(content), item.stat().st_size
    with (checkpoint / ".metadata").open("wb") as file:
        pickle.dump(metadata, file)
    (problem,) = cairn.verify(checkpoint).problems
    assert "'t'" in str(problem)
    assert "data/0" in str(problem)


def test_the_checkpoint_of_the_tool_says_which_record(tmp_path: Path) -> None:
    file = tmp_path / "s.pt"
    torch.save({"t": (torch.arange(5.0), 1)}, file)
    shutil.copy(file, tmp_path / "good.pt")
    rewrite(file, "data/0", None)
    done = tool.run("verify", file)
    assert done.returncode == tool.CHECK_FAILED
    assert b"data/0" in done.stdout + done.stderr
    with pytest.raises(cairn.Corrupt, match="'t'"):
        cairn.convert(file, tmp_path / "out", to="dcp")
