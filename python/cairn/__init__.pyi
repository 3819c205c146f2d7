"""The names of `__init__.py` with their types, for type checkers.

The modules that only torch has (``cairn.state_dict``) have no file. Through `__getattr__`, type checkers treat these
modules and their contents as Any.
"""

from typing import Any

from torch.distributed.checkpoint.api import CheckpointException as CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner as DefaultLoadPlanner
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner as DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata as BytesStorageMetadata
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata as ChunkStorageMetadata
from torch.distributed.checkpoint.metadata import Metadata as Metadata
from torch.distributed.checkpoint.metadata import TensorStorageMetadata as TensorStorageMetadata
from torch.distributed.checkpoint.optimizer import (
    load_sharded_optimizer_state_dict as load_sharded_optimizer_state_dict,
)
from torch.distributed.checkpoint.planner import LoadPlan as LoadPlan
from torch.distributed.checkpoint.planner import LoadPlanner as LoadPlanner
from torch.distributed.checkpoint.planner import ReadItem as ReadItem
from torch.distributed.checkpoint.planner import SavePlan as SavePlan
from torch.distributed.checkpoint.planner import SavePlanner as SavePlanner
from torch.distributed.checkpoint.planner import WriteItem as WriteItem
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType as AsyncCheckpointerType
from torch.distributed.checkpoint.stateful import Stateful as Stateful
from torch.distributed.checkpoint.storage import StorageReader as StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as StorageWriter

from cairn._async.async_saver import AsyncSaver as AsyncSaver
from cairn._async.pending_saves import SaveFuture as SaveFuture
from cairn._calls.async_save import async_save as async_save
from cairn._calls.async_save import configure_async_saves as configure_async_saves
from cairn._calls.async_save import prepare_async_saves as prepare_async_saves
from cairn._calls.installing import install as install
from cairn._calls.installing import uninstall as uninstall
from cairn._calls.load import load as load
from cairn._calls.load import load_state_dict as load_state_dict
from cairn._calls.load_async import AsyncLoad as AsyncLoad
from cairn._calls.load_async import load_async as load_async
from cairn._calls.load_model import load_model as load_model
from cairn._calls.save import save as save
from cairn._calls.save import save_state_dict as save_state_dict
from cairn._engine import __version__ as __version__
from cairn._settings import configure_saves as configure_saves
from cairn._state.key_terms import LoadedKeys as LoadedKeys
from cairn._state.per_rank import PerRank as PerRank
from cairn._state.random_states import random_states as random_states
from cairn._state.random_states import set_random_states as set_random_states
from cairn._telemetry.engine_use import report as report
from cairn._whole_state import read as read
from cairn.checkpoint import Checkpoint as Checkpoint
from cairn.checkpoint import Chunk as Chunk
from cairn.checkpoint import TensorInfo as TensorInfo
from cairn.checkpoint import UnknownObject as UnknownObject
from cairn.checkpoint import ValueInfo as ValueInfo
from cairn.checkpoint import VerifyReport as VerifyReport
from cairn.checkpoint import open as open
from cairn.checkpoint import verify as verify
from cairn.cleaning import CleanedSave as CleanedSave
from cairn.cleaning import CleanReport as CleanReport
from cairn.cleaning import clean as clean
from cairn.conversion import ConvertReport as ConvertReport
from cairn.conversion import TiedTensors as TiedTensors
from cairn.conversion import convert as convert
from cairn.difference import DiffReport as DiffReport
from cairn.difference import ElementDifference as ElementDifference
from cairn.difference import KeyDifference as KeyDifference
from cairn.difference import NumberDifference as NumberDifference
from cairn.difference import diff as diff
from cairn.errors import Cancelled as Cancelled
from cairn.errors import Corrupt as Corrupt
from cairn.errors import Error as Error
from cairn.errors import InternalError as InternalError
from cairn.errors import InvalidArgument as InvalidArgument
from cairn.errors import MissingKey as MissingKey
from cairn.errors import NoSpace as NoSpace
from cairn.errors import NotFound as NotFound
from cairn.errors import Replaced as Replaced
from cairn.errors import Superseded as Superseded
from cairn.errors import Unavailable as Unavailable
from cairn.errors import UnsafeContent as UnsafeContent
from cairn.errors import Unsupported as Unsupported
from cairn.errors import UnusableDirectory as UnusableDirectory
from cairn.filesystem import FileSystemReader as FileSystemReader
from cairn.filesystem import FileSystemWriter as FileSystemWriter
from cairn.hf_storage import HuggingFaceStorageReader as HuggingFaceStorageReader
from cairn.hf_storage import HuggingFaceStorageWriter as HuggingFaceStorageWriter
from cairn.hf_storage import QuantizedHuggingFaceStorageReader as QuantizedHuggingFaceStorageReader
from cairn.in_flight import ListedCheckpoint as ListedCheckpoint
from cairn.in_flight import SaveInFlight as SaveInFlight
from cairn.in_flight import SaveInFlightWriter as SaveInFlightWriter
from cairn.in_flight import checkpoints as checkpoints
from cairn.in_flight import latest as latest
from cairn.in_flight import saves_in_flight as saves_in_flight
from cairn.managed_run import CheckpointManager as CheckpointManager
from cairn.managed_run import RunReport as RunReport
from cairn.progress import Progress as Progress
from cairn.progress import ProgressDisplay as ProgressDisplay
from cairn.progress import show_progress as show_progress
from cairn.repairing import FoundSave as FoundSave
from cairn.repairing import LostElements as LostElements
from cairn.repairing import RepairReport as RepairReport
from cairn.repairing import repair as repair
from cairn.retention import KeptCheckpoint as KeptCheckpoint
from cairn.retention import PruneReport as PruneReport
from cairn.retention import RemovedCheckpoint as RemovedCheckpoint
from cairn.retention import pin as pin
from cairn.retention import pin_note as pin_note
from cairn.retention import prune as prune
from cairn.retention import remove_checkpoint as remove_checkpoint
from cairn.retention import unpin as unpin
from cairn.run_cost import SimulatedRun as SimulatedRun
from cairn.run_cost import simulate_run as simulate_run
from cairn.staging import staging_fence as staging_fence
from cairn.stop_signals import ignore_stop_signals as ignore_stop_signals
from cairn.warnings import ConversionWarning as ConversionWarning
from cairn.warnings import DamageWarning as DamageWarning
from cairn.warnings import DeviceWarning as DeviceWarning
from cairn.warnings import IgnoredKeysWarning as IgnoredKeysWarning
from cairn.warnings import PickleWarning as PickleWarning

def __getattr__(name: str) -> Any: ...
