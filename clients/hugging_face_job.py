"""The way of a model from FSDP2 to Transformers and back.

1. Four ranks train a small Llama with FSDP2; ``cairn.save`` saves model and optimizer.
2. ``cairn convert`` makes safetensors files with an index of the model's keys.
3. Transformers loads the files. The logits equal the logits of the trained model, bit by bit.
4. ``cairn convert`` makes a DCP checkpoint of the files; two ranks load the checkpoint into FSDP2. Every rank's part of
   each parameter equals the trained parameter, bit by bit.
"""

import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
from fsdp_training import join_ranks
from same import assert_same
from tiny_llama import tiny_llama
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaForCausalLM

import cairn

TRAINING_RANKS = 4


def make_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return tiny_llama()


def sharded(model: LlamaForCausalLM) -> LlamaForCausalLM:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(folder: Path) -> None:
    """Step 1, on each of the four ranks."""
    join_ranks()
    model = sharded(make_model(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tokens = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    cairn.save(state, checkpoint_id=folder / "trained")
    weights = {key: whole(tensor) for key, tensor in model.state_dict().items()}
    if dist.get_rank() == 0:
        plain = make_model(2)
        plain.load_state_dict(weights)
        torch.save({"weights": weights, "logits": logits_of(plain)}, folder / "expected.pt")
    dist.barrier()
    dist.destroy_process_group()


def logits_of(model: LlamaForCausalLM) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(16)[None]).logits


def convert(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "cairn", "convert", *arguments], check=True)


def to_transformers(folder: Path) -> dict[str, float]:
    """Steps 1 to 3, and the conversion of step 4, on one rank. Returns the seconds of the conversions."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={TRAINING_RANKS}"]
    without = {
        key: value for key, value in os.environ.items() if not key.startswith(("TORCHELASTIC_", "RANK", "WORLD"))
    }
    subprocess.run([*launcher, __file__, "train", folder], check=True, env=without)
    start = time.perf_counter()
    options = ("--to", "safetensors", "--keys", "model.*", "--rename", "model.=", "--max-shard-size", "60KB")
    convert(folder / "trained", folder / "shared", *options)
    middle = time.perf_counter()
    make_model(0).config.save_pretrained(folder / "shared")
    expected = torch.load(folder / "expected.pt")
    model = LlamaForCausalLM.from_pretrained(folder / "shared")
    assert (folder / "shared" / "model.safetensors.index.json").exists()
    assert_same(dict(model.state_dict()), expected["weights"], "the weights in Transformers")
    assert_same(logits_of(model), expected["logits"], "the logits in Transformers")
    again = time.perf_counter()
    convert(folder / "shared", folder / "back", "--to", "dcp")
    return {"to safetensors": middle - start, "to DCP": time.perf_counter() - again}


def main() -> None:
    if sys.argv[1] == "train":
        train(Path(sys.argv[2]))
        return
    join_ranks()
    folder = Path(sys.argv[1])
    seconds = to_transformers(folder) if dist.get_rank() == 0 else {}
    dist.barrier()
    model = sharded(make_model(3))  # (4)
    state = model.state_dict()
    cairn.load(state, checkpoint_id=folder / "back")
    assert_same(
        {key: whole(tensor) for key, tensor in state.items()},
        torch.load(folder / "expected.pt")["weights"],
        "the weights back in FSDP2",
    )
    findings = {
        "packages": {"transformers": version("transformers")},
        "result": f"a model of {TRAINING_RANKS} ranks with equal weights and logits in Transformers and on 2 ranks",
        "engine calls": {"load": cairn.report().engine_calls},
        "saves with the torn-snapshot alarm": 0,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }
    (folder / f"trial-{dist.get_rank()}.json").write_text(json.dumps(findings))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
