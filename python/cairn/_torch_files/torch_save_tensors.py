"""The tensors of a file of ``torch.save``, read in boxes: by each rank for itself, or by one rank for all ranks.

Reading together, by all ranks of the default process group:

1. Every rank opens the file, and the ranks exchange a mark of the file's content, or none. A file without checksums has
   no mark.
2. If all ranks see the same content, each reads its own boxes, and no tensor is sent.
3. Otherwise the coordinator alone reads: the ranks send it their boxes; it announces keys in batches, reads each tensor
   once, in the dtype of the state dicts, and scatters to each rank only that rank's boxes. A rank that has failed goes
   on receiving.
4. The ranks exchange failures: if a rank has failed, all fail.
"""

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from cairn import _engine
from cairn._directory import open_checkpoint
from cairn._ranks.ranks import Ranks
from cairn._state.local_shard import part_of
from cairn._state.tensors import TensorTarget
from cairn._state.torch_codes import DTYPES, QUANTIZED
from cairn._state.values import load_value, warn_of_conversions
from cairn.errors import Cancelled, InvalidArgument, MissingKey, Unsupported

_BATCH_BYTES = 32 << 20  # tensors that share a scatter; a larger tensor has its own


class Box(NamedTuple):
    """A part of a tensor of the file, and the item of a load plan that wants the part."""

    item: ReadItem
    key: str
    shape: tuple[int, ...]  # of the whole tensor, as the state dict has it
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str  # of the state dict's tensor


class Wanted(NamedTuple):
    """The boxes that a rank wants of the tensors of the file, by key and dtype of the state dict."""

    shapes: dict[tuple[str, str], tuple[int, ...]]
    boxes: dict[tuple[str, str], list[tuple[tuple[int, ...], tuple[int, ...]]]]  # offsets and sizes

    @classmethod
    def of(cls, message: bytes) -> "Wanted":
        """Returns the boxes in the message of a rank."""
        wanted = cls({}, {})
        for key, shape, offsets, sizes, dtype in json.loads(message):
            wanted.shapes[key, dtype] = tuple(shape)
            wanted.boxes.setdefault((key, dtype), []).append((tuple(offsets), tuple(sizes)))
        return wanted


class Announced(NamedTuple):
    """A tensor that the coordinator sends."""

    key: str
    wanted: str  # the dtype of the state dicts
    sent: str  # the dtype of the bytes


class TorchSaveTensors:
    """An open file. Raises NotFound, Unsupported if the file holds no state dict, Corrupt."""

    def __init__(self, file: Path, allow_pickle: bool) -> None:
        self._file = file
        self._allow_pickle = allow_pickle
        self._checkpoint = open_checkpoint(file)
        self._catalog = _engine.catalog_of(self._checkpoint)

    def mark(self) -> bytes:
        """Returns bytes that differ between files of different content, except for damage; b"" if the file has no
        checksums: a legacy file, and an archive that was written without."""
        digest = hashlib.blake2b(str(self._file.stat().st_size).encode())
        try:
            with zipfile.ZipFile(self._file) as archive:
                records = archive.infolist()
        except zipfile.BadZipFile:
            return b""
        for record in records:
            if record.CRC == 0 and record.file_size > 0:
                return b""
            digest.update(f"{record.filename} {record.file_size} {record.CRC}\n".encode())
        return digest.digest()

    def shape_and_dtype(self, key: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Returns what is known of a tensor. Raises MissingKey, and Unsupported for a value."""
        found = self._catalog.tensor(key)
        if found is None:
            tensor = self._opaque(key)
            return tuple(tensor.shape), tensor.dtype
        dtype = DTYPES.get(found[0])
        if dtype is None:
            raise Unsupported(f"this torch lacks the dtype of '{key}'", key=key, file=str(self._file))
        if dtype in QUANTIZED:
            raise self._without_elements(key)
        return tuple(found[1]), dtype

    def fill(self, boxes: Iterable[tuple[Box, torch.Tensor]]) -> None:
        """Fills the target of each box. Every size is checked before anything changes."""
        state = _engine.StateDict()
        targets = TensorTarget(state)
        opaque: list[tuple[Box, torch.Tensor]] = []
        for box, target in boxes:
            shape, _ = self.shape_and_dtype(box.key)
            check_shape(box.key, box.shape, shape, str(self._file))
            if self._catalog.tensor(box.key) is None:
                opaque.append((box, target))
            else:
                targets.add_part((box.key,), target, shape, box.offsets)
        read = [(target, part_of(self._opaque(box.key), box.offsets, box.sizes)) for box, target in opaque]
        conversions, _ = self._checkpoint.load(state, allow_cast=True)
        targets.finish(set())
        for target, part in read:
            target.copy_(part)
        warn_of_conversions(conversions)

    def sent_dtype(self, key: str, wanted: torch.dtype) -> torch.dtype:
        """Returns the dtype of whole()."""
        return wanted if self._catalog.tensor(key) is not None else self._opaque(key).dtype

    def whole(self, key: str, wanted: torch.dtype) -> torch.Tensor:
        """Returns a new tensor on the CPU: of the dtype `wanted`, except for a tensor that only torch can make."""
        shape, _ = self.shape_and_dtype(key)
        if self._catalog.tensor(key) is None:
            return self._opaque(key)
        tensor = torch.empty(shape, dtype=wanted, device="cpu")
        state = _engine.StateDict()
        targets = TensorTarget(state)
        targets.add((key,), tensor)
        conversions, _ = self._checkpoint.load(state, allow_cast=True)
        targets.finish(set())
        warn_of_conversions(conversions)
        return tensor

    def _opaque(self, key: str) -> torch.Tensor:
        """Returns a tensor that only torch can make. Raises UnsafeContent if it needs code, without consent."""
        if key not in self._catalog:
            raise MissingKey(f"Missing key in checkpoint state_dict: {key}.", key=key, file=str(self._file))
        value = load_value(key, self._checkpoint.read_payload(key), self._allow_pickle, "cpu")
        if not isinstance(value, torch.Tensor):
            raise Unsupported("a reader of torch.save files fills only tensors", key=key, file=str(self._file))
        if value.layout != torch.strided or value.is_quantized:
            raise self._without_elements(key)
        return value.detach()

    def _without_elements(self, key: str) -> Unsupported:
        """Returns the error for a tensor that torch's ``copy_`` does not put into a part of a tensor."""
        return Unsupported(
            f"'{key}' is a quantised or sparse tensor, of which no rank can read a part: read it by torch.load",
            key=key,
            file=str(self._file),
        )


def check_shape(key: str, wanted: tuple[int, ...], shape: tuple[int, ...], file: str) -> None:
    """Raises InvalidArgument, in torch's words, if the file's tensor has another shape than the state dict's."""
    if shape != wanted:
        raise InvalidArgument(
            f"Size mismatch between saved {shape} and current {wanted} for {key}",
            key=key,
            file=file,
            expected=str(wanted),
            actual=str(shape),
        )


def boxes_of(plan: LoadPlan, planner: Any) -> list[Box]:
    """Returns the boxes of a plan. Raises Unsupported for an item that is no tensor."""
    boxes = []
    for item in plan.items:
        key = item.storage_index.fqn
        if item.type is LoadItemType.BYTE_IO:
            raise Unsupported("a reader of torch.save files fills only tensors", key=key)
        sizes = tuple(item.lengths)
        # the item's offsets count from the chunk that the planner's metadata has, not from the whole tensor
        begin = tuple(item.storage_index.offset or (0,) * len(sizes))
        offsets = tuple(a + b for a, b in zip(begin, item.storage_offsets, strict=True))
        tensor = planner.state_dict[key]
        boxes.append(Box(item, key, tuple(tensor.shape), offsets, sizes, _name_of(tensor.dtype)))
    return boxes


def read_alone(file: Path, allow_pickle: bool, boxes: Sequence[Box], planner: Any) -> None:
    """Fills the planner's tensors on this process alone."""
    _fill_planner(TorchSaveTensors(file, allow_pickle), boxes, planner)


class ReadingTogether:
    """One reading by all ranks of the default group. `root` is the coordinator's rank."""

    def __init__(self, file: Path, allow_pickle: bool, root: int) -> None:
        from cairn._ranks.process_group import GroupCalls

        self._file = file
        self._allow_pickle = allow_pickle
        self._root = root
        self._ranks = GroupCalls(None)
        self._source: TorchSaveTensors | None = None
        self._failure: BaseException | None = None

    def run(self, plan: LoadPlan, planner: Any) -> None:
        """Fills the planner's tensors. Raises on all ranks if a rank fails."""
        boxes: list[Box] = []
        self._attempt(lambda: boxes.extend(boxes_of(plan, planner)))
        marks = self._ranks.all_gather(self._open())  # (1)
        if marks[0] and marks.count(marks[0]) == len(marks) and self._source is not None:
            source = self._source
            self._attempt(lambda: _fill_planner(source, boxes, planner))  # (2)
        else:
            self._receive(boxes, planner)  # (3)
        with Ranks().all_or_none("read"):  # (4)
            if self._failure is not None:
                raise self._failure

    def _attempt(self, work: Callable[[], None]) -> None:
        """Does the work unless this rank has failed. Keeps a failure for step 4."""
        if self._failure is not None:
            return
        try:
            work()
        except BaseException as failure:
            self._failure = failure

    def _open(self) -> bytes:
        """Opens the file. Returns its mark; nothing if this rank does not see the file."""
        try:
            self._source = TorchSaveTensors(self._file, self._allow_pickle)
            return self._source.mark()
        except Exception as failure:
            self._source = None
            if self._ranks.rank == self._root and self._failure is None:
                self._failure = failure
            return b""

    def _receive(self, boxes: Sequence[Box], planner: Any) -> None:
        messages = self._ranks.gather(_encoded([box[1:] for box in boxes]), self._root)
        wanted: list[Wanted] = []
        announced: list[Any] = []
        if self._ranks.rank == self._root:
            self._attempt(lambda: wanted.extend(Wanted.of(message) for message in messages))
            self._attempt(lambda: announced.extend(self._announcement(wanted)))
        batches = json.loads(self._ranks.broadcast(_encoded(announced), self._root))
        own: dict[tuple[str, str], list[Box]] = {}
        for box in boxes:
            own.setdefault((box.key, box.dtype), []).append(box)
        for batch in ([Announced(*tensor) for tensor in batch] for batch in batches):
            parts = [b""] * self._ranks.size
            if self._ranks.rank == self._root:
                self._attempt(lambda batch=batch, out=parts: self._read_batch(batch, wanted, out))  # type: ignore[misc]
            received = self._ranks.scatter(parts, self._root)
            self._attempt(lambda batch=batch, bytes_=received: self._put(batch, bytes_, own, planner))  # type: ignore[misc]
        if not batches and boxes:
            self._attempt(self._refuse_nothing)

    def _announcement(self, wanted: Sequence[Wanted]) -> list[list[Announced]]:
        """Returns the batches. Raises InvalidArgument for a size that differs."""
        assert self._source is not None
        batches: list[list[Announced]] = []
        left = 0
        known: set[tuple[str, str]] = set()
        for shapes in (of_rank.shapes for of_rank in wanted):
            for (key, dtype), wanted_shape in shapes.items():
                shape, _ = self._source.shape_and_dtype(key)
                check_shape(key, wanted_shape, shape, str(self._file))
                if (key, dtype) in known:
                    continue
                known.add((key, dtype))
                sent = self._source.sent_dtype(key, getattr(torch, dtype))
                size = math.prod(shape) * sent.itemsize
                if not batches or size > left:
                    batches.append([])
                    left = _BATCH_BYTES
                batches[-1].append(Announced(key, dtype, _name_of(sent)))
                left -= size
        return batches

    def _read_batch(self, batch: Sequence[Announced], wanted: Sequence[Wanted], out: list[bytes]) -> None:
        """Sets the messages of a batch: for each rank its boxes, in the order of the batch and of the rank's plan."""
        assert self._source is not None
        parts: list[list[bytes]] = [[] for _ in out]
        for key, dtype, _ in batch:
            tensor = self._source.whole(key, getattr(torch, dtype))
            for rank, of_rank in enumerate(wanted):
                for offsets, sizes in of_rank.boxes.get((key, dtype), ()):
                    parts[rank].append(_bytes_of(part_of(tensor, offsets, sizes)))
        out[:] = [b"".join(part) for part in parts]

    def _put(
        self,
        batch: Sequence[Announced],
        received: bytes,
        boxes: dict[tuple[str, str], list[Box]],
        planner: Any,
    ) -> None:
        parts: list[tuple[Box, torch.Tensor]] = []
        left = memoryview(received)
        for key, dtype, sent in batch:
            for box in boxes.get((key, dtype), ()):
                size = math.prod(box.sizes) * getattr(torch, sent).itemsize
                if size > len(left):
                    self._refuse_nothing()
                part, left = left[:size], left[size:]
                parts.append((box, _tensor_of(part, sent, box.sizes)))
        for box, tensor in parts:
            target = planner.resolve_tensor(box.item).detach()
            target.copy_(tensor)
            planner.commit_tensor(box.item, target)

    def _refuse_nothing(self) -> None:
        raise Cancelled(f"rank {self._root} could not read '{self._file}': see the error of that rank")


def _fill_planner(source: TorchSaveTensors, boxes: Sequence[Box], planner: Any) -> None:
    targets = [(box, planner.resolve_tensor(box.item).detach()) for box in boxes]
    source.fill(targets)
    for box, target in targets:
        planner.commit_tensor(box.item, target)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    whole = tensor.contiguous().reshape(-1)
    if whole.numel() == 0:
        return b""
    return whole.view(torch.uint8).numpy().tobytes()


def _tensor_of(message: memoryview, dtype: str, sizes: Sequence[int]) -> torch.Tensor:
    """Returns the tensor that _bytes_of() has encoded."""
    if not message:
        return torch.empty(sizes, dtype=getattr(torch, dtype), device="cpu")
    return torch.frombuffer(bytearray(message), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(sizes)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encoded(message: Any) -> bytes:
    return json.dumps(message).encode()
