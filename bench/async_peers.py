"""The compared libraries' asynchronous saves, each with Cairn's durability.

A library is imported when its peer is made: the time and memory of an import do not burden other libraries.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from durable import sync
from states import State
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

BLOCKING = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)
LATER = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
)


@dataclass(frozen=True)
class Pending:
    """A save in flight.

    `fence` returns when the state may change again, `wait` when the checkpoint is durable.
    """

    fence: Callable[[], Any]
    wait: Callable[[], Any]
    done: Callable[[], bool]


class AsyncPeer:
    """A library, set up in this process. A peer keeps its resources until `close`."""

    can_overlap = True  # whether saves may overlap
    can_stage_later = True

    def save(self, state: State, directory: Path, *, stage_later: bool = False) -> Pending:
        """Starts a save into an empty directory. With `stage_later` the state is copied after the call returns."""
        raise NotImplementedError

    def prepare(self, state: State) -> None:
        """Prepares for saves of states like `state`, as far as the library can.

        Returns when the preparation is complete.
        """

    def close(self) -> None:
        """Frees the kept resources, and ends processes."""


def pending(started: "Future[Any] | AsyncSaveResponse", after: Callable[[], None] = lambda: None) -> Pending:
    """Wraps the result of async_save; `wait` calls `after` when the upload is complete."""
    later = isinstance(started, AsyncSaveResponse)
    upload: Future[Any] = started.upload_completion if later else started

    def wait() -> None:
        upload.result()
        after()

    return Pending(started.staging_completion.result if later else lambda: None, wait, upload.done)


class CairnPeer(AsyncPeer):
    def __init__(self, kind: AsyncCheckpointerType) -> None:
        import cairn

        self.cairn = cairn
        self.kind = kind
        self.later = cairn.staging.DefaultStager(LATER)

    def save(self, state: State, directory: Path, *, stage_later: bool = False) -> Pending:
        return pending(
            self.cairn.async_save(
                state,
                checkpoint_id=directory,
                async_checkpointer_type=self.kind,
                async_stager=self.later if stage_later else None,
                no_dist=True,
            )
        )

    def prepare(self, state: State) -> None:
        self.cairn.prepare_async_saves(state, self.kind).result()

    def close(self) -> None:
        self.later.close()


class DcpPeer(AsyncPeer):
    """Stock DCP.

    `cached`: one DefaultStager with kept memory serves all saves, as FileSystemWriter's cache_staged_state_dict
    does where CUDA is available.
    """

    def __init__(self, kind: AsyncCheckpointerType, *, cached: bool = False) -> None:
        self.kind = kind
        self.blocking = DefaultStager(BLOCKING) if cached else None  # the default copies into new memory every time
        self.later = DefaultStager(LATER) if cached else None
        self.can_stage_later = cached
        # Cached, a second save would overwrite the memory of the first; in the process, both would read from one
        # pipe.
        self.can_overlap = not cached and kind is AsyncCheckpointerType.THREAD
        if kind is AsyncCheckpointerType.PROCESS:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def save(self, state: State, directory: Path, *, stage_later: bool = False) -> Pending:
        started = dcp.async_save(
            state,
            storage_writer=dcp.FileSystemWriter(directory, sync_files=True),
            async_checkpointer_type=self.kind,
            async_stager=self.later if stage_later else self.blocking,
            no_dist=not dist.is_initialized(),
        )
        return pending(started, after=lambda: sync(directory))

    def prepare(self, state: State) -> None:
        """Prepares the stager that stages later, which is measured with warm memory. DCP can't prepare a first save."""
        if self.later is not None:
            self.later.stage(state).result()

    def close(self) -> None:
        for stager in (self.blocking, self.later):
            if stager is not None:
                stager.close()


class TorchCheckpointingPeer(AsyncPeer):
    """The successor of DCP: stages into shared memory behind a lock, always later; its process writes."""

    can_overlap = False  # a save waits for the previous save

    def __init__(self) -> None:
        self.checkpoints = self._manager()

    def _manager(self) -> Any:
        from synced_storage import SyncedStorageConfig, sync_checkpoint
        from torch_checkpointing import CheckpointManager

        return CheckpointManager(
            CheckpointManager.Config(storage_config=SyncedStorageConfig(), finalize_callback=sync_checkpoint)
        )

    def save(self, state: State, directory: Path, *, stage_later: bool = False) -> Pending:
        upload = self.checkpoints.save(str(directory), state)

        def fence() -> None:
            with self.checkpoints.lock():
                pass

        if not stage_later:
            fence()
        return Pending(fence, upload.result, upload.done)

    def prepare(self, state: State) -> None:
        self.checkpoints.prewarm_staging(state)
        # The manager itself waits for its staging; the measured save must not wait for the staging.
        if self.checkpoints._prewarm_staging_future is not None:
            self.checkpoints._prewarm_staging_future.result()

    def close(self) -> None:
        self.checkpoints.close()


class CairnCheckpointingPeer(TorchCheckpointingPeer):
    """Cairn's manager with the API of torch_checkpointing. `files`: "theirs", as the package writes, or "ours"."""

    def __init__(self, files: Literal["theirs", "ours"]) -> None:
        self.files = files
        super().__init__()

    def _manager(self) -> Any:
        from cairn.torch_checkpointing import CheckpointManager

        return CheckpointManager(CheckpointManager.Config(files=self.files))


ASYNC_PEERS: dict[str, Callable[[], AsyncPeer]] = {
    "cairn thread": lambda: CairnPeer(AsyncCheckpointerType.THREAD),
    "cairn process": lambda: CairnPeer(AsyncCheckpointerType.PROCESS),
    "dcp thread": lambda: DcpPeer(AsyncCheckpointerType.THREAD),
    "dcp cached": lambda: DcpPeer(AsyncCheckpointerType.THREAD, cached=True),
    "dcp process": lambda: DcpPeer(AsyncCheckpointerType.PROCESS),
    "torch_ckpt": TorchCheckpointingPeer,
    "cairn theirs": lambda: CairnCheckpointingPeer("theirs"),
    "cairn ours": lambda: CairnCheckpointingPeer("ours"),
}
