"""CheckpointProcess: writes the states of a rank in another process.

With the default writer, the process is Cairn's native writer process (:mod:`cairn._async.async_saver`), which
finishes its save when the trainer dies. With a writer or an initialisation of the caller's own, the process is a Python
process that runs the caller's functions (:mod:`writer_child`).
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cairn._async import preparation
from cairn._async.async_saver import AsyncSaver
from cairn._async.pending_saves import PendingSave
from cairn._state.described import DescribedState
from cairn._state.saved_tree import with_shape
from cairn.checkpointer.argument_order import path_and_state
from cairn.checkpointer.checkpoint_writer import CheckpointWriter, CheckpointWriterConfig
from cairn.checkpointer.rank_info import STATE_DICT, RankInfo
from cairn.checkpointer.worker_messages import RequestType, WorkerRequest, WorkerResponse
from cairn.checkpointer.writer_child import ProcessFailure, ProcessTimeout, WriterChild
from cairn.errors import InvalidArgument

__all__ = [
    "CheckpointProcess",
    "CheckpointProcessConfig",
    "ProcessFailure",
    "ProcessTimeout",
    "RequestType",
    "WorkerRequest",
    "WorkerResponse",
    "default_subprocess_init_fn",
    "default_writer_init_fn",
]


_log = logging.getLogger("cairn")


@dataclass
class CheckpointProcessConfig:
    """The time limits, in seconds, for the start and the end of a Python process."""

    subprocess_init_timeout_secs: int = 30
    subprocess_shutdown_timeout_secs: int = 60


def default_subprocess_init_fn(*_: Any) -> None:
    """Does nothing: the default initialisation of the process."""


def default_writer_init_fn(rank_info: RankInfo) -> CheckpointWriter:
    """Returns a CheckpointWriter without hooks and barrier."""
    return CheckpointWriter(config=CheckpointWriterConfig(), rank_info=rank_info)


class CheckpointProcess:
    """Takes one state after the other, and writes the states in order.

    The caller's functions must be importable in a new interpreter, and the arguments picklable. The process calls
    `subprocess_init_fn(*subprocess_init_args)`, then makes the writer with `checkpoint_writer_init_fn(rank_info=...,
    **checkpoint_writer_init_args)`. With :func:`default_subprocess_init_fn` and :func:`default_writer_init_fn` the
    process is native and runs no Python.

    The process is made in the background. `process_creation_future` is done when the process is ready; if a Python
    process did not get ready, every write starts a new attempt.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        config: CheckpointProcessConfig,
        subprocess_init_fn: Callable[..., None],
        subprocess_init_args: tuple[Any, ...],
        checkpoint_writer_init_fn: Callable[..., CheckpointWriter],
        checkpoint_writer_init_args: dict[str, Any],
    ) -> None:
        self._config = config
        self._rank_info = checkpoint_writer_init_args.get("rank_info", rank_info)
        self._saver: AsyncSaver | None = None
        self._child: WriterChild | None = None
        runs_code_of_others = (
            subprocess_init_fn is not default_subprocess_init_fn
            or checkpoint_writer_init_fn is not default_writer_init_fn
            or checkpoint_writer_init_args.keys() - {"rank_info"}
        )
        if runs_code_of_others:
            writer = (checkpoint_writer_init_fn, dict(checkpoint_writer_init_args))
            self._child = WriterChild(rank_info, (subprocess_init_fn, subprocess_init_args), writer)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cairn-checkpoint-process")
        self.process_creation_future: Future[None] = self._thread.submit(self._start)

    @property
    def process(self) -> Any:
        """The Python process (a ``multiprocessing.Process``); None for the native process."""
        return None if self._child is None else self._child.process

    @property
    def is_native(self) -> bool:
        """Whether :meth:`save_live` accepts states."""
        return self._child is None

    def write(
        self,
        state_dict: STATE_DICT | Future[STATE_DICT],
        path: str,
        **kwargs: Any,
    ) -> Future[None] | None:
        """Begins to save a staged state, or a future of a staged state. The state must not change until the returned
        future is done.

        `kwargs` go to the caller's own writer, which passes them to its hook; the native process takes `notes` of them.
        The future raises the failure: a ProcessFailure (a RuntimeError) with the writer's own exception as cause; a
        ProcessTimeout (a TimeoutError) when the Python process was not ready in time or stopped working
        (:func:`cairn.configure_saves`); with the native process, cairn.Error.
        """
        path, state_dict = path_and_state(path, state_dict)
        return self._thread.submit(self._write, state_dict, path, kwargs)

    def save_live(
        self,
        state_dict: STATE_DICT,
        path: str,
        *,
        asynchronous_staging: bool,
        notes: Mapping[str, Any] | None = None,
    ) -> PendingSave:
        """Stages a live state for the native writer, and begins to save the state.

        The state must not change until it is staged. Raises cairn.Error for a state that can't be saved,
        InvalidArgument if the process runs a writer of the caller's own.
        """
        self.process_creation_future.result()
        if self._saver is None:
            raise InvalidArgument(
                "this checkpoint process runs a Python writer, which takes only staged states: call write()"
            )
        return self._saver.save(
            with_shape(state_dict),
            path,
            asynchronous_staging=asynchronous_staging,
            notes=notes,
            alone_as_rank=self._rank_info.global_rank,
        )

    def prepare_for(self, state_dict: STATE_DICT) -> None:
        """Prepares memory for the first save, of a state like `state_dict`, in the background.

        Does nothing for a writer of the caller's own.
        """
        if self._child is not None:
            return
        self.process_creation_future.result()
        if self._saver is not None:
            described = DescribedState(with_shape(state_dict), from_devices=True)
            preparation.begin(self._saver, preparation.size_of_save(described.native, 1))

    def close(self) -> None:
        """Waits for running saves, and ends the process."""
        self._thread.shutdown(wait=True)
        if self._child is not None:
            self._child.stop(self._config.subprocess_shutdown_timeout_secs)
        if self._saver is not None:
            self._saver.close()
            self._saver = None

    def _start(self) -> None:
        if self._child is not None:
            self._child.start(self._config.subprocess_init_timeout_secs)
        else:
            self._saver = AsyncSaver(process=True, generations=1)  # one save at a time

    def _write(self, state_dict: STATE_DICT | Future[STATE_DICT], path: str, kwargs: dict[str, Any]) -> None:
        try:
            staged = state_dict.result() if isinstance(state_dict, Future) else state_dict
            if self._child is None:
                self.save_live(staged, path, asynchronous_staging=False, notes=kwargs.get("notes")).upload.result()
            else:
                self._start()
                self._child.write(staged, path, kwargs)
        except Exception as error:  # logged because the caller may never ask the future
            _log.error("the save of rank %d into '%s' failed: %s", self._rank_info.global_rank, path, error)
            raise
