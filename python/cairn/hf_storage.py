"""HuggingFaceStorageWriter and its readers: DCP's, with equal arguments and attributes, carried out by the engine.

``cairn.save`` and ``cairn.load`` save and load safetensors models natively by these classes, and by torch's classes
too. Each class derives from torch's class, to satisfy ``isinstance`` checks, and is a plug-in for
``torch.distributed.checkpoint`` itself, which then plans and coordinates while the engine writes and reads.
"""

import os
import uuid
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as StockModelReader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as StockModelWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader as StockQuantizedReader
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from cairn import _engine
from cairn._directory import open_checkpoint
from cairn._results.lazy_metadata import LazyMetadata
from cairn._settings import save_deadlines
from cairn._state.torch_codes import DTYPES
from cairn._telemetry import engine_use
from cairn._torch_names import modules, replacements
from cairn._torch_protocol.claims import Claim, Ticket
from cairn._torch_protocol.hooks import overridden
from cairn._torch_protocol.model_items import boxes_of, claim_model, consolidate, whole_keys
from cairn._torch_protocol.storages import (
    MODEL_INDEX,
    directory_of,
    model_form,
    why_torch_reads,
    why_torch_reads_model_data,
    why_torch_writes,
)
from cairn.errors import InvalidArgument, Unsupported
from cairn.filesystem import _THREADS, FileSystemReader, FileSystemWriter, _keep, _reading_of

_PathLike = str | os.PathLike[str]

# The stored dimensions of quantised tensors that torch's code computes.
_BLOCKS_DIMENSIONS = 4  # MXFP4: rows, columns, groups, bytes of a group
_WEIGHT_DIMENSIONS = 2  # blocks of block_size x block_size with a scale each
_COMPUTING_HOOKS = ("_dequantize_tensor", "_process_read_request", "_read_quantized_tensor_with_block_alignment")


@replacements.stands_for_base
class HuggingFaceStorageWriter(StockModelWriter, FileSystemWriter):
    """The directory and options of ``cairn.save`` for a safetensors model, in the files of torch's class.

    The arguments are torch's. `fqn_to_index_mapping` gives each key the number of its file, from 1 on; None puts all
    tensors into one file. With `save_distributed`, each rank writes its own chunks; with `enable_consolidation` too,
    the shards go to the folder ``sharded``, and the whole tensors are then written to `path`. Without
    `save_distributed`, each file is written by one rank, which must hold the file's tensors whole.

    The rename of ``model.safetensors.index.json`` commits a model: an older model stays whole until then. Shards
    without an index have no commit point: saving them over a model raises InvalidArgument, except in the folder
    ``sharded``, whose shards are not the model. A value that is no tensor raises InvalidArgument, with the key, before
    anything is written.

    As a StorageWriter for ``torch.distributed.checkpoint.save`` and ``async_save``, the class writes the same files and
    keeps these promises; the coordinator consolidates alone. ``use_collectives=False`` raises InvalidArgument. torch's
    own code writes the files of a path that is not local, and of a subclass that overrides `prepare_global_plan`,
    `write_data`, or `finish` without a call of ``super().finish()``: then only the values that are no tensors are
    refused.
    """

    def __init__(
        self,
        path: _PathLike,
        fqn_to_index_mapping: dict[str, int] | None = None,
        thread_count: int = 1,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        thread_count_consolidation: int = 1,
    ) -> None:
        super().__init__(
            os.fspath(path),
            fqn_to_index_mapping,
            thread_count,
            save_distributed,
            enable_consolidation,
            thread_count_consolidation,
        )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Raises InvalidArgument for a value that is no tensor: torch would write a file that no reader accepts."""
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                key = item.index.fqn
                raise InvalidArgument(
                    f"safetensors holds tensors only: leave the value '{key}' out, or save it elsewhere", key=key
                )
        if why_torch_writes(self):
            return super().prepare_local_plan(plan)
        if not self.use_collectives:
            raise InvalidArgument(
                "the ranks of a safetensors model save together: use_collectives=False saves the checkpoint of each "
                "rank by itself"
            )
        return plan if self.save_distributed else replace(plan, storage_data=whole_keys(plan.items))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Claims the directory, and adds the ticket and the items to write to every rank's plan."""
        if why_torch_writes(self):
            return StockModelWriter.prepare_global_plan(self, plans)
        claim, assigned = claim_model(
            directory_of(self), plans, form=model_form(self), overwrite=self.overwrite, durable=self.sync_files
        )
        self._cairn_claim = claim
        self.save_id = str(uuid.UUID(claim.save_id))
        self._cairn_is_alone = len(plans) == 1
        return assigned

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Writes the tensors that `planner` resolves for the items. The returned future is done."""
        if why_torch_writes(self):
            return StockModelWriter.write_data(self, plan, planner)
        return FileSystemWriter.write_data(self, plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits the model, and consolidates it if asked for; or raises and withdraws the files of all ranks."""
        if why_torch_writes(self):
            StockModelWriter.finish(self, metadata, results)
            return
        FileSystemWriter.finish(self, metadata, results)
        if self.save_distributed and self.consolidated_output_path is not None:
            mapping = self.fqn_to_index_mapping or {}
            threads = self.thread_count_consolidation
            for text in consolidate(directory_of(self), self.consolidated_output_path, mapping, threads, {}):
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _cairn_write(self, ticket: Ticket, state: _engine.StateDict) -> _engine.RankShare:
        return _engine.write_model_share(
            os.fsencode(directory_of(self)),
            ticket.share,
            ticket.rank,
            state,
            safetensors=model_form(self),
            durable=self.sync_files,
            thread_count=max(self.thread_count, _THREADS),
            deadlines=save_deadlines(),
        )

    def _cairn_commit(self, claim: Claim, metadata: Metadata, results: list[list[WriteResult]]) -> list[str]:
        return claim.commit_model(boxes_of(results))


@replacements.stands_for_base
class HuggingFaceStorageReader(StockModelReader, FileSystemReader):
    """The directory and options of ``cairn.load`` for a safetensors model: a folder with or without an index.

    As a StorageReader for ``torch.distributed.checkpoint.load``, the class reads natively, straight into the planner's
    tensors, and checks every byte that has a checksum. torch's own code reads a path that is not local, and the tensors
    of a subclass that overrides `_process_read_request` or `_read_files_from_queue`, which torch's code calls.
    """

    def __init__(self, path: _PathLike, thread_count: int = 1) -> None:
        super().__init__(os.fspath(path), thread_count)

    def read_metadata(self) -> Metadata:
        """Returns the metadata as torch's class, filled at the first access."""
        if why_torch_reads(self):
            return super().read_metadata()
        checkpoint = open_checkpoint(directory_of(self), name=MODEL_INDEX)
        _keep(self, checkpoint)
        return LazyMetadata(_engine.catalog_of(checkpoint), self.load_id, directory_of(self))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Fills the planner's tensors. The returned future is done."""
        if reason := why_torch_reads_model_data(self):
            return self._cairn_read_by_torch(plan, planner, False, reason)
        _opened(self)
        return FileSystemReader.read_data(self, plan, planner)

    def _cairn_read_by_torch(
        self, plan: LoadPlan, planner: LoadPlanner, allow_pickle: bool, reason: str
    ) -> "Future[None]":
        """Makes torch read the items. The files hold no pickles, therefore `allow_pickle` has no meaning."""
        future = StockModelReader.read_data(self, plan, planner)
        engine_use.storage_moves_data(self, self.path, reason)
        return future


@replacements.stands_for_base
class QuantizedHuggingFaceStorageReader(StockQuantizedReader, HuggingFaceStorageReader):
    """torch's reader of models with quantised tensors: the engine reads, and torch's code computes the tensors.

    The metadata has the shapes of the computed tensors. Loading a quantised tensor whose computation torch's code lacks
    raises Unsupported with the key: a tensor in several chunks, a `.weight` without 2 dimensions, `_blocks` without 4.
    """

    def read_metadata(self) -> Any:
        """As torch's, with the metadata read by the engine."""
        metadata = super(StockQuantizedReader, self).read_metadata()
        self._load_quantization_metadata()
        tensors = metadata.state_dict_metadata
        for key, tensor in tensors.items():
            if not isinstance(tensor, TensorStorageMetadata):
                continue
            self._tensor_full_shapes[key] = tensor.size
            if key not in self._weight_scale_mapping or not key.endswith("_blocks"):
                continue
            if len(tensor.size) == _BLOCKS_DIMENSIONS and len(tensor.chunks) == 1:
                self._describe_blocks(key, tensor, metadata.storage_data)
        if not why_torch_reads_model_data(self):
            # torch opens the file of a tensor's scales if it is not the tensor's: one object here has all tensors.
            self._weight_map = dict.fromkeys(self._weight_map, "")
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Reads each item natively; torch's code computes the values of the quantised items."""
        for key in dict.fromkeys(item.storage_index.fqn for item in plan.items):
            self._check_computable(key)
        if reason := why_torch_reads_model_data(self):
            return self._cairn_read_by_torch(plan, planner, False, reason)
        checkpoint = _opened(self)
        for item in plan.items:
            self._process_read_request(_OpenModel(checkpoint, item.storage_index), item, planner)
        engine_use.storage_moves_data(self, self.path)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _describe_blocks(self, key: str, tensor: TensorStorageMetadata, places: dict[MetadataIndex, Any]) -> None:
        """Replaces the shape of a tensor in MXFP4 by that of the computed tensor: two values per byte of a block."""
        *rows, groups, block_bytes = tensor.size
        place = places[MetadataIndex(key, tensor.chunks[0].offsets)]
        computed = torch.Size([*rows, groups * block_bytes * 2])
        # Torch's code leaves the chunk of the stored shape, so that a load plan reads the first groups only.
        chunk = ChunkStorageMetadata(torch.Size([0] * len(computed)), computed)
        places[MetadataIndex(key, chunk.offsets, 0)] = place
        self._tensor_full_shapes[key + "_quantized"] = tensor.size
        self._tensor_full_shapes[key] = computed
        tensor.size = computed
        tensor.chunks = [chunk]

    def _check_computable(self, key: str) -> None:
        """Raises Unsupported for a quantised tensor that torch's code can't compute, and InvalidArgument for scales
        that are not those of the block size. A subclass may compute more."""
        if overridden(self, _COMPUTING_HOOKS, (QuantizedHuggingFaceStorageReader,)):
            return
        if not self._is_tensor_quantized(key):
            return
        catalog = _engine.catalog_of(_opened(self))
        _, shape, _, chunks, _ = catalog.tensor(key) or (0, (), False, [], None)
        wanted = _BLOCKS_DIMENSIONS if key.endswith("_blocks") else _WEIGHT_DIMENSIONS
        if len(shape) != wanted or len(chunks) != 1:
            raise Unsupported(
                f"'{key}' is quantised, and torch's code can't compute its values; HuggingFaceStorageReader loads the "
                f"stored numbers",
                key=key,
                expected=f"{wanted} dimensions in one chunk",
                actual=f"the shape {tuple(shape)} in {len(chunks)} chunks",
            )
        if wanted == _BLOCKS_DIMENSIONS:
            return  # torch's code compares the shapes of blocks and scales
        scales = (catalog.tensor(self._weight_scale_mapping[key]) or (0, ()))[1]
        blocks = tuple(-(-size // self.block_size) for size in shape)
        if tuple(scales) != blocks:
            raise InvalidArgument(
                f"the scales of '{key}' are not those of blocks of {self.block_size} x {self.block_size} elements: "
                f"give the model's block_size",
                key=key,
                expected=f"scales of the shape {blocks}",
                actual=str(tuple(scales)),
            )

    def _load_quantization_metadata(self) -> None:
        if why_torch_reads(self) or (Path(directory_of(self)) / MODEL_INDEX).exists():
            super()._load_quantization_metadata()  # type: ignore[no-untyped-call]
            return
        keys = _engine.catalog_of(_opened(self)).keys()
        self._build_weight_scale_mapping(dict.fromkeys(keys, ""))


def _opened(reader: HuggingFaceStorageReader) -> _engine.Checkpoint:
    """Returns the model whose metadata `reader` has read; opens the model if a subclass read other metadata."""
    reading = _reading_of(reader)
    checkpoint = reader._cairn_checkpoint if reading is None else reading.checkpoint
    if checkpoint is None:
        checkpoint = open_checkpoint(directory_of(reader), name=MODEL_INDEX)
        _keep(reader, checkpoint)
    return checkpoint


class _OpenModel:
    """The tensors of an open model, with the methods of ``safetensors.safe_open``.

    The tensor of the item `index` has the origin of the item's chunk, as the tensor in the chunk's file has.
    """

    def __init__(self, checkpoint: _engine.Checkpoint, index: MetadataIndex) -> None:
        self._checkpoint = checkpoint
        self._catalog = _engine.catalog_of(checkpoint)
        self._index = index

    def get_slice(self, key: str) -> "_Slice":
        _, shape = self.described(key)
        origin = tuple(self._index.offset or ()) if key == self._index.fqn else ()
        return _Slice(self, key, origin if len(origin) == len(shape) else (0,) * len(shape))

    def get_tensor(self, key: str) -> torch.Tensor:
        code, shape = self.described(key)
        return self.read(key, [0] * len(shape), list(shape), DTYPES[code])

    def described(self, key: str) -> tuple[int, tuple[int, ...]]:
        tensor = self._catalog.tensor(key)
        if tensor is None:
            raise InvalidArgument(f"the model has no tensor '{key}'", key=key)
        return tensor[0], tensor[1]

    def read(self, key: str, offsets: list[int], sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
        target = torch.empty(sizes, dtype=dtype)
        self._checkpoint.read_box(key, (tuple(offsets), tuple(sizes)), target.data_ptr())
        return target


class _Slice:
    """Reads boxes of a tensor, as safetensors' slices do. `origin` is the element at the slices' zero."""

    def __init__(self, model: _OpenModel, key: str, origin: tuple[int, ...]) -> None:
        self._model = model
        self._key = key
        self._origin = origin

    def __getitem__(self, slices: tuple[slice, ...]) -> torch.Tensor:
        code, shape = self._model.described(self._key)
        sizes = [size - first for size, first in zip(shape, self._origin, strict=True)]
        bounds = [part.indices(size) for part, size in zip(slices, sizes, strict=True)]
        offsets = [first + begin for first, (begin, _, _) in zip(self._origin, bounds, strict=True)]
        return self._model.read(self._key, offsets, [max(0, end - begin) for begin, end, _ in bounds], DTYPES[code])


__getattr__, __dir__ = modules.names_of(__name__)
