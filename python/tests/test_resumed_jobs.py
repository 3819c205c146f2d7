"""A killed and resumed job: its first asynchronous save goes on with the plan of the checkpoint: no gather."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import gang
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.fsdp import fully_shard

import cairn
from cairn._ranks.process_group import GroupCalls

CALLS = ("gather", "scatter", "broadcast", "all_gather", "smallest")


class Job:
    """Two layers under FSDP2 with Adam, and a counter."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.Linear(24, 3))
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.step = 0
        self.train()

    def train(self) -> None:
        self.step += 1
        torch.manual_seed(self.step)
        self.model(torch.rand(4, 16)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def resume(self, directory: Path) -> None:
        state = self.state()
        cairn.load(state, checkpoint_id=directory)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]

    def whole(self) -> list[torch.Tensor]:
        """Returns the parameters, gathered."""
        return [parameter.full_tensor().detach() for parameter in self.model.parameters()]


def count_calls(seen: list[str]) -> None:
    """Notes the engine's collective calls of this process in `seen`."""
    for name in CALLS:
        call = getattr(GroupCalls, name)

        def counted(self: GroupCalls, *arguments: Any, name: str = name, call: Any = call) -> Any:
            seen.append(name)
            return call(self, *arguments)

        setattr(GroupCalls, name, counted)


def save_and_die(directory: Path) -> None:
    job = Job()
    job.train()
    kind = AsyncCheckpointerType.PROCESS  # the writer outlives the trainer
    cairn.async_save(job.state(), checkpoint_id=directory, async_checkpointer_type=kind)
    torch.distributed.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def resume_and_save(directories: list[Path]) -> tuple[list[str], list[str], list[torch.Tensor]]:
    """Returns the calls of the first and of the second save, and the parameters."""
    job = Job()
    job.resume(directories[0])
    job.train()
    first: list[str] = []
    count_calls(first)
    cairn.async_save(job.state(), checkpoint_id=directories[1]).result()
    second = list(first)
    first.clear()
    cairn.async_save(job.state(), checkpoint_id=directories[2]).result()
    return second, first, job.whole()


def loaded(directory: Path) -> list[torch.Tensor]:
    job = Job()
    job.resume(directory)
    return job.whole()


def test_a_killed_job_resumes_without_a_gather(tmp_path: Path) -> None:
    folders = [tmp_path / f"step-{number}" for number in (2, 3, 4)]
    with gang(2) as killed, pytest.raises(AssertionError, match="the process is gone"):
        killed.run(save_and_die, folders[0])
    assert cairn.latest(tmp_path, wait=240) == str(folders[0])
    with gang(2) as resumed:
        results = resumed.run(resume_and_save, folders)
    assert [calls for calls, _, _ in results] == [["smallest", "smallest"]] * 2
    assert [calls for _, calls, _ in results] == [["smallest"]] * 2
    for folder in folders[1:]:
        assert cairn.verify(folder)
    with gang(2) as third:
        again = third.run(loaded, folders[1])
    for saved, found in zip(results[0][2], again[0], strict=True):
        torch.testing.assert_close(found, saved, rtol=0, atol=0)
