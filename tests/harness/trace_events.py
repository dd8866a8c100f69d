"""What the documents of `chrome_trace` have to be like for a viewer to show them as they are."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

Event = dict[str, Any]
Slice = tuple[str, float, float]


def events_of(document: dict[str, Any]) -> list[Event]:
    """Return the events of a document as a viewer reads them, in the order of time."""
    read = json.loads(json.dumps(document, allow_nan=False))
    assert isinstance(read["displayTimeUnit"], str)
    return sorted(read["traceEvents"], key=lambda event: event.get("ts", -1.0))


def tracks_of(document: dict[str, Any]) -> dict[str, list[list[Slice]]]:
    """Return slices (name, start, end; us) by the titles of their tracks, "worker 0/forwards", say;
    a title can have several rows.

    Raises:
      AssertionError: a viewer would not show what is meant.
    """
    events = events_of(document)
    titles = _titles(events)
    rows: dict[tuple[int, int], list[Slice]] = {}
    open_slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "M":
            continue
        track = event["pid"], event["tid"]
        assert all(type(number) is int and number > 0 for number in track)
        assert type(event["ts"]) is float
        assert event["ts"] >= 0
        assert event["cat"]
        stack = open_slices[track]
        match event["ph"]:
            case "B":
                assert event["name"]
                assert track in titles, "a track without a name"
                stack.append(event)
            case "E":
                begun = stack.pop()
                slices = rows.setdefault(track, [])
                if not stack or len(stack) == 1:
                    slices.append((begun["name"], begun["ts"], event["ts"]))
            case "s" | "t" | "f":
                assert stack, "an arrow that is bound to nothing"
                assert type(event["id"]) is int
                flows[event["id"]].append(event)
            case "C":
                assert all(count >= 0 for count in event["args"].values())
            case other:
                raise AssertionError(f"unknown phase {other!r}")
    assert not any(open_slices.values()), "a slice without an end"
    for arrow in flows.values():
        phases = "".join(event["ph"] for event in arrow)
        assert phases in ("sf", "stf"), phases
        assert arrow[-1]["bp"] == "e"
    named: dict[str, list[list[Slice]]] = defaultdict(list)
    for track, slices in rows.items():
        named[titles[track]].append(slices)
    return dict(named)


def _titles(events: list[Event]) -> dict[tuple[int, int], str]:
    processes: dict[int, str] = {}
    titles = {}
    for event in events:
        if event["ph"] == "M":
            key, argument = event["name"].split("_", 1)
            assert (key, argument) in {
                (what, name) for what in ("process", "thread") for name in ("name", "sort_index")
            }
            value = event["args"][argument]
            assert type(value) is (str if argument == "name" else int)
            if event["name"] == "process_name":
                assert event["pid"] not in processes
                processes[event["pid"]] = value
            if event["name"] == "thread_name":
                titles[event["pid"], event["tid"]] = f"{processes[event['pid']]}/{value}"
    return titles
