"""The exceptions: their base classes, their texts, and their pickles."""

import errno
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

import cairn
from cairn import _engine, errors
from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.engine_errors import from_engine
from cairn._ranks.exception_record import record_of
from cairn._ranks.ranks import reason_of

KINDS = {
    cairn.InvalidArgument: ValueError,
    cairn.MissingKey: KeyError,
    cairn.NotFound: FileNotFoundError,
    cairn.Corrupt: ValueError,
    cairn.UnsafeContent: ValueError,
    cairn.Unsupported: NotImplementedError,
    cairn.Unavailable: OSError,
    cairn.NoSpace: OSError,
    cairn.Replaced: RuntimeError,
    cairn.Superseded: RuntimeError,
    cairn.Cancelled: RuntimeError,
    cairn.InternalError: RuntimeError,
}
PLACE = {"key": "k", "rank": 3, "file": "f", "offset": 8, "expected": "e", "actual": "a"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_is_a_builtin_too(kind: type[cairn.Error]) -> None:
    error = kind("what happened", **PLACE)
    assert isinstance(error, KINDS[kind])
    assert isinstance(error, cairn.Error)
    assert str(error) == "what happened"
    assert {name: getattr(error, name) for name in PLACE} == PLACE


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_is_a_checkpoint_exception_when_dcp_would_raise_one(kind: type[cairn.Error]) -> None:
    with pytest.raises(kind) as caught, as_checkpoint_exceptions():
        raise kind("what happened", **PLACE)
    error = caught.value
    assert isinstance(error, CheckpointException)
    assert isinstance(error, KINDS[kind])
    assert isinstance(error, Exception), "an except clause for Exception must see it"
    cause, trace = error.failures[PLACE["rank"]]
    assert type(cause) is kind
    assert trace[-1].name == "test_each_is_a_checkpoint_exception_when_dcp_would_raise_one"
    assert str(error) == "what happened"


def test_the_only_rank_is_rank_0() -> None:
    with pytest.raises(cairn.Corrupt) as caught, as_checkpoint_exceptions():
        raise cairn.Corrupt("what happened")
    assert list(caught.value.failures) == [0]


def test_each_code_of_the_engine_has_its_class() -> None:
    for kind in KINDS:
        assert type(from_engine(kind.code, "what happened", 0, PLACE, [])) is kind
    assert set(KINDS) == {kind for kind in vars(errors).values() if isinstance(kind, type) and "code" in vars(kind)} - {
        cairn.Error
    }


def test_the_failures_of_many_ranks_keep_the_classes_that_are_known_everywhere() -> None:
    theirs = record_of(RuntimeError("the disk is tired"))
    causes = [
        (cairn.MissingKey("no such key", key="k", rank=1), None),
        (cairn.InvalidArgument("RuntimeError: the disk is tired", rank=3), theirs),
        (cairn.InvalidArgument("Odd: odd", rank=5), theirs._replace(class_name="pkg.Odd", text="odd")),
    ]
    with pytest.raises(cairn.MissingKey) as caught, as_checkpoint_exceptions():
        raise from_engine("kMissingKey", "3 ranks failed", 0, {}, causes)
    assert isinstance(caught.value, CheckpointException)
    kinds = {rank: type(failure) for rank, (failure, _) in caught.value.failures.items()}
    assert kinds == {1: cairn.MissingKey, 3: RuntimeError, 5: RuntimeError}
    again = pickle.loads(pickle.dumps(caught.value))
    assert {rank: str(failure) for rank, (failure, _) in again.failures.items()} == {
        1: "no such key",
        3: "the disk is tired",
        5: "pkg.Odd: odd",
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_can_be_pickled(kind: type[cairn.Error]) -> None:
    plain = pickle.loads(pickle.dumps(kind("what happened", **PLACE)))
    with pytest.raises(kind) as caught, as_checkpoint_exceptions():
        raise kind("what happened", **PLACE)
    combined = pickle.loads(pickle.dumps(caught.value))
    assert type(combined) is type(caught.value)
    assert list(combined.failures) == [PLACE["rank"]]
    for error in (plain, combined):
        assert str(error) == "what happened"
        assert {name: getattr(error, name) for name in PLACE} == PLACE


def test_errnos() -> None:
    assert cairn.NotFound("x").errno == errno.ENOENT
    assert cairn.NoSpace("x").errno == errno.ENOSPC
    assert cairn.NoSpace("x", error_number=errno.EDQUOT).errno == errno.EDQUOT
    assert cairn.Unavailable("x", error_number=errno.EACCES, file="f").filename == "f"


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    for directory in (tmp_path / "absent", tmp_path):
        for attempt in (cairn.open, cairn.verify, lambda path: cairn.load({"w": torch.ones(1)}, checkpoint_id=path)):
            with pytest.raises(FileNotFoundError) as caught:
                attempt(directory)
            assert isinstance(caught.value, cairn.NotFound)
            assert str(directory) in str(caught.value)
            assert caught.value.errno == errno.ENOENT


def test_an_error_that_goes_to_the_other_ranks_names_its_place_once(tmp_path: Path) -> None:
    with pytest.raises(cairn.NotFound) as caught:
        cairn.open(tmp_path / "missing")
    with pytest.raises(cairn.NotFound) as combined, as_checkpoint_exceptions():
        raise caught.value
    known = cairn.errors.Error.under(caught.value, "k")
    for error in (caught.value, combined.value, known, pickle.loads(pickle.dumps(caught.value))):
        passed = error
        for _ in range(3):  # through the engine and back
            with pytest.raises(cairn.NotFound) as again:
                _engine.agree(reason_of(passed))
            passed = again.value
            assert str(passed).count("; file '") == 1
            assert str(passed).count("key 'k'") == (error.key is not None)
        assert str(passed).startswith(caught.value.message.partition(";")[0])
