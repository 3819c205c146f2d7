"""Makes torch's tests for GPUs run on CPUs over gloo, with stock torch and with Cairn alike."""

import atexit
import functools
import os
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.cuda import _pin_memory_utils
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed._shard import sharded_tensor
from torch.testing._internal.distributed._tensor import common_dtensor


def _unchanged(*arguments: Any, **keywords: Any) -> Any:
    """Replaces a decorator that skips a test. The decorator may be used with or without arguments."""
    if len(arguments) == 1 and callable(arguments[0]) and not keywords:
        return arguments[0]
    return lambda function: function


def _with_comms(function: Callable[..., Any] | None = None, init_rpc: bool = True, backend: str = "gloo") -> Any:
    backend = "gloo" if backend in (None, "nccl") else backend
    if function is None:
        return functools.partial(_with_comms, init_rpc=init_rpc, backend=backend)
    return _stock_with_comms(function, init_rpc=init_rpc, backend=backend)


def _init_fsdp(self: Any, module: Any, *arguments: Any, **keywords: Any) -> None:
    if len(arguments) < 8:  # may be given by position too
        keywords.setdefault("device_id", torch.device("cpu"))
    _stock_init_fsdp(self, module, *arguments, **keywords)


def _barrier(*arguments: Any, device_ids: object = None, **keywords: Any) -> Any:
    return _stock_barrier(*arguments, **keywords)


def _start_ranks_from_a_server(self: Any) -> None:
    """Forks a test's ranks from a process that has already imported their modules.

    In stock torch each rank imports anew.
    """
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["adaptation", "torch._dynamo", type(self).__module__])
    self._start_processes(context.Process)


def _leave_engine_calls() -> None:
    """Appends the number of this process's calls that reached the engine to the file of the run."""
    with Path(os.environ["PAIRED_TESTS_CALLS"]).open("a") as calls:
        calls.write(f"{cairn.report().engine_calls}\n")


def _leave_engine_calls_at_exit(_: object) -> None:
    """Registers the count in a process of multiprocessing, which does not run the callbacks of `atexit`."""
    util.Finalize(None, _leave_engine_calls, exitpriority=0)


torch.set_num_threads(1)
torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
torch.cuda.set_device = lambda *_: None
torch.cuda.device_count = lambda: int(os.environ["TORCH_TESTS_DEVICES"])
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
torch.accelerator.device_count = torch.cuda.device_count  # type: ignore[assignment]
torch.accelerator.current_device_index = lambda: "cpu"  # type: ignore[assignment, return-value]
for _module in (common_distributed, common_dtensor):
    for _name in ("skip_if_lt_x_gpu", "requires_nccl", "requires_accelerator_dist_backend"):
        if hasattr(_module, _name):
            setattr(_module, _name, _unchanged)
common_distributed.MultiProcessTestCase._spawn_processes = _start_ranks_from_a_server
_pin_memory_utils.pin_memory = _pin_memory_utils.unpin_memory = lambda *_: None
_stock_barrier = torch.distributed.barrier
torch.distributed.barrier = _barrier
_stock_with_comms = sharded_tensor.with_comms
sharded_tensor.with_comms = _with_comms
_stock_init_fsdp = FullyShardedDataParallel.__init__
FullyShardedDataParallel.__init__ = _init_fsdp  # type: ignore[method-assign]

if os.environ["TORCH_TESTS_MODE"] == "cairn":
    import cairn

    cairn.install()
    atexit.register(_leave_engine_calls)
    util.register_after_fork(cairn, _leave_engine_calls_at_exit)
