"""Files that a foreign user plants in the folder of a save run no code."""

import json
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Gang
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn._async.async_saver import DefaultSavers
from cairn._process import part
from cairn._ranks.engine_errors import from_engine
from cairn.errors import ExceptionRecord


class MakesAFolder:
    """Makes a folder when unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def text(content: bytes) -> bytes:
    return varint(len(content)) + content


def mark(attachment: bytes, tail: bytes = b"") -> bytes:
    """Returns a mark ``failed-<rank>``: an error kInvalidArgument without causes.

    Only older versions of Cairn wrote the attachment.
    """
    error = bytes([0, 0]) + text(b"planted") + text(b"") + text(attachment) + bytes(6)
    return text(b"n" + error + varint(0) + tail)


def record(class_name: str, argument: str) -> bytes:
    return b"\1" + text(class_name.encode()) + text(argument.encode()) + varint(0)


def save_beside(directory: Path, planted: bytes) -> tuple[str, dict[int, tuple[str, str]]]:
    """Plants rank 1's mark before rank 1 writes a mark. Returns the text and the failures of the save's error."""
    state = {f"w{dist.get_rank()}": torch.ones(4)}
    kind = cairn.AsyncCheckpointerType.PROCESS

    def save() -> Any:
        return cairn.async_save(state, checkpoint_id=directory, async_checkpointer_type=kind)

    save().result(240)
    writer = part(DefaultSavers).by_process[True].writer_pid
    if dist.get_rank() == 1:
        os.kill(writer, signal.SIGSTOP)
    dist.barrier()
    try:
        future = save()
        if dist.get_rank() == 1:
            while not (folders := list(directory.glob(".cairn-*/lease"))):
                time.sleep(0.01)
            hidden = directory / "planted"
            hidden.write_bytes(planted)
            hidden.rename(folders[0].with_name("failed-1"))
        else:
            future.exception(240)
        dist.barrier()
    finally:
        if dist.get_rank() == 1:
            os.kill(writer, signal.SIGCONT)
    failure = future.exception(240)
    assert isinstance(failure, CheckpointException)
    return str(failure), {rank: (type(it).__name__, str(it)) for rank, (it, _) in failure.failures.items()}


@pytest.mark.parametrize("form", ["pickle of an older version", "record"])
def test_a_planted_mark_runs_no_code(form: str, two: Gang, checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "code ran"
    attachment = pickle.dumps((MakesAFolder(folder), None))
    planted = mark(attachment) if form != "record" else mark(b"", record("posix.mkdir", str(folder)))
    told, failures = two.run(save_beside, checkpoint, planted)[0]  # rank 1 finds the folder removed
    assert "planted" in told
    assert set(failures) == {1}
    name, said = failures[1]
    assert name == ("RuntimeError" if form == "record" else "InvalidArgument")
    assert ("posix.mkdir" in said) == (form == "record")
    assert not folder.exists()


class Deceiver(Exception):
    """An exception that runs code when unpickled."""

    def __init__(self, folder: Path) -> None:
        super().__init__("deceived")
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


class Broken:
    """A Stateful that fails on rank 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def state_dict(self) -> dict[str, Any]:
        if dist.get_rank() == 1:
            raise Deceiver(self.folder)
        return {"w": torch.ones(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Never called."""


def fail_to_save(directory: Path, folder: Path) -> list[tuple[str, str, bool]]:
    failures = []
    for call in (cairn.save, cairn.load, cairn.async_save):
        with pytest.raises(CheckpointException) as caught:
            call({"broken": Broken(folder)}, checkpoint_id=directory)  # type: ignore[operator]
        failure, trace = caught.value.failures[1]
        failures.append((type(failure).__name__, str(failure), "state_dict" in [frame.name for frame in trace]))
    return failures


def test_a_failure_of_a_peer_runs_no_code(two: Gang, checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "code ran"
    two.run(save_well, checkpoint)
    for failures in two.run(fail_to_save, checkpoint, folder):
        for name, said, has_trace in failures:
            assert (name, has_trace) == ("RuntimeError", True)
            assert said == f"{__name__}.Deceiver: deceived"
    assert not folder.exists()


def save_well(directory: Path) -> None:
    cairn.save({"w": torch.ones(2)}, checkpoint_id=directory)


def send_a_pickle(folder: Path) -> str:
    """Rank 1 sends a pickle, which an older version would have unpickled, in place of its answer."""
    from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
    from cairn._ranks.ranks import Ranks

    ranks = Ranks()
    if dist.get_rank() == 1:
        ranks.options["collectives"].all_gather(b"n" + pickle.dumps((MakesAFolder(folder), None)))
        return "sent"
    with pytest.raises(cairn.Error) as caught, as_checkpoint_exceptions(), ranks.all_or_none("staging"):
        pass
    return json.dumps([str(caught.value), sorted(caught.value.failures)])


def test_a_pickle_in_place_of_an_answer_runs_no_code(two: Gang, tmp_path: Path) -> None:
    folder = tmp_path / "code ran"
    assert two.run(send_a_pickle, folder)[1] == "sent"
    assert not folder.exists()


def test_the_record_of_an_error_of_the_engine_is_a_tuple() -> None:
    made = from_engine("kCorrupt", "two failed", 0, {}, [(cairn.Corrupt("a"), ("builtins.ValueError", "v", 0, []))])
    assert made.causes[0][1] == ExceptionRecord("builtins.ValueError", "v", 0, [])
