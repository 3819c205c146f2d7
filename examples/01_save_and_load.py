"""Saves a training state, loads the state in place, loads with stock torch, and reads a tensor without torch.

python 01_save_and_load.py DIR
"""

import sys

import torch
import torch.distributed.checkpoint as dcp
from cairn.state_dict import get_state_dict

import cairn


def make_state() -> dict:
    """Returns the state of a new trainer: a model and its optimizer. get_state_dict makes the optimizer's state."""
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": 1000}


def main(directory: str) -> None:
    saved = make_state()
    cairn.save(saved, checkpoint_id=directory)

    # In place: the tensors of the state are filled, "step" is replaced.
    state = make_state() | {"step": 0}
    cairn.load(state, checkpoint_id=directory)
    assert torch.equal(state["model"]["weight"], saved["model"]["weight"])
    assert state["step"] == 1000

    # Stock torch reads the same files.
    state = make_state() | {"step": 0}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    assert torch.equal(state["model"]["weight"], saved["model"]["weight"])

    # A tensor, or a box of a tensor, as a NumPy array. Reading by cairn.open needs no torch.
    checkpoint = cairn.open(directory)
    assert (checkpoint.read("model.weight") == saved["model"]["weight"].numpy()).all()
    print("\n".join(checkpoint))


if __name__ == "__main__":
    main(sys.argv[1])
