"""load_async: a future for each key, in the order of the load, while the rest is still read."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import preloaded
import pytest
import torch
import torch.distributed as dist
from ranks import Gang
from same import assert_same
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import cairn

SECONDS = 120  # the longest wait for an event


def layers(value: float | None) -> dict[str, Any]:
    """Returns a state in whose order the second key of the text order comes last."""
    return {f"layer.{i}": torch.full((1 << 16,), float(i) if value is None else value) for i in (0, 2, 10, 1)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    cairn.save({**layers(None), "step": 4}, checkpoint_id=tmp_path / "saved")
    return tmp_path / "saved"


def test_the_futures_have_the_order_of_the_state(checkpoint: Path) -> None:
    state = {**layers(-1.0), "step": 0}
    load = cairn.load_async(state, checkpoint_id=checkpoint)
    assert list(load.futures) == ["layer.0", "layer.2", "layer.10", "layer.1", "step"]
    assert load.futures["layer.2"].result(SECONDS) is state["layer.2"]
    assert load.futures["step"].result(SECONDS) == state["step"] == 4
    assert load.wait(SECONDS)
    assert load.result(SECONDS) is None
    assert load.done()
    assert_same(state, {**layers(None), "step": 4})


def test_the_caller_gives_the_order_by_patterns(checkpoint: Path) -> None:
    load = cairn.load_async(layers(-1.0), checkpoint_id=checkpoint, order=["*.1*", "layer.2"])
    assert list(load.futures) == ["layer.10", "layer.1", "layer.2", "layer.0"]
    load.result(SECONDS)


def test_terms_are_those_of_load(checkpoint: Path) -> None:
    state = {"l": {"0": torch.zeros(1 << 16), "new": torch.ones(2)}, "step": 0}
    with pytest.raises(cairn.MissingKey, match=r"l\.new"):
        cairn.load_async(state, checkpoint_id=checkpoint, renames={"layer": "l"})
    load = cairn.load_async(state, checkpoint_id=checkpoint, renames={"layer": "l"}, strict=False, keys=["l"])
    assert list(load.futures) == ["l.0"]
    found = load.result(SECONDS)
    assert found is not None
    assert (found.missing, sorted(found.unexpected)) == (["l.new"], ["l.1", "l.10", "l.2"])
    assert state["step"] == 0
    assert_same(state["l"]["new"], torch.ones(2))  # type: ignore[index]


def test_damage_is_raised_by_the_future_of_its_key(checkpoint: Path) -> None:
    info = cairn.open(checkpoint).info("layer.10")
    assert isinstance(info, cairn.TensorInfo)
    file = checkpoint / str(info.chunks[0].file)
    with file.open("r+b") as stream:
        stream.seek(info.chunks[0].offset + info.chunks[0].length // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    state = layers(-1.0)
    load = cairn.load_async(state, checkpoint_id=checkpoint)
    with pytest.raises(cairn.Corrupt, match="checksum") as raised:
        load.futures["layer.10"].result(SECONDS)
    assert raised.value.key == "layer.10"
    for key in ("layer.0", "layer.2", "layer.1"):
        assert_same(load.futures[key].result(SECONDS), layers(None)[key])
    with pytest.raises(cairn.Corrupt, match=str(checkpoint)):
        load.result(SECONDS)


def test_statefuls_get_their_state_at_the_end(tmp_path: Path) -> None:
    network = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    cairn.save({"model": network, "optimizer": optimizer}, checkpoint_id=tmp_path)
    fresh = nn.Linear(3, 3)
    fresh_optimizer = torch.optim.Adam(fresh.parameters())
    load = cairn.load_async({"model": fresh, "optimizer": fresh_optimizer}, checkpoint_id=tmp_path)
    assert_same(load.futures["model.weight"].result(SECONDS), network.weight)
    assert not fresh_optimizer.state
    load.result(SECONDS)
    assert_same(fresh_optimizer.state[fresh.weight]["exp_avg"], optimizer.state[network.weight]["exp_avg"])


def test_meta_tensors_are_replaced(checkpoint: Path) -> None:
    state = {"layer.2": torch.empty(1 << 16, device="meta")}
    load = cairn.load_async(state, checkpoint_id=checkpoint)
    assert not state["layer.2"].is_meta
    load.result(SECONDS)
    assert_same(state, {"layer.2": layers(None)["layer.2"]})


def test_a_ready_tensor_can_be_used_for_gradients(checkpoint: Path) -> None:
    state = layers(-1.0)
    load = cairn.load_async(state, checkpoint_id=checkpoint)
    weight = load.futures["layer.2"].result(SECONDS)
    scale = torch.ones(1, requires_grad=True)
    product = (scale * weight).sum()  # saves the weight
    load.result(SECONDS)
    product.backward()
    assert scale.grad is not None
    assert scale.grad.item() == weight.sum().item()


def test_a_storage_of_another_library_is_refused(checkpoint: Path) -> None:
    class Reader(torch.distributed.checkpoint.FileSystemReader):
        def read_metadata(self) -> Any:
            return super().read_metadata()

    with pytest.raises(cairn.InvalidArgument, match="load_async"):
        cairn.load_async(layers(-1.0), storage_reader=Reader(checkpoint))


# Reads of many bytes hang while the file $HANG exists. The call itself reads only trailers.
_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t pread(int fd, void *data, size_t length, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pread");
  const char *file = getenv("HANG");
  if (length >= 100000 && access(file, F_OK) == 0) {
    char reached[4096];
    snprintf(reached, sizeof reached, "%s.reached", file);
    close(open(reached, O_WRONLY | O_CREAT, 0600));
    while (access(file, F_OK) == 0) usleep(5000);
  }
  return real(fd, data, length, offset);
}
ssize_t pread64(int fd, void *data, size_t length, off_t offset) { return pread(fd, data, length, offset); }
"""

_HANGING = """
import gc, os, pathlib, sys, time, weakref
import torch, cairn

def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)

switch, checkpoint, program = sys.argv[1:]
state = {f"{i:02}": torch.zeros(1 << 18) for i in range(32)}  # more reads than threads
warm = cairn.load_async({"00": torch.zeros(1 << 18)}, checkpoint_id=checkpoint).result()
pathlib.Path(switch).touch()
load = cairn.load_async(state, checkpoint_id=checkpoint)
until(lambda: os.path.exists(switch + ".reached"))
assert not load.done()
assert not load.wait(0.0)
assert not load.futures["31"].done()
exec(program)
"""

_KEEPS = """
kept = weakref.ref(state["31"])
del load, state
gc.collect()
assert kept() is not None
others = [torch.zeros(1 << 18) for _ in range(20)]
os.remove(switch)
until(lambda: (gc.collect(), kept() is None)[1])
assert all(not other.any() for other in others)
"""

_CANCELS = """
load.cancel()
os.remove(switch)
try:
    load.result(120)
except cairn.Cancelled:
    pass
else:
    raise AssertionError("not cancelled")
assert isinstance(load.futures["31"].exception(120), cairn.Cancelled)
"""

_FORKS = """
child = os.fork()
if child == 0:
    try:
        load.result()
    except cairn.Unavailable:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os.remove(switch)
load.result(120)
"""


def run_hanging(folder: Path, program: str) -> None:
    """Runs a program that has begun a load whose reads hang."""
    cairn.save({f"{i:02}": torch.ones(1 << 18) for i in range(32)}, checkpoint_id=folder / "saved")
    switch = folder / "hangs"
    environment = {**os.environ, "LD_PRELOAD": str(preloaded.library(_SHIM, folder)), "HANG": str(switch)}
    command = [sys.executable, "-c", _HANGING, str(switch), str(folder / "saved"), program]
    ran = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "program", [_KEEPS, _CANCELS, _FORKS, "pass"], ids=["keeps the memory", "is cancelled", "forks", "ends"]
)
def test_a_program_goes_on_while_the_reads_hang(tmp_path: Path, program: str) -> None:
    run_hanging(tmp_path, program)


def load_shards(directory: Path) -> list[float]:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(64.0).reshape(16, 4)
    cairn.save({"w": distribute_tensor(whole, mesh, [Shard(0)]), "v": torch.ones(3)}, checkpoint_id=directory)
    target = distribute_tensor(torch.zeros(16, 4), mesh, [Shard(1)])
    load = cairn.load_async({"w": target, "v": torch.zeros(3)}, checkpoint_id=directory)
    if rank == 0:
        got = load.futures["w"].result(SECONDS)
        assert isinstance(got, DTensor)
        load.result(SECONDS)  # although the other rank has not waited, and may have failed
        assert_same(got.to_local(), whole.chunk(dist.get_world_size(), 1)[0])
    else:
        load.cancel()
        load.wait(SECONDS)
    with pytest.raises(cairn.MissingKey, match="mine"):
        cairn.load_async({"w": target} | ({"mine": torch.ones(1)} if rank == 1 else {}), checkpoint_id=directory)
    dist.barrier()
    return [rank]


def test_ranks_agree_in_the_call_and_read_on_their_own(two: Gang, tmp_path: Path) -> None:
    assert two.run(load_shards, tmp_path) == [[0], [1]]
