"""cairn.torch_checkpointing in one process: saves, their futures, the lock, callbacks, and the hooks of the caller."""

import copy
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpointing_managers import SHARDED, Items, config, manager, ours, save, state
from same import assert_same
from torch_checkpointing import checkpoint_saver as stock_savers
from torch_checkpointing.barriers import TCPStoreBarrierConfig
from torch_checkpointing.checkpoint_layout import LayoutInfo, TorchSerialization
from torch_checkpointing.checkpoint_manager import CheckpointManager as StockManager
from torch_checkpointing.lock import RWLockMode
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

import cairn
from cairn._torch_protocol.hooks import name_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class OtherStorage(LocalFileSystemStorageConfig):
    def create_storage(self) -> Any:
        return super().create_storage()


class OtherBarrier(TCPStoreBarrierConfig):
    def create_barrier(self, rank_info: Any) -> Any:
        raise AssertionError


class OtherMetadata(ours.DefaultMetadataManager):
    def compute_metadata(self, checkpoint_info: Any) -> Any:
        return super().compute_metadata(checkpoint_info)


class OtherResharder(type(SHARDED.resharder)):  # type: ignore[misc]
    def extract_sharding_metadata(self, item_key: str, item_value: Any) -> Any:
        return super().extract_sharding_metadata(item_key, item_value)


class Skipping(type(SHARDED.resharder)):  # type: ignore[misc]
    @property
    def skip_resharding(self) -> bool:
        return True


def nothing(_: Any = None) -> None:
    pass


# --- Round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", ["ours", "theirs"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_state_comes_back_bit_for_bit(files: str, asynchronous: bool, tmp_path: Path, fresh_report: None) -> None:
    saved, directory = state(3), tmp_path / "step-3"
    with_manager = manager(files, asynchronous=asynchronous)
    save(with_manager, directory, saved)
    into = state(1)
    tensor, texts, deep = into["model"]["weight"], into["extra"]["texts"], into["extra"]["deep"]
    loaded = with_manager.load(directory, into=into, strict=True)
    with_manager.close()
    assert_same(loaded, saved)
    assert loaded["model"]["weight"] is tensor
    assert loaded["extra"]["texts"] is texts and loaded["extra"]["deep"] is deep
    assert (directory / ".metadata").exists() is (files == "ours")
    assert (directory / "model_0.pt").exists() is (files == "theirs")
    counts = {(count.call, count.engine) for count in cairn.report().calls}
    call = "torch_checkpointing.async_save" if asynchronous else "torch_checkpointing.save"
    assert counts == {(call, True), ("torch_checkpointing.load", True)}


def test_our_checkpoint_is_one_of_dcp(checkpoint: Path) -> None:
    saved = state(3)
    with_manager = manager()
    save(with_manager, checkpoint, saved)
    into = copy.deepcopy(state(1))
    cairn.load(into, checkpoint_id=checkpoint)
    assert_same(into, saved)
    assert cairn.verify(checkpoint).bytes_checked > 0
    assert cairn.open(checkpoint).notes == {"torch_checkpointing": {"world_size": 1}}
    assert cairn.latest(checkpoint.parent) == str(checkpoint)
    with_manager.close()


def test_a_checkpoint_of_cairn_save_loads(checkpoint: Path) -> None:
    saved = state(3)
    cairn.save(saved, checkpoint_id=checkpoint)
    assert_same(manager().load(checkpoint, into=state(1), strict=True), saved)


def test_a_stateful_item_is_saved_by_its_state(checkpoint: Path) -> None:
    model = torch.nn.Linear(2, 2)
    save(manager(), checkpoint, {"model": model, "step": 1})
    assert torch.equal(cairn.read(checkpoint)["model"]["weight"], model.weight)


def test_an_overwrite_replaces_the_checkpoint(checkpoint: Path) -> None:
    with_manager = manager()
    for value in (1, 2):
        save(with_manager, checkpoint, state(value))
    assert cairn.read(checkpoint)["step"] == 2
    with_manager.close()


# --- Futures, errors and the lock -------------------------------------------------------------------------------------


def saver(**arguments: Any) -> Any:
    return ours.make_async_checkpoint_saver(files="ours", **arguments)


def test_both_futures_end_with_none(checkpoint: Path) -> None:
    with_saver = saver()
    staged, written = with_saver.save(str(checkpoint), Items(w=torch.ones(3)))
    assert staged.result() is None and written.result() is None and written.exception() is None
    assert written.progress().phase == "ended"
    with_saver.close()
    with pytest.raises(RuntimeError, match="closed"):
        with_saver.save(str(checkpoint), Items(w=torch.ones(3)))


def test_the_lock_is_held_until_the_files_are_written(checkpoint: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        inside.set()
        go_on.wait(240)

    with_manager = manager(finalize_callback=hold)
    lock = with_manager._saver.staging_lock
    future = with_manager.save(str(checkpoint), {"w": torch.ones(3)})
    assert inside.wait(240)
    assert lock.locked_mode() == RWLockMode.READ and not future.done()
    assert not lock.write.acquire(blocking=False)
    with with_manager.lock():  # an update may run beside the write
        pass
    at_the_end: queue.SimpleQueue[Any] = queue.SimpleQueue()
    future.add_done_callback(lambda _: at_the_end.put(lock.locked_mode()))
    go_on.set()
    assert at_the_end.get(timeout=240) is None
    with_manager.close()


def test_the_lock_is_held_for_writing_until_the_state_is_staged(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cairn.torch_checkpointing import dcp_files

    modes = []
    real = dcp_files.save_of_saver
    with_saver = saver()

    def begin(*arguments: Any, **options: Any) -> Any:
        modes.append(with_saver.staging_lock.locked_mode())
        assert not with_saver.staging_lock.read.acquire(blocking=False)
        return real(*arguments, **options)

    monkeypatch.setattr(dcp_files, "save_of_saver", begin)
    _, written = with_saver.save(str(checkpoint), Items(w=torch.ones(3)))
    written.result()
    assert modes == [RWLockMode.WRITE]


def test_a_save_that_fails_at_its_begin_releases_the_lock(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the place of a directory")
    with_manager = manager()
    with pytest.raises(cairn.UnusableDirectory, match="choose another directory"):
        save(with_manager, file, {"w": torch.ones(3)})
    assert with_manager._saver.staging_lock.locked_mode() is None
    save(with_manager, tmp_path / "good", {"w": torch.ones(3)})
    with_manager.close()


def test_a_failure_in_the_background_reaches_the_future(tmp_path: Path) -> None:
    (tmp_path / "second/.cairn-lock").mkdir(parents=True)  # the commit opens a file of this name
    with_manager = manager()
    future = with_manager.save(str(tmp_path / "second"), {"w": torch.ones(3)})
    with pytest.raises(cairn.Unavailable, match="lock file"):
        future.result(240)
    assert isinstance(future.exception(), OSError) and with_manager._saver.staging_lock.locked_mode() is None
    with pytest.raises(cairn.Unavailable, match="lock file"):
        with_manager.save(str(tmp_path / "third"), {"w": torch.ones(3)})
    save(with_manager, tmp_path / "fourth", {"w": torch.ones(3)})
    assert not (tmp_path / "third").exists()
    with_manager.close()


def test_an_error_that_no_caller_has_seen_is_raised_once_too(tmp_path: Path) -> None:
    (tmp_path / "first/.cairn-lock").mkdir(parents=True)
    with_saver = saver()
    with_saver.save(str(tmp_path / "first"), Items(w=torch.ones(3)))
    with pytest.raises(cairn.Unavailable, match=r"the previous save .*lock file"):
        with_saver.save(str(tmp_path / "second"), Items(w=torch.ones(3)))
    with_saver.save(str(tmp_path / "third"), Items(w=torch.ones(3)))[1].result()
    with_saver.close()


def fails(_: Any) -> None:
    raise ValueError("the callback refuses")


def test_the_next_save_raises_the_error_of_the_previous_once(tmp_path: Path) -> None:
    with_saver = saver(finalize_callback=fails)
    _, written = with_saver.save(str(tmp_path / "first"), Items(w=torch.ones(3)))
    with pytest.raises(ValueError, match="the callback refuses"):
        written.result()
    with pytest.raises(ValueError, match="the callback refuses"):
        with_saver.save(str(tmp_path / "second"), Items(w=torch.ones(3)))
    assert not (tmp_path / "second").exists()
    assert with_saver.staging_lock.locked_mode() is None
    _, third = with_saver.save(str(tmp_path / "third"), Items(w=torch.ones(3)))
    assert isinstance(third.exception(), ValueError)
    with_saver.close()


def test_a_save_waits_for_the_previous_no_longer_than_its_time_out(checkpoint: Path) -> None:
    go_on = threading.Event()
    waits = ours.AsyncCheckpointSaverConfig(wait_timeout_secs=0)
    with_manager = manager(save=waits, finalize_callback=lambda _: go_on.wait(240))
    first = with_manager.save(str(checkpoint), {"w": torch.ones(3)})
    with pytest.raises(ours.WaitTimeout, match="wait_timeout_secs") as raised:
        with_manager.save(str(checkpoint), {"w": torch.ones(3)})
    assert isinstance(raised.value, TimeoutError) and isinstance(raised.value, RuntimeError)
    with pytest.raises(TimeoutError):
        first.result(timeout=0)
    go_on.set()
    first.result()
    with_manager.close()


def test_close_waits_for_the_save(checkpoint: Path) -> None:
    with_manager = manager()
    with_manager.save(str(checkpoint), state(5))
    with_manager.close()
    with_manager.close()
    assert cairn.read(checkpoint)["step"] == 5
    for call in (with_manager.save, with_manager.load):
        with pytest.raises(RuntimeError, match="closed"):
            call(str(checkpoint), {"step": 0})
    with pytest.raises(RuntimeError, match="closed"):
        with_manager.prewarm_staging({"step": 0})


def test_prewarm_staging_prepares_memory(checkpoint: Path) -> None:
    from cairn._async.async_saver import DefaultSavers
    from cairn._process import part

    cairn.configure_async_saves()  # no memory of earlier tests
    with_manager = manager()
    payload = {"w": torch.ones(1 << 20)}
    with_manager.prewarm_staging(payload)
    with_manager._prewarm_staging_future.result()
    assert part(DefaultSavers).saver(True).prepared_bytes >= 4 << 20
    save(with_manager, checkpoint, payload)
    with_manager.close()


def test_stage_alone_is_refused() -> None:
    with pytest.raises(cairn.Unsupported, match="prewarm_staging"):
        saver().stage(Items(w=torch.ones(3)))


# --- Callbacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_finalize_runs_when_the_checkpoint_is_in_place(asynchronous: bool, checkpoint: Path) -> None:
    seen: list[Any] = []

    def finalize(args: Any) -> None:
        seen.append((args.path, cairn.open(args.path).notes, args.storage.exists(checkpoint), args.event_logger))

    with_manager = manager(asynchronous=asynchronous, finalize_callback=finalize)
    save(with_manager, checkpoint, {"w": torch.ones(3)})
    [(path, notes, exists, logger)] = seen
    assert path == str(checkpoint) and notes and exists and callable(logger)
    with_manager.close()


def test_an_error_of_finalize_fails_a_blocking_save(checkpoint: Path) -> None:
    with_manager = manager(asynchronous=False, finalize_callback=fails)
    with pytest.raises(ValueError, match="the callback refuses"):
        with_manager.save(str(checkpoint), {"w": torch.ones(3)})


# --- Hooks of the caller ----------------------------------------------------------------------------------------------

FOREIGN: dict[str, dict[str, Any]] = {
    "storage_config": {"storage_config": OtherStorage()},
    "barrier_config": {
        "save": ours.SyncCheckpointSaverConfig(
            writer_config=ours.CheckpointWriterConfig(barrier_config=OtherBarrier(0, 0, "", 0))
        )
    },
    "barrier_config=None": {
        "save": ours.SyncCheckpointSaverConfig(
            writer_config=ours.CheckpointWriterConfig(barrier_config=None, write_to_temp_dir=False)
        )
    },
    "write_to_temp_dir": {
        "save": ours.SyncCheckpointSaverConfig(writer_config=ours.CheckpointWriterConfig(write_to_temp_dir=False))
    },
    "pre_finalize_callback": {"pre_finalize_callback": nothing},
    "subprocess_init_fn": {"subprocess_init_fn": nothing},
    "the resharder of item 'model'": {"items": {"model": ours.ItemSpec(resharder=OtherResharder())}},
    "the layout of item 'model'": {
        "items": {"model": ours.ItemSpec(layout=LayoutInfo("model_{rank}.pt", TorchSerialization()))}
    },
    "the layout of item '(default)'": {"default": ours.ItemSpec(layout=LayoutInfo("one.pt", TorchSerialization()))},
}


@pytest.mark.parametrize("argument", FOREIGN)
def test_our_files_refuse_a_hook_that_is_not_native(argument: str) -> None:
    with pytest.raises(cairn.Unsupported, match="files='theirs'") as raised:
        manager("ours", **FOREIGN[argument])
    assert argument in str(raised.value)


def test_their_files_leave_a_hook_to_stock_code(tmp_path: Path, fresh_report: None) -> None:
    directories = []

    def pre_finalize(args: Any) -> None:
        directories.append(args.path)

    with_manager = manager("theirs", asynchronous=False, pre_finalize_callback=pre_finalize)
    save(with_manager, tmp_path / "step-1", {"w": torch.ones(3)})
    assert directories == [str(tmp_path / "tmp_step-1")]
    [count] = cairn.report().calls
    assert not count.engine and count.call == "torch_checkpointing.save" and "pre_finalize_callback" in count.how
    with_manager.close()


def test_a_subclass_without_overrides_is_native(checkpoint: Path) -> None:
    class Plain(LocalFileSystemStorageConfig):
        pass

    items = {"model": ours.ItemSpec(resharder=Skipping())}
    with_manager = manager("ours", storage_config=Plain(), items=items)
    save(with_manager, checkpoint, {"model": {"w": torch.ones(3)}})
    with_manager.close()


def test_a_foreign_stager_and_a_foreign_metadata_class_are_refused(tmp_path: Path) -> None:
    class Stager(ours.DefaultStager):
        def stage(self, *arguments: Any) -> Any:
            return super().stage(*arguments)

    info = ours.RankInfo(0, 1, 0, 1)
    with pytest.raises(cairn.Unsupported, match="checkpoint_metadata_manager"):
        saver(checkpoint_metadata_manager=OtherMetadata(info))
    with pytest.raises(cairn.Unsupported, match="rank_info: rank 1 of 2"):
        saver(rank_info=ours.RankInfo(1, 2, 1, 2))
    native = saver()
    with pytest.raises(cairn.Unsupported, match="checkpoint_stager: "):
        ours.AsyncCheckpointSaver(Stager(), object(), files="ours")  # type: ignore[arg-type]
    assert name_of(type(native)).startswith("cairn.torch_checkpointing")
    native.close()


def test_a_saver_made_of_parts_of_the_package_is_native(checkpoint: Path) -> None:
    from torch_checkpointing.checkpoint_writer import CheckpointWriterArgs

    args = CheckpointWriterArgs(
        ours.CheckpointWriterConfig(),
        ours.RankInfo(0, 1, 0, 1),
        LocalFileSystemStorageConfig(),
        finalize_callback=nothing,
    )
    with_saver = ours.SyncCheckpointSaver(ours.CheckpointWriter(args), files="ours")
    with_saver.save(str(checkpoint), Items(w=torch.ones(3)))
    assert (checkpoint / ".metadata").exists()
    with_saver.close()


def test_wrong_files_are_named() -> None:
    with pytest.raises(cairn.InvalidArgument, match="files='theirs' or files='ours'"):
        manager("mine")


def test_a_url_is_refused() -> None:
    with pytest.raises(cairn.Unsupported, match="s3://bucket/step"):
        save(manager(), "s3://bucket/step", {"w": torch.ones(1)})
    assert not Path("s3:").exists()


def test_a_name_that_the_package_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Invalid checkpoint keys"):
        save(manager(default=ours.ItemSpec()), tmp_path / "c", {"a/b": 1})


# --- Classes ----------------------------------------------------------------------------------------------------------


def test_our_classes_stand_for_theirs() -> None:
    with_manager = manager()
    assert isinstance(with_manager, StockManager)
    assert isinstance(with_manager._saver, stock_savers.AsyncCheckpointSaver)
    assert issubclass(stock_savers.SyncCheckpointSaver, ours.SyncCheckpointSaver)
    assert issubclass(StockManager, ours.CheckpointManager)
    assert isinstance(config(), StockManager.Config)
    with_manager.close()
    default = ours.CheckpointManager.Config()
    assert default.files is None and default.allow_pickle is None
    assert isinstance(ours.CheckpointManager.Config.with_sync_save(), ours.CheckpointManager.Config)


def test_every_name_of_the_package_is_there() -> None:
    import torch_checkpointing

    text = Path(torch_checkpointing.__file__).read_text()
    compiled = compile(text, "torch_checkpointing", "exec")
    names = [name for name in compiled.co_names if name in vars(torch_checkpointing) and not name.startswith("__")]
    assert len(names) > 40
    modules = {"barriers", "builder", "schema", "types", "config", "staging", "resharding", "version"}
    missing = [name for name in names if not hasattr(ours, name) and name not in modules]
    assert [name for name in missing if not isinstance(vars(torch_checkpointing)[name], type(time))] == []
