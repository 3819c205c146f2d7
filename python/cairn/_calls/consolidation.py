"""``consolidate_safetensors_files`` and its form for all ranks, carried out by the engine."""

import os
from typing import Any

from cairn._ranks.checkpoint_exceptions import as_checkpoint_exceptions
from cairn._ranks.ranks import Ranks
from cairn._telemetry import engine_use
from cairn._torch_protocol.model_items import consolidate
from cairn._torch_protocol.storages import consolidated_directory

_PathLike = str | os.PathLike[str]


def consolidate_safetensors_files(
    input_dir: _PathLike, output_dir: _PathLike, fqn_to_index_mapping: dict[str, int], num_threads: int = 1
) -> None:
    """Writes a model of whole tensors into `output_dir` from the safetensors files in `input_dir`.

    The signature is torch's. `fqn_to_index_mapping` gives each tensor the number of its file, from 1 on; an empty
    mapping puts all tensors into one file. The model gets an index, whose rename commits the model: an older model in
    `output_dir` stays whole until then, and is then removed. Tensors are streamed, and every byte that has a checksum
    is checked. The input may be any model: torch's function accepts only files of DCP.

    Raises InvalidArgument for a tensor without a number (torch leaves the tensor out), MissingKey for a number without
    a tensor, and Corrupt for damaged files and for shards that do not make up their tensors.
    """
    consolidate(input_dir, output_dir, fqn_to_index_mapping, num_threads, {})
    engine_use.note("consolidate_safetensors_files", output_dir)


def consolidate_safetensors_files_on_every_rank(
    input_dir: _PathLike,
    output_dir: _PathLike,
    fqn_to_index_mapping: dict[str, int],
    num_threads: int = 1,
    process_group: Any = None,
) -> None:
    """As :func:`consolidate_safetensors_files`, with the files distributed over the ranks of `process_group`.

    A failure of one rank fails all ranks, and leaves the older model in place.
    """
    with as_checkpoint_exceptions() as here:
        ranks = Ranks(process_group)
        here.rank = ranks.rank
        consolidate(input_dir, output_dir, fqn_to_index_mapping, num_threads, ranks.options)
    engine_use.note("consolidate_safetensors_files_on_every_rank", output_dir)


def consolidate_saved(writer: Any, ranks: Ranks) -> list[str]:
    """Consolidates the shards that the ranks have just saved by `writer`, if the writer asks for it."""
    directory = consolidated_directory(writer)
    if directory is None:
        return []
    mapping = writer.fqn_to_index_mapping or {}
    return consolidate(writer.path, directory, mapping, writer.thread_count_consolidation, ranks.options)
