"""The end of a native stack, for functions that run on a piece of one.

A greenlet runs on the thread's stack, above whatever had called it when it was started. When it
goes on later, that is something else. Native code that walks the stack, as torch does for each of
its errors, would then take what it finds there for frames, and crash.
"""

from __future__ import annotations

from collections.abc import Callable

from ._ring import ffi, lib


def call_at_stack_end(function: Callable[[], None]) -> None:
    """Call a function so that whoever walks the native stack stops there.

    Raises:
        BaseException: What the function raises.
    """
    call = _Call(function)
    lib.ss_stack_end(lib.ss_call_python, ffi.new_handle(call))
    if call.error is not None:
        try:
            raise call.error
        finally:
            call.error = None  # it knows this frame


class _Call:
    """A call, and what it raised: nothing can be raised through C."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.error: BaseException | None = None


@ffi.def_extern()
def ss_call_python(handle: object) -> None:
    """Make the call that a handle stands for."""
    call: _Call = ffi.from_handle(handle)
    try:
        call.function()
    except BaseException as error:  # raised again on the other side of C
        call.error = error
