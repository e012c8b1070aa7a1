"""The server of `sdpg view`: questions to it, and what it answers."""

from __future__ import annotations

import http.client
import io
import json
import time
from collections.abc import Callable
from typing import Any

from PIL import Image

from sdpg.watch.browser import Server

SIZE = 96  # pixels of a shown image


def ask(
    server: Server, method: str, path: str, body: Any = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def look(server: Server, after: int | str = "") -> dict[str, Any]:
    """The facts of a shot newer than `after`."""
    answer, jpeg = ask(server, "GET", f"/shot?after={after}")
    assert answer.status == 200 and answer.getheader("Content-Type") == "image/jpeg"
    Image.open(io.BytesIO(jpeg)).verify()
    return json.loads(answer.getheader("Facts") or "")


def look_until(server: Server, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    facts = look(server)
    end = time.monotonic() + 20
    while not true(facts):
        assert time.monotonic() < end, facts
        facts = look(server, facts["number"])
    return facts
