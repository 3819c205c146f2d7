"""A state that machines of different processors exchange: python exchanged_state.py save|check DIRECTORY.

`save` writes the state with Cairn, through the writer process and without it, and with stock torch, into three
directories below DIRECTORY. `check` verifies and loads all three with Cairn, and two with stock torch, and compares
every tensor bit by bit with the state made anew. Both processors make equal bits: the bytes come from integers.
"""

import platform
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as stock

import cairn

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
BYTES = 300_000  # of a tensor: more than one block of checksums, and a payload that is aligned to pages


def state() -> dict[str, Any]:
    """All values of a byte occur, NaN and subnormal numbers among them."""
    tensors: dict[str, torch.Tensor] = {}
    for number, dtype in enumerate(DTYPES):
        numbers = torch.arange(BYTES, dtype=torch.int64) * 2_654_435_761 + number
        values = (numbers >> 13).to(torch.uint8).view(dtype)
        tensors[str(dtype)] = values.reshape(-1, 25) if values.numel() % 25 == 0 else values
    tensors["bool"] = torch.arange(999) % 3 == 0
    tensors["scalar"] = torch.tensor(7)
    tensors["empty"] = torch.zeros(0, 4)
    tensors["strided"] = torch.arange(12, dtype=torch.int32).reshape(3, 4).T
    return {"tensors": tensors, "step": 1000, "rate": 0.1, "text": "cairn", "list": [1, torch.ones(2), None]}


def blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {place: leaf for key, inner in items for place, leaf in leaves(inner, (*path, key)).items()}
    return {path: bytes_of(value) if isinstance(value, torch.Tensor) else value}


def bytes_of(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def save(folder: Path) -> None:
    saved = state()
    process = cairn.AsyncCheckpointerType.PROCESS
    cairn.async_save(saved, checkpoint_id=folder / "writer", async_checkpointer_type=process).result(timeout=600)
    cairn.save(saved, checkpoint_id=folder / "cairn", no_dist=True)
    stock.save(saved, checkpoint_id=folder / "stock", no_dist=True)


def check(folder: Path) -> str:
    expected = leaves(state())
    for name, load in (("writer", cairn), ("cairn", cairn), ("stock", cairn), ("writer", stock), ("cairn", stock)):
        assert cairn.verify(folder / name), name
        loaded = blank(state())
        load.load(loaded, checkpoint_id=folder / name, no_dist=True)
        found = leaves(loaded)
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            assert found[path] == value, (name, load.__name__, path)
    return f"{len(expected)} entries of 3 checkpoints, bit by bit"


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    done = save(folder) if task == "save" else check(folder)
    print(f"{task} on {platform.machine()}, torch {torch.__version__}: {done or 'done'}")


if __name__ == "__main__":
    main()
