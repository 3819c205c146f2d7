"""cairn.install(): programs that import torch.distributed.checkpoint use Cairn, in any order of imports."""

from pathlib import Path

from programs import run

# A module of a job, and the first lines of every program below.
JOB = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, save
from torch.distributed.checkpoint.state_dict_loader import load as restore
"""
START = """
import sys
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict_saver as saver
stock = (dcp.save, dcp.load, dcp.FileSystemWriter, dcp.FileSystemReader)
import cairn
from cairn._torch_names import replacements

where = sys.argv[1]
sys.path.insert(0, where)

def snapshot():
    return {
        name: [(key, id(value)) for key, value in vars(module).items()]
        for name, module in sys.modules.items()
        if name.startswith("torch")
    }
"""


def run_job(program: str, directory: Path) -> None:
    """Runs `program` after START, with JOB as the modules `early` and `late`."""
    for name in ("early", "late"):
        (directory / f"{name}.py").write_text(JOB)
    run(START + program, directory)


def test_the_order_of_imports_does_not_matter(tmp_path: Path) -> None:
    program = """
from torch.distributed.checkpoint import save as alias
import early
cairn.install()
import late
ours = (cairn.save, cairn.load, cairn.FileSystemWriter, cairn.FileSystemReader)
assert all(own is not theirs for own, theirs in zip(ours, stock))
for job in (early, late):
    assert (job.save, job.restore, job.FileSystemWriter, job.FileSystemReader) == ours
    assert job.dcp.save is cairn.save
assert alias is saver.save is cairn.state_dict_saver.save is cairn.save
assert replacements.original("state_dict_saver", "save") is stock[0]
cairn.uninstall()
for job in (early, late):
    assert (job.save, job.restore, job.FileSystemWriter, job.FileSystemReader) == stock
assert alias is saver.save is stock[0]
assert cairn.state_dict_saver.save is cairn.save
"""
    run_job(program, tmp_path)


def test_uninstalling_restores_everything(tmp_path: Path) -> None:
    (tmp_path / "explicit.py").write_text("from cairn import save, load as restore\n")
    program = """
import copyreg
import torch.distributed.checkpoint._checkpointer, torch.distributed.checkpoint.format_utils, early, explicit
import importlib, cairn._calls.load, cairn._calls.save
from cairn._torch_names.torch_floor import FSSPEC_MODULE
importlib.import_module(FSSPEC_MODULE)
cairn.uninstall()  # not installed: nothing happens
before, reducers = snapshot(), dict(copyreg.dispatch_table)
cairn.install()
assert snapshot() != before
cairn.install()
cairn.uninstall()
assert snapshot() == before
assert copyreg.dispatch_table == reducers
assert early.save is stock[0]
assert explicit.save is cairn.save and explicit.restore is cairn.load
cairn.uninstall()
assert snapshot() == before
cairn.install()
assert early.save is dcp.save is cairn.save
"""
    run_job(program, tmp_path)


def test_a_second_call_replaces_names_left_by_the_first(tmp_path: Path) -> None:
    program = """
import early
cairn.install()
early.save = replacements.original("state_dict_saver", "save")
cairn.install()
assert early.save is cairn.save
"""
    run_job(program, tmp_path)


def test_older_objects_and_classes_go_on_working(tmp_path: Path) -> None:
    program = """
import copy, pickle
from torch.distributed.checkpoint import FileSystemReader as Reader, FileSystemWriter as Writer
stock_classes = {"Reader": Reader, "Writer": Writer}

class OldWriter(Writer):
    pass

writer, reader, old = Writer(where + "/a"), Reader(where + "/b"), OldWriter(where + "/c")
cairn.install()

class NewWriter(Writer):
    pass

class NewReader(Reader):
    pass

assert Writer is cairn.FileSystemWriter and Reader is cairn.FileSystemReader
for instance in (writer, old, NewWriter(where), dcp.HuggingFaceStorageWriter(where), Writer(where)):
    assert isinstance(instance, Writer) and isinstance(instance, dcp.StorageWriter)
    assert isinstance(instance, stock_classes["Writer"])
    assert not isinstance(instance, Reader)
assert isinstance(reader, Reader) and isinstance(dcp.HuggingFaceStorageReader(where), Reader)
assert issubclass(OldWriter, Writer) and issubclass(NewWriter, Writer) and issubclass(stock_classes["Writer"], Writer)
assert not isinstance(writer, NewWriter) and not isinstance(writer, OldWriter) and not isinstance(reader, NewReader)
assert not issubclass(dcp.StorageWriter, Writer) and not issubclass(int, Writer)

for instance in (writer, reader, Writer(where)):
    for copied in (pickle.loads(pickle.dumps(instance)), copy.copy(instance), copy.deepcopy(instance)):
        assert type(copied) is type(instance) and copied.path == instance.path
assert old.stage({"w": torch.ones(2)})["w"].tolist() == [1, 1]

dcp.save({"w": torch.arange(3.0)}, storage_writer=writer)
state = {"w": torch.zeros(3)}
dcp.load(state, storage_reader=reader, checkpoint_id=where + "/a")
assert state["w"].tolist() == [0, 1, 2]
assert cairn.open(where + "/a").save_id is not None
"""
    run_job(program, tmp_path)


def test_a_job_with_stock_imports_leaves_checkpoints_of_cairn(tmp_path: Path) -> None:
    program = """
from pathlib import Path
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint import async_save, load, save
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_model_state_dict

cairn.install()
model = torch.nn.Linear(4, 3)

def blank():
    return {"model": {name: torch.zeros_like(value) for name, value in get_model_state_dict(model).items()}, "step": 0}

def check(directory, state):
    assert cairn.open(directory).save_id is not None
    assert cairn.verify(directory).has_commit_record
    assert torch.equal(state["model"]["weight"], model.weight) and state["step"] == 7

state = {"model": get_model_state_dict(model), "step": 7}
directory = Path(where) / "plain"
save(state, checkpoint_id=directory)
got = blank()
load(got, checkpoint_id=directory)
check(directory, got)

directory = where + "/explicit"
dist_cp.save(state_dict=state, storage_writer=dist_cp.FileSystemWriter(directory), planner=DefaultSavePlanner())
got = blank()
dist_cp.load(state_dict=got, storage_reader=dist_cp.FileSystemReader(directory), planner=DefaultLoadPlanner())
check(directory, got)

directory = where + "/async"
async_save(state, checkpoint_id=directory).result()
got = blank()
load(got, checkpoint_id=directory)
check(directory, got)
"""
    run_job(program, tmp_path)


def test_torchs_own_functions_stay_at_hand_and_stay_torchs(tmp_path: Path) -> None:
    program = """
import warnings
cairn.install()
warnings.simplefilter("ignore")  # torch says that it saves in one process
state = {"w": torch.arange(4.0)}
save = replacements.original("state_dict_saver", "save")
save(state, storage_writer=replacements.original("filesystem", "FileSystemWriter")(where + "/stock"))
assert cairn.open(where + "/stock").save_id is None
save(state, checkpoint_id=where + "/mixed")  # torch finds the storage under its name, and so Cairn's
assert cairn.open(where + "/mixed").save_id is not None
dcp.save(state, checkpoint_id=where + "/ours")
for name in ("stock", "mixed", "ours"):
    got = {"w": torch.zeros(4)}
    replacements.original("state_dict_loader", "load")(got, checkpoint_id=f"{where}/{name}")
    assert got["w"].tolist() == [0, 1, 2, 3]

from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
dcp_to_torch_save(where + "/ours", where + "/merged.pt")
assert torch.load(where + "/merged.pt")["w"].tolist() == [0, 1, 2, 3]
torch_save_to_dcp(where + "/merged.pt", where + "/again")
assert cairn.open(where + "/again")["w"].tolist() == [0, 1, 2, 3]
"""
    run_job(program, tmp_path)


def test_storages_that_are_no_directory_keep_their_own_way(tmp_path: Path) -> None:
    program = """
import warnings
warnings.simplefilter("ignore")  # torch says that it saves in one process
from cairn._torch_names.torch_floor import FSSPEC_MODULE
assert FSSPEC_MODULE not in sys.modules or hasattr(dcp, "FsspecWriter")  # since 2.15 torch imports the module itself
cairn.install()
from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecReader, FsspecWriter
assert cairn.FileSystemReader not in FsspecReader.__mro__ and cairn.FileSystemWriter not in FsspecWriter.__mro__

class Reader(dcp.FileSystemReader):  # as object stores derive theirs
    def __init__(self, path):
        super().__init__(path)
        self.fs = FileSystem()
        self.path = self.fs.init_path(path)

class Writer(dcp.FileSystemWriter):
    def __init__(self, path):
        super().__init__(path, sync_files=False)
        self.fs = FileSystem()
        self.path = self.fs.init_path(path)

assert cairn.FileSystemReader in Reader.__mro__
save, load = (replacements.original(*key) for key in (("state_dict_saver", "save"), ("state_dict_loader", "load")))
for writer, reader in ((Writer, FsspecReader), (FsspecWriter, Reader)):
    path = f"memory://{writer.__module__}/checkpoint"
    save({"w": torch.arange(4.0)}, storage_writer=writer(path))
    state = {"w": torch.zeros(4)}
    load(state, storage_reader=reader(path))
    assert state["w"].tolist() == [0, 1, 2, 3]
"""
    run_job(program, tmp_path)


def test_concurrent_calls_of_threads(tmp_path: Path) -> None:
    program = """
import threading
before = snapshot()
cairn.install()
cairn.uninstall()

def turn():
    for _ in range(5):
        cairn.install()
        cairn.uninstall()

threads = [threading.Thread(target=turn) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(snapshot()[name] == names for name, names in before.items() if name.startswith(replacements.TORCH + "."))
assert (dcp.save, dcp.load, dcp.FileSystemWriter, dcp.FileSystemReader) == stock
cairn.install()
assert dcp.save is cairn.save
"""
    run_job(program, tmp_path)


def test_one_line_makes_all_asynchronous_saves_survive_the_trainer(tmp_path: Path) -> None:
    program = """
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

cairn.install(async_checkpointer_type=AsyncCheckpointerType.PROCESS)
cairn.install()  # says nothing, and so changes nothing
dcp.async_save({"w": torch.ones(3)}, checkpoint_id=where + "/one").result()
dcp.async_save(
    {"w": torch.ones(3)}, checkpoint_id=where + "/two", async_checkpointer_type=AsyncCheckpointerType.THREAD
).result()
(entry,) = cairn.report().calls
assert (entry.call, entry.how, entry.count) == ("async_save", "writer process", 2), entry
cairn.uninstall()
cairn.async_save({"w": torch.ones(3)}, checkpoint_id=where + "/three").result()
assert cairn.report().calls[-1].how == "threads"
"""
    run_job(program, tmp_path)


def test_wrong_arguments_change_nothing(tmp_path: Path) -> None:
    program = """
before = snapshot()
for wrong in ({"async_checkpointer_type": "process"}, {"allow_pickle": "yes"}, {"follow_links": 1}):
    try:
        cairn.install(**wrong)
    except cairn.InvalidArgument as error:
        assert next(iter(wrong)) in str(error)
    else:
        raise AssertionError(wrong)
    assert dcp.save is stock[0]
"""
    run_job(program, tmp_path)


def test_one_line_lets_a_framework_load_values_that_need_code(tmp_path: Path) -> None:
    program = """
import os, warnings

class Timestamp:
    pass

advice = "cairn.install(allow_pickle=True)"
state = {"at": Timestamp()}
cairn.install()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    dcp.save(state, checkpoint_id=where + "/saved")
(warning,) = [entry for entry in seen if entry.category is cairn.PickleWarning]

def refusal():
    try:
        dcp.load({"at": None}, checkpoint_id=where + "/saved")
    except cairn.UnsafeContent as error:
        return str(error)
    return ""

for text in (str(warning.message), refusal()):
    assert "'at'" in text and "__main__.Timestamp" in text and advice in text and "docs/pickles.md" in text, text
os.environ["CAIRN_ALLOW_PICKLE"] = "1"
assert not refusal()
cairn.install(allow_pickle=False)
assert refusal()
del os.environ["CAIRN_ALLOW_PICKLE"]
cairn.install(allow_pickle=True)
target = {"at": None}
dcp.load(target, checkpoint_id=where + "/saved")
assert type(target["at"]) is Timestamp
cairn.uninstall()
try:
    cairn.load({"at": None}, checkpoint_id=where + "/saved")
except cairn.UnsafeContent as error:
    assert "cairn.load(..., allow_pickle=True)" in str(error)
else:
    raise AssertionError("loaded")
"""
    run_job(program, tmp_path)


def test_one_line_lets_a_framework_load_data_files_that_are_links(tmp_path: Path) -> None:
    program = """
import os

cairn.save({"w": torch.ones(3)}, checkpoint_id=where + "/saved", no_dist=True)
os.rename(where + "/saved/__0_0.distcp", where + "/moved")
os.symlink(where + "/moved", where + "/saved/__0_0.distcp")
readers = {
    "a directory": lambda target: dcp.load(target, checkpoint_id=where + "/saved", no_dist=True),
    "a reader": lambda target: dcp.load(target, storage_reader=dcp.FileSystemReader(where + "/saved"), no_dist=True),
}

def is_refused(read):
    target = {"w": torch.zeros(3)}
    try:
        read(target)
    except cairn.UnsafeContent as error:
        return "follow_links=True" in str(error)
    assert torch.equal(target["w"], torch.ones(3))
    return False

cairn.install()
assert all(is_refused(read) for read in readers.values())
os.environ["CAIRN_FOLLOW_LINKS"] = "1"
assert not any(is_refused(read) for read in readers.values())
cairn.install(follow_links=False)
assert all(is_refused(read) for read in readers.values())
cairn.install(follow_links=True)
del os.environ["CAIRN_FOLLOW_LINKS"]
assert not any(is_refused(read) for read in readers.values())
cairn.uninstall()
assert all(is_refused(read) for read in (lambda target: cairn.load(target, checkpoint_id=where + "/saved"),))
"""
    run_job(program, tmp_path)


def test_a_framework_resumes_into_another_dtype_as_with_stock_torch(tmp_path: Path) -> None:
    program = """
import warnings

warnings.simplefilter("ignore", UserWarning)  # stock torch warns that there are no ranks
pairs = [
    (torch.int64, torch.float32), (torch.float32, torch.int64), (torch.int32, torch.int64), (torch.uint8, torch.bool),
    (torch.bool, torch.float32), (torch.float64, torch.float16),
]
saved = {str(i): torch.tensor([0, 1, 2, 3]).to(source) for i, (source, _) in enumerate(pairs)}
fresh = lambda: {str(i): torch.zeros(4, dtype=target) for i, (_, target) in enumerate(pairs)}
dcp.save(saved, checkpoint_id=where + "/saved", no_dist=True)
expected, found = fresh(), fresh()
dcp.load(expected, checkpoint_id=where + "/saved", no_dist=True)

def refusal(**options):
    try:
        dcp.load(fresh(), checkpoint_id=where + "/saved", no_dist=True, **options)
    except cairn.InvalidArgument as error:
        return str(error)
    return ""

cairn.install()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    dcp.load(found, checkpoint_id=where + "/saved", no_dist=True)
assert all(torch.equal(expected[key], found[key]) for key in expected)
(warning,) = [entry for entry in seen if entry.category is cairn.ConversionWarning]
assert "'0' from torch.int64 to torch.float32" in str(warning.message), warning.message
assert "allow_cast" in refusal(allow_cast=False)
cairn.install(allow_cast=False)
assert "allow_cast" in refusal() and not refusal(allow_cast=True)
cairn.uninstall()
try:
    cairn.load(fresh(), checkpoint_id=where + "/saved", no_dist=True)
except cairn.InvalidArgument:
    pass
else:
    raise AssertionError("converted without consent")
"""
    run_job(program, tmp_path)
