"""``sidestream serve MODEL``: its options, and the life of the process."""

from __future__ import annotations

import functools
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import trio

from ..engine import ConfigError, EngineConfig, SidestreamError
from ..engine.cli.arguments import CONFIG_OPTIONS, TABLES, Assignment, read_assignments
from ..engine.cli.options import engine_options, existing_file
from ..engine.settings_file import read_settings_file
from ..engine.strict import names_of
from .abilities import needs_picture
from .app import create_app
from .config import ServerConfig
from .keeper import EngineKeeper
from .log_lines import JsonFormatter
from .service import Service
from .serving import open_listener, serve as serve_app, url_of

logger = logging.getLogger("sidestream.server")

EXAMPLES = """\b
Examples:
  sidestream serve shapes --executor mp --mode step --batch 4
  sidestream serve /models/sdxl --executor mp --num-workers 2 --port 8080
  sidestream serve /models/sdxl --lora ink=/adapters/ink.safetensors --lora pixel=owner/name
  sidestream serve --config server.toml --set server.max_steps=50
"""

SERVER_OPTIONS = ("host", "port", "api_keys")
"""Options that are named like the setting that they set."""
SERVER_TABLES = ("server", *TABLES)


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("--model", "named", metavar="NAME", help="The same as MODEL.")
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option("--port", type=int, metavar="N", help="Port; 0: any free one.  [default: 8000]")
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    envvar="SIDESTREAM_API_KEYS",
    help="A key that clients may have; can be repeated. Other users of the machine can read command"
    " lines, so rather set SIDESTREAM_API_KEYS.  [default: no key needed]",
)
@engine_options
@click.option(
    "--config",
    type=existing_file(),
    help="TOML file: settings of the engine, and of the server in the table [server].",
)
@click.option(
    "--set",
    "settings",
    type=Assignment(),
    multiple=True,
    help="Any setting, such as max_queued_requests=32, server.max_steps=50 or"
    " model_options.variant=fp16.",
)
@click.option("--json-logs", is_flag=True, help="Log lines as JSON objects.")
def serve(**options: Any) -> int:
    """Serve MODEL over HTTP, with the OpenAI Images API.

    SIGTERM and Ctrl-C stop it when the requests under way are done; a second one at once.
    """
    engine_config, server_config = read_settings(options)
    start_logging(as_json=server_config.json_logs)
    trio.run(run_server, engine_config, server_config)
    return 0


def start_logging(*, as_json: bool) -> None:
    """Write the log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def read_settings(options: Mapping[str, Any]) -> tuple[EngineConfig, ServerConfig]:
    """Make both configurations: the file's settings, over them ``--set``, over these the options.

    Raises:
      ConfigError: a setting is unknown or not valid.
      click.UsageError: two models are named.
    """
    file = _read_file(options["config"])
    assigned, entries = read_assignments(options["settings"], SERVER_TABLES)
    entries["lora"] |= dict(options["lora"])
    tables = {name: file.pop(name, {}) | entries[name] for name in SERVER_TABLES}
    server = tables.pop("server") | {
        name: options[name] for name in SERVER_OPTIONS if options[name] not in (None, ())
    }
    if options["json_logs"]:
        server["json_logs"] = True
    chosen = {name: options[name] for name in CONFIG_OPTIONS if options[name] is not None}
    named = options["named"]
    if named is not None and chosen.setdefault("model", named) != named:
        raise click.UsageError("MODEL and --model name different models")
    return EngineConfig(**tables | file | assigned | chosen), ServerConfig(**server)


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    settings = read_settings_file(path, names_of(EngineConfig))
    for name in SERVER_TABLES:
        if not isinstance(settings.get(name, {}), dict):
            raise ConfigError(f"{path}: {name} must be a table")
    return settings


async def run_server(engine_config: EngineConfig, server_config: ServerConfig) -> None:
    """Serve until a signal comes or the engine has died for good.

    The server answers probes while the engine starts, at first and whenever it starts again, and
    stops before it does.

    Raises:
      ConfigError: a setting asks for what is not installed.
      SidestreamError: the engine could not be started, or has died too often.
      OSError: the address is not to be had.
    """
    app = create_app(config=server_config)
    service: Service = app.state.service
    listener = open_listener(server_config)
    url = url_of(listener)
    logger.info("loading %s, to serve it at %s", engine_config.model, url)
    stop = trio.Event()
    keeper = EngineKeeper(engine_config, service, functools.partial(announce, url, service))

    async def run_http() -> None:
        await serve_app(app, stop=stop, listener=listener)
        nursery.cancel_scope.cancel("the server has stopped")

    failure: SidestreamError | OSError | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, stop, nursery.cancel_scope, service)
        nursery.start_soon(run_http)
        failure = await keeper.run()
        stop.set()  # those who waited for the engine are still told that it has gone
    if failure is not None:
        raise failure


async def _watch_signals(
    stop: trio.Event,
    everything: trio.CancelScope,
    service: Service,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Stop in order at the first signal, at once at the second, or if nothing has begun."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set() or not service.has_begun:
                everything.cancel("told to stop")
            stop.set()


def announce(url: str, service: Service) -> None:
    """Say that the server is ready, and how to use it."""
    click.echo(f"sidestream serves {service.model_name} at {url}")
    click.echo(f"  {url}/ is a page to try it with")
    key = " -H 'Authorization: Bearer KEY'" if service.config.api_keys else ""
    for line in example(url, key, service.ready_engine().capabilities):
        click.echo(f"  {line}")


def example(url: str, key: str, capabilities: Mapping[str, Any]) -> Iterator[str]:
    """Return how to ask for what a model makes, with programs that every machine has.

    Args:
      url: of the server.
      key: further options of curl.
      capabilities: of the pipeline.
    """
    from_image = capabilities["from_image"] or needs_picture(capabilities)
    if capabilities["media"] == "video":
        form = " -F input_reference=@picture.png" if from_image else None
        yield f"curl -s {url}/v1/videos{key}{_fields('waves', form)}"
        yield f"curl -s {url}/v1/videos/ID{key}  # how far it is: ID is what the first one tells"
        yield f"curl -s {url}/v1/videos/ID/content{key} -o video.mp4"
        return
    mask = " -F mask=@mask.png" if "mask_image" in capabilities["arguments"] else ""
    form = f" -F image=@picture.png{mask}" if from_image else None
    route = "edits" if from_image else "generations"
    yield (
        f"curl -s {url}/v1/images/{route}{key}{_fields('a large red circle', form)}"
        """ | grep -o '"b64_json":"[^"]*' | cut -d'"' -f4 | base64 -d > made.png"""
    )


def _fields(prompt: str, form: str | None) -> str:
    """Return the options of curl that send a prompt: in a form that has pictures, or as JSON."""
    if form is not None:
        return f" -F prompt='{prompt}'{form}"
    return f""" -H 'Content-Type: application/json' -d '{{"prompt": "{prompt}"}}'"""
