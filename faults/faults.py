"""Kills, stops and crosses the ranks of saves and loads, and checks the remaining files. See docs/faults.md.

Prints a line per kind of fault; the exit code is 0 only if every promise held.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before torch: forked ranks have no threads

import argparse
import json
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import async_kills
import async_troubles
import checkpointing_kills
import crossings
import descendants
import failing_sync
import kills
import stock
import stops
import torch
from tally import Problem, Tally

import cairn


@dataclass(frozen=True)
class Counts:
    """The numbers of tries of the random faults."""

    kills: int
    others: int
    async_kills: int
    async_disks: int  # each fault with each way to save makes 24
    async_hangs: int


STOCK, ASYNC, WAITING = "stock", "async", "waiting"  # name prefixes, and all other names: each names a group
SAMPLE = Counts(kills=12, others=3, async_kills=4, async_disks=6, async_hangs=2)
ALL = Counts(kills=300, others=40, async_kills=300, async_disks=24, async_hangs=300)


def faults(arguments: argparse.Namespace) -> dict[str, Callable[[Path, Tally], None]]:
    counts = SAMPLE if arguments.sample else ALL
    seed, first = arguments.seed, arguments.first

    def indices(count: int) -> range:
        return range(first, first + (count if arguments.count is None else arguments.count))

    return {
        "kill": lambda folder, tally: kills.overwrites(folder, tally, seed, indices(counts.kills)),
        "kill-places": kills.places,
        "kill-both": lambda folder, tally: kills.both(folder, tally, seed, indices(counts.others)),
        "kill-first": lambda folder, tally: kills.firsts(folder, tally, seed, indices(counts.others)),
        "stop": lambda folder, tally: stops.stops(folder, tally, arguments.sample),
        "two-jobs": lambda folder, tally: crossings.savers(folder, tally, seed, indices(counts.others)),
        "load": lambda folder, tally: crossings.loaders(folder, tally, counts.kills),
        "async-trainer": lambda folder, tally: async_kills.trainers(folder, tally, seed, indices(counts.async_kills)),
        "async-writer": lambda folder, tally: async_kills.writers(folder, tally, seed, indices(counts.async_kills)),
        "async-both": lambda folder, tally: async_kills.both(folder, tally, seed, indices(counts.async_kills)),
        "async-thread": lambda folder, tally: async_kills.threads(folder, tally, seed, indices(counts.async_kills)),
        "async-disk": lambda folder, tally: async_troubles.disks(folder, tally, seed, counts.async_disks),
        "async-hang": lambda folder, tally: async_troubles.hangs(folder, tally, seed, indices(counts.async_hangs)),
        "checkpointing-kill": lambda folder, tally: checkpointing_kills.overwrites(
            folder, tally, seed, indices(counts.async_kills)
        ),
        "stock-checkpointing-kill": lambda folder, tally: checkpointing_kills.overwrites_by_stock(
            folder, tally, seed, indices(counts.kills)
        ),
        "stock-kill": lambda folder, tally: stock.overwrites(folder, tally, seed, indices(counts.kills)),
    }


def group_of(name: str) -> str:
    """Returns the group of the fault, from its name."""
    prefix = name.partition("-")[0]
    return prefix if prefix in (STOCK, ASYNC) else WAITING


def run(name: str, fault: Callable[[Path, Tally], None], folder: Path, sought: Sequence[str]) -> Tally:
    tally = Tally(name, tuple(sought))
    folder.mkdir()
    try:
        fault(folder, tally)
    except Problem as problem:
        tally.problems.append(str(problem))
    except Exception:
        tally.problems.append(traceback.format_exc())
    if tally.problems:
        descendants.end_all()
    tally.finish()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="FAULT",
        help=f"only these, or those of a group: {WAITING}, {ASYNC}, {STOCK}; default: the first two",
    )
    parser.add_argument("--sample", action="store_true", help="few of each, as the tests try them")
    parser.add_argument("--seed", type=int, default=20, help="of what is random (default: %(default)s; -1 draws one)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first kill, to try one again")
    parser.add_argument("--count", type=int, help="how many random ones of each fault")
    parser.add_argument(
        "--seek",
        type=json.loads,
        default={},
        metavar="JSON",
        help="findings by fault: go on with a random fault until they are met, at most ten times as long",
    )
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--scratch", type=Path, help="where the checkpoints go, and stay (default: removed at the end)")
    arguments = parser.parse_args()
    if arguments.seed < 0:
        arguments.seed = random.SystemRandom().randrange(2**32)
    known = faults(arguments)
    wanted = arguments.names or [WAITING, ASYNC]  # STOCK is left out: its results say nothing about Cairn
    if unknown := set(wanted) - known.keys() - {WAITING, ASYNC, STOCK}:
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if any(name in wanted or group_of(name) in wanted for name in known if name == "async-disk"):
        failing_sync.load()
    descendants.adopt_orphans()
    torch.set_num_threads(1)
    print(f"Cairn {cairn.__version__}, torch {torch.__version__}, {os.cpu_count()} cores, seed {arguments.seed}")
    tallies = []
    with tempfile.TemporaryDirectory(prefix="cairn-faults-") as temporary:
        scratch = arguments.scratch or Path(temporary)
        scratch.mkdir(exist_ok=True)
        for name in [name for name in known if name in wanted or group_of(name) in wanted]:
            tallies.append(run(name, known[name], scratch / name, arguments.seek.get(name, ())))
            print(tallies[-1], *tallies[-1].problems, sep="\n  ", flush=True)
    failing_sync.unload()
    if arguments.json:
        arguments.json.write_text(json.dumps([tally.as_dict() for tally in tallies], indent=1))
    return 1 if any(tally.problems for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
