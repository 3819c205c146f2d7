"""LocalCheckpointManager: NVRx's manager of local checkpoints, with files of Cairn's.

A save takes these steps, on all ranks:

1. Rank 0 draws the name of the attempt. The replication strategy exchanges the ranks' states, and the tensors are
   copied to the CPU.
2. Each rank brings the states that it holds, its own and the replicas, into their stored form (`stored_state`).
3. Each rank writes, syncs and commits its parts (`parts`), before the return or in a process of an AsyncCallsQueue.
4. Finalize: the ranks see whether all parts were committed. Then each removes the parts of earlier saves; otherwise the
   parts of this save, and the save fails on every rank.

A failure in steps 2 to 4 is raised on every rank.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import (  # type: ignore[import-untyped]
    TensorAwareStateDict,
)
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager import (  # type: ignore[import-untyped]
    BaseCheckpointManager,
    CheckpointingException,
)

from cairn._async import pending_saves
from cairn._ranks.ranks import Ranks
from cairn.errors import Corrupt, NotFound
from cairn.nvrx.async_ckpt.core import AsyncRequest
from cairn.nvrx.local.newest import Save, exchanged, is_complete, newest_save
from cairn.nvrx.local.parts import (
    Part,
    damage_of,
    held_parts,
    outdated_parts,
    parts_of_save,
    read_part,
    remove_parts,
    write_parts,
)
from cairn.nvrx.local.stored_state import stored_form

_log = logging.getLogger("cairn")
_ATTEMPT_BYTES = 8
_Id = tuple[int, int, Any]  # NVRx's: iteration, rank, session


class LocalCheckpointManager(BaseCheckpointManager):  # type: ignore[misc]
    """Local checkpoints below `root_local_ckpt_dir`, in the folder ``<session_id>/<rank>`` of each rank.

    As NVRx's class of this name; a subclass of NVRx's BaseCheckpointManager, for states of classes derived from its
    TensorAwareStateDict. `repl_strategy` is a ReplicationStrategy of NVRx's. `allow_pickle` is as in ``cairn.load``,
    for values in the state that are not plain data. All ranks call find_latest(), load() and save().
    """

    def __init__(
        self,
        root_local_ckpt_dir: str | os.PathLike[str],
        session_id: str = "",
        repl_strategy: Any = None,
        *,
        allow_pickle: bool | None = None,
    ) -> None:
        super().__init__(session_id, repl_strategy)
        self.latest_iteration: int = -1
        self.root_local_ckpt_dir = root_local_ckpt_dir
        self.globally_available_ids: list[list[_Id]] = []  # by rank; of the iteration that find_latest() found
        self._allow_pickle = allow_pickle
        self._latest: Save | None = None
        self._damaged: set[Part] = set()  # found by a load

    @property
    def local_ckpt_dir(self) -> Path:
        """The folder of this rank's parts."""
        return Path(self.root_local_ckpt_dir, str(self.session_id), str(self.rank))

    def find_latest(self) -> int:
        """Returns the newest iteration that all ranks can load; -1 if there is none.

        Every byte of this rank's part of the iteration is read and checked. A damaged part counts as missing: a replica
        is used in its place, or all ranks get the same earlier iteration. The result is kept until the next save.
        """
        if self.latest_iteration != -1:
            return self.latest_iteration
        ranks = Ranks()
        with ranks.all_fail_together("find"):
            mine = set(self._usable_parts()) - self._damaged
        newest = newest_save(ranks, mine, self._is_whole)
        self._latest = None if newest is None else newest.save
        held = [] if newest is None else newest.held
        self.globally_available_ids = [[self._id_of(part) for part in sorted(parts)] for parts in held]
        self.latest_iteration = -1 if newest is None else newest.save.iteration
        return self.latest_iteration

    def load(self) -> tuple[TensorAwareStateDict, _Id]:
        """Returns the state of the iteration that find_latest() returned, and its id: iteration, rank, session.

        If a part is found damaged only now, all ranks go on with its replica or with the same earlier iteration; the id
        names the iteration. Raises CheckpointingException if no iteration is left, or if find_latest() was not called;
        UnsafeContent on every rank for a value that is not plain data, without `allow_pickle`.
        """
        ranks = Ranks()
        while self.latest_iteration != -1:
            wanted = self._ckpt_id(self.latest_iteration)
            with ranks.all_fail_together("plan"):
                plan = self._plan_of(wanted)
            needed = {wanted} if plan is None else plan.required_ids()
            states: dict[_Id, Any] = {}
            damaged: list[Part] = []
            with ranks.all_fail_together("read"):
                for needed_id in needed:
                    try:
                        states[needed_id] = self._load_fn(needed_id)
                    except (Corrupt, NotFound, CheckpointingException) as error:
                        damaged.append(Part(needed_id[0], needed_id[1], ranks.count, self._attempt()))
                        _log.warning("a part of the local checkpoint can't be read: %s", error)
            if not any(exchanged(ranks, damaged)):
                held = states if plan is None else self.repl_strategy.retrieve_execute(plan, states)
                return held[wanted], wanted
            self._damaged.update(damaged)
            self.latest_iteration = -1
            found = self.find_latest()
            _log.warning("iteration %d has a damaged part: the load goes on with iteration %d", wanted[0], found)
        raise CheckpointingException(
            "there is no local checkpoint to load: find_latest() was not called, or it found no iteration"
        )

    def save(self, state_dict: TensorAwareStateDict, iteration: int, is_async: bool = False) -> AsyncRequest | None:
        """Saves `state_dict` as `iteration`, which must be newer than the latest. With a replication strategy
        `state_dict` is hollow afterwards.

        `is_async`: returns the request, for an AsyncCallsQueue. Otherwise returns after the save was finalized; a
        failure on one rank is raised on all.
        """
        if iteration <= self.latest_iteration:
            raise CheckpointingException(
                f"iteration {iteration} can't be saved: iteration {self.latest_iteration} is there already"
            )
        ranks = Ranks()
        own = self._ckpt_id(int(iteration))
        attempt = _drawn_attempt(ranks)
        if self.repl_strategy is None:
            states = {own: state_dict}
        else:
            # A group sends the memory of a tensor: of a strided one, other elements than the receiver expects.
            state_dict.insert_tensors([tensor.contiguous() for tensor in state_dict.pop_tensors()])
            copies, ids = self.repl_strategy.replicate(state_dict, own)
            states = dict(zip(ids, copies, strict=True))
        self.latest_iteration, self._latest = -1, None
        with ranks.all_fail_together("stage"):
            states[own].copy_tensors_to_cpu(non_blocking=True)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()  # the copies have ended
            parts = [Part(it[0], it[1], ranks.count, attempt) for it in states]
            stored = [
                (str(self.local_ckpt_dir / part.directory), stored_form(state, part))
                for part, state in zip(parts, states.values(), strict=True)
            ]
        mine = Part(own[0], self.rank, ranks.count, attempt)
        request = AsyncRequest(write_parts, (stored,), [lambda: self._finalize(mine, in_background=is_async)])
        if is_async:
            return request
        try:
            request.execute_sync()
        except BaseException:
            remove_parts(self.local_ckpt_dir, parts_of_save(self.local_ckpt_dir, mine))
            raise
        return None

    def _finalize(self, mine: Part, *, in_background: bool) -> None:
        """Step 4. Raises CheckpointingException on every rank if a part is missing."""
        run: Callable[..., None] = pending_saves.in_background if in_background else _run
        if is_complete(Ranks(), held_parts(self.local_ckpt_dir), Save(mine.iteration, mine.attempt)):
            run(remove_parts, self.local_ckpt_dir, outdated_parts(self.local_ckpt_dir, mine))
            return
        run(remove_parts, self.local_ckpt_dir, parts_of_save(self.local_ckpt_dir, mine))
        raise CheckpointingException(
            f"the local checkpoint of iteration {mine.iteration} is incomplete: the part of a rank is missing"
        )

    # --- what NVRx's base class asks for

    def _my_ckpt_ids(self) -> list[_Id]:
        return sorted({self._id_of(part) for part in self._usable_parts()})

    def _load(self, ckpt_id: _Id) -> TensorAwareStateDict:
        return read_part(self.local_ckpt_dir, self._part_of(ckpt_id), self._allow_pickle)

    def _save(self, state_dict: TensorAwareStateDict, ckpt_id: _Id) -> None:
        """Writes a part as an attempt of its own; save() gives the parts of all ranks one attempt."""
        part = Part(ckpt_id[0], ckpt_id[1], Ranks().count, os.urandom(_ATTEMPT_BYTES).hex())
        write_parts([(str(self.local_ckpt_dir / part.directory), stored_form(state_dict, part))])

    def _cleanup(self, iteration: int) -> None:
        parts = [part for part in held_parts(self.local_ckpt_dir) if part.iteration < iteration]
        remove_parts(self.local_ckpt_dir, parts)

    def _cleanup_failed_save(self, iteration: int) -> None:
        parts = [part for part in held_parts(self.local_ckpt_dir) if part.iteration == iteration]
        remove_parts(self.local_ckpt_dir, parts)

    # --- parts and ids

    def _usable_parts(self) -> list[Part]:
        """The parts that this rank can load or give to others: without replication only its own."""
        held = held_parts(self.local_ckpt_dir)
        return [part for part in held if self.repl_strategy is not None or part.rank == self.rank]

    def _id_of(self, part: Part) -> _Id:
        return (part.iteration, part.rank, self.session_id)

    def _part_of(self, ckpt_id: _Id) -> Part:
        """Returns the held part of an id: of the save that find_latest() found."""
        for part in self._usable_parts():
            is_chosen = self._latest is None or Save(part.iteration, part.attempt) == self._latest
            if is_chosen and self._id_of(part) == tuple(ckpt_id):
                return part
        raise CheckpointingException(f"rank {self.rank} holds no local checkpoint {ckpt_id} in {self.local_ckpt_dir}")

    def _attempt(self) -> str:
        return "" if self._latest is None else self._latest.attempt

    def _is_whole(self, part: Part) -> bool:
        damage = damage_of(self.local_ckpt_dir, part)
        if damage is not None:
            _log.warning("%s is damaged and not used: %s", self.local_ckpt_dir / part.directory, damage)
        return damage is None

    def _plan_of(self, wanted: _Id) -> Any:
        """The strategy's plan of who gives which part to whom; None without a strategy."""
        if self.repl_strategy is None:
            return None
        return self.repl_strategy.retrieve_plan(self.globally_available_ids, [wanted])


def _drawn_attempt(ranks: Ranks) -> str:
    drawn = os.urandom(_ATTEMPT_BYTES)
    return (ranks.options["collectives"].broadcast(drawn, 0) if ranks.are_many else drawn).hex()


def _run(work: Callable[..., None], *arguments: Any) -> None:
    work(*arguments)
