"""What the programs of managed runs share: they run code of docs/clients.md, and say how it ended.

A program has a function ``play(Play) -> Ended``, which a test calls in its own process, in an empty working directory,
or by torchrun: ``managed_lightning.py TITLE --steps 13``. The last line of rank 0 is then `Ended` as JSON.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

PAGE = Path(__file__).parents[3] / "docs/clients.md"


@dataclass(frozen=True)
class Play:
    """`title`: of the code of the page, or "" for the framework's own checkpoint of step 6. `stop`: the step in which
    the last rank gets a SIGTERM. `strategy`: of the framework, where it has one."""

    title: str
    steps: int = 13
    stop: int = 0
    strategy: str = "auto"


@dataclass(frozen=True)
class Ended:
    """`sums`: of the parameters, to compare runs that add in another order."""

    step: int
    preempted: bool
    model: str
    sums: list[float]


def code_of(title: str) -> str:
    match = re.search(rf'^```python title="{title}"\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert match is not None, title
    return match[1]


def run_code(title: str, names: dict[str, Any]) -> None:
    exec(compile(code_of(title), title, "exec"), names)


def stop_at(step: int, play: Play) -> None:
    """Later steps take a second, so that the ranks agree before the run ends."""
    if 0 < play.stop <= step and int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1:
        if step == play.stop:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)


def ended(step: int, preempted: bool, model: Any) -> Ended:
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    tensors = [whole[name].detach().cpu() for name in sorted(whole)]
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()[:16]
    return Ended(step, preempted, digest, [round(float(tensor.double().sum()), 3) for tensor in tensors])


def main(play: Callable[[Play], Ended]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("title", nargs="?", default="")
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--stop", type=int, default=0)
    parser.add_argument("--strategy", default="auto")
    torch.set_num_threads(1)
    result = play(Play(**vars(parser.parse_args())))
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(asdict(result)), flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
