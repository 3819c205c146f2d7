"""A checkpoint opened for inspection and reading: without torch, into NumPy."""

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypeAlias

from cairn import _engine, arrays
from cairn._directory import SizeLimit, existing_place, naming_latest, open_to_inspect, warn_of_damage
from cairn._settings import links_followed, save_deadlines
from cairn._torch_names import modules
from cairn.errors import Error, InvalidArgument, MissingKey

Verify: TypeAlias = Literal["needed", "full", "none"]
_NEAREST_KEYS_MAX = 3  # in the error about a missing key
Index: TypeAlias = "SupportsIndex | slice | tuple[SupportsIndex | slice | Any, ...]"  # Any: an ellipsis


def check_verify(verify: str) -> str:
    """Returns `verify` if the string is a Verify; raises InvalidArgument otherwise."""
    if verify not in ("needed", "full", "none"):
        raise InvalidArgument("verify must be 'needed', 'full' or 'none'", actual=repr(verify))
    return verify


class Chunk(NamedTuple):
    """A box of a tensor, and the place of its bytes: `length` bytes from `offset` of `file`, framing included."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str | None  # None: the metadata names no bytes for the chunk
    offset: int
    length: int


class TensorInfo(NamedTuple):
    """A tensor of a checkpoint: global shape, torch's name of the dtype, the chunks, and the strides.

    The strides are those that the saved local tensor had in memory, in elements: torch 2.15 and later record them. None
    if none are recorded.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    chunks: tuple[Chunk, ...]
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return math.prod(self.shape) * _engine.DTYPE_ITEM_BYTES[_engine.DTYPE_NAMES.index(self.dtype)]

    @property
    def files(self) -> tuple[str, ...]:
        """The data files that hold the tensor's chunks."""
        return tuple(dict.fromkeys(chunk.file for chunk in self.chunks if chunk.file is not None))


class ValueInfo(NamedTuple):
    """A non-tensor of a checkpoint: `length` bytes from `offset` of `file`."""

    key: str
    file: str | None
    offset: int
    length: int


class UnknownObject:
    """A placeholder for a value of a class that is not plain data: the content of the value's pickle, of which nothing
    was run.

    Unpickling would call `module`.`name` with `arguments` (None: the value is the class or function itself), set
    `state` on the result and put `items` (a list, dict or set) into the result.
    """

    __slots__ = ("arguments", "items", "module", "name", "state")

    def __init__(self, module: str, name: str, arguments: Any, state: Any, items: Any) -> None:
        self.module = module
        self.name = name
        self.arguments = arguments
        self.state = state
        self.items = items

    def __repr__(self) -> str:
        if self.arguments is None:
            return f"<unknown {self.module}.{self.name}>"
        return f"<unknown {self.module}.{self.name}: {self.arguments!r}, {self.state!r}, {self.items!r}>"


def _known_or_unknown(module: str, name: str, by_new: bool, arguments: Any, state: Any, items: Any) -> Any:
    from cairn import _known_objects  # takes its time, and `import cairn` does not need it

    made = _known_objects.make_without_torch(module, name, by_new, arguments, state, items)
    return UnknownObject(module, name, arguments, state, items) if made is NotImplemented else made


def decoded(key: str, payload: bytes, form: arrays.Form) -> Any:
    """Returns the value in the payload of `key`, with tensors in the form `form`. Objects of unknown classes are
    UnknownObjects. Raises the engine's errors."""
    try:
        return _engine.decode_inert(payload, _known_or_unknown, form)
    except Error as error:
        raise error.under(key) from None


class VerifyReport(NamedTuple):
    """The result of :func:`verify`. True if verify() found no problem."""

    problems: tuple[Error, ...]
    files: int
    tensors: int
    values: int
    bytes_checked: int  # bytes whose checksum was compared
    bytes_unchecked: int  # bytes that stock torch wrote without a checksum
    has_commit_record: bool  # True: Cairn wrote the checkpoint
    # keys stored through stream transforms, and the transforms' names
    unchecked_keys: Mapping[str, str] = MappingProxyType({})
    warnings: tuple[str, ...] = ()  # what the files leave open, such as an unknown number of shards

    def __bool__(self) -> bool:
        return not self.problems


class Checkpoint(Mapping[str, Any]):
    """A read-only mapping from keys to arrays and values. Each access reads from disk, and reads a whole tensor:
    ``checkpoint.read(key, rows)`` reads only the rows.

    Objects of the Python and NumPy classes that :mod:`cairn._known_objects` lists are built. Objects of all remaining
    classes, torch's included, come back as :class:`UnknownObject`: nothing in a checkpoint is ever run. Tensors, also
    inside values, are read in the form that `tensors` of :func:`open` names, NumPy arrays by default.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, follow_links: bool | None = None, tensors: arrays.Form = "numpy"
    ) -> None:
        self.directory = os.fspath(existing_place(directory))
        self._follow_links = links_followed(follow_links)
        self._form = arrays.check_form(tensors)
        self._native = open_to_inspect(self.directory)
        self._has_warned = False
        self._has_warned_of_dtypes = False
        self._warn_of_damage()

    @property
    def save_id(self) -> str | None:
        """32 hexadecimal digits that identify the save; None if stock torch wrote the checkpoint."""
        return self._native.save_id

    @property
    def notes(self) -> dict[str, Any]:
        """The notes that the save was given (:func:`cairn.save`); empty if none. Each access returns a new dict.

        The entry ``"metrics"``, if any, is a dict of finite numbers. Raises Corrupt if the notes are damaged.
        """
        text = self._native.notes()
        notes: dict[str, Any] = json.loads(text) if text else {}
        return notes

    @property
    def files(self) -> tuple[str, ...]:
        """The data files, relative to the directory."""
        return tuple(self._native.files)

    def __len__(self) -> int:
        return len(self._native)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _, _ in self._summaries())

    def _summaries(self) -> Iterator[tuple[str, int | None, tuple[int, ...] | None]]:
        """Yields every key, with dtype and shape of a tensor: some at a time, the names of a large checkpoint take
        gigabytes."""
        stream = self._native.key_stream()
        while summaries := stream.next():
            self._warn_of_damage()
            yield from summaries

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._native.holds_any([key])

    def _warn_of_damage(self) -> None:
        if not self._has_warned and self._native.damage is not None:
            self._has_warned = True
            warn_of_damage(self._native)

    def _warn_of_stale_dtype(self, key: str, dtype: int) -> None:
        """Warns of the first tensor whose files have another dtype than the metadata of stock torch."""
        if self._has_warned_of_dtypes:
            return
        planned = _engine.catalog_of(self._native).tensor(key)
        if planned is not None and planned[0] != dtype:
            self._has_warned_of_dtypes = True
            warnings.warn(
                f"'{key}' has dtype {_engine.DTYPE_NAMES[dtype]} in the files and {_engine.DTYPE_NAMES[planned[0]]} in "
                "the metadata, which torch wrote by a planner that casts or by a cached plan; the files count, here "
                "and for all further keys",
                RuntimeWarning,
                stacklevel=3,
            )

    def __getitem__(self, key: str) -> Any:
        return self.read(key)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        tensors = size = 0
        for _, dtype, shape in self._summaries():
            if dtype is not None and shape is not None:
                tensors += 1
                size += math.prod(shape) * _engine.DTYPE_ITEM_BYTES[dtype]
        return (
            f"<cairn.Checkpoint {self.directory!r}: {tensors} tensors of {size:,} bytes, {len(self) - tensors} values, "
            f"{len(self.files)} files>"
        )

    def info(self, key: str) -> TensorInfo | ValueInfo:
        """Returns the metadata of `key`. Raises MissingKey."""
        tensor = self._native.tensor(key)
        value = None if tensor is not None else self._native.value(key)
        self._warn_of_damage()
        if tensor is not None:
            dtype, shape, requires_grad, chunks, strides = tensor
            name = _engine.DTYPE_NAMES[dtype]
            if self.save_id is None:
                self._warn_of_stale_dtype(key, dtype)
            places = tuple(Chunk(*chunk) for chunk in chunks)
            return TensorInfo(key, shape, name, requires_grad, places, strides)
        if value is None:
            nearest = ", ".join(f"'{name}'" for name in self._native.nearest_keys(key, _NEAREST_KEYS_MAX))
            hint = f" (nearest: {nearest})" if nearest else ""
            raise MissingKey(f"no such key in the checkpoint: '{key}'{hint}", key=key)
        return ValueInfo(key, *value)

    def read(self, key: str, index: "Index | None" = None, *, verify: Verify = "needed") -> Any:
        """Returns the tensor under `key`, or the box of the tensor that `index` selects, as an array; or the value
        under `key`.

        `index` is as for an array, of integers, slices with step 1 and an ellipsis. Only the selected box is read.
        Raises MissingKey; InvalidArgument for a wrong `index`; Unsupported if the tensor is quantised, or if NumPy
        lacks its dtype (see :func:`open`); Corrupt if a checksum does not match.
        """
        info = self.info(key)
        check_verify(verify)
        if isinstance(info, TensorInfo):
            return self._read_tensor(info, () if index is None else index, verify)
        if index is not None:
            raise InvalidArgument(f"'{key}' is not a tensor: only tensors take an index", key=key)
        payload = self._native.read_payload(key, verify=verify, follow_links=self._follow_links)
        return decoded(key, payload, self._form)

    def _read_tensor(self, info: TensorInfo, index: "Index", verify: str) -> Any:
        offsets, sizes, kept = _box_of(info, index)
        held = sum(chunk.length for chunk in info.chunks)
        item_bytes = _engine.DTYPE_ITEM_BYTES[_engine.DTYPE_NAMES.index(info.dtype)]
        if math.prod(sizes) * item_bytes > held:
            SizeLimit(self._native, self.directory).add(info.key, sizes, item_bytes, held)
        try:
            array, address = arrays.empty(info.dtype, sizes, self._form)
        except Error as error:
            raise error.under(info.key) from None
        options = {"verify": verify, "follow_links": self._follow_links}
        self._native.read_box(info.key, (offsets, sizes), address, **options)
        return array.reshape(tuple(sizes[d] for d in kept))


def _box_of(info: TensorInfo, index: "Index") -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Returns offsets and sizes of the box that `index` selects, and the remaining dimensions."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dimensions = len(info.shape)
    missing = dimensions - sum(part is not Ellipsis for part in parts)
    if missing < 0:
        raise InvalidArgument("too many indices", key=info.key, expected=f"at most {dimensions}", actual=repr(index))
    place = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[place : place + 1] = [slice(None)] * missing
    offsets, sizes, kept = [], [], []
    for dimension, (part, size) in enumerate(zip(parts, info.shape, strict=True)):
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            if step != 1:
                raise InvalidArgument("only slices with step 1 can be read", key=info.key, actual=repr(part))
            offsets.append(start)
            sizes.append(max(0, stop - start))
            kept.append(dimension)
            continue
        position = part.__index__()
        if not -size <= position < size:
            raise InvalidArgument(f"index {position} is outside the tensor", key=info.key, expected=f"below {size}")
        offsets.append(position % size)
        sizes.append(1)
    return tuple(offsets), tuple(sizes), kept


def open(
    directory: str | os.PathLike[str], *, follow_links: bool | None = None, tensors: arrays.Form = "numpy"
) -> Checkpoint:
    """Opens the checkpoint in `directory`, written by Cairn, by ``torch.distributed.checkpoint`` or by Meta's
    ``torch_checkpointing``, with flat keys; :func:`cairn.read` returns the nested state.

    `follow_links` allows data files that are symbolic links; None: as ``cairn.install`` says. `tensors` is the form of
    the tensors that are read:

    - ``"numpy"``: NumPy arrays. bfloat16 and the float8 kinds have the dtypes of ml_dtypes (``pip install
      'cairn-checkpoint[ml-dtypes]'``); without ml_dtypes, and for the dtypes that NumPy and ml_dtypes lack (complex32,
      float4, bits), reading a tensor of the dtype raises Unsupported.
    - ``"torch"``: torch tensors on the CPU, of every dtype except the quantised ones.
    - ``"integers"``: NumPy arrays, of unsigned integers of equal width where NumPy itself lacks the dtype.

    Raises NotFound if `directory` holds no checkpoint, Corrupt if the metadata is damaged, Unsupported if `directory`
    is the URL of another storage.
    """
    return Checkpoint(directory, follow_links=follow_links, tensors=tensors)


def verify(
    directory: str | os.PathLike[str], *, thread_count: int = 4, follow_links: bool | None = None
) -> VerifyReport:
    """Reads every byte of a checkpoint, compares the bytes with their checksums, and checks every chunk against its
    tensor.

    The report is true if no problem was found; otherwise ``problems`` holds errors that name file, offset and key. Keys
    that went through stream transforms (compression) can't be checked: ``unchecked_keys`` names these keys.
    ``warnings`` names what the files leave open, such as the number of shards that torch wrote without an index. Raises
    only if `directory` holds no checkpoint, or if the metadata can't be read at all. Ctrl-C ends the call within a
    second, also while the storage hangs: the hanging read is abandoned. Raises Unavailable if a call that opens or
    reads a file takes longer than the `publish_deadline_seconds` of :func:`cairn.configure_saves`.
    """
    place = existing_place(directory)
    with naming_latest(place):
        found = _engine.verify(os.fsencode(place), thread_count, links_followed(follow_links), save_deadlines())
    return VerifyReport(**{**found, "problems": tuple(found["problems"]), "warnings": tuple(found["warnings"])})


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
