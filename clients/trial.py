"""A client's trial: its saves and loads by stock torch and through Cairn, side by side, on every rank.

1. Stock: a job trains and saves; a second job loads.
2. Cairn: ``cairn.install()``; a job trains and saves; a second job loads; both train on and must stay equal.
3. Stock again: ``cairn.uninstall()``; a job loads Cairn's checkpoint.
4. Cairn again: a job loads stock torch's checkpoint.

After each load the state must equal the saved state, bit by bit. The engine must have carried out the saves and loads
of steps 2 and 4 on every rank; the trial of a client that never reaches the engine fails. A failed save or load fails
the trial too, even if the client hides the failure: the torn-snapshot alarm is on, and must not go off.
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
from cairn._async.pending_saves import TrackedFuture
from cairn._calls.async_save import ASYNCHRONOUS_STAGING


class Job(Protocol):
    """A model in training, of a client."""

    def train(self, steps: int) -> None: ...
    def save(self, path: Path) -> None: ...
    def load(self, path: Path) -> None: ...
    def state(self) -> Any: ...


MakeJob = Callable[[int], Job]  # from a seed: the weights depend on the seed


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

    def add(self, prefix: str, seconds: dict[str, float]) -> None:
        """Adds what the client has measured."""
        self.seconds |= {prefix + name: value for name, value in seconds.items()}


def engine_calls() -> int:
    return cairn.report().engine_calls


class FailedCalls(logging.Handler):
    """Keeps the errors of all calls of DCP and Cairn, including errors hidden by the client.

    DCP's logger has records of failed calls. A failure to stage has no record, as in DCP: the error is in the futures
    of Cairn's asynchronous save, which the client may never retrieve.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []
        dcp_logger._dcp_logger.addHandler(self)
        set_exception = TrackedFuture.set_exception

        def keep(future: TrackedFuture[Any], error: BaseException | None) -> None:
            self.found.append(f"asynchronous save: {error}")
            set_exception(future, error)

        TrackedFuture.set_exception = keep  # type: ignore[method-assign]

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, dict) and record.msg.get("event") == "exception":
            self.found.append(f"{record.msg.get('func_name')}: {record.msg.get('error')}")


def saves_with_alarm() -> int:
    """Returns the number of saves watched by the torn-snapshot alarm: saves that staged while the client continued."""
    return sum(entry.count for entry in cairn.report().calls if ASYNCHRONOUS_STAGING in entry.how)


def trained(make_job: MakeJob, seed: int) -> Job:
    job = make_job(seed)
    job.train(2)
    return job


def install_or_not(to_cairn: bool) -> None:
    """The line that a client's user adds."""
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
    measure: Callable[[Path], dict[str, float]] = lambda folder: {},
    at_end: Callable[[], None] = lambda: None,
) -> None:
    """Plays the trial in the folder given on the command line, and writes the findings to files.

    `switch` replaces stock torch by Cairn, or restores stock torch. `native_saves`: whether the client's saves are
    expected to reach the engine (Megatron and NVRx write by their own code). `make_job` is called with stock torch and
    with Cairn installed. `measure` returns further seconds by name, for stock torch and for Cairn. `at_end` ends the
    processes that the client has started.
    """
    folder = Path(sys.argv[1])
    times = Times()
    calls: dict[str, int] = {}
    failed = FailedCalls()

    job = trained(make_job, 0)
    times.measure("stock save", job.save, folder / "stock")
    saved = job.state()  # a client that saves in training has finished its training here
    job = make_job(1)
    times.measure("stock load", job.load, folder / "stock")
    assert_same(job.state(), saved, "stock")
    times.add("stock ", measure(folder / "stock"))

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
    times.add("", measure(folder / "ours"))
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
    """Ends the processes of queues of asynchronous calls; `persistent` is the queue that keeps a process."""
    persistent.close()
    for child in multiprocessing.active_children():
        child.terminate()


def _leave(folder: Path, distribution: str, calls: dict[str, int], times: Times) -> NoReturn:
    """Writes the findings of this rank and ends the process by `os._exit`, because a normal exit sometimes aborts."""
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
