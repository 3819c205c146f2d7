"""Conversion of checkpoints: another format, other keys, dtypes or files; streamed, checked, without torch."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from cairn import _engine
from cairn._directory import existing_directory, existing_place
from cairn._settings import links_followed, pickle_allowed, save_deadlines
from cairn._torch_names import modules
from cairn.checkpoint import Verify, check_verify
from cairn.errors import InvalidArgument

Format: TypeAlias = Literal["dcp", "torch", "safetensors"]
_FORMATS = ("dcp", "torch", "safetensors")


class TiedTensors(NamedTuple):
    """Tensors of the source that share elements in torch, by their names in the target.

    `stay_tied` is False if the target holds a copy for each key.
    """

    keys: tuple[str, ...]
    stay_tied: bool


class ConvertReport(NamedTuple):
    """The result of :func:`convert`."""

    source_format: Format
    directory: str
    """The directory of the files."""
    files: tuple[str, ...]
    """The files of the target, relative to `directory`."""
    tensors: int
    values: int
    """The number of keys that are not tensors."""
    tensor_bytes: int
    bytes_written: int
    conversions: Mapping[str, tuple[str, str]]
    """For each key of the source whose dtype has changed: torch's names of the old and the new dtype."""
    tied: tuple[TiedTensors, ...]
    warnings: tuple[str, ...]
    """Also of what the target can't hold: values beyond the range of the new dtype, classes and keys of dicts, and
    metadata; and of what is unknown about the source, such as the number of its shards."""


# As the tool's --dtype takes them.
_SHORT_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "fp64": "float64",
    "f64": "float64",
}


def _dtype_code(dtype: object) -> int:
    name = str(dtype).removeprefix("torch.")
    name = _SHORT_NAMES.get(name, name)
    if name not in _engine.DTYPE_NAMES:
        raise InvalidArgument("dtype must be a dtype of torch, or its name", actual=repr(dtype))
    return _engine.DTYPE_NAMES.index(name)


def convert(  # noqa: PLR0913
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Format,
    keys: Iterable[str] = (),
    exclude: Iterable[str] = (),
    renames: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    dtype: object = None,
    max_shard_bytes: int = 0,
    file_count: int = 1,
    keep_shape: bool = True,
    plain: bool = False,
    overwrite: bool = False,
    overwrite_any_file: bool = False,
    durable: bool = True,
    verify: Verify = "full",
    allow_pickle: bool | None = None,
    follow_links: bool | None = None,
    thread_count: int = 4,
    direct_io: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> ConvertReport:
    """Copies the checkpoint `source`, of any format that :func:`cairn.open` recognises, to `target`, in format `to`.

    ``"dcp"`` writes a directory; ``"torch"`` a file for ``torch.load``, with the nested state; ``"safetensors"`` a
    file, if `target` ends in ``.safetensors``, or a directory for ``transformers``. Memory does not grow with the
    tensors. Every byte read is compared with its checksum. `target` appears only when it is whole: after a failure or
    a kill the old target is in place. If the target is one file, and `target` a symbolic link, the link stays, and
    the file that the link names is written. Needs no torch.

    :param keys: patterns (``*``, ``?``, ``[a-z]``) of the keys to copy, each also with all keys below it; all keys if
        empty.
    :param exclude: patterns of the keys to leave out, each also with all keys below it.
    :param renames: pairs of an old and a new name. An old name without a star is a prefix that ends at a dot; with
        stars it is a pattern of the whole key, and each star of the new name stands for the text of its star. The
        first rename that matches a key counts.
    :param dtype: the new dtype of all floating-point tensors, a ``torch.dtype`` or its name; or a mapping of patterns
        of keys to dtypes, where the first pattern that matches a key counts. Packed 4-bit floats and ``float8_e8m0fnu``
        stay as they are. `warnings` of the report names them, and tensors whose values the dtype can't hold.
    :param max_shard_bytes: of the tensors of a safetensors file; the directory then gets several files and
        ``model.safetensors.index.json``. 0: one file.
    :param file_count: the number of data files of a DCP checkpoint, of nearly equal sizes.
    :param keep_shape: whether a DCP checkpoint gets a value under ``__cairn_shape__`` for the keys of dicts that are no
        text, and for empty dicts. A later conversion into a file of ``torch.save`` restores them.
    :param plain: whether to leave out all metadata of Cairn's own. The bytes of the target then depend only on the
        source and the arguments, and a safetensors file has no checksums. `target` must be one file.
    :param overwrite: whether to replace an existing target. A file that keeps its name keeps its mode.
    :param overwrite_any_file: whether `overwrite` replaces also a file that is no checkpoint, as torch's functions do.
    :param durable: whether to sync files and directories, so that the target survives a power cut.
    :param verify: ``"full"`` checks every byte; ``"needed"`` leaves out records that have one checksum and are not
        copied whole; ``"none"`` trusts the storage.
    :param allow_pickle: whether to copy values whose pickles name code, too. The conversion runs none of it; a load of
        the target does. None: as in ``cairn.load``.
    :param follow_links: whether data files may be symbolic links; None: as ``cairn.install`` says.
    :param progress: called every few milliseconds with the bytes done and the bytes in total. Its exception ends the
        conversion and is raised.

    Raises MissingKey if a pattern or a rename matches no key; InvalidArgument if two keys get the same name or one
    nested place, or if `target` exists and `overwrite` is False; Unsupported for a key that the format can't hold
    (safetensors holds only tensors); UnsafeContent, with key and class, for a value that is not plain data, unless
    `allow_pickle` (between two DCP checkpoints the stored bytes are copied, whatever they name), and for a file of
    torch.save whose tensors repeat few elements very often; Corrupt, with key, file and offset, if a checksum does not
    match; Unavailable if a call into the storage of `source` or `target` takes longer than the deadlines of
    :func:`cairn.configure_saves`, a read longer than `publish_deadline_seconds`. Ctrl-C ends the conversion and leaves
    no target.
    """
    if to not in _FORMATS:
        raise InvalidArgument("to must be 'dcp', 'torch' or 'safetensors'", actual=repr(to))
    for name, patterns in (("keys", keys), ("exclude", exclude)):
        if isinstance(patterns, str):
            raise InvalidArgument(f"{name} must be a list of patterns, not a string", actual=repr(patterns))
    pairs = list(renames.items()) if isinstance(renames, Mapping) else list(renames)
    for name, number, least in (
        ("max_shard_bytes", max_shard_bytes, 0),
        ("file_count", file_count, 1),
        ("thread_count", thread_count, 1),
    ):
        if not least <= number < 1 << 63:
            raise InvalidArgument(f"{name} must be at least {least}", actual=repr(number))
    key_dtypes = dtype if isinstance(dtype, Mapping) else {}
    found = _engine.convert(
        os.fsencode(existing_place(source)),
        os.fsencode(Path(existing_directory(target))),
        to=to,
        keys=list(keys),
        exclude=list(exclude),
        renames=pairs,
        dtype=None if dtype is None or isinstance(dtype, Mapping) else _dtype_code(dtype),
        key_dtypes=[(pattern, _dtype_code(of_keys)) for pattern, of_keys in key_dtypes.items()],
        keep_shape=keep_shape,
        plain=plain,
        max_shard_bytes=max_shard_bytes,
        file_count=file_count,
        overwrite=overwrite,
        overwrite_any_file=overwrite_any_file,
        durable=durable,
        verify=check_verify(verify),
        allow_pickle=pickle_allowed(allow_pickle),
        follow_links=links_followed(follow_links),
        thread_count=thread_count,
        direct_io=direct_io,
        deadlines=save_deadlines(),
        progress=progress,
    )
    names = _engine.DTYPE_NAMES
    return ConvertReport(
        source_format=found["source_format"],
        directory=os.fsdecode(found["directory"]),
        files=tuple(found["files"]),
        tensors=found["tensors"],
        values=found["values"],
        tensor_bytes=found["tensor_bytes"],
        bytes_written=found["bytes_written"],
        conversions={key: (names[old], names[new]) for key, old, new in found["conversions"]},
        tied=tuple(TiedTensors(tuple(group), stay_tied) for group, stay_tied in found["tied"]),
        warnings=tuple(found["warnings"]),
    )


if not TYPE_CHECKING:  # for names that a later torch may have in a module of this name
    __getattr__, __dir__ = modules.names_of(__name__)
