"""CheckpointReader: reads a rank's own saved state."""

import os
from pathlib import Path
from typing import Any

from cairn._directory import metadata_name, restarting
from cairn._settings import pickle_allowed
from cairn._state.ignored_keys import warn_of_ignored_by_template
from cairn._torch_files.torch_archive import TorchArchive
from cairn.checkpoint import Verify, check_verify
from cairn.checkpointer.argument_order import path_and_state
from cairn.checkpointer.rank_info import STATE_DICT, RankInfo
from cairn.checkpointer.saved_rank import SavedRank
from cairn.checkpointer.selection import Reading, Selection, placement
from cairn.errors import NotFound


class CheckpointReader:
    """Reads the checkpoint that the rank of `rank_info` saved: by this package, by DCP without collectives, or by
    torch's own ``CheckpointWriter``, as ``checkpoint_{rank}.pt``."""

    def __init__(self, rank_info: RankInfo) -> None:
        self._rank_info = rank_info

    def read(
        self,
        path: str,
        state_dict: STATE_DICT | None = None,
        *,
        map_location: Any = None,
        allow_pickle: bool | None = None,
        verify: Verify = "needed",
        **kwargs: Any,
    ) -> tuple[STATE_DICT, list[str]]:
        """Returns the state, and the keys of `state_dict` that the checkpoint lacks.

        Without a `state_dict`, returns the whole state with its nesting. With a `state_dict`, only its keys are read:
        its tensors are filled in place, values are replaced in their containers, lists are made anew; None accepts any
        saved value, and an empty dict takes nothing, with an IgnoredKeysWarning. Entries missing in the checkpoint stay
        unchanged. Shapes, dtypes and types are compared before anything changes; only damage found while bytes are read
        leaves tensors partly filled.

        `map_location`, as in ``torch.load``, gives the device of new tensors: None for the CPU. Of a distributed tensor
        the rank saved its part, and read() returns the part as a plain tensor; a distributed tensor in the template is
        filled.

        `allow_pickle` lets values run the code that their pickles name (None: environment variable CAIRN_ALLOW_PICKLE);
        `verify` is as in ``cairn.load``. Of ``torch.load``'s keywords `weights_only` is known, the opposite of
        `allow_pickle`; any other keyword is a TypeError.

        Raises cairn.Error: NotFound (a FileNotFoundError) if the rank has no checkpoint there, Mismatch (a
        RuntimeError) if the template differs from the checkpoint, UnsafeContent, Corrupt, and errors of the system.
        """
        if "weights_only" in kwargs:
            weights_only = kwargs.pop("weights_only")
            allow_pickle = not weights_only if allow_pickle is None and weights_only is not None else allow_pickle
        if kwargs:
            raise TypeError(f"read() got an unexpected keyword argument '{next(iter(kwargs))}'")
        path, state_dict = path_and_state(path, state_dict)
        check_verify(verify)
        reading = Reading(placement(map_location), map_location, pickle_allowed(allow_pickle), verify)

        def attempt() -> tuple[STATE_DICT, Selection]:
            source = self._open(path, reading)
            selection = Selection(state_dict, source.tree())
            source.read_values(selection.values)
            selection.check_values()
            source.read_tensors(selection.tensors)
            return selection.settle(), selection

        state, selection = restarting(attempt)
        warn_of_ignored_by_template(selection.ignored, path)
        return state, selection.missing

    def _open(self, path: str, reading: Reading) -> SavedRank | TorchArchive:
        rank = self._rank_info.global_rank
        try:
            return SavedRank(os.fsencode(path), rank, reading)
        except NotFound as missing:
            archive = Path(path) / f"checkpoint_{rank}.pt"
            if archive.is_file():
                return TorchArchive(
                    archive, allow_pickle=reading.allow_pickle, verify=reading.verify, place=reading.place
                )
            if missing.file != metadata_name(rank):
                raise
            raise NotFound(
                f"rank {rank} has no checkpoint in '{path}': neither {missing.file} nor {archive.name} is there",
                rank=rank,
                file=missing.file,
            ) from missing
