"""One rank of a job: a forked process that saves or loads when it is told to, and reports how that went.

It may be told to send itself a signal at an exact place of the protocol: before or after one of the calls by which the
ranks of a save talk to each other.
"""

import json
import os
import socket
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import state
import torch._dynamo  # noqa: F401 - what else would be imported by every rank: once, before they are forked
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver as stock
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import cairn
import cairn.sharding  # the same
from cairn import loading, process_group, saving

T = TypeVar("T")


class StruckCalls(process_group.GroupCalls):
    """The collectives of the engine, which strike this process when the chosen call comes."""

    names: list[str] = []  # noqa: RUF012 - of the calls of this save so far
    strike: tuple[int, bool, int] | None = None  # number of the call, whether after it, signal

    def gather(self, message: bytes, root: int) -> list[bytes]:
        return self._struck("gather", lambda: super(StruckCalls, self).gather(message, root))

    def scatter(self, messages: Sequence[bytes], root: int) -> bytes:
        return self._struck("scatter", lambda: super(StruckCalls, self).scatter(messages, root))

    def broadcast(self, message: bytes, root: int) -> bytes:
        return self._struck("broadcast", lambda: super(StruckCalls, self).broadcast(message, root))

    def _struck(self, name: str, call: Callable[[], T]) -> T:
        number = len(self.names)
        self.names.append(name)
        self._strike_at(number, False)
        result = call()
        self._strike_at(number, True)
        return result

    def _strike_at(self, number: int, after: bool) -> None:
        if self.strike is not None and self.strike[:2] == (number, after):
            os.kill(os.getpid(), self.strike[2])


def serve(link: socket.socket, rank: int, ranks: int, store: Path, timeout_seconds: float) -> NoReturn:
    """What a rank does from its fork on. It leaves without torch's farewell, which would need all ranks."""
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        warnings.filterwarnings("ignore", message="Detected an existing checkpoint")  # stock torch, at every overwrite
        process_group.GroupCalls = StruckCalls  # type: ignore[misc]
        timeout = timedelta(seconds=timeout_seconds)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)
        mesh = init_device_mesh("cpu", (ranks,))
        lines = link.makefile("rw", encoding="utf-8", buffering=1)
        print(json.dumps({"ok": True}), file=lines, flush=True)
        for line in lines:
            command = json.loads(line)
            state_dict = state.of_rank(command["step"], mesh)
            print(json.dumps({"begins": True}), file=lines, flush=True)
            print(json.dumps(_obey(command, state_dict, mesh)), file=lines, flush=True)
    except ConnectionError:
        pass  # nobody wants to know any more
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _obey(command: dict[str, Any], state_dict: state.State, mesh: DeviceMesh) -> dict[str, Any]:
    StruckCalls.names = []
    StruckCalls.strike = tuple(command["strike"]) if command["strike"] else None
    begun = time.monotonic()
    try:
        _DEEDS[command["do"]](state_dict, checkpoint_id=command["directory"])
        ended = time.monotonic()
        reply: dict[str, Any] = {"ok": True, "step": state.step_of(state_dict, mesh)}
    except (Exception, CheckpointException) as error:  # stock torch's is no Exception
        ended = time.monotonic()
        kind = type(error).__name__
        reply = {"ok": False, "kind": kind, "text": str(error), "is_cairns": isinstance(error, cairn.Error)}
    return reply | {"begun": begun, "ended": ended, "calls": StruckCalls.names}


_DEEDS: dict[str, Callable[..., Any]] = {"save": saving.save, "save with torch": stock.save, "load": loading.load}
