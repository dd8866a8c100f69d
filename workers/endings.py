"""How requests end: from a result or an error to a `RunnerOutput`."""

import traceback
from typing import Any

from .lanes import Lane
from .outputs import tensors_of
from .platform import Platform
from .requests import RunnerOutput


class Endings:
    """Makes the outputs of requests that have ended."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def of_lane(self, request_id: str, lane: Lane, *, latent: bool) -> RunnerOutput:
        """Tell how a lane ended, and take its result or error away from it.

        Args:
            request_id: Whose lane it is.
            lane: A lane that is done.
            latent: The request asked for latents.
        """
        if lane.cancelled:
            return RunnerOutput(request_id, aborted=True)
        error, value, lane.value = lane.error, lane.value, None
        if error is not None:
            return self.of_error(request_id, error)
        output = self.of_result(request_id, value, latent=latent)
        output.waited = lane.passed
        return output

    def of_result(self, request_id: str, result: Any, *, latent: bool) -> RunnerOutput:
        """Find the tensors in what a pipeline returned; that there are none is an error."""
        try:
            return RunnerOutput(request_id, tensors_of(result, latent=latent))
        except Exception as error:  # what the pipeline returned is its own affair
            return self.of_error(request_id, error)

    def of_error(self, request_id: str, error: Exception) -> RunnerOutput:
        """Put an error into words; after running out of memory, free what the request held."""
        text = "".join(traceback.format_exception(error))
        output = RunnerOutput(request_id, error=text, error_type=type(error).__name__)
        output.fatal = self._platform.is_fatal(error)
        if self._platform.is_out_of_memory(error):
            _drop_frames(error)
            self._platform.empty_cache()
        return output


def _drop_frames(error: BaseException | None) -> None:
    """Forget the frames of an error and its causes: they hold the request's tensors."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
