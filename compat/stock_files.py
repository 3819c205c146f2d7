"""``save DIR``: stock torch of any version saves a state; ``load DIR``: Cairn reads and verifies the state."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


def state() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape))
    moments = {index: {"step": torch.tensor(3.0), "exp_avg": torch.full((4,), 0.5)} for index in range(4)}
    return {
        "model": model.state_dict(),
        "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3, "betas": [0.9, 0.95], "params": [0, 1, 2, 3]}]},
        "dtypes": {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES},
        "transposed": torch.arange(12.0).reshape(3, 4).T,
        "scalar": torch.tensor(7),
        "step": 1000,
        "rate": 0.5,
        "text": "cairn",
        "list": [1, torch.ones(2), {"deep": torch.zeros(3)}],
    }


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return {path: value}
    return {place: leaf for key, inner in items for place, leaf in leaves(inner, (*path, key)).items()}


def blank(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [blank(inner) for inner in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)()


def load(folder: Path) -> None:
    import cairn

    wanted = state()
    target = blank(wanted)
    cairn.load(target, checkpoint_id=folder)
    expected, found = leaves(wanted), leaves(target)
    assert expected.keys() == found.keys()
    for path, value in expected.items():
        same = torch.equal(found[path], value) if isinstance(value, torch.Tensor) else found[path] == value
        assert same, path
    report = cairn.verify(folder)
    assert report, report
    assert len(cairn.open(folder)) == len(list(cairn.open(folder)))
    print(f"{len(expected)} entries read by Cairn with torch {torch.__version__}, and verified")


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    if task == "load":
        load(folder)
        return
    shutil.rmtree(folder, ignore_errors=True)
    # torch 2.2 knows no checkpoint_id, and needs a process group.
    with tempfile.TemporaryDirectory() as meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=0, world_size=1)
        dcp.save(state(), storage_writer=dcp.FileSystemWriter(folder))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
