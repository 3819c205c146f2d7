"""The arguments that the saves and loads of ``torch.distributed.checkpoint`` share, and their order.

Earlier versions of torch had the order ``save(state_dict, storage_writer)`` and ``load(state_dict, storage_reader)``.
torch still accepts these calls, with a warning, and Cairn does too.
"""

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from cairn._state.described import check_order, refuse_path
from cairn.errors import InvalidArgument

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Call(NamedTuple):
    """The arguments of a call, beside the state dict."""

    checkpoint_id: str | os.PathLike[str] | None = None
    storage: Any = None  # the writer or the reader
    planner: Any = None
    process_group: Any = None
    no_dist: bool = False
    use_collectives: bool = True  # always True for a load
    coordinator_rank: int = 0  # for torch's driver
    function: str = "save"  # Cairn's function, for engine_use
    notes: Mapping[str, Any] | None = None  # of a save
    overwrite_pinned: bool = True  # of a save

    def recorded(self, storage: str) -> dict[str, Any]:
        """Returns the arguments for dcp_records. `storage`: torch's name of the argument."""
        return {
            "checkpoint_id": self.checkpoint_id,
            storage: self.storage,
            "planner": self.planner,
            "process_group": self.process_group,
        }


def takes_storage_second(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorates a function of a state dict and keywords; one keyword is ``storage_writer`` or ``storage_reader``.

    A call with two positional arguments passes the second argument as the storage keyword, and warns. If the keyword is
    given too, the call raises InvalidArgument, which torch reports as an AssertionError. A directory in place of the
    storage or of the state dict raises InvalidArgument too. The decorated function keeps the signature of `function`.
    """
    keyword = next(name for name in inspect.signature(function).parameters if name.startswith("storage_"))

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if arguments:
            check_order(function.__name__, arguments[0], keywords.get("checkpoint_id"))
        if len(arguments) == 2:
            check_order(function.__name__, *arguments)
            refuse_path(function.__name__, arguments[1])
            message = f"{function.__name__}() takes the storage as {keyword}=; as second argument it is deprecated"
            warnings.warn(message, stacklevel=2)
            if keyword in keywords:
                raise InvalidArgument(f"{function.__name__}() got two storages: the second argument and {keyword}=")
            keywords[keyword] = arguments[1]
            arguments = arguments[:1]
        return function(*arguments, **keywords)

    return call
