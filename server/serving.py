"""`serve`: an app on a socket, with hypercorn's protocols and connections counted here.

Hypercorn's own loop over listeners has no limit on connections, and cannot stop while a client does
not read. Its `TCPServer` runs one connection, and that is all that is used of it.
"""

from __future__ import annotations

import errno
import functools
import logging
import socket
from contextlib import nullcontext

import trio
from fastapi import FastAPI
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from .config import ServerConfig
from .service import Service
from .video_jobs import VideoJobs

logger = logging.getLogger("sidestream.server")

BACKLOG = 512


def open_listener(config: ServerConfig) -> socket.socket:
    """Bind the socket that a server is to listen at.

    Connections inherit its TCP_USER_TIMEOUT, which ends those whose client does not read.

    Raises:
      OSError: the address is not to be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {config.port} of {config.host} is in use; choose another one (--port)"
            ) from error
        raise OSError(
            f"cannot listen at port {config.port} of {config.host}: {error.strerror}"
        ) from error
    milliseconds = int(config.stalled_client_s * 1000)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of what listens at a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: FastAPI,
    *,
    stop: trio.Event | None = None,
    listener: socket.socket | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an app of `create_app` until told to stop, or cancelled.

    To stop is to accept no more connections and to wait for the requests under way, for at most
    `shutdown_grace_s`. To be cancelled is to cut them off at once.

    Args:
      app: made by `create_app`; it brings its `ServerConfig`.
      stop: ends it.
      listener: where to listen; None: as the config says. Closed at the end.
      task_status: is told the URL.

    Raises:
      OSError: the address is not to be had.
    """
    service: Service = app.state.service
    stop = trio.Event() if stop is None else stop
    listener = open_listener(service.config) if listener is None else listener
    server = _Server(app, service, app.state.videos, listener)
    task_status.started(url_of(listener))  # the kernel takes connections from here on
    telemetry = service.telemetry
    async with telemetry.exporting() if telemetry is not None else nullcontext():
        await server.run(stop)


class _Server:
    """The connections of one server."""

    def __init__(
        self, app: FastAPI, service: Service, videos: VideoJobs, listener: socket.socket
    ) -> None:
        self._app = ASGIWrapper(app)  # type: ignore[arg-type]
        self._service = service
        self._videos = videos
        self._listener = _LimitedListener(listener, service.config.max_connections)
        self._hypercorn = _hypercorn_config(service.config)
        self._context = WorkerContext(None)
        self._streams: set[trio.SocketStream] = set()
        self._changed = trio.Event()

    async def run(self, stop: trio.Event) -> None:
        async with trio.open_nursery() as connections:
            jobs: trio.CancelScope = await connections.start(self._videos.run)
            try:
                await self._accept(connections, stop)
                self._service.draining = True
                jobs.cancel("nobody could fetch what they make")
                await self._context.terminated.set()
                with trio.move_on_after(self._service.config.shutdown_grace_s):
                    await self._all_gone()
            finally:
                for stream in self._streams:  # hypercorn shields what it sends
                    stream.socket.close()
                connections.cancel_scope.cancel("the server stops")

    async def _accept(self, connections: trio.Nursery, stop: trio.Event) -> None:
        accept = functools.partial(
            trio.serve_listeners, self._connection, [self._listener], handler_nursery=connections
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._service.metrics.watch)
            nursery.start_soon(accept)
            await stop.wait()
            nursery.cancel_scope.cancel("the server stops")

    async def _connection(self, stream: trio.SocketStream) -> None:
        self._streams.add(stream)
        try:
            await _Connection(
                self._app,
                self._hypercorn,
                self._context,
                ConnectionState({}),
                stream,  # type: ignore[arg-type]
            )
        except Exception:  # of a protocol, which must not end the other connections
            logger.exception("a connection failed")
        finally:
            stream.socket.close()
            self._streams.remove(stream)
            self._listener.release()
            self._changed.set()

    async def _all_gone(self) -> None:
        while self._streams:
            self._changed = trio.Event()
            await self._changed.wait()


class _Connection(TCPServer):
    """One connection."""

    async def _read_data(self) -> None:
        """Read until the client has gone; without this, its idle timer would go on, and with it the
        connection."""
        await super()._read_data()
        await self.idle_task.stop()


class _LimitedListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that accepts no more than so many connections at a time; further ones wait in the
    kernel's queue."""

    def __init__(self, listener: socket.socket, most: int) -> None:
        listener.setblocking(False)
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        self._places = trio.Semaphore(most)

    async def accept(self) -> trio.SocketStream:
        await self._places.acquire()
        try:
            return await self._listener.accept()
        except BaseException:
            self._places.release()
            raise

    def release(self) -> None:
        """Give the place of a connection back."""
        self._places.release()

    async def aclose(self) -> None:
        await self._listener.aclose()


def _hypercorn_config(config: ServerConfig) -> Config:
    hypercorn = Config()
    hypercorn.errorlog = logging.getLogger("sidestream.server.hypercorn")
    hypercorn.keep_alive_timeout = config.idle_timeout_s
    hypercorn.include_server_header = False
    return hypercorn
