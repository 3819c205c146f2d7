"""Exceptions as plain data: records restore the known classes, and no name in a record is executed."""

import errno
import json
import os
import pickle
import traceback
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn._ranks.exception_record import exception_of, record_of, trace_of
from cairn.checkpointer.worker_messages import RequestType, WorkerResponse
from cairn.checkpointer.writer_child import ProcessTimeout
from cairn.errors import ExceptionRecord


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class OddError(Exception):
    """A class of a trainer."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


KNOWN = [
    ValueError("a value"),
    RuntimeError(),
    KeyError("a key"),
    FileNotFoundError(errno.ENOENT, "not there", "file"),
    OSError("no errno"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start"),
    UnicodeEncodeError("ascii", "é", 0, 1, "out of range"),
    ImportError("no module", name="m"),
    SyntaxError("bad", ("file", 1, 2, "text")),
    StopIteration(3),
    SystemExit(4),
    KeyboardInterrupt(),
    MemoryError(),
    torch.OutOfMemoryError("no memory"),
    torch.distributed.DistBackendError("the network is down"),
    CheckpointException("save", {1: (ValueError("theirs"), traceback.StackSummary())}),
    cairn.NoSpace("full", file="x", error_number=errno.EDQUOT),
    cairn.MissingKey("no such key", key="k", rank=2),
    ProcessTimeout("too slow", rank=3),
    ValueError("lone surrogate \udc80 and zero \0"),
]


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
def test_a_known_class_comes_back_with_its_text(error: BaseException) -> None:
    record = record_of(raised(error))
    again = exception_of(record, getattr(error, "place", None))
    assert isinstance(again, type(error))
    assert str(again) == str(error)
    assert isinstance(pickle.loads(pickle.dumps(again)), type(error))
    assert str(pickle.loads(pickle.dumps(again))) == str(error)
    if isinstance(error, OSError):
        assert again.errno == error.errno  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["builtins", "torch", "cairn.errors"])
def test_all_known_classes_can_be_made(name: str) -> None:
    from cairn._ranks import exception_record

    for kind in exception_record._CLASSES[name]:
        made = exception_of(ExceptionRecord(f"{name}.{kind}", "a text", 5, []))
        assert type(made).__name__ == kind
        assert str(made) == "a text"


@pytest.mark.parametrize(
    "class_name",
    [
        "posix.system",
        "builtins.eval",
        "builtins.print",
        "builtins.ExceptionGroup",
        "os.path.join",
        "cairn.errors.errno.errorcode",
        "cairn.errors.Error.__subclasses__",
        "no_dot",
        "",
        ".",
        "torch.load",
        f"{__name__}.OddError",
    ],
)
def test_any_other_class_is_a_runtime_error_with_name_and_text(class_name: str) -> None:
    error = exception_of(ExceptionRecord(class_name, "its text", 0, []))
    assert type(error) is RuntimeError
    assert str(error) == f"{class_name}: its text"


def test_a_text_that_cannot_be_had_is_empty() -> None:
    record = record_of(raised(Unprintable()))
    assert (record.class_name, record.text) == (f"{__name__}.Unprintable", "")


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    raise OddError("x" * 1_000_000)


def test_everything_is_bounded() -> None:
    try:
        deep(500)
    except OddError as error:
        record = record_of(error)
    assert len(record.text) == 4000
    assert len(record.frames) == 32
    assert record.frames[0][2] == "test_everything_is_bounded"
    assert record.frames[-1][2] == "deep"
    huge = type("K" * 10_000, (Exception,), {})
    assert len(record_of(huge()).class_name) == 200


def test_a_trace_reads_no_named_file() -> None:
    record = ExceptionRecord("builtins.ValueError", "", 0, [("/etc/hostname", 1, "f", "")])
    (frame,) = trace_of(record)
    assert (frame.filename, frame.lineno, frame.name, frame.line) == ("/etc/hostname", 1, "f", "")
    assert "/etc/hostname" in trace_of(record).format()[0]


def test_the_answer_of_a_checkpoint_process_is_plain_data() -> None:
    error = raised(cairn.NoSpace("full", file="x"))
    response = WorkerResponse(RequestType.WRITE_CHECKPOINT, False, "a trace", {"exception": error})
    answer = response.encode()
    json.loads(answer)
    again = WorkerResponse.decode(answer)
    assert (again.request_type, again.success, again.error_msg) == (RequestType.WRITE_CHECKPOINT, False, "a trace")
    made: Any = (again.payload or {})["exception"]
    assert type(made) is cairn.NoSpace
    assert (made.file, str(made)) == ("x", "full")


def test_the_answer_of_a_checkpoint_process_is_not_unpickled() -> None:
    class Runs:
        def __reduce__(self) -> Any:
            return os._exit, (3,)

    with pytest.raises(ValueError):
        WorkerResponse.decode(pickle.dumps(Runs()))
