"""The measured states: a transformer with its optimizer, and very many small tensors."""

from typing import Any

import torch

State = dict[str, Any]

VOCABULARY = 16384
WIDTH = 768
BYTES_PER_PARAMETER = 12  # float32, and two moments of Adam


def transformer_with_adam(mebibytes: int) -> State:
    """Returns weights and Adam moments of a GPT of about `mebibytes`, nested as trainers nest their states."""
    shapes = {"embedding.weight": (VOCABULARY, WIDTH)}
    layer_shapes = {
        "norm_1.weight": (WIDTH,),
        "attention.qkv.weight": (3 * WIDTH, WIDTH),
        "attention.qkv.bias": (3 * WIDTH,),
        "attention.out.weight": (WIDTH, WIDTH),
        "norm_2.weight": (WIDTH,),
        "mlp.up.weight": (4 * WIDTH, WIDTH),
        "mlp.up.bias": (4 * WIDTH,),
        "mlp.down.weight": (WIDTH, 4 * WIDTH),
    }
    layer_bytes = BYTES_PER_PARAMETER * 12 * WIDTH * WIDTH
    layers = max(1, round((mebibytes * 2**20 - BYTES_PER_PARAMETER * VOCABULARY * WIDTH) / layer_bytes))
    for layer in range(layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    generator = torch.Generator().manual_seed(1)

    def tensor(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape).uniform_(-1, 1, generator=generator)

    moments = {
        name: {"step": torch.tensor(1000.0), "exp_avg": tensor(shape), "exp_avg_sq": tensor(shape)}
        for name, shape in shapes.items()
    }
    return {
        "model": {name: tensor(shape) for name, shape in shapes.items()},
        "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3, "betas": [0.9, 0.95], "params": list(shapes)}]},
        "step": 1000,
    }


def small_tensors(count: int) -> State:
    """Tensors of 4 KiB."""
    generator = torch.Generator().manual_seed(1)
    return {f"t.{index:05}": torch.empty(1024).uniform_(-1, 1, generator=generator) for index in range(count)}


def tensors_of(state: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Returns the tensors of a nested state under flat names."""
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    found: dict[str, torch.Tensor] = {}
    for key, value in items:
        found |= tensors_of(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def bytes_of(state: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(state).values())
