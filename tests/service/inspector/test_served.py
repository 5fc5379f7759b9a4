"""Serving the inspector's page: its policy and files, and `turnwise inspect` on a store alone."""

import re
import time
from pathlib import Path

import anyio
import httpx
from fastapi import Depends, FastAPI, HTTPException

from support.processes.service_process import running
from support.served import TOKENS, Served, listening
from turnwise import Engine
from turnwise.service import router

KEPT = {"x-content-type-options": "nosniff", "cache-control": "no-cache"}
BOUND_TO = {
    **KEPT,
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "referrer-policy": "no-referrer",
}


async def test_page_has_its_policy_and_etags(demo: Served) -> None:
    async with httpx.AsyncClient(base_url=demo.url, timeout=60) as stranger:
        page = await stranger.get("/inspector")
        script = await stranger.get("/inspector/service.js")
        known, old = [
            await stranger.get("/inspector/service.js", headers={"If-None-Match": etag})
            for etag in (script.headers["etag"], page.headers["etag"])
        ]
        posted = await stranger.post("/inspector/service.js")
        others = [
            (await stranger.get(f"/inspector/{name}")).status_code for name in ("__init__.py", "..%2Fauth.py", "x.js")
        ]
        paths = (await stranger.get("/openapi.json")).json()["paths"]

    for answer in (page, script, known, old):
        assert {name: answer.headers[name] for name in BOUND_TO} == BOUND_TO
        assert re.fullmatch('"[0-9a-f]{32}"', answer.headers["etag"])
    assert (old.status_code, old.content, known.content) == (200, script.content, b"")
    assert posted.status_code == 405
    assert (page.headers["content-type"], script.headers["content-type"]) == (
        "text/html; charset=utf-8", "text/javascript; charset=utf-8"
    )  # fmt: skip
    assert (known.status_code, others) == (304, [404, 404, 404])
    assert not [path for path in paths if "inspector" in path]


async def test_client_is_served_from_a_mounted_router(demo: Served) -> None:
    """A page imports it from its own server without a token; the browser caches it until it changes."""
    app = FastAPI()
    app.include_router(router(demo.engine, auth=TOKENS), prefix="/v1")
    async with listening(app) as url, httpx.AsyncClient(base_url=f"{url}/v1/client", timeout=60) as stranger:
        script = await stranger.get("/index.js")
        known = await stranger.get("/index.js", headers={"If-None-Match": script.headers["etag"]})
        imported = [(await stranger.get(f"/{name}")).status_code for name in re.findall(r'"\./(.*?)"', script.text)]
        others = [(await stranger.get(f"/{name}")).status_code for name in ("generate.py", "package.json")]
    assert {name: script.headers[name] for name in KEPT} == KEPT
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert (known.status_code, imported, others) == (304, [200, 200, 200], [404, 404])


async def test_dependencies_cover_files(demo: Served) -> None:
    """Dependencies that an application gives to `include_router`."""

    def refuse() -> None:
        raise HTTPException(403, "only at work")

    app = FastAPI()
    app.include_router(router(demo.engine, auth=TOKENS), prefix="/v1", dependencies=[Depends(refuse)])
    async with listening(app) as url, httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as stranger:
        for path in ("/inspector", "/inspector/service.js", "/client/index.js", "/healthz"):
            for method in ("GET", "HEAD"):
                assert (await stranger.request(method, path)).status_code == 403, path


def test_inspect_command_serves_a_store_read_only(tmp_path: Path) -> None:
    anyio.run(_one_chat, f"sqlite:///{tmp_path}/chats.db")
    with running(tmp_path, "inspect", "--store", "sqlite:///chats.db") as process:
        ends = time.monotonic() + 300
        while "Ctrl-C ends it" not in process.output() and time.monotonic() < ends:
            time.sleep(0.05)
        url, _, token = process.output().partition("look at ")[2].split()[0].partition("/inspector#token=")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
            chat = client.get("/chats").json()["items"][0]
            page = client.get("/inspector").status_code
            posted = client.post(f"/chats/{chat['id']}/messages", json={"content": "x"}).status_code
            anyone = httpx.get(f"{url}/chats", timeout=60).status_code
        code = process.stop()
    assert url.startswith("http://127.0.0.1:")
    assert (chat["title"], page, posted, anyone, code) == ("Kept", 200, 403, 401, 0)


async def _one_chat(store: str) -> None:
    async with Engine(store, model="demo") as engine:
        await engine.create_chat(title="Kept")
