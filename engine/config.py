"""`EngineConfig`: every setting of an engine, its default, and what it accepts."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ..ipc_ext.messages import CALL_LIMIT
from .errors import ConfigError
from .settings_file import SERVER_TABLE, read_settings_file
from .strict import Strict, choice, flag, names_of, number, option, table, text, whole

MEBIBYTE = 1 << 20
SIZES_LIMIT = 256
SIDE_LIMIT = 65_536
ADAPTERS_LIMIT = 256
DEVICE = re.compile("cpu|(auto|cuda)(:[0-9]{1,3})?")
ADAPTER_NAME = re.compile("[A-Za-z0-9_-]{1,64}")


def _executor(value: Any) -> Any:
    """Accept the name of a built-in executor, an import path, or a class."""
    if isinstance(value, type) or (
        isinstance(value, str) and (value in ("uni", "mp") or ":" in value)
    ):
        return value
    raise ValueError("'uni', 'mp', an import path 'package.module:Class', or a class")


def _device(value: Any) -> Any:
    """Accept what workers run on."""
    if not isinstance(value, str) or not DEVICE.fullmatch(value):
        raise ValueError("'auto', 'cpu', 'cuda' or 'cuda:N'")
    return value


def _scheduler(value: Any) -> Any:
    """Accept nothing, an import path, or a class."""
    if value is None or isinstance(value, type) or (isinstance(value, str) and ":" in value):
        return value
    raise ValueError("an import path 'package.module:Class', a class, or None")


def _plain_table(value: Any) -> Any:
    """Accept a table that can be sent to a worker."""
    copy = table()(value)
    try:
        size = len(msgspec.msgpack.encode(copy))
    except (TypeError, OverflowError, UnicodeEncodeError):
        raise ValueError("a table of numbers, strings, lists and tables") from None
    if size > CALL_LIMIT:
        raise ValueError(f"a table of at most {CALL_LIMIT} bytes when encoded")
    return copy


def _lora(value: Any) -> Any:
    """Accept names of adapters, and where each is."""
    adapters = table()(value)
    if not all(map(ADAPTER_NAME.fullmatch, adapters)) or len(adapters) > ADAPTERS_LIMIT:
        raise ValueError(
            f"a table of at most {ADAPTERS_LIMIT} adapters, whose names are made of A-Z a-z 0-9 _ -"
        )
    place_of = text(4096)
    return {name: place_of(str(p) if isinstance(p, Path) else p) for name, p in adapters.items()}


def _ring_bytes(value: Any) -> Any:
    """Accept a number of bytes, or leave it to the engine."""
    if value == "auto":
        return "auto"
    try:
        return whole(MEBIBYTE, 1 << 36)(value)
    except ValueError as wrong:
        raise ValueError(f"'auto' or {wrong}") from None


def _sizes(value: Any) -> Any:
    """Accept a list of pairs: width and height."""
    valid = "a list of pairs [width, height] of whole numbers from 1 to 65536"
    if not isinstance(value, (list, tuple)) or len(value) > SIZES_LIMIT:
        raise ValueError(valid)
    for pair in value:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError(valid)
        if any(type(side) is not int or not 1 <= side <= SIDE_LIMIT for side in pair):
            raise ValueError(valid)
    return tuple((width, height) for width, height in value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig(Strict):
    """The settings of an engine.

    Raises:
      ConfigError: a name is unknown (the message suggests the nearest) or a value is not valid.
    """

    error: ClassVar[type[ValueError]] = ConfigError
    noun: ClassVar[str] = "setting"
    belongs: ClassVar[str] = "the engine: open_engine(..., {}=...)"

    model: str = option(
        "shapes",
        text(4096),
        "a directory or hub id of a diffusers pipeline, 'package.module:factory', or a built-in:"
        " 'shapes', 'synthetic', 'random:FAMILY'",
    )
    model_options: dict[str, Any] = option({}, _plain_table, "options for the model's loader")
    lora: dict[str, str] = option(
        {},
        _lora,
        "adapters that requests can choose from: names, and for each a file, a directory or a hub"
        " id, 'owner/name' or 'owner/name/file.safetensors'",
    )
    executor: str | type = option(
        "uni",
        _executor,
        "where workers run: 'uni' on a thread of this process, 'mp' in processes of their own",
    )
    num_workers: int = option(
        1, whole(1, 64), "data-parallel workers, each with the whole model ('uni': 1)"
    )
    device: str = option(
        "auto", _device, "'auto', 'cpu', 'cuda' (worker i takes device i), 'cuda:N'"
    )
    dtype: str | None = option(
        None,
        choice("float32", "float16", "bfloat16", "fp32", "fp16", "bf16", optional=True),
        "dtype of the weights; None: what the model brings",
    )
    mode: Literal["request", "step"] = option(
        "request",
        choice("request", "step"),
        "what is scheduled: whole requests, or single denoising steps",
    )
    scheduler: str | type | None = option(
        None,
        _scheduler,
        "a subclass of BaseScheduler or its import path; None: the one of the mode",
    )
    max_num_seqs: int = option(1, whole(1, 256), "most requests in a wave, or in a tick")
    max_batch_pixels: int | None = option(
        None, whole(1, optional=True), "step mode: most pixels of output that a tick works on"
    )
    streaming_output: bool = option(
        False,
        flag(),
        "step mode: requests tell finished parts of their output as they come, if the pipeline has"
        " such parts",
    )
    dispatch_depth: int = option(
        2, whole(1, 8), "waves or ticks that a worker holds: one runs, the others wait in its ring"
    )
    request_batch_max_wait_ms: float = option(
        0.0, number(0, 60_000), "how long a wave that is not full waits for company, ms"
    )
    max_queued_requests: int = option(
        256, whole(1), "requests that may wait; one more is refused with EngineBusyError"
    )
    max_pending_outputs: int = option(
        8, whole(1, 1024), "computed outputs of a worker that may be on their way"
    )
    look_ahead: int = option(
        64, whole(1), "how far behind the head of the queue company for a wave is looked for"
    )
    ageing_s: float = option(
        10.0, number(0.001), "waiting this long counts as much as one step of priority, s"
    )
    output_ring_bytes: int | Literal["auto"] = option(
        "auto",
        _ring_bytes,
        "shared memory for outputs, for each worker; 'auto': by the largest output of the warm-up",
    )
    input_ring_bytes: int = option(
        32 * MEBIBYTE, whole(MEBIBYTE, 1 << 36), "shared memory for input arrays, for each worker"
    )
    max_input_bytes: int = option(
        256 * MEBIBYTE, whole(0), "bytes that the arrays of one request may have"
    )
    merge: bool = option(
        True,
        flag(),
        "let requests of a wave share component calls where a probe shows that it is right",
    )
    device_stage: bool = option(
        True, flag(), "turn pictures into uint8 on the device, before the copy"
    )
    compile: Literal["off", "blocks", "whole"] = option(
        "off",
        choice("off", "blocks", "whole"),
        "compile denoisers with torch.compile: the blocks that they repeat, or all of them; other"
        " kernels give other roundings",
    )
    cuda_graphs: Literal["auto", "off"] = option(
        "auto",
        choice("auto", "off"),
        "replay component calls as CUDA graphs, where that is proven to give the same bits",
    )
    cuda_graph_bytes: int | None = option(
        None,
        whole(1, optional=True),
        "device memory that CUDA graphs may hold; None: a fifth of the device's",
    )
    postprocess_threads: int = option(
        min(4, os.cpu_count() or 1), whole(1, 256), "threads for PIL conversion and encoding"
    )
    trace_requests: int = option(
        4096, whole(0, 1 << 20), "ended requests whose phases are remembered"
    )
    warmup: bool = option(True, flag(), "run a small request at start-up")
    warmup_sizes: tuple[tuple[int, int], ...] = option(
        (), _sizes, "widths and heights to be warm for: graphs are captured, kernels chosen"
    )
    on_worker_death: str = option(
        "fail", choice("fail"), "what the death of a worker does: 'fail' ends the engine"
    )
    startup_timeout: float = option(600.0, number(0), "for loading and warm-up, s")
    worker_stall_timeout: float | None = option(
        None, number(0.1, optional=True), "a worker whose heartbeat is older is killed, s"
    )
    shutdown_grace: float = option(
        5.0, number(0), "how long workers may take to stop before they are killed, s"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.executor == "uni" and self.num_workers != 1:
            raise ConfigError(
                f"num_workers must be 1 with executor 'uni', not {self.num_workers}; use 'mp'"
            )

        if self.mode == "request":
            for name in ("max_batch_pixels", "streaming_output"):
                if getattr(self, name):
                    raise ConfigError(f"{name} needs mode 'step'")
        elif self.request_batch_max_wait_ms:
            raise ConfigError("request_batch_max_wait_ms needs mode 'request'")

    @classmethod
    def load(
        cls, source: EngineConfig | Mapping[str, Any] | str | os.PathLike[str], **overrides: Any
    ) -> EngineConfig:
        """Make a config from a config, a mapping, or the path of a TOML file.

        Args:
          source: where the settings come from. In a TOML file they stand at the top level; its
            table ``[server]`` is not for the engine.
          overrides: settings that win over `source`.
        """
        if isinstance(source, EngineConfig):
            return dataclasses.replace(source, **overrides) if overrides else source
        if isinstance(source, Mapping):
            return cls(**{**source, **overrides})
        settings = read_settings_file(source, names_of(cls))
        settings.pop(SERVER_TABLE, None)  # one file serves `sidestream serve`, too
        try:
            return cls(**{**settings, **overrides})
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(source)}: {error}") from None


def imported(setting: str, path: str) -> type:
    """Import the class that a setting names as 'package.module:Class'.

    Raises:
      ConfigError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs other people's code
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{setting} {path!r} cannot be imported: {reason}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{setting} {path!r} is not a class")
    return found
