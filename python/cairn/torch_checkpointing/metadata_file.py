"""``metadata.pkl``: the geometry of the tensors of all ranks, in torch_checkpointing's format 2.0.

The ranks send their parts to rank 0 as literals, by the process group's own backend, and rank 0 unpickles nothing.
torch_checkpointing's manager gathers by CUDA tensors alone, and keeps the first metadata when the state changes.
"""

import ast
import contextlib
import functools
import json
import logging
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch_checkpointing.checkpoint_base import CheckpointInfo
from torch_checkpointing.distributed_metadata import ShardingMetadata
from torch_checkpointing.metadata_manager import MetadataManager
from torch_checkpointing.metadata_serialization import METADATA_FILE_NAME

from cairn._ranks.ranks import Ranks

__all__ = ["METADATA_FILE_NAME", "MetadataOfRanks", "message_of", "metadata_of"]

_VERSION = "2.0"
_Parts = list[Any]  # by rank: the decoded messages


class MetadataOfRanks:
    """The parts of all ranks, at rank 0."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts

    @functools.cached_property
    def data(self) -> bytes:
        """The bytes of the file."""
        items = _merged(self._parts)
        return pickle.dumps({"metadata": items, "world_size": len(self._parts), "version": _VERSION})


class _Known(NamedTuple):
    """`message`: of this rank. `metadata`: of all ranks, at rank 0; else None."""

    message: str
    metadata: MetadataOfRanks | None


# The last metadata of each manager: the ranks exchange it again only if it has changed on one of them.
_known: "weakref.WeakKeyDictionary[MetadataManager, _Known]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _without_repeated_warnings(manager: MetadataManager) -> Iterator[None]:
    """torch_checkpointing looks at the shardings of a manager once, and warns of plain tensors; Cairn looks in every
    save."""
    if manager not in _known:
        yield
        return
    thread = threading.get_ident()
    log = logging.getLogger("torch_checkpointing.default_resharder")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


def message_of(manager: MetadataManager, info: CheckpointInfo, rank: int) -> str:
    """Returns this rank's part. Of tensors whose metadata is equal on several ranks, the lowest of them sends it."""
    items: dict[str, Any] = {}
    with _without_repeated_warnings(manager):
        local = manager.extract_object_metadata(info)
    for key, found in local.items():
        sent = {}
        for path, sharding in found.items():
            equal = sharding.equivalent_ranks
            if equal is None or min(equal) == rank:
                sent[json.dumps(list(path), separators=(",", ":"))] = sharding._pack()
        items[key] = sent
    layouts = {key: None if layout is None else layout.to_dict() for key, layout in info.layout_info_mappings.items()}
    return repr({"items": items, "layouts": layouts})


def metadata_of(manager: MetadataManager, message: str, ranks: Ranks) -> MetadataOfRanks | None:
    """Returns the metadata of all ranks at rank 0, None on the remaining ranks. A collective call: one small reduction
    if the metadata is that of the last save."""
    known = _known.get(manager)
    (all_equal,) = ranks.smallest([int(known is not None and known.message == message)])
    if known is None or not all_equal:
        messages = [message.encode()]
        if ranks.are_many:
            from cairn._ranks.process_group import GroupCalls

            messages = GroupCalls(ranks.group).gather(message.encode(), 0)
        metadata = MetadataOfRanks([ast.literal_eval(sent.decode()) for sent in messages]) if ranks.rank == 0 else None
        known = _known[manager] = _Known(message, metadata)
    return known.metadata


def _merged(parts: _Parts) -> dict[str, Any]:
    """Returns the items: for each path the shardings and their ranks, and for each rank the layout."""
    items: dict[str, Any] = {}
    for rank, part in enumerate(parts):
        for key, sent in part["items"].items():
            paths = items.setdefault(key, {})
            for path, packed in sent.items():
                groups = paths.setdefault(path, {})
                groups.setdefault(repr(packed), (packed, []))[1].append(rank)
    return {
        key: {
            "nested_path_to_metadata": {
                path: [_group(packed, holders) for packed, holders in groups.values()] for path, groups in paths.items()
            },
            "rank_to_layout_info": {rank: part["layouts"].get(key) for rank, part in enumerate(parts)},
        }
        for key, paths in items.items()
    }


def _group(packed: dict[str, Any], holders: list[int]) -> dict[str, Any]:
    equal = ShardingMetadata._unpack(packed).equivalent_ranks
    ranks = tuple(holders) if equal is None else tuple(sorted(equal))
    return {"sharding_metadata": packed, "ranks": ranks}
