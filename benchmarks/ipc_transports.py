"""What `benchmarks/ipc.py` compares: one class for each way to talk to another process.

An instance is the parent's end. `for_child()` is pickled into the spawned child, whose `open()`
gives the child's end, with the same methods. Each loop is written as its library wants it.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.reduction import DupFd
from multiprocessing.shared_memory import SharedMemory
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import torch.multiprocessing
import trio
import zmq

from sidestream.ipc_ext import Handle, Segment, SegmentLayout, doorbell

SPAWN = multiprocessing.get_context("spawn")
Array = npt.NDArray[np.float32]
Decode = Callable[[Any], Any]


def total(buffer: Any) -> int:
    """Read every byte."""
    return int(np.frombuffer(buffer, np.uint64).sum())


class Transport:
    """A two-way connection.

    Attributes:
        send: Sends one message.
        receive: Waits for one message and returns it.
        encode: Makes a message of something that has a structure.
        decode: The reverse.
    """

    name: ClassVar[str]
    carries: ClassVar[str]
    measured: ClassVar[set[str]] = {
        "one_way",
        "one_way_back",
        "structured",
        "round_trip",
        "payload",
    }
    send: Callable[[Any], Any]
    receive: Callable[[], Any]
    encode: Callable[[Any], Any] = staticmethod(msgspec.msgpack.Encoder().encode)
    decode: Decode = staticmethod(msgspec.msgpack.Decoder().decode)

    def for_child(self) -> Any:
        """Return what the child opens; a picklable object with `open()`."""
        raise NotImplementedError

    def send_all(self, frames: Iterable[Any]) -> None:
        """Send many messages."""
        send = self.send
        for frame in frames:
            send(frame)

    def receive_all(self, count: int, decode: Decode | None) -> None:
        """Receive so many messages, and decode each."""
        receive = self.receive
        if decode is None:
            for _ in range(count):
                receive()
        else:
            for _ in range(count):
                decode(receive())

    def ask_all(self, frames: Iterable[Any]) -> None:
        """Send each message when the answer to the last one has come."""
        send, receive = self.send, self.receive
        for frame in frames:
            send(frame)
            receive()

    def send_array(self, array: Array) -> None:
        """Send an array whose memory the caller goes on using."""
        raise NotImplementedError

    def read_array(self) -> int:
        """Receive an array and read every byte of it."""
        raise NotImplementedError

    def acknowledged(self) -> None:
        """Do what is to be done after an array was read."""

    def close(self) -> None:
        """Let go of everything."""


class Opened:
    """A connection whose pickled form needs no opening."""

    def __init__(self, transport: Callable[..., Transport], *arguments: Any) -> None:
        self._make = partial(transport, *arguments)

    def open(self) -> Transport:
        return self._make()


class Queue(Transport):
    """`multiprocessing.Queue`: pickles in its own thread, so a structured message is a dict."""

    name = "multiprocessing.Queue"
    carries = "pickled objects"
    encode = staticmethod(lambda message: message)
    decode = staticmethod(lambda message: message)

    def __init__(self, out: Any = None, back: Any = None) -> None:
        self._out = out or SPAWN.Queue()
        self._back = back or SPAWN.Queue()
        self.send = self._out.put
        self.receive = self._back.get

    def for_child(self) -> Any:
        return Opened(Queue, self._back, self._out)

    def send_array(self, array: Array) -> None:
        self.send(array)

    def read_array(self) -> int:
        return total(self.receive())


class TorchQueue(Queue):
    """`torch.multiprocessing.Queue`: as above, but tensors go through a new shared file each."""

    name = "torch.multiprocessing.Queue"
    carries = "pickled objects; tensors by file descriptor"

    def __init__(self, out: Any = None, back: Any = None) -> None:
        spawn = torch.multiprocessing.get_context("spawn")
        super().__init__(out or spawn.Queue(), back or spawn.Queue())

    def for_child(self) -> Any:
        return Opened(TorchQueue, self._back, self._out)

    def send_array(self, array: Array) -> None:
        self.send(torch.from_numpy(array))

    def read_array(self) -> int:
        return total(self.receive().numpy())


class Pipe(Transport):
    """`multiprocessing.Pipe`, with its `send_bytes`."""

    name = "multiprocessing.Pipe"
    carries = "bytes"

    def __init__(self, connection: Any = None) -> None:
        self._theirs: Any = None
        self._ours = connection
        if connection is None:
            self._ours, self._theirs = SPAWN.Pipe()
        self.send = self._ours.send_bytes
        self.receive = self._ours.recv_bytes

    def for_child(self) -> Any:
        return Opened(Pipe, self._theirs)

    def send_array(self, array: Array) -> None:
        self.send(array)

    def read_array(self) -> int:
        return total(self.receive())


class NewSharedMemory(Pipe):
    """One new `SharedMemory` for each array; its name goes through a pipe."""

    name = "SharedMemory per message"
    carries = "a copy in a new segment"
    measured: ClassVar[set[str]] = {"payload"}  # it has no messages of its own

    def for_child(self) -> Any:
        return Opened(NewSharedMemory, self._theirs)

    def send_array(self, array: Array) -> None:
        self._memory = SharedMemory(create=True, size=array.nbytes)
        buffer: Any = self._memory.buf
        np.copyto(np.frombuffer(buffer, array.dtype).reshape(array.shape), array)
        self.send(self._memory.name.encode())

    def read_array(self) -> int:
        memory = SharedMemory(self.receive().decode())
        buffer: Any = memory.buf
        result = total(buffer)
        memory.close()
        return result

    def acknowledged(self) -> None:
        self._memory.close()
        self._memory.unlink()


class Zmq(Transport):
    """pyzmq: PUSH and PULL over ipc, without a high-water mark; arrays uncopied where it can."""

    name = "pyzmq"
    carries = "bytes"

    def __init__(self, address: str | None = None) -> None:
        self._address = address or f"ipc://{tempfile.mkdtemp()}/socket"
        self._out, self._in = self._socket(zmq.PUSH), self._socket(zmq.PULL)
        if address is None:
            self._out.bind(self._address + "-child")
            self._in.bind(self._address + "-parent")
        else:
            self._out.connect(self._address + "-parent")
            self._in.connect(self._address + "-child")
        self.send = self._out.send
        self.receive = self._in.recv

    @staticmethod
    def _socket(kind: int) -> Any:
        socket: Any = zmq.Context.instance().socket(kind)
        socket.set_hwm(0)
        return socket

    def for_child(self) -> Any:
        return Opened(Zmq, self._address)

    def send_array(self, array: Array) -> None:
        self._out.send(array, copy=False)

    def read_array(self) -> int:
        return total(self._in.recv(copy=False).buffer)

    def close(self) -> None:
        self._out.close(linger=1000)
        self._in.close()


class SegmentForChild:
    """The descriptors of a segment, on their way to a spawned child."""

    def __init__(self, kind: type[Sidestream], fd: Any, doorbell: Any) -> None:
        self._arguments = kind, fd, doorbell

    def __reduce__(self) -> Any:
        kind, *descriptors = self._arguments
        return SegmentForChild, (kind, *map(DupFd, descriptors))

    def open(self) -> Sidestream:
        kind, fd, doorbell_fd = self._arguments
        return kind(Segment.attach(fd.detach(), doorbell_fd.detach()))


class Sidestream(Transport):
    """sidestream's rings. The parent is the engine; it sleeps in poll() on the doorbell."""

    name = "sidestream"
    carries = "bytes; arrays through the payload ring"

    def __init__(self, segment: Segment | None = None) -> None:
        self._engine = segment is None
        self._segment = segment or Segment.create(
            SegmentLayout(input_bytes=128 << 20, output_bytes=1 << 20)
        )
        rings = [self._segment.submissions, self._segment.results]
        self._out, self._in = rings if self._engine else rings[::-1]
        self._poll = select.poll()
        self._poll.register(self._segment.doorbell, select.POLLIN)
        self.send = self._send if self._engine else self._out.push_wait
        self.receive = self._receive

    def for_child(self) -> Any:
        return SegmentForChild(type(self), self._segment.fd, self._segment.doorbell)

    def _sleep(self) -> None:
        self._poll.poll()
        os.eventfd_read(self._segment.doorbell)

    def _send(self, frame: bytes) -> None:
        while not self._out.push(frame):
            self._out.arm_space()
            if self._out.push(frame):
                return
            self._sleep()

    def send_all(self, frames: Iterable[bytes]) -> None:
        push, send = self._out.push, self.send
        for frame in frames:
            if not push(frame):
                send(frame)

    def _wait(self) -> None:
        if not self._engine:
            self._in.wait()
        elif self._in.arm():
            self._sleep()

    def _receive(self) -> bytes:
        while not (frames := self._in.drain(1)):
            self._wait()
        return frames[0]

    def receive_all(self, count: int, decode: Decode | None) -> None:
        drain, wait = self._in.drain, self._wait
        while count:
            frames = drain()
            if not frames:
                wait()
            elif decode is not None:
                for frame in frames:
                    decode(frame)
            count -= len(frames)

    def send_array(self, array: Array) -> None:
        inputs = self._segment.inputs
        handle = inputs.reserve(array.nbytes)
        assert handle is not None
        np.copyto(np.frombuffer(inputs.view(handle), array.dtype).reshape(array.shape), array)
        inputs.commit(handle)
        self.send(msgspec.msgpack.encode(handle))

    def read_array(self) -> int:
        handle = msgspec.msgpack.decode(self._receive(), type=Handle)
        return total(self._segment.inputs.lease(handle))

    def close(self) -> None:
        self._segment.close()


class SidestreamTrio(Sidestream):
    """The same with an engine that sleeps in Trio, as it does in real life."""

    name = "sidestream in Trio"
    carries = "as above"
    measured: ClassVar[set[str]] = {"round_trip"}  # only its way to sleep differs

    def ask_all(self, frames: Iterable[bytes]) -> None:
        trio.run(self._ask_all, frames)

    async def _ask_all(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self._out.push(frame)
            while not self._in.drain():
                if self._in.arm():
                    await doorbell.wait(self._segment)


OURS = (Sidestream, SidestreamTrio)
OTHERS = (Zmq, Queue, Pipe, TorchQueue, NewSharedMemory)
