"""Which benchmarks `run_all.py` runs on which device, and the tables that their figures fill.

A table stands in a page of `docs/` between two comments, `<!-- table: NAME -->` and `<!-- end -->`,
with its machine and commit. It has the rows that its benchmarks' results give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Result = list[dict[str, Any]]
"""The JSON objects that a benchmark printed."""
Rows = list[list[str]]

JSON_FILE = "{json}"
"""In a command: the file that it is to write its JSON object into, if it does not print it."""


@dataclass(frozen=True)
class Benchmark:
    """A program of this folder with arguments, and what makes a short run of it."""

    command: str
    quick: str = ""


@dataclass(frozen=True)
class Table:
    """Benchmarks whose results stand in one table.

    Args:
      name: of the table in its page.
      header: of its columns, separated by bars.
      rows: from the command and the result of one benchmark to its rows.
      benchmarks: in the order of their rows.
    """

    name: str
    header: str
    rows: Callable[[str, Result], Rows]
    benchmarks: tuple[Benchmark, ...]


@dataclass(frozen=True)
class Picture:
    """A figure in `docs/images/`: its file, and arguments of the command `sidestream`."""

    file: str
    arguments: str


# -- the device path

DEVICE_PATH = (
    "arguments of `benchmarks/bubble.py` | requests/s (ideal) | busy | bubble mean, ms"
    " | forward to engine p50 / p99, ms | engine / worker cores"
)


def device_path_rows(command: str, result: Result) -> Rows:
    """Tell a run of bubble.py; one whose forward takes no time has no bubbles to speak of."""
    [figures] = result
    ideal = figures["ideal_requests_per_s"] if figures["command"]["forward_ms"] else None
    to_engine, cores = figures["forward_end_to_engine_ms"], figures["cpu_cores_used"]
    together = figures["command"]["executor"] == "uni"
    wrong = figures["bad_outputs"]
    return [
        [
            f"`{arguments_of(command)}`" + (f" (**{wrong} outputs wrong**)" if wrong else ""),
            f"{figures['requests_per_s']:,.1f}" + (f" ({ideal:,.1f})" if ideal else ""),
            f"{figures['busy_frac']:.1%}".replace("%", " %") if ideal else "",
            f"{figures['bubble_ms']['mean']:.3f}" if ideal else "",
            f"{to_engine['p50']:.2f} / {to_engine['p99']:.2f}",
            f"{cores['engine']:.2f} together"
            if together
            else f"{cores['engine']:.2f} / {cores['worker']:.2f}",
        ]
    ]


def bubble(arguments: str, requests: int) -> Benchmark:
    """Make a run of bubble.py."""
    return Benchmark(f"benchmarks/bubble.py {arguments} --requests {requests}", "--requests 12")


# -- step mode


def mix_rows(command: str, result: Result) -> Rows:
    """Tell both modes under the same arrivals."""
    [figures] = result
    rows = []
    for mode in ("request", "step"):
        latency = figures[mode]["latency_ms"]
        pairs = (f"{latency[who]['mean']:.0f} / {latency[who]['p99']:.0f}" for who in SIZES)
        rate = f"{figures[mode]['requests_per_s']:.2f}"
        rows.append(
            [f"`{arguments_of(command)}`", mode, rate, *pairs, f"{latency['all']['mean']:.0f}"]
        )
    return rows


SIZES = ("short", "long")


def batch_rows(command: str, result: Result) -> Rows:
    """Tell how much merged batches give."""
    [figures] = result
    rates = [f"{row['images_per_s']:.2f}" for name, row in figures.items() if "batch_" in name]
    return [[f"`{arguments_of(command)}`", *rates, f"**{figures['speed_up']:.2f}**"]]


def overhead_rows(command: str, result: Result) -> Rows:
    """Tell what a step costs beyond its module."""
    [figures] = result
    return [
        [
            name,
            f"{row['direct_step_ms']:.2f}",
            f"{row['overhead_us_per_tick']:.0f}",
            f"{row['ticks_per_s_of_empty_steps']:,}",
        ]
        for name, row in figures.items()
        if isinstance(row, dict)
    ]


def pictures_rows(command: str, result: Result) -> Rows:
    """Tell pictures per second, and how many times those of the plain loop that is."""
    [figures] = result
    rows = figures["rows"]
    plain = {row["steps"]: row["pictures_per_s"] for row in rows if row["runs"] == "plain loop"}
    return [
        [
            row["runs"],
            str(row["steps"]),
            str(row["concurrency"]),
            f"{row['pictures_per_s']:.2f}",
            f"{row['pictures_per_s'] / plain[row['steps']]:.2f}",
            f"{row['latency_ms']:,.0f}",
            f"{row['first_ms'][0]:,.0f}" if "first_ms" in row and row["concurrency"] == 1 else "",
            "" if row["gpu_busy"] is None else f"{row['gpu_busy']:.0f} %",
        ]
        for row in sorted(rows, key=lambda row: row["steps"])
    ]


PICTURES_HEADER = (
    "runs | steps | callers | pictures/s | times the plain loop | latency p50, ms"
    " | the first one, ms | GPU busy"
)


def pictures(name: str, arguments: str) -> Table:
    """Make a table of a run of pictures.py."""
    benchmark = Benchmark(f"benchmarks/pictures.py {arguments}", quick="--seconds 0.2 --warm 1")
    return Table(f"cuda pictures {name}", PICTURES_HEADER, pictures_rows, (benchmark,))


def lanes_rows(command: str, result: Result) -> Rows:
    """Tell the CPU time of the lanes themselves."""
    [figures] = result
    return [
        [name.replace("_", ", "), *(f"{row[key]:.1f}" for key in LANES_COLUMNS)]
        for name, row in figures.items()
        if name != "plain"
    ]


LANES_COLUMNS = ("us_per_tick", "us_per_request", "us_per_further_call")


# -- messages, recording, server


def ipc_rows(command: str, result: Result) -> Rows:
    """Tell how long each transport takes."""
    [figures] = result
    rows = []
    for name, seconds in figures["seconds"].items():
        rates = (f"{1e-6 / seconds[p]:.2f}" if p in seconds else "" for p in IPC_RATES)
        times = (
            f"{seconds[part] * scale:.1f}" if part in seconds else ""
            for part, scale in (("round_trip", 1e6), ("payload", 1e3))
        )
        rows.append([name, *rates, *times])
    return rows


IPC_RATES = ("one_way", "one_way_back", "structured")


def recording_rows(command: str, result: Result) -> Rows:
    """Tell what traces cost."""
    [figures] = result
    rows = []
    for key, what in RECORDING_ROWS.items():
        row = figures[key]
        ratio = f"{row['ratio']:.3f} ({row['ratio_q1']:.3f} to {row['ratio_q3']:.3f})"
        rows.append([what, f"{row['kept']:,.0f}", f"{row['not_kept']:,.0f}", ratio])
    return [*rows, ["all that is done for a trace, us", f"{figures['us_per_trace']:.1f}", "", ""]]


RECORDING_ROWS = {
    "requests_per_s": "requests/s",
    "engine_us_per_request": "CPU time of the engine for a request, us",
}


def http_rows(command: str, result: Result) -> Rows:
    """Tell each measurement that the benchmark printed."""
    return [
        [row["what"], f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}", f"{row['max_ms']:.1f}"]
        for row in result
    ]


def arguments_of(command: str) -> str:
    """Return a command without its program."""
    return command.partition(" ")[2] or command


# -- what is run

VIDEO = "--forward-ms 100 --shape 1,81,3,480,832"
OVERHEAD = "step | its module alone, ms | beyond that, us for a tick | ticks/s of empty steps"
CUDA = "--device cuda --host-sync end"
TIMELINE = (
    "trace --compare -n 12 --executor mp --model synthetic --output-type raw"
    ' --set model_options.forward_ms=20 --set "model_options.shape=[1,3,1536,1536]"'
    " --set model_options.dtype=fp32"
)

TABLES = {
    "cpu": (
        Table(
            "cpu device path",
            DEVICE_PATH,
            device_path_rows,
            (
                bubble("--forward-ms 20", 200),
                bubble("--forward-ms 100", 100),
                bubble("--forward-ms 20 --executor uni", 200),
                bubble("--forward-ms 200 --steps 20 --mode step", 40),
                bubble("--forward-ms 0 --shape 1,1,1,8 --concurrency 32", 6000),
                bubble("--forward-ms 0 --shape 1,1,1,8 --concurrency 32 --max-num-seqs 8", 6000),
            ),
        ),
        Table(
            "cpu recording",
            "what | traces kept | none kept | ratio, median (quartiles)",
            recording_rows,
            (Benchmark("benchmarks/recording.py", quick="--rounds 2 --requests 200"),),
        ),
        Table(
            "cpu mix",
            "arguments of `benchmarks/step.py` | mode | requests/s | short: mean / p99, ms"
            " | long: mean / p99, ms | all: mean, ms",
            mix_rows,
            (
                Benchmark("benchmarks/step.py mix --rate 6", quick="--seconds 4"),
                Benchmark("benchmarks/step.py mix --rate 3 --merge off", quick="--seconds 4"),
            ),
        ),
        Table(
            "cpu lanes",
            "lanes | us for a tick | for a request | for each further call",
            lanes_rows,
            (Benchmark("benchmarks/lanes.py", quick="--waves 50"),),
        ),
        Table(
            "cpu ticks",
            OVERHEAD,
            overhead_rows,
            (Benchmark("benchmarks/step.py overhead --device cpu", quick="--steps 20"),),
        ),
        Table(
            "cpu messages",
            "transport | 200-byte messages one way, millions/s | worker to engine"
            " | structured messages | round trip, us | 12.6 MB array, ms",
            ipc_rows,
            (Benchmark(f"benchmarks/ipc.py --json {JSON_FILE}", quick="--quick"),),
        ),
        Table(
            "cpu server",
            "what | p50, ms | p99, ms | most, ms",
            http_rows,
            (Benchmark("benchmarks/http_server.py", quick="--disconnects 5 --pictures 1"),),
        ),
    ),
    "cuda": (
        Table(
            "cuda device path",
            DEVICE_PATH,
            device_path_rows,
            (
                bubble(f"{CUDA} --forward-ms 5", 400),
                bubble(f"{CUDA} --forward-ms 20", 150),
                bubble("--device cuda --host-sync none --forward-ms 20", 150),
                bubble(f"{CUDA} --forward-ms 20 --concurrency 1", 100),
                bubble(f"{CUDA} --forward-ms 20 --shape 1,3,2048,2048", 100),
                bubble(f"{CUDA} {VIDEO} --dtype uint8", 30),
                bubble(f"{CUDA} {VIDEO} --dtype bf16", 30),
            ),
        ),
        Table(
            "cuda device path, other ways",
            DEVICE_PATH,
            device_path_rows,
            (
                bubble(f"{CUDA} --forward-ms 200 --steps 20 --mode step", 30),
                bubble(f"{CUDA} --forward-ms 20 --executor uni", 150),
            ),
        ),
        Table(
            "cuda two devices",
            DEVICE_PATH,
            device_path_rows,
            (
                bubble(f"{CUDA} --forward-ms 20", 300),
                bubble(f"{CUDA} --forward-ms 20 --workers 2 --concurrency 8", 600),
            ),
        ),
        Table(
            "cuda batch",
            "arguments of `benchmarks/step.py` | one after the other, pictures/s"
            " | merged, pictures/s | times as many",
            batch_rows,
            (
                Benchmark(
                    "benchmarks/step.py batch --device cuda --executor uni",
                    quick="--steps 2 --requests 4",
                ),
            ),
        ),
        Table(
            "cuda ticks",
            OVERHEAD,
            overhead_rows,
            (Benchmark("benchmarks/step.py overhead --device cuda", quick="--steps 20"),),
        ),
        pictures("sdxl 512", "--model random:sdxl-full --sizes 512 --engines 1,3"),
        pictures("sdxl 1024", "--model random:sdxl-full --sizes 1024 --engines 1"),
        pictures("sd3 512", "--model random:sd3-full --sizes 512 --engines 1,3"),
        pictures(
            "sd3 512 compiled",
            "--model random:sd3-full --sizes 512 --steps 28 --engines 1,3 --compile whole",
        ),
        pictures("flux 1024", "--model random:flux-full --sizes 1024 --steps 4 --engines 1"),
    ),
}

PICTURES = {
    "cpu": (Picture("timeline-cpu.png", f"{TIMELINE} --device cpu"),),
    "cuda": (Picture("timeline-cuda.png", f"{TIMELINE} --device cuda"),),
}
