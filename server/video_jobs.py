"""`VideoJobs`: videos that are made in the background, and those that are kept.

The life of a job is that of its task, in a nursery that belongs to the server: while the task runs
the request, then while it holds the video. To delete a job at any time is to cancel its task.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import trio

from ..engine import Completed, DiffusionRequest, DiffusionResult, Event, Progress, Queued, Started
from ..postprocess import VideoInfo, read_video_info
from .errors import ApiError, busy, unavailable
from .service import Service
from .uploads import kept_bytes
from .video_schemas import Status, VideoError

logger = logging.getLogger("sidestream.server")


@dataclass(eq=False, slots=True)
class VideoJob:
    """A video that a client has asked for, and what has become of it.

    Args:
      request: what the engine runs.
      model: as clients call it.
      size: ``WIDTHxHEIGHT``, or ``auto`` as long as only the model knows.
      frames: how many, None as long as only the model knows.
    """

    request: DiffusionRequest
    model: str
    size: str
    frames: int | None
    id: str = field(default_factory=lambda: f"video_{uuid.uuid4().hex}")
    created: float = field(default_factory=time.time)
    status: Status = "queued"
    step: int | None = None
    total: int | None = None
    eta: float | None = None
    ended: float | None = None
    seed: int | None = None
    file: bytes | None = None
    error: VideoError | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    gone: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.seed = self.request.sampling.seed

    @property
    def input_bytes(self) -> int:
        """Of the picture that it starts from."""
        picture = self.request.sampling.extra_args.get("image")
        return 0 if picture is None else kept_bytes(picture.width * picture.height)

    @property
    def progress(self) -> int:
        """Percent; the last one is for what comes after the last step."""
        if self.status == "completed":
            return 100
        return 99 * (self.step or 0) // self.total if self.total else 0

    def note(self, event: Event) -> None:
        """Note what the engine tells."""
        match event:
            case Started():
                self.status = "in_progress"
            case Progress(step=step, total=total, eta=eta):
                self.step, self.total, self.eta = step, total, eta
            case _:
                pass

    def complete(self, seed: int, file: bytes, info: VideoInfo) -> None:
        """Note the video."""
        self.seed, self.file = seed, file
        self.size, self.frames = f"{info.width}x{info.height}", info.frames
        self._end("completed")

    def fail(self, error: ApiError) -> None:
        """Note why there is none."""
        # Not the exception: its traceback would keep what it was about.
        self.error = VideoError(code=error.code or "failed", message=str(error.detail))
        self._end("failed")

    def _end(self, status: Status) -> None:
        self.status, self.ended, self.eta = status, time.time(), None
        # The picture that it started from is needed no longer, and larger than most videos.
        sampling = dataclasses.replace(self.request.sampling, extra_args={})
        self.request = dataclasses.replace(self.request, sampling=sampling)


class VideoJobs:
    """The jobs of one server, the oldest first.

    Args:
      service: runs their requests, and knows the limits.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._config = service.config
        self._jobs: dict[str, VideoJob] = {}
        self._nursery: trio.Nursery | None = None

    async def run(
        self, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run jobs until cancelled, which ends them all; `serve` does so.

        Args:
          task_status: is told the scope that ends them.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started(nursery.cancel_scope)
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def __iter__(self) -> Iterator[VideoJob]:
        return iter(self._jobs.values())

    def find(self, video_id: str) -> VideoJob:
        """Return a job.

        Raises:
          ApiError: there is none of this name.
        """
        job = self._jobs.get(video_id)
        if job is None:
            raise ApiError(404, f"there is no video {video_id!r}", code="video_not_found")
        return job

    def check_room(self) -> None:
        """Return if one more job can be taken.

        Raises:
          ApiError: it cannot; with the seconds after which it may.
        """
        self._service.check_room()
        if self._nursery is None:
            raise unavailable("nothing runs video jobs here: this app is not served by `serve`")
        self._check_places()

    def _check_places(self) -> None:
        if sum(job.ended is None for job in self) >= self._config.max_videos:
            raise busy(
                f"{self._config.max_videos} videos are being made (max_videos); try again later",
                self._service.retry_after,
            )

    async def start(self, job: VideoJob) -> None:
        """Start a job; return when the engine has admitted its request.

        Raises:
          ApiError: it has not.
        """
        self.check_room()
        assert self._nursery is not None
        await self._nursery.start(self._live, job)

    async def delete(self, video_id: str) -> None:
        """End a job and forget its video; return when no worker has anything of it.

        Raises:
          ApiError: there is none of this name.
        """
        job = self.find(video_id)
        job.scope.cancel("it was deleted")
        await job.gone.wait()

    async def _live(self, job: VideoJob, *, task_status: trio.TaskStatus[None]) -> None:
        def admit() -> None:
            self._admit(job)
            task_status.started()

        with job.scope:
            try:
                with self._service.inputs.keep(job.input_bytes):
                    await self._make(job, admit)
                await trio.sleep(self._config.video_ttl_s)
            finally:
                self._jobs.pop(job.id, None)
                job.gone.set()

    async def _make(self, job: VideoJob, admit: Callable[[], None]) -> None:
        """Make the video, or note why there is none.

        Args:
          job: what to make.
          admit: called when the engine has admitted the request.

        Raises:
          ApiError: the engine did not admit the request.
        """
        try:
            result = await self._result(job, admit)
            file = self._service.video_of(result)
            info = await trio.to_thread.run_sync(read_video_info, file)
            self._make_room(len(file))
        except ApiError as error:
            if job.id not in self._jobs:
                raise
            job.fail(error)
        except Exception:  # no job may end the others
            if job.id not in self._jobs:
                raise
            # As text: a log that keeps its records would keep the ring's memory.
            logger.error("video %s failed\n%s", job.id, traceback.format_exc())
            job.fail(ApiError(500, "the video could not be made", code="failed"))
        else:
            job.complete(result.seed, file, info)

    async def _result(self, job: VideoJob, admit: Callable[[], None]) -> DiffusionResult:
        async with self._service.run(job.request) as events:
            async for event in events:
                if isinstance(event, Queued):
                    admit()
                if isinstance(event, Completed):
                    return event.result
                job.note(event)
        raise AssertionError("a stream ends with its result, or raises")

    def _admit(self, job: VideoJob) -> None:
        """Take a job in, instead of the oldest that has ended if there are too many."""
        self._check_places()
        if len(self._jobs) >= self._config.max_videos:
            self._drop(next(job for job in self if job.ended is not None))
        self._jobs[job.id] = job

    def _make_room(self, size: int) -> None:
        """Drop the oldest videos until there is room for one of so many bytes."""
        limit = self._config.max_video_bytes
        if size > limit:
            raise ApiError(
                413, f"the video has {size} bytes; {limit} can be kept", code="too_large"
            )
        kept = [job for job in self if job.file is not None]
        total = sum(len(job.file or b"") for job in kept)
        for job in kept:
            if total + size <= limit:
                break
            total -= len(job.file or b"")
            self._drop(job)

    def _drop(self, job: VideoJob) -> None:
        del self._jobs[job.id]
        job.scope.cancel("newer videos need the room")
