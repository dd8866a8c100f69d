"""The files of the page, and how they are sent; without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import trio

from sidestream.engine import open_engine
from sidestream.server.page_files import FOLDER, NAMES

from ..harness.engines import offer_pipelines, painting
from ..harness.http import asgi_client, served
from ..harness.surroundings import PATIENCE

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


def test_every_file_of_the_folder_is_sent():
    assert {path.name for path in FOLDER.iterdir()} == set(NAMES)
    assert {"index.html", "style.css", "main.js"} <= set(NAMES)


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in NAMES)])
async def test_a_file_comes_as_it_is_and_is_kept_by_who_has_it(path):
    name = path.rpartition("/")[2] or "index.html"
    async with asgi_client(None) as client:
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        tag = answer.headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}'):
            again = await client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        other = await client.get(path, headers={"If-None-Match": '"other"'})
        assert other.status_code == 200
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(answer.content))
        assert (await client.post(path)).status_code == 405


async def test_nothing_from_elsewhere_is_allowed():
    async with asgi_client(None) as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'self'"
    assert directives["img-src"] == "'self' blob: data:"
    assert directives["frame-ancestors"] == directives["object-src"] == "'none'"
    assert not {"script-src", "connect-src", "style-src"} & set(directives)
    assert "unsafe" not in policy
    assert "http" not in policy


class Outline(HTMLParser):
    """What a page runs and loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._tag = ""

    def handle_starttag(self, tag, attributes):
        self._tag = tag
        for name, value in attributes:
            if name in ("src", "href") and not value.startswith("#"):
                self.loaded.append(value)
            elif name == "style" or name.startswith("on"):
                self.inline.append(f"{name}={value}")

    def handle_data(self, data):
        if self._tag in ("script", "style") and data.strip():
            self.inline.append(data)


def test_the_page_loads_only_files_of_the_package_and_has_no_code_of_its_own():
    outline = Outline()
    outline.feed((FOLDER / "index.html").read_text())
    assert outline.inline == []
    assert {path.removeprefix("page/") for path in outline.loaded} <= set(NAMES)
    for path in FOLDER.glob("*.js"):
        imported = re.findall(r'from "\./(.+?)"', path.read_text())
        assert set(imported) <= set(NAMES), path.name
    for path in FOLDER.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name


async def test_there_is_nothing_else():
    async with asgi_client(None) as client:
        for name in ("nothing.js", "index.html.bak", ".", "py.typed", "%00", "a" * 5000):
            answer = await client.get(f"/page/{name}")
            assert answer.status_code == 404, name
            assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "path",
    [
        "/page/../gate.py",
        "/page/%2e%2e/gate.py",
        "/page/..%2fgate.py",
        "/page/%2e%2e%2fgate.py",
        "/page/..%5cgate.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/....//gate.py",
        "/page/index.html/../../gate.py",
        "//etc/passwd",
    ],
)
async def test_no_path_leads_out_of_the_folder(path):
    with trio.fail_after(PATIENCE):
        async with served(None) as server, await server.connect() as connection:
            head = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            await connection.send_all(head.encode())
            answer = b"".join([chunk async for chunk in connection])
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b"root:" not in answer
            assert b"class Gate" not in answer


async def test_the_page_is_open_and_what_it_calls_is_not():
    async with (
        open_engine(painting("uni")) as engine,
        asgi_client(engine, api_keys=("key",)) as client,
    ):
        for path in ("/", *(f"/page/{name}" for name in NAMES)):
            assert (await client.get(path)).status_code == 200
        for path in ("/v1/models", "/v1/timeline", "/page/other.js", "/page"):
            assert (await client.get(path)).status_code == 401, path
        headers = {"Authorization": "Bearer key"}
        assert (await client.get("/v1/timeline", headers=headers)).status_code == 200


# -- what the page asks for


async def test_a_model_tells_what_it_takes():
    async with (
        open_engine(painting("uni", options={"steps": 4})) as engine,
        asgi_client(engine, max_n=3, max_side=99) as client,
    ):
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert model["parameters"] == [
            "prompt",
            "negative_prompt",
            "size",
            "num_inference_steps",
            "guidance_scale",
            "seed",
            "image",
            "n",
        ]
        assert model["defaults"] == {"num_inference_steps": 4}
        assert model["limits"]["n"] == 3
        assert model["limits"]["side"] == 99


async def test_a_model_in_step_mode_tells_that_it_has_previews():
    async with (
        open_engine(model="shapes", device="cpu", mode="step") as engine,
        asgi_client(engine) as client,
    ):
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert "partial_images" in model["parameters"]
        assert model["defaults"] == {
            "size": "128x128",
            "num_inference_steps": 16,
            "guidance_scale": 2.5,
        }


@pytest.mark.parametrize(
    ("model", "accepts", "needs", "fields"),
    [
        ("random:sd15", False, False, set()),
        ("random:sd15-img2img", True, True, {"image", "strength"}),
        ("random:sd15-inpaint", True, True, {"image", "mask", "strength"}),
    ],
)
async def test_a_model_tells_whether_it_takes_pictures(model, accepts, needs, fields):
    config = {"model": model, "device": "cpu", "warmup": False}
    async with open_engine(config) as engine, asgi_client(engine) as client:
        (told,) = (await client.get("/v1/models")).json()["data"]
    assert (told["accepts_image"], told["needs_image"]) == (accepts, needs)
    assert {"image", "mask", "strength"} & set(told["parameters"]) == fields
    assert ("size" in told["parameters"]) == (model != "random:sd15-img2img")
