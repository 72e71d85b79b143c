"""The process in which tools declared ``process=True`` run: one call after another, until it is killed.

Started as a script, so that it imports nothing of agentkit unless a tool does. It guards a run against tools
that hang, crash or leak, and ends with its parent. Leaves out confinement: what a model wrote belongs into
the sandbox.
"""

import importlib.util
import json
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection


class OwnModules:
    """Finds, after all other finders, what the parent loaded from a file that no name leads to."""

    files: dict = {}  # by name: file and time of change

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        file, _ = cls.files.get(name, (None, None))
        return file and importlib.util.spec_from_file_location(name, file)

    @classmethod
    def update(cls, files: dict) -> None:
        """What the parent has now; where a module is another or has changed, all are loaded anew, since they
        import each other.
        """
        if any(files.get(name) != file for name, file in cls.files.items()):
            for name in cls.files:
                sys.modules.pop(name, None)
        cls.files = files


def main() -> None:
    """Take calls from stdin, a socket; for each reply "ready", run it, and reply what came of it."""
    pipe = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a tool reads is no call
    calls: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=read, args=(pipe, calls), daemon=True).start()
    sys.meta_path.append(OwnModules)
    while True:
        modules, pickled = calls.get()
        sys.path[:], files = json.loads(modules)
        OwnModules.update(files)
        try:
            import dill

            work = dill.loads(pickled)
        except Exception as error:
            message = f"the tool cannot be loaded in a process of its own: {error}"
            reply(pipe, {"error": message, "final": True})
            continue
        reply(pipe, {"ready": True})
        reply(pipe, outcome(work))


def read(pipe: Connection, calls: queue.SimpleQueue) -> None:
    """Hand on what arrives; when the parent is gone, end with everything the tool started."""
    while True:
        try:
            calls.put((pipe.recv_bytes(), pipe.recv_bytes()))
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)


def reply(pipe: Connection, message: dict) -> None:
    pipe.send_bytes(json.dumps(message).encode())


def outcome(work) -> dict:
    try:
        return {"text": str(work())}
    except BaseException as error:
        try:
            message = str(error)
        except Exception:
            message = ""
        final = isinstance(error, ValueError)
        return {"error": message if final else f"{type(error).__name__}: {message}", "final": final}


if __name__ == "__main__":
    main()
