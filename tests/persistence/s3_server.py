"""An S3 server of the tests' own, as a process of its own: moto's, which keeps its buckets in memory.

`python s3_server.py` prints the port at which it listens, and ends when its standard input does.
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
    """A running server."""

    port: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[S3Server]:
        """Give a server that ends with the block."""
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, __file__], text=True, **pipes) as process:
            yield cls(int(process.stdout.readline()))
            process.stdin.close()

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        name = f"bucket-{next(self._numbers)}"
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port)) as connection:
            connection.request("PUT", f"/{name}")
            assert connection.getresponse().status == http.HTTPStatus.OK
        return name


def s3_store(port: int, bucket: str) -> S3Store:
    """Return the store of a bucket of the server that listens at a port; one that does not is not asked again."""
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
    """Answer one request at a time: moto looks at a condition, and writes, with no lock in between."""
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
