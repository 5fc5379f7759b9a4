"""E: `startup.py STATEMENT` runs an import statement and prints as JSON how long that took and the memory it left."""

import sys
import time

start = time.perf_counter()
exec(sys.argv[1])  # noqa: S102 - a contestant's own import statement
taken = time.perf_counter() - start

import json  # noqa: E402 - not before the clock has stopped: most contestants import it, too
from pathlib import Path  # noqa: E402 - as above

status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({"import_ms": taken * 1e3, "rss_mb": int(status["VmRSS"].split()[0]) / 1024}))
