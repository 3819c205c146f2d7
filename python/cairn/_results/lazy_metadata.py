"""torch's ``Metadata`` of a checkpoint, made at the first access: for many tensors, making it takes longer than the
save."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._hf_utils import _HFStorageInfo
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from cairn import _engine
from cairn._directory import open_checkpoint
from cairn._results import plan_objects
from cairn._state.recorded_strides import TORCH_RECORDS_STRIDES
from cairn._state.torch_codes import DTYPES
from cairn.errors import Replaced

_PathLike = str | os.PathLike[str]


class LazyMetadata(Metadata):
    """A Metadata that fills itself, and becomes an ordinary Metadata, at the first access to an attribute.

    Attributes that programs have added to the metadata, such as ``all_local_plans``, are kept if they hold plain data
    or objects of DCP's plans (:mod:`cairn._results.plan_objects`). All remaining attributes are left out: only code
    from the checkpoint could build them.
    """

    def __init__(
        self,
        catalog: _engine.Catalog | Callable[[], _engine.Catalog],
        load_id: str | None = None,
        model_directory: _PathLike | None = None,
    ) -> None:
        """`model_directory` is the directory of a safetensors model, whose places torch describes by another class;
        None for a DCP checkpoint."""
        object.__setattr__(self, "_cairn_source", (catalog, load_id, model_directory))

    def __repr__(self) -> str:
        """Returns a line: the metadata of a large checkpoint has many thousand lines."""
        source, _, _ = object.__getattribute__(self, "_cairn_source")
        if not isinstance(source, _engine.Catalog):
            return "<Metadata, read at the first access to an attribute>"
        return f"<Metadata of '{source.checkpoint_id}': {len(source)} keys, filled at the first access to an attribute>"

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Metadata
        if name.startswith(("_repr_", "_ipython_")):  # a notebook asks for these before it shows the object
            raise AttributeError(name)
        _fill(self)
        return getattr(self, name)  # the class is Metadata now

    def __setattr__(self, name: str, value: Any) -> None:
        _fill(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        _fill(self)
        delattr(self, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _fill(self)
        return Metadata.__reduce_ex__(self, protocol)


def _fill(metadata: LazyMetadata) -> None:
    attributes = object.__getattribute__(metadata, "__dict__")
    source = attributes.get("_cairn_source")
    if source is not None:
        catalog, load_id, model_directory = source
        filled = _attributes_of(
            catalog() if callable(catalog) else catalog, load_id, model_directory
        )  # may raise; the object then stays unfilled
        attributes.pop("_cairn_source", None)
        attributes.update(filled)
    object.__setattr__(metadata, "__class__", Metadata)


def _attributes_of(catalog: _engine.Catalog, load_id: str | None, model_directory: _PathLike | None) -> dict[str, Any]:
    state_dict_metadata: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    storage_data: dict[MetadataIndex, _StorageInfo | _HFStorageInfo] = {}
    transforms = {fqn: names.split(", ") for fqn, names in catalog.transforms().items()}
    for fqn in catalog.keys():  # noqa: SIM118 - not a mapping
        tensor = catalog.tensor(fqn)
        if tensor is None:
            state_dict_metadata[fqn] = BytesStorageMetadata()
            file, offset, length = catalog.value(fqn) or (None, 0, 0)
            if file is not None:
                storage_data[MetadataIndex(fqn)] = _StorageInfo(file, offset, length, transforms.get(fqn))
            continue
        code, shape, requires_grad, chunks, strides = tensor
        properties = TensorProperties(dtype=DTYPES[code], requires_grad=requires_grad)
        if TORCH_RECORDS_STRIDES:
            vars(properties)["strides"] = strides
        boxes = []
        for index, (offsets, sizes, file, offset, length) in enumerate(chunks):
            boxes.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            if file is None:
                continue
            place = MetadataIndex(fqn, offsets, index)
            if model_directory is None:
                storage_data[place] = _StorageInfo(file, offset, length, transforms.get(fqn))
            else:
                path = str(Path(model_directory) / file)
                storage_data[place] = _HFStorageInfo(path, torch.Size(sizes), DTYPES[code])
        state_dict_metadata[fqn] = TensorStorageMetadata(properties, torch.Size(shape), boxes)
    paths = catalog.paths()
    extra = catalog.extra(plan_objects.rebuilt)
    return {
        "state_dict_metadata": state_dict_metadata,
        "planner_data": extra.pop("planner_data", None) if not paths and len(catalog) else paths,
        "storage_data": storage_data,
        "storage_meta": StorageMeta(catalog.checkpoint_id, catalog.save_id, load_id),
        "version": catalog.version,
        **extra,
    }


def catalog_of_save(directory: str | os.PathLike[str], save_id: str, rank: int | None = None) -> _engine.Catalog:
    """Reads the catalog of save `save_id` in `directory`; `rank` is the rank that saved alone, or None. Raises Replaced
    if a later save has replaced the checkpoint, and the engine's errors."""
    checkpoint = open_checkpoint(directory, rank)
    if checkpoint.save_id != save_id:
        raise Replaced(
            f"a later save replaced this checkpoint in '{os.fspath(directory)}', and its metadata of more than 1 MiB "
            "was not kept in memory"
        )
    return _engine.catalog_of(checkpoint)
