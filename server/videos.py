"""``/v1/videos``: jobs that make videos, as in the OpenAI Videos API."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request
from PIL import Image
from starlette.responses import JSONResponse, Response

from .access_log import request_id_of
from .errors import ApiError
from .input_bytes import InputShare
from .limits import check_adapters
from .service import Service
from .uploads import opaque, read_picture
from .video_file import VideoFile
from .video_jobs import VideoJob, VideoJobs
from .video_requests import check_reference, make_video_request, plan_of, video_params
from .video_schemas import (
    BODY,
    CONTENT_ANSWERS,
    CREATE_ERRORS,
    FILE,
    FIND_ERRORS,
    VideoDeleted,
    VideoList,
    VideoObject,
    VideoParams,
)

POLL_AFTER_MS = 500
"""When OpenAI's client is to ask again."""

VideoId = Annotated[str, Path(min_length=1, max_length=128)]


def video_routes(service: Service, videos: VideoJobs) -> APIRouter:
    """Make the routes of video jobs."""
    router = APIRouter(tags=["videos"])

    @router.post("/v1/videos", responses=CREATE_ERRORS, openapi_extra=BODY)
    async def create_video(http: Request) -> VideoObject:
        """Start a job that makes a video; it goes on when the client has gone."""
        videos.check_room()
        async with video_params(http) as params:
            service.check_model(params.model, "video")
            capabilities = service.ready_engine().capabilities
            check_adapters(params, capabilities)
            check_reference(params, capabilities)
            request_id = request_id_of(http.scope, params.request_id, service.requests.is_live)
            picture = await _reference(service, params, InputShare.of(http.scope))
        request = make_video_request(params, request_id, service.config, capabilities, picture)
        job = VideoJob(request, service.model_name, *plan_of(request, capabilities))
        await videos.start(job)
        return describe(service, job)

    @router.get("/v1/videos", responses=FIND_ERRORS)
    async def list_videos(
        after: Annotated[str | None, Query(max_length=128)] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> VideoList:
        """List the videos that are made or kept."""
        jobs = list(videos) if order == "asc" else list(videos)[::-1]
        if after is not None:
            last = videos.find(after)
            jobs = list(itertools.dropwhile(lambda job: job is not last, jobs))[1:]
        page = [describe(service, job) for job in jobs[:limit]]
        return VideoList(
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(jobs) > limit,
        )

    @router.get("/v1/videos/{video_id}", responses=FIND_ERRORS, response_model=VideoObject)
    async def get_video(video_id: VideoId) -> Response:
        """Tell how far a video is."""
        video = describe(service, videos.find(video_id))
        ended = video.status in ("completed", "failed")
        headers = None if ended else {"openai-poll-after-ms": str(POLL_AFTER_MS)}
        return JSONResponse(video.model_dump(), headers=headers)

    @router.get("/v1/videos/{video_id}/content", responses=CONTENT_ANSWERS, response_class=Response)
    @router.head("/v1/videos/{video_id}/content", include_in_schema=False)
    async def get_content(
        http: Request,
        video_id: VideoId,
        variant: Literal["video"] = "video",
        wanted: Annotated[str | None, Header(alias="Range")] = None,
        if_range: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Send a video, as MP4, or one part of it."""
        job = videos.find(video_id)
        if job.file is None:
            raise ApiError(409, f"the video is {job.status}", code="not_completed")
        if http.method == "HEAD":
            wanted = None
        return VideoFile(job.file, f'"{job.id}"', wanted, if_range)

    @router.delete("/v1/videos/{video_id}", responses=FIND_ERRORS)
    async def delete_video(video_id: VideoId) -> VideoDeleted:
        """Delete a video; if it is still being made, cancel that, and answer when the worker has
        let go of it."""
        await videos.delete(video_id)
        return VideoDeleted(id=video_id)

    return router


def describe(service: Service, job: VideoJob) -> VideoObject:
    """Return what clients are told of a job."""
    fps = job.request.sampling.output_options["fps"]
    engine = service.engine
    waiting = engine is not None and job.status == "queued"
    return VideoObject(
        id=job.id,
        model=job.model,
        status=job.status,
        progress=job.progress,
        created_at=int(job.created),
        completed_at=None if job.file is None else int(job.ended or 0),
        expires_at=None if job.ended is None else int(job.ended + service.config.video_ttl_s),
        prompt=job.request.prompt or "",
        size=job.size,
        seconds=None if job.frames is None else f"{job.frames / fps:g}",
        error=job.error,
        request_id=job.request.request_id,
        seed=job.seed,
        fps=fps,
        num_frames=job.frames,
        queue_position=(
            engine.queue_position(job.request.request_id) if engine and waiting else None
        ),
        step=job.step,
        total=job.total,
        eta=job.eta,
    )


async def _reference(
    service: Service, params: VideoParams, share: InputShare
) -> Image.Image | None:
    """Decode the picture to start from."""
    if params.input_reference is None:
        return None
    limit = service.config.max_image_pixels
    return await read_picture(params.input_reference, FILE, limit, share, opaque)
