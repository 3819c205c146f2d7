"""Futures that say only that something is done. As ``utils`` it has the names of torch's module."""

from concurrent.futures import Future
from typing import Any

from cairn._pending.tracked_future import ToldFuture


class Completion(ToldFuture[None]):
    """The end of something whose result is nobody's business."""


def wrap_future(original_result: Any) -> Completion:
    """A future that is done when `original_result` is, with None or with its error; done if that is no future.

    It keeps nothing that the original holds, a staged state for example. It can't be cancelled.
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
