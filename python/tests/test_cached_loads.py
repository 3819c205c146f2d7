"""Loads with ``keep_cached``: the bytes stay in the page cache."""

import ctypes
import mmap
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn

SIZE = 8 << 20
C_LIBRARY = ctypes.CDLL(None, use_errno=True)


def cached_share(path: Path) -> float:
    """The share of the file's pages in the page cache."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | 2) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert C_LIBRARY.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages) / len(pages)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    cairn.save({"w": torch.arange(SIZE // 4)}, checkpoint_id=tmp_path / "c", no_dist=True)
    data = tmp_path / "c" / "__0_0.distcp"
    if cached_share(data) > 0.5:
        pytest.skip("this file system writes through the page cache")
    return tmp_path / "c"


def target() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(SIZE // 4, dtype=torch.int64)}


@pytest.mark.parametrize("driver", [cairn.load, dcp.load])
def test_keep_cached_leaves_the_bytes_in_the_page_cache(saved: Path, driver: object) -> None:
    for keep_cached in (False, True):
        state = target()
        reader = cairn.FileSystemReader(saved, keep_cached=keep_cached)
        driver(state, storage_reader=reader, no_dist=True)  # type: ignore[operator]
        assert torch.equal(state["w"], torch.arange(SIZE // 4))
        share = cached_share(saved / "__0_0.distcp")
        assert share > 0.95 if keep_cached else share < 0.5


def test_a_damaged_byte_in_the_page_cache_is_found(saved: Path) -> None:
    data = saved / "__0_0.distcp"
    reader = cairn.FileSystemReader(saved, keep_cached=True)
    cairn.load(target(), storage_reader=reader, no_dist=True)
    with data.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"\xff" * 8)
    with pytest.raises(cairn.Corrupt):
        cairn.load(target(), storage_reader=reader, no_dist=True)


def test_a_truncated_file_is_an_error(saved: Path) -> None:
    data = saved / "__0_0.distcp"
    reader = cairn.FileSystemReader(saved, keep_cached=True)
    cairn.load(target(), storage_reader=reader, no_dist=True)
    with data.open("r+b") as file:
        file.truncate(SIZE // 2)
    with pytest.raises(cairn.Corrupt):
        cairn.load(target(), storage_reader=reader, no_dist=True)
