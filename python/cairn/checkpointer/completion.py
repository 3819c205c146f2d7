"""Futures without a result. Also importable under torch's module name ``utils``."""

from concurrent.futures import Future
from typing import Any

from cairn._async.pending_saves import TrackedFuture


class Completion(TrackedFuture[None]):
    """The end of an operation, without the operation's result."""


def wrap_future(original_result: Any) -> Completion:
    """Returns a future that ends with `original_result`, with None or with its error; already done if `original_result`
    is no future.

    The future holds no reference to the original's result, for example a staged state, and can't be cancelled.
    """
    done = Completion()
    if not isinstance(original_result, Future):
        done.set_result(None)
        return done

    def tell(original: Future[Any]) -> None:
        error: BaseException | None
        try:
            error = original.exception()
        except BaseException as cancelled:
            error = cancelled
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    original_result.add_done_callback(tell)
    return done
