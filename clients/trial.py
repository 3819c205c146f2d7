"""One client's trial: its saves and loads by stock torch and through Cairn, side by side, on every rank.

1. Stock: a job trains, saves, and another job loads.
2. Cairn: ``cairn.install()``; the same; both jobs train on and must stay equal.
3. Stock again: ``cairn.uninstall()``; a job loads what was saved through Cairn.
4. Cairn again: a job loads what stock torch saved.

After each load the state must be the saved one, bit by bit. The engine must have carried out the saves and loads of
steps 2 and 4 on every rank; a client that never reaches the engine fails its trial. So does one of whose saves and
loads any failed, also where the client hides it: the torn-snapshot alarm is on, and it must not go off.
"""

import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch.distributed as dist
import torch.distributed.checkpoint.logger as dcp_logger
from same import assert_same

import cairn
from cairn.async_saving import ASYNCHRONOUS_STAGING
from cairn.told_future import ToldFuture


class Job(Protocol):
    """A model in training, of one client."""

    def train(self, steps: int) -> None: ...
    def save(self, path: Path) -> None: ...
    def load(self, path: Path) -> None: ...
    def state(self) -> Any: ...


MakeJob = Callable[[int], Job]  # from a seed: other weights for each


class Times:
    """Seconds of each call, from a barrier to the return on this rank."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def measure(self, name: str, call: Callable[[Path], None], path: Path) -> None:
        dist.barrier()
        start = time.perf_counter()
        call(path)
        self.seconds[name] = time.perf_counter() - start
        dist.barrier()


def engine_calls() -> int:
    return cairn.report().engine_calls


class FailedCalls(logging.Handler):
    """Keeps the errors of all calls of DCP and Cairn, also of those that the client hides.

    Errors of a call are in the records of DCP's logger. A failure to stage has no record, as in DCP: it is in the
    futures of an asynchronous save of Cairn's, which the client may never ask.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []
        dcp_logger._dcp_logger.addHandler(self)
        set_exception = ToldFuture.set_exception

        def keep(future: ToldFuture[Any], error: BaseException | None) -> None:
            self.found.append(f"asynchronous save: {error}")
            set_exception(future, error)

        ToldFuture.set_exception = keep  # type: ignore[method-assign]

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict) and record.msg.get("event") == "exception":
            self.found.append(f"{record.msg.get('func_name')}: {record.msg.get('error')}")


def saves_with_alarm() -> int:
    """How many saves the torn-snapshot alarm watched: those that staged while the client went on."""
    return sum(entry.count for entry in cairn.report().calls if ASYNCHRONOUS_STAGING in entry.how)


def trained(make_job: MakeJob, seed: int) -> Job:
    job = make_job(seed)
    job.train(2)
    return job


def install_or_not(to_cairn: bool) -> None:
    """The one line of a client's user."""
    if to_cairn:
        cairn.install()
    else:
        cairn.uninstall()


def run(
    distribution: str,
    make_job: MakeJob,
    *,
    switch: Callable[[bool], None] = install_or_not,
    native_saves: bool = True,
    at_end: Callable[[], None] = lambda: None,
) -> None:
    """Plays the trial in the folder that the command line names, and writes down what came of it.

    `switch` puts Cairn in the place of stock torch, or stock torch back. `native_saves`: whether the client's saves are
    expected to reach the engine (Megatron's and NVRx's write by themselves). `make_job` is called with stock torch and
    with Cairn in its place. `at_end` ends the processes that the client has started.
    """
    folder = Path(sys.argv[1])
    times = Times()
    calls: dict[str, int] = {}
    failed = FailedCalls()

    job = trained(make_job, 0)
    times.measure("stock save", job.save, folder / "stock")
    saved = job.state()  # a client that saves while it trains has trained until now
    job = make_job(1)
    times.measure("stock load", job.load, folder / "stock")
    assert_same(job.state(), saved, "stock")

    switch(True)
    before = engine_calls()
    job = trained(make_job, 0)
    times.measure("save", job.save, folder / "ours")
    saved = job.state()
    calls["save"] = engine_calls() - before
    before = engine_calls()
    resumed = make_job(1)
    times.measure("load", resumed.load, folder / "ours")
    calls["load"] = engine_calls() - before
    assert_same(resumed.state(), saved, "resumed")
    job.train(2)
    resumed.train(2)
    assert_same(resumed.state(), job.state(), "continued")

    switch(False)
    job = make_job(2)
    job.load(folder / "ours")
    assert_same(job.state(), saved, "read by stock torch")

    switch(True)
    before = engine_calls()
    job = make_job(3)
    job.load(folder / "stock")
    calls["load of stock"] = engine_calls() - before
    assert_same(job.state(), saved, "read from stock torch")

    missing = [name for name, count in calls.items() if count == 0 and (native_saves or name != "save")]
    assert not missing, f"Cairn's engine was not reached by: {missing}; {cairn.report()}"
    assert not failed.found, f"calls that failed: {failed.found}"
    at_end()
    _leave(folder, distribution, calls, times)


def end_workers(persistent: Any) -> None:
    """Ends what queues of asynchronous calls have started; `persistent` is the queue that keeps a process."""
    persistent.close()
    for child in multiprocessing.active_children():
        child.terminate()


def _leave(folder: Path, distribution: str, calls: dict[str, int], times: Times) -> NoReturn:
    """Writes the findings of this rank down and ends the process. One that ends by itself is aborted at times."""
    findings = {
        "client": f"{distribution} {version(distribution)}",
        "engine calls": calls,
        "saves with the torn-snapshot alarm": saves_with_alarm(),
        "seconds": {name: round(value, 3) for name, value in times.seconds.items()},
    }
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(findings))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
