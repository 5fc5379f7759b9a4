"""An S3 server for the tests, in its own process: moto's, with buckets in memory.

`python s3_server.py` prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from obstore.store import S3Store


@dataclass(frozen=True)
class S3Server:
    port: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[S3Server]:
        """Run a server in the block."""
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, __file__], text=True, **pipes) as process:
            yield cls(int(process.stdout.readline()))
            process.stdin.close()

    def new_bucket(self) -> str:
        name = f"bucket-{next(self._numbers)}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("PUT", f"/{name}")
            assert connection.getresponse().status == http.HTTPStatus.OK
        return name


def s3_store(port: int, bucket: str) -> S3Store:
    """Return the store of a bucket on the server at a port; requests to a dead server are not repeated."""
    return S3Store(
        bucket,
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="key",
        secret_access_key="hunter2",  # noqa: S106 - moto asks for none
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def serve() -> None:
    """Answer one request at a time: moto checks conditions and writes without a lock."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - it takes seconds, and the tests need only the process
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415 - as above

    moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(environ: Any, start: Any) -> Any:
        with lock:
            return moto(environ, start)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    serve()
