"""What is said where the hub has no such thing, or is not there."""

import contextlib
import http.server
import socket
import threading

import huggingface_hub
import pytest
from huggingface_hub import constants, hf_api

from sidestream.workers.models import load_pipeline


@contextlib.contextmanager
def refusing():
    """Hold a port at which nobody listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@contextlib.contextmanager
def answering(status, code):
    """Answer everything with an error of the hub."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


HUBS = {
    "away": (refusing, "it is not in the hub's cache, and the hub cannot be reached"),
    "without": (
        lambda: answering(404, "RepoNotFound"),
        "the hub has none of this name, or it is private",
    ),
    "strict": (
        lambda: answering(403, "GatedRepo"),
        "the hub gives it only to those who asked for it and logged in",
    ),
}


@pytest.fixture(params=HUBS)
def reason(request, monkeypatch):
    """Stand in for the hub; tell what is to be said of it."""
    hub, reason = HUBS[request.param]
    with hub() as port:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hf_api.api, "endpoint", url)
        huggingface_hub.close_session()
        yield reason
        huggingface_hub.close_session()


def test_a_model_that_is_not_to_be_had_is_named_with_the_reason(reason, tmp_path):
    message = f"^model 'owner/name': there is no such directory, and {reason}$"
    with pytest.raises(ValueError, match=message):
        load_pipeline("owner/name", {"cache_dir": str(tmp_path)}, device="cpu", dtype=None)


@pytest.mark.parametrize("source", ["owner/name", "owner/name/style.safetensors"])
def test_an_adapter_that_is_not_to_be_had_is_named_with_the_reason(reason, source):
    message = f"^lora 'style' cannot be loaded from '{source}': {reason}$"
    with pytest.raises(ValueError, match=message):
        load_pipeline("random:sd15", {}, device="cpu", dtype=None, lora={"style": source})


def test_a_model_that_is_not_in_the_cache_when_the_hub_must_not_be_asked(tmp_path):
    options = {"cache_dir": str(tmp_path), "local_files_only": True}
    with pytest.raises(ValueError, match=r"no such directory, and it is not in the hub's cache$"):
        load_pipeline("owner/name", options, device="cpu", dtype=None)
