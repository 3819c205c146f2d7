"""Futures that say only that something is done. As ``utils`` it has the names of torch's module."""

from concurrent.futures import Future
from typing import Any


class Completion(Future[None]):
    """A future that remembers whether somebody was told how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # nobody can cancel what is not their own
        self.was_told = False

    def result(self, timeout: float | None = None) -> None:
        """As of every Future."""
        try:
            super().result(timeout)
        finally:
            self.was_told = self.was_told or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of every Future."""
        try:
            return super().exception(timeout)
        finally:
            self.was_told = self.was_told or self.done()


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
