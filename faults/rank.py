"""A rank of a job: a forked process that saves or loads on command, and reports the outcome.

A command may order the rank to signal itself at an exact place of the protocol: before or after a collective of the
save.
"""

import copy
import json
import os
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import descendants
import state
import torch._dynamo  # noqa: F401 - imported before the fork, not by every rank
import torch.distributed as dist
from checkpointing_saves import managed_saves
from orders import AT_RETURN, AsyncSave, Strike
from torch.distributed.checkpoint import state_dict_saver as stock
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import StagingOptions
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import cairn
import cairn._state.sharding  # imported before the fork, too
from cairn import AsyncCheckpointerType
from cairn._async import pending_saves
from cairn._calls import load, save
from cairn._ranks import process_group
from cairn.staging import DefaultStager

T = TypeVar("T")


class StruckCalls(process_group.GroupCalls):
    """The collectives of the engine. Signals this process at the chosen call."""

    names: list[str] = []  # noqa: RUF012 - the calls of the current save
    strike: Strike | None = None

    def gather(self, message: bytes, root: int) -> list[bytes]:
        return self._struck("gather", lambda: super(StruckCalls, self).gather(message, root))

    def all_gather(self, message: bytes) -> list[bytes]:
        return self._struck("all_gather", lambda: super(StruckCalls, self).all_gather(message))

    def smallest(self, numbers: Sequence[int]) -> list[int]:
        return self._struck("smallest", lambda: super(StruckCalls, self).smallest(numbers))

    def scatter(self, messages: Sequence[bytes], root: int) -> bytes:
        return self._struck("scatter", lambda: super(StruckCalls, self).scatter(messages, root))

    def broadcast(self, message: bytes, root: int) -> bytes:
        return self._struck("broadcast", lambda: super(StruckCalls, self).broadcast(message, root))

    def _struck(self, name: str, call: Callable[[], T]) -> T:
        number = len(self.names)
        self.names.append(name)
        self.strike_at(number, False)
        result = call()
        self.strike_at(number, True)
        return result

    @classmethod
    def strike_at(cls, number: int, after: bool) -> None:
        """Strikes if the place is the chosen place."""
        strike = cls.strike
        if strike is None or strike[:2] != (number, after):
            return
        blow = (os.getpid(), strike.signal, strike.whom)
        if strike.delay_seconds > 0:
            threading.Timer(strike.delay_seconds, descendants.strike, blow).start()
        else:
            descendants.strike(*blow)


class Place(NamedTuple):
    """The place of a rank in its job."""

    rank: int
    ranks: int
    store: Path  # the file through which the ranks of a process group meet
    timeout_seconds: float


def serve(link: socket.socket, place: Place, how: AsyncSave | None) -> NoReturn:
    """The main function of a rank. Exits without torch's shutdown, which would need all ranks."""
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        warnings.filterwarnings("ignore", message="Detected an existing checkpoint")  # stock torch, at every overwrite
        process_group.GroupCalls = StruckCalls  # type: ignore[misc]
        timeout, store = timedelta(seconds=place.timeout_seconds), f"file://{place.store}"
        dist.init_process_group("gloo", init_method=store, rank=place.rank, world_size=place.ranks, timeout=timeout)
        mesh = init_device_mesh("cpu", (place.ranks,))
        if how is not None:
            cairn.configure_async_saves(deadline_seconds=how.deadline_seconds)
        lines = link.makefile("rw", encoding="utf-8", buffering=1)

        def tell(what: dict[str, Any]) -> None:
            print(json.dumps(what), file=lines, flush=True)

        tell({"ok": True})
        for line in lines:
            command = json.loads(line)
            state_dict = state.of_rank(command["step"], mesh)
            tell({"begins": True})
            deed = _DEEDS[command["do"]]
            if how is not None and command["do"] == "save":
                deed = AsyncDeed(how, lambda: tell({"staged": True}))
            tell(_obey(command, deed, state_dict, mesh))
            import gc

            gc.collect()
    except ConnectionError:
        pass  # the parent is gone
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _obey(
    command: dict[str, Any], deed: Callable[..., Any], state_dict: state.State, mesh: DeviceMesh
) -> dict[str, Any]:
    StruckCalls.names = []
    StruckCalls.strike = Strike(*command["strike"]) if command["strike"] else None
    begun = time.monotonic()
    try:
        deed(state_dict, checkpoint_id=command["directory"])
        ended = time.monotonic()
        loads = command["do"] == "load"
        reply: dict[str, Any] = {"ok": True, "step": state.step_of(state_dict, mesh) if loads else command["step"]}
    except (Exception, CheckpointException) as error:  # stock torch's exception does not derive from Exception
        ended = time.monotonic()
        kind = type(error).__name__
        reply = {"ok": False, "kind": kind, "text": str(error), "is_cairns": isinstance(error, cairn.Error)}
    return reply | {"begun": begun, "ended": ended, "calls": StruckCalls.names}


class AsyncDeed:
    """A save in the background, as by a trainer: the state changes as soon as permitted.

    If the rank does not ask the future, a second save of an equal state must raise the first save's error.
    """

    _stager = DefaultStager(StagingOptions(use_async_staging=True))

    def __init__(self, how: AsyncSave, tell_staged: Callable[[], None]) -> None:
        self._how = how
        self._tell_staged = tell_staged
        self._type = AsyncCheckpointerType.PROCESS if how.process else AsyncCheckpointerType.THREAD

    def __call__(self, state_dict: state.State, checkpoint_id: str) -> None:
        kept = None if self._how.asks else copy.deepcopy(state_dict)
        upload = self._save(state_dict, checkpoint_id)
        self._tell_staged()
        StruckCalls.strike_at(AT_RETURN, True)
        state.spoil(state_dict)
        if kept is not None:
            pending_saves.wait_for()
            upload = self._save(kept, checkpoint_id)
        upload.result()

    def _save(self, state_dict: state.State, checkpoint_id: str) -> "Future[Any]":
        """Saves, and returns when the state may change."""
        stager = self._stager if self._how.staged_later else None
        response = cairn.async_save(
            state_dict, checkpoint_id=checkpoint_id, async_checkpointer_type=self._type, async_stager=stager
        )
        if isinstance(response, Future):
            return response
        response.staging_completion.result()
        return response.upload_completion


_DEEDS: dict[str, Callable[..., Any]] = {
    "save": save.save,
    "save with torch": stock.save,
    "load": load.load,
    **managed_saves(),
}
