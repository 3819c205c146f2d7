"""The state that is saved during faults. Every element encodes its step: a mixture of steps never looks whole."""

from typing import Any

import torch
from tally import Problem
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

State = dict[str, Any]

_SHAPES = {"sharded": (333, 512), "sharded_too": (41, 7, 11), "replicated": (128, 512), "plain": (300, 512)}
_PLACEMENTS: dict[str, Placement] = {"sharded": Shard(0), "sharded_too": Shard(0), "replicated": Replicate()}
_STEP_SHIFT, _TENSOR_SHIFT = 32, 24  # bits of an element: the step above, the tensor's number between, the index below


def whole(step: int) -> State:
    """Returns the state of a step in one process: 4 MB of tensors, and values.

    The size of a value changes with the step.
    """
    tensors = {}
    for number, (name, shape) in enumerate(_SHAPES.items()):
        count = torch.Size(shape).numel()
        first = (step << _STEP_SHIFT) + (number << _TENSOR_SHIFT)
        tensors[name] = torch.arange(first, first + count).reshape(shape)
    return {"model": tensors, "progress": {"step": step, "history": [step] * (step % 50), "rate": 0.1 * step}}


def of_rank(step: int, mesh: DeviceMesh) -> State:
    """Returns a rank's part of the state of a step."""
    state = whole(step)
    for name, placement in _PLACEMENTS.items():
        full = state["model"][name]
        local = _local(full, placement, mesh)
        state["model"][name] = DTensor.from_local(
            local, mesh, [placement], run_check=False, shape=full.shape, stride=full.stride()
        )
    return state


def spoil(state: State) -> None:
    """Overwrites the state, as the next step of a training does: the saved values are gone from memory."""
    for tensor in state["model"].values():
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).fill_(-1)
    state["progress"].clear()


def _local(full: torch.Tensor, placement: Placement, mesh: DeviceMesh) -> torch.Tensor:
    return full.chunk(mesh.size())[mesh.get_local_rank()].clone() if placement.is_shard() else full


def step_of(state: State, mesh: DeviceMesh | None = None) -> int:
    """Returns the step of a loaded state, or of a rank's state if a mesh is given.

    Raises Problem for a mixture of steps.
    """
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
