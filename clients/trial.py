"""A client's trial: its saves and loads by stock torch and through Cairn, side by side, on every rank.

1. Stock: a job trains and saves; a second job loads.
2. Cairn: ``cairn.install()``; a job trains and saves; a second job loads; both train on and must stay equal.
3. Stock again: ``cairn.uninstall()``; a job loads Cairn's checkpoint.
4. Cairn again: a job loads stock torch's checkpoint.
5. Stock and Cairn save and load once more. The times of these calls hold no first calls of a process.
6. Two more jobs of torchrun: a job with Cairn is killed, and a new job goes on from the newest checkpoint (`killed`).

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
from killed import ROUNDS, agreed_newest_round, save_rounds, train_until_killed
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
    """Plays a part of the trial in the folder given on the command line, and writes the findings to files.

    `switch` replaces stock torch by Cairn, or restores stock torch. `native_saves`: whether the client's saves are
    expected to reach the engine (Megatron and NVRx write by their own code). `make_job` is called with stock torch and
    with Cairn installed. `measure` returns further seconds by name, for stock torch and for Cairn. `at_end` ends the
    processes that the client has started.
    """
    folder = Path(sys.argv[1])
    failed = FailedCalls()
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    if part == "killed":
        switch(True)
        train_until_killed(make_job(0), folder)
    if part == "resumed":
        switch(True)
        findings = resume(make_job, folder)
    else:
        times = Times()
        calls = compare(make_job, switch, measure, folder, times)
        compare_times(make_job, switch, folder, times)
        missing = [name for name, count in calls.items() if count == 0 and (native_saves or name != "save")]
        assert not missing, f"Cairn's engine was not reached by: {missing}; {cairn.report()}"
        findings = {
            "packages": {distribution: version(distribution)},
            "engine calls": calls,
            "saves with the torn-snapshot alarm": saves_with_alarm(),
            "seconds": {name: round(value, 3) for name, value in times.seconds.items()},
        }
    assert not failed.found, f"calls that failed: {failed.found}"
    at_end()
    _leave(folder, findings, part)


def compare(
    make_job: MakeJob,
    switch: Callable[[bool], None],
    measure: Callable[[Path], dict[str, float]],
    folder: Path,
    times: Times,
) -> dict[str, int]:
    """Steps 1 to 4. Returns the calls that reached the engine."""
    calls: dict[str, int] = {}

    job = trained(make_job, 0)
    times.measure("first stock save", job.save, folder / "stock")
    saved = job.state()  # a client that saves in training has finished its training here
    job = make_job(1)
    times.measure("first stock load", job.load, folder / "stock")
    assert_same(job.state(), saved, "stock")
    times.add("stock ", measure(folder / "stock"))

    switch(True)
    before = engine_calls()
    job = trained(make_job, 0)
    times.measure("first save", job.save, folder / "ours")
    saved = job.state()
    calls["save"] = engine_calls() - before
    before = engine_calls()
    resumed = make_job(1)
    times.measure("first load", resumed.load, folder / "ours")
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
    return calls


def compare_times(make_job: MakeJob, switch: Callable[[bool], None], folder: Path, times: Times) -> None:
    """Step 5. Ends with Cairn installed."""
    for to_cairn, prefix in ((False, "stock "), (True, "")):
        switch(to_cairn)
        directory = folder / f"{prefix}again".replace(" ", "-")
        times.measure(prefix + "save", trained(make_job, 0).save, directory)
        times.measure(prefix + "load", make_job(1).load, directory)


def resume(make_job: MakeJob, folder: Path) -> dict[str, Any]:
    """The second part of step 6."""
    whole = make_job(0)
    save_rounds(whole, folder / "whole", 1, ROUNDS)
    expected = whole.state()
    newest = agreed_newest_round(folder / "run")
    before = engine_calls()
    resumed = make_job(1)
    resumed.load(folder / "run" / f"round-{newest}")
    assert engine_calls() > before, f"the load did not reach Cairn's engine; {cairn.report()}"
    save_rounds(resumed, folder / "goes-on", newest + 1, ROUNDS)
    assert_same(resumed.state(), expected, "resumed after the kill")
    return {"rounds": ROUNDS, "resumed after round": newest}


def end_workers(persistent: Any) -> None:
    """Ends the processes of queues of asynchronous calls; `persistent` is the queue that keeps a process."""
    persistent.close()
    for child in multiprocessing.active_children():
        child.terminate()


def _leave(folder: Path, findings: dict[str, Any], part: str) -> NoReturn:
    """Writes the findings of this rank and ends the process by `os._exit`, because a normal exit sometimes aborts."""
    (folder / f"{part or 'trial'}-{dist.get_rank()}.json").write_text(json.dumps(findings))
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
