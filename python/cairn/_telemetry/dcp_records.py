"""The records that ``torch.distributed.checkpoint`` gives its logger, ``dcp_logger``, for calls of Cairn.

Each record is a dict: the function's name, "start", "end" or "exception", time, ids, and the ranks of the process
group. Torch's own function fills the keys (:mod:`torch.distributed.checkpoint.logger`). A native call gives equal
records in the order of torch's driver. Under torch's driver (:mod:`cairn._calls.torch_driver`), the driver gives its
own records.

The engine plans, writes and commits in one call, recorded as ``write_data`` or ``read_data``; ``global_step`` and
``finish_checkpoint`` are recorded with no duration of their own. ``local_step`` is the description of the state. A
failure in the engine leaves ``write_data`` or ``read_data`` without an end, also where stock torch would fail in an
earlier step.

Without a handler on the logger, as by default, nothing is computed.
"""

import contextlib
import importlib
import logging
import time
from collections.abc import Iterator
from typing import Any

from cairn._torch_names import replacements


def in_call(name: str, **arguments: Any) -> "contextlib.AbstractContextManager[None]":
    """Records the run of a public function, and its exception. `arguments` are the caller's, which the records name."""
    return _recorded(name, True, arguments)


def in_step(name: str, path: Any, process_group: Any) -> "contextlib.AbstractContextManager[None]":
    """Records a step of a save or a load, with the storage at `path`. A failure has no record."""
    return _recorded(name, False, {"checkpoint_id": path, "process_group": process_group})


def note_step(name: str, path: Any, process_group: Any) -> None:
    """Records a step that the engine takes within another step."""
    with in_step(name, path, process_group):
        pass


def is_heard() -> bool:
    """Returns whether the logger has a handler or filter."""
    logger = _logger()
    if logger is None or not logger.isEnabledFor(logging.DEBUG):
        return False
    return bool(logger.filters) or any(not isinstance(handler, logging.NullHandler) for handler in _handlers(logger))


@contextlib.contextmanager
def _recorded(name: str, with_exceptions: bool, arguments: dict[str, Any]) -> Iterator[None]:
    logger = _logger()
    if logger is None or not is_heard():
        yield
        return
    try:
        record: dict[str, Any] = _module()._get_msg_dict(name, **arguments)
    except Exception:  # for example a destroyed process group: no reason for a save to fail
        yield
        return
    start = time.time_ns()
    record |= {"event": "start", "time": start, "log_exceptions": with_exceptions}
    logger.debug(record)
    try:
        yield
    except BaseException as error:
        if with_exceptions:
            record |= {"event": "exception", "error": str(error), "time": time.time_ns()}
            logger.error(record)
        raise
    end = time.time_ns()
    record |= {"event": "end", "time": end, "times_spent": end - start}
    logger.debug(record)


def _module() -> Any:
    return importlib.import_module(f"{replacements.TORCH}.logger")


def _logger() -> Any:
    """Returns torch's logger; None where the installed version of torch has no dcp_logger."""
    try:
        return _module()._dcp_logger
    except (ImportError, AttributeError):
        return None


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


class UploadRecords:
    """The records of torch's background ``save`` within ``async_save``, for a save by the engine."""

    def __init__(self, coordinates: bool, path: Any, keys: list[str], **arguments: Any) -> None:
        """`coordinates`: this rank writes the metadata. `keys` are the top-level keys of the saved state."""
        self._coordinates = coordinates
        self._path = path
        self._keys = keys
        self._arguments = arguments

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        """Wraps the time from the end of staging until the checkpoint is in place."""
        if not is_heard():
            yield
            return
        step = (self._path, self._arguments.get("process_group"))
        with in_call("save", **self._arguments):
            with in_call("_stateful_to_state_dict"):
                for key in self._keys:
                    with in_call(f"_stateful_to_state_dict.{key}"):
                        pass
            note_step("local_step", *step)
            if self._coordinates:
                note_step("global_step", *step)
            with in_step("write_data", *step):
                yield
            if self._coordinates:
                note_step("finish_checkpoint", *step)
