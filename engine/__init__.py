"""The public API of sidestream: engines, requests, results, errors.

    async with open_engine(model="shapes", executor="mp") as engine:
        result = await engine.generate("a large red circle above a small blue square")

Everything here is to be used from within a Trio run.
"""

from .chrome_trace import chrome_trace as chrome_trace
from .config import EngineConfig as EngineConfig
from .diffusion_engine import DiffusionEngine as DiffusionEngine
from .errors import (
    ConfigError as ConfigError,
    DeadlineExceededError as DeadlineExceededError,
    DuplicateRequestError as DuplicateRequestError,
    EngineBusyError as EngineBusyError,
    EngineClosedError as EngineClosedError,
    EngineDeadError as EngineDeadError,
    ExecutionError as ExecutionError,
    OutputError as OutputError,
    RequestAborted as RequestAborted,
    RequestError as RequestError,
    SidestreamError as SidestreamError,
    StartupError as StartupError,
    WorkerDiedError as WorkerDiedError,
)
from .opening import generate as generate, open_engine as open_engine
from .request import DiffusionRequest as DiffusionRequest, SamplingParams as SamplingParams
from .result import (
    Chunk as Chunk,
    Completed as Completed,
    DiffusionResult as DiffusionResult,
    Event as Event,
    Preview as Preview,
    Progress as Progress,
    Queued as Queued,
    RequestTimings as RequestTimings,
    Started as Started,
)
from .sched import (
    BaseScheduler as BaseScheduler,
    RequestScheduler as RequestScheduler,
    StepScheduler as StepScheduler,
)
from .statistics import EngineStatistics as EngineStatistics, WorkerStatistics as WorkerStatistics
from .stream import RequestStream as RequestStream
from .trace import RequestTrace as RequestTrace
