"""Commands of the command line, each in a process of its own that need not import it: this one did, and forks.

`forked_commands RESULTS COMMANDS` takes commands as JSON, a list of words each, and writes what came of them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path

from turnwise.cli.app import main


def run_all(results: Path, commands: list[list[str]]) -> None:
    """Run the commands one after the other; only a command comes back from here, to end as Python ends."""
    done = []
    gc.freeze()  # or else every process that ends walks through all that was imported here
    for words in commands:
        with tempfile.TemporaryFile() as typed, tempfile.TemporaryFile() as complaints:
            typed.write(b"hello\n")
            typed.seek(0)
            child = os.fork()
            if not child:
                os.dup2(typed.fileno(), 0)
                os.dup2(complaints.fileno(), 2)
                sys.argv = ["turnwise", *words]
                main()
            _, status = os.waitpid(child, 0)
            complaints.seek(0)
            done.append((os.waitstatus_to_exitcode(status), complaints.read().decode()))
    results.write_text(json.dumps(done))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), json.loads(sys.argv[2]))
