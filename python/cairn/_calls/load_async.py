"""cairn.load_async: a load that fills tensors in the background, in an order, with a future for each key.

1. The call opens the checkpoint, reads the values, plans the reads and opens the files. Ranks do this together: an
   error that the metadata and the values reveal is raised by the call, on all ranks.
2. A thread of Python runs the engine, without Python's lock. The engine's reading threads report each entry of the
   state; the last entry of a key completes the key's future. No collective is called.
3. ``result()`` raises the first failure, or gives the Statefuls their state.

The thread holds the engine's plan, which holds the targets' storages, until the last byte has come.
"""

import atexit
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from types import MappingProxyType
from typing import Any

from cairn import _engine
from cairn._async import preparation
from cairn._async.pending_saves import TrackedFuture
from cairn._calls.arguments import Call
from cairn._calls.load import Entries, LoadRules, prepare_load, refuse_foreign, with_restarts
from cairn._calls.state_load import PlannedState, StateLoad, new_tensor
from cairn._process import ProcessPart, part
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._state.key_terms import KeyTerms, LoadedKeys, Renames
from cairn._state.tensors import TensorTarget
from cairn._state.values import warn_of_conversions
from cairn._telemetry import dcp_records, engine_use
from cairn._telemetry.ended_calls import Stopwatch
from cairn.checkpoint import Verify
from cairn.errors import Unavailable

_EXIT_SECONDS = 5.0  # the longest wait for a cancelled load when the interpreter exits


class AsyncLoad:
    """A running load, from :func:`cairn.load_async`. Dropping the object does not end the load."""

    def __init__(self, load: StateLoad, plan: PlannedState, entries: Entries, order: "_Order") -> None:
        self._load = load
        self._plan: PlannedState | None = plan  # until the end: the plan holds memory and files
        self._entries = entries
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._keys = plan.state.fqns()  # by entry
        self._waiting: dict[str, int] = {}  # by key: the entries that are not filled
        self._errors: dict[str, BaseException] = {}
        self._whole: TrackedFuture[list[tuple[str, int, int]]] = TrackedFuture()
        self._texts: list[str] = []  # of warnings
        self._is_put_back = False
        for key in self._keys:
            self._waiting[key] = self._waiting.get(key, 0) + 1
        self._values = {key: value for key, value in plan.values.items() if key in load.loaded}
        self._futures: dict[str, TrackedFuture[Any]] = {
            key: TrackedFuture() for key in sorted(self._values, key=order.place_of)
        }

    @property
    def futures(self) -> Mapping[str, Future[Any]]:
        """The futures by the flat keys of the loaded entries, in the order of the load. The result of a future is the
        filled tensor, or the value. A future can't be cancelled alone."""
        return MappingProxyType(self._futures)

    def done(self) -> bool:
        """Returns whether the load has ended."""
        return self._whole.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the load has ended, also with a failure. Returns False after `timeout` seconds without an end."""
        self._refuse_in_a_fork()
        return not wait_for([self._whole], timeout).not_done

    def result(self, timeout: float | None = None) -> LoadedKeys | None:
        """Waits for the end of the load, and calls ``load_state_dict()`` of the Statefuls.

        Returns what ``cairn.load`` returns. Raises the first failure of the load, and TimeoutError after `timeout`
        seconds. To be called by the thread that owns the state dict.
        """
        self._refuse_in_a_fork()
        conversions = self._whole.result(timeout)
        if not self._is_put_back:
            self._is_put_back = True
            self._entries.put_back()
            warn_of_conversions(conversions)
            for text in self._texts:
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None if self._load.is_strict else self._load.found

    def cancel(self) -> None:
        """Ends the load soon. The futures that have no result then raise Cancelled, and so does ``result()``; their
        tensors may be partly filled."""
        plan = self._plan
        if plan is not None:
            plan.native.cancel()

    def _refuse_in_a_fork(self) -> None:
        if os.getpid() != self._process and not self._whole.done():
            raise Unavailable("this process is a forked child; the load belongs to its parent: load again here")

    def _start(self, numbers: list[int], ended: Callable[[], None]) -> threading.Thread:
        for key in self._values.keys() - self._waiting.keys():
            self._complete(key)
        thread = threading.Thread(target=self._run, args=(numbers, ended), name="cairn-load", daemon=True)
        thread.start()
        return thread

    def _run(self, numbers: list[int], ended: Callable[[], None]) -> None:
        """Step 2."""
        plan = self._plan
        assert plan is not None
        try:
            with as_checkpoint_exceptions():
                filled = functools.partial(self._filled, plan.tensors)
                conversions, self._texts = plan.native.run(filled, numbers)
                plan.tensors.check_kept()
                for error in self._errors.values():  # of targets that torch fills
                    raise error
        except BaseException as error:
            for future in self._futures.values():
                if not future.done():
                    future.set_exception(error)
            self._whole.set_exception(error)
            return
        finally:
            self._plan = None
        ended()
        self._whole.set_result(conversions + plan.tensors.conversions)

    def _filled(self, tensors: TensorTarget, entry: int, error: Exception | None) -> None:
        """An entry is filled, or has failed. Called by the engine's reading threads."""
        key = self._keys[entry]
        with self._lock:
            if error is None:
                try:
                    tensors.finish_entry(entry)
                    tensors.note_written(entry)
                except Exception as failure:  # of a tensor subclass
                    error = failure
            if error is not None:
                self._errors.setdefault(key, error)
            self._waiting[key] -= 1
            if self._waiting[key] > 0:
                return
        self._complete(key)

    def _complete(self, key: str) -> None:
        future = self._futures.get(key)
        if future is None:
            return
        if (error := self._errors.get(key)) is not None:
            future.set_exception(error)
        else:
            future.set_result(self._values[key])


class _Order:
    """The order of a load: keys that match an earlier of `patterns` come earlier, then those below an earlier of
    `tops`, the keys of the caller's state dict."""

    def __init__(self, tops: Iterable[Any], patterns: list[str]) -> None:
        self._places = {str(key): place for place, key in enumerate(tops)}
        self._patterns = patterns

    def place_of(self, fqn: str) -> tuple[int, int]:
        """Returns a number that sorts the key. Equal for keys that keep the order of the state dict."""
        matches = (i for i, pattern in enumerate(self._patterns) if _engine.matches_key(pattern, fqn))
        first = next(matches, len(self._patterns))
        above = [fqn, *(fqn[:end] for end in range(len(fqn)) if fqn[end] == ".")]
        return first, next((self._places[top] for top in above if top in self._places), len(self._places))


class _Running(ProcessPart):
    """The loads of this process that have not ended."""

    def __init__(self) -> None:
        self.loads: weakref.WeakKeyDictionary[AsyncLoad, threading.Thread] = weakref.WeakKeyDictionary()
        atexit.register(self._end)

    def _end(self) -> None:
        """The threads must not come back into an interpreter that is gone."""
        running = [(load, thread) for load, thread in self.loads.items() if thread.is_alive()]
        for load, _ in running:
            load.cancel()
        for _, thread in running:
            thread.join(_EXIT_SECONDS)


def load_async(  # noqa: PLR0913 - most are those of load
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: Any = None,
    process_group: Any = None,
    no_dist: bool = False,
    allow_pickle: bool | None = None,
    allow_cast: bool | None = None,
    verify: Verify = "needed",
    follow_links: bool | None = None,
    strict: bool = True,
    renames: Renames = (),
    keys: Iterable[str] = (),
    order: Iterable[str] = (),
) -> AsyncLoad:
    """Starts a load of `state_dict`, and returns before the tensors are filled.

    The tensors become ready one after the other, in the order of `state_dict`: the first layer of a model can be used,
    or copied to a device, before the last byte has come::

        load = cairn.load_async(model.state_dict(), checkpoint_id="run/step-1000")
        load.futures["layers.0.weight"].result()
        ...
        load.result()

    `order` are patterns of keys, as in `keys`: keys that match an earlier pattern come earlier, and the rest last. The
    other arguments are those of :func:`cairn.load`. The call itself opens the checkpoint, reads the values, puts them
    into their containers, and checks all that metadata reveals; its errors are those of ``cairn.load``. Meta tensors
    are replaced in `state_dict` by new tensors. A tensor must not be used before its future has a result, nor freed:
    the load holds its storage. The background work does not hold Python's lock. Each byte is checked as by
    ``cairn.load``; a failure of one key is raised by the future of this key and by ``result()``, and the other keys are
    loaded. The load ends with the program.

    With a process group, the call is one of all ranks, and calls collectives; the background work calls none. Each rank
    then reads and fails on its own: ranks share no reads.
    """
    call = Call(checkpoint_id, storage_reader, None, process_group, no_dist, function="load_async")
    terms = KeyTerms(strict=strict, renames=renames, keys=keys)
    first = _Order(state_dict, KeyTerms(keys=order).patterns)
    rules = LoadRules(allow_pickle, allow_cast, verify, follow_links)
    refuse_foreign(call)
    with dcp_records.in_call("load", **call.recorded("storage_reader")):
        entries = Entries(state_dict)
        watch = Stopwatch("loaded")
        with as_checkpoint_exceptions() as here:
            ranks = Ranks(process_group, no_dist)
            here.rank = ranks.rank
            directory, load = prepare_load(entries.resolve, call, rules, ranks, entries, (terms, new_tensor))
            try:
                plan = with_restarts(os.fsencode(directory), load.plan, ranks)
            except BaseException as error:
                load.tell_failure(os.fsencode(directory), error, ranks)
                raise
        entries.loaded = load.loaded if terms.selects else None
        entries.put_back(statefuls=False)
    engine_use.note(call.function, directory)
    preparation.note_load(os.fsencode(directory), load.keys, load.size_of_save)
    running = AsyncLoad(load, plan, entries, first)
    fqns = plan.state.fqns()
    numbers = sorted(range(len(fqns)), key=lambda entry: first.place_of(fqns[entry]))
    ended = functools.partial(watch.log, directory, load.size, ranks.rank, ranks.count)
    part(_Running).loads[running] = running._start(numbers, ended)
    return running
