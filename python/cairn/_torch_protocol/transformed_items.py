"""Read items that went through stream transforms (compression) when torch wrote them. This module undoes the
transforms.

torch's ``read_data`` follows any path in the metadata, expands a stream of any size and checks no checksum. Here the
file must lie in the checkpoint's directory, the size is bounded, and the records of the expanded archive are compared
with their checksums. A transform carries no checksum of its own; therefore a value that is not an archive of
``torch.save`` is not checked.
"""

import errno
import io
import math
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from cairn import _engine
from cairn._state.local_shard import part_of
from cairn._state.payloads import check_rules_hold
from cairn._state.tensor_memory import check_memory
from cairn._state.tensors import fill, is_opaque
from cairn._state.torch_codes import DTYPES, dtype_change
from cairn._state.values import payload_without_code
from cairn._torch_protocol.read_items import ItemReader, is_stock
from cairn.errors import Corrupt, Error, InvalidArgument, Unsupported

_PIECE_BYTES = 1 << 20
_ARCHIVE_BYTES_MAX = 1 << 20  # size of an archive without its tensor's elements
# element size in a payload that only torch can read: a quantised element with a scale and a zero point
_OPAQUE_ELEMENT_BYTES_MAX = 32
# bound of an expanded value, whose size the metadata does not record: this constant plus _VALUE_RATIO_MAX
_VALUE_BYTES_MAX = 256 << 20
_VALUE_RATIO_MAX = 256  # times the stored bytes


class TransformedItems:
    """Reads transformed items of the checkpoint in `directory`, by a reader's `transforms`.

    `options` and `allow_pickle` are as in ItemReader. No code from the checkpoint runs without `allow_pickle`, but
    transforms that the caller registered run, and must bound their own memory.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        transforms: Any,
        items: ItemReader,
        options: Mapping[str, Any],
        allow_pickle: bool,
    ) -> None:
        self._directory = Path(os.fspath(directory))
        self._transforms = transforms
        self._items = items
        self._options = options
        self._allow_pickle = allow_pickle

    def read(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        """Reads the items, values first. Raises Unsupported for a transform that is not registered; Corrupt;
        UnsafeContent."""
        for item in sorted(items, key=lambda item: item.type is not LoadItemType.BYTE_IO):
            if item.type is LoadItemType.BYTE_IO:
                self._read_value(item, planner)
            else:
                self._read_tensor(item, planner)

    def _read_value(self, item: ReadItem, planner: LoadPlanner) -> None:
        stored = self._items.info_of(item).length
        payload = self._expanded(item, _VALUE_BYTES_MAX + _VALUE_RATIO_MAX * stored)
        if is_stock(planner, "load_bytes"):
            payload = payload_without_code(item.storage_index.fqn, payload, self._allow_pickle)
        planner.load_bytes(item, io.BytesIO(payload))

    def _read_tensor(self, item: ReadItem, planner: LoadPlanner) -> None:
        key = item.storage_index.fqn
        target = planner.resolve_tensor(item).detach()
        chunk, code = self._items.stored_tensor_of(item)
        element_bytes = _OPAQUE_ELEMENT_BYTES_MAX if is_opaque(target) else _engine.DTYPE_ITEM_BYTES[code]
        payload = self._expanded(item, math.prod(chunk) * element_bytes + _ARCHIVE_BYTES_MAX)
        if not self._allow_pickle:
            check_rules_hold(f"the tensor under '{key}'", key=key)
        try:
            saved = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        except Exception as error:
            raise Unsupported(f"torch can't read the tensor under '{key}': {error}", key=key) from error
        if not isinstance(saved, torch.Tensor) or saved.shape != chunk or saved.dtype != DTYPES.get(code):
            found = f"{saved.dtype} {tuple(saved.shape)}" if isinstance(saved, torch.Tensor) else type(saved).__name__
            expected = f"{DTYPES.get(code)} {chunk}"
            raise Corrupt("the item differs from its metadata", key=key, expected=expected, actual=found)
        saved = part_of(saved, item.storage_offsets, item.lengths)
        if saved.shape != target.shape:
            raise InvalidArgument(
                f"size mismatch for '{key}'", key=key, expected=str(tuple(target.shape)), actual=str(tuple(saved.shape))
            )
        check_memory(key, target)
        self._items.conversions += dtype_change(key, code, target.dtype, bool(self._options.get("allow_cast")))
        fill(target, saved)
        planner.commit_tensor(item, target)

    def _expanded(self, item: ReadItem, limit: int) -> bytes:
        """Returns the item with its transforms undone; raises Corrupt above `limit` bytes."""
        info = self._items.info_of(item)
        key, file, names = item.storage_index.fqn, info.relative_path, ", ".join(info.transform_descriptors)
        try:
            self._transforms.extension_registry.from_descriptor_list(info.transform_descriptors)
        except Exception as error:
            raise Unsupported(
                f"'{key}' went through the stream transforms {names}, which this reader can't undo ({error}): pass a "
                f"FileSystemReader whose _extension_registry has them",
                key=key,
                actual=names,
            ) from error
        stored = io.BytesIO(self._stored(key, file, info.offset, info.length))
        expanded = io.BytesIO()
        try:
            stream = self._transforms.transform_load_stream(item, info.transform_descriptors, stored)
            while expanded.tell() <= limit and (piece := stream.read(_PIECE_BYTES)):
                expanded.write(piece)
            if expanded.tell() > limit:
                raise Corrupt(
                    "an item decompresses to more bytes than its tensor or value can have",
                    expected=f"at most {limit} bytes",
                )
            payload = expanded.getvalue()
            if payload.startswith(b"PK") and self._options.get("verify") != "none":
                _check_archive(payload)
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            what = error.message if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            raise Corrupt(
                f"'{key}' can't be decoded by {names}: {what}", key=key, file=file, offset=info.offset
            ) from error
        return payload

    def _stored(self, key: str, file: str, offset: int, length: int) -> bytes:
        """Returns the bytes at a place of a regular file in the directory. Follows links if the options allow links."""
        relative = PurePosixPath(file)
        if relative.is_absolute() or ".." in relative.parts or not relative.parts:
            raise Corrupt("the metadata names a data file outside the directory", key=key, file=file)
        try:
            descriptor = _open_below(self._directory, relative, bool(self._options.get("follow_links")))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise Corrupt(
                "a data file is reached through a symbolic link, which must be allowed (follow_links=True)",
                key=key,
                file=file,
            ) from error
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Corrupt("a data file is not a regular file", key=key, file=file)
            if offset < 0 or length < 0 or offset + length > status.st_size:
                raise Corrupt(
                    "a data file ends before an item does",
                    key=key,
                    file=file,
                    offset=offset,
                    expected=f"{length} bytes from there",
                    actual=f"a file of {status.st_size} bytes",
                )
            stream.seek(offset)
            return stream.read(length)


def _open_below(directory: Path, relative: PurePosixPath, follow_links: bool) -> int:
    """Opens a file for reading, and returns the descriptor.

    Without `follow_links` each folder is opened from the descriptor of its parent; therefore a link that replaces a
    folder during the call is refused as well. Raises OSError: ELOOP or ENOTDIR for a link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    if follow_links:
        return os.open(directory / relative, flags)
    opened = os.open(directory, flags | os.O_DIRECTORY)
    try:
        for folder in relative.parts[:-1]:
            above, opened = opened, os.open(folder, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
            os.close(above)
        return os.open(relative.name, flags | os.O_NOFOLLOW, dir_fd=opened)
    finally:
        os.close(opened)


def _check_archive(payload: bytes) -> None:
    """Raises Corrupt if a record of an archive differs from its checksum; zipfile's exceptions if `payload` is no
    archive."""
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        if sum(record.file_size for record in archive.infolist()) > len(payload):
            raise Corrupt("records of the archive share bytes")
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                raise Corrupt(f"record '{record.filename}' is compressed; torch.save compresses no record")
            with archive.open(record) as stream:
                while stream.read(_PIECE_BYTES):  # raises BadZipFile
                    pass
