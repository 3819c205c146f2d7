"""The state that is saved while things go wrong. Every element says of which step it is, so no mixture looks whole."""

from typing import Any

import torch
from tally import Problem
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

State = dict[str, Any]

_SHAPES = {"sharded": (333, 512), "sharded_too": (41, 7, 11), "replicated": (128, 512), "plain": (300, 512)}
_PLACEMENTS: dict[str, Placement] = {"sharded": Shard(0), "sharded_too": Shard(0), "replicated": Replicate()}
_STEP_SHIFT, _TENSOR_SHIFT = 32, 24  # above them the step, between them which tensor, below them which element


def whole(step: int) -> State:
    """The state of a step as one process holds it: 4 MB of tensors, and values of which one changes its size."""
    tensors = {}
    for number, (name, shape) in enumerate(_SHAPES.items()):
        count = torch.Size(shape).numel()
        first = (step << _STEP_SHIFT) + (number << _TENSOR_SHIFT)
        tensors[name] = torch.arange(first, first + count).reshape(shape)
    return {"model": tensors, "progress": {"step": step, "history": [step] * (step % 50), "rate": 0.1 * step}}


def of_rank(step: int, mesh: DeviceMesh) -> State:
    """The same as one rank holds it."""
    state = whole(step)
    for name, placement in _PLACEMENTS.items():
        full = state["model"][name]
        local = _local(full, placement, mesh)
        state["model"][name] = DTensor.from_local(
            local, mesh, [placement], run_check=False, shape=full.shape, stride=full.stride()
        )
    return state


def spoil(state: State) -> None:
    """As the next step of a training does: what was to be saved is not there any more."""
    for tensor in state["model"].values():
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).fill_(-1)
    state["progress"].clear()


def _local(full: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    return full.chunk(mesh.size())[mesh.get_local_rank()].clone() if placement.is_shard() else full


def step_of(state: State, mesh: DeviceMesh | None = None) -> int:
    """Which step a loaded state is of; of a rank's state if there is a mesh. Raises Problem if it is of none, whole."""
    step: int = state["progress"]["step"]
    expected = whole(step)
    if state["progress"] != expected["progress"]:
        raise Problem(f"the values are a mixture: {state['progress']}")
    for name, full in expected["model"].items():
        tensor = state["model"][name]
        if isinstance(tensor, DTensor):
            assert mesh is not None
            tensor, full = tensor.to_local(), _local(full, _PLACEMENTS[name], mesh)  # noqa: PLW2901
        if not torch.equal(tensor, full):
            steps = sorted(set((tensor >> _STEP_SHIFT).flatten().tolist()))
            raise Problem(f"tensor {name} of a checkpoint of step {step} has elements of steps {steps[:9]}")
    return step
