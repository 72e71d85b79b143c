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
import struct
import sys
import threading


class LooseModules:
    """Finds, after all others, the modules that the parent loaded from a file outside its import path."""

    files: dict = {}  # by name: file and time of change

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.files:
            return None
        return importlib.util.spec_from_file_location(name, cls.files[name][0])

    @classmethod
    def update(cls, files: dict) -> None:
        """What the parent has now; a module that is another or has changed is loaded anew."""
        for name in [name for name, file in cls.files.items() if files.get(name) != file]:
            sys.modules.pop(name, None)
        cls.files = files


def main() -> None:
    """Read (import path and modules, call) pairs from stdin; for each write "ready", run it, and write what came of it."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a tool prints is no reply
    calls: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=read, args=(os.fdopen(os.dup(0), "rb"), calls), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.meta_path.append(LooseModules)
    while True:
        modules, pickled = calls.get()
        sys.path[:], files = json.loads(modules)
        LooseModules.update(files)
        try:
            import dill

            work = dill.loads(pickled)
        except Exception as error:
            message = f"the tool cannot be loaded in a process of its own: {error}"
            write(replies, {"error": message, "final": True})
            continue
        write(replies, {"ready": True})
        write(replies, outcome(work))


def read(stdin, calls: queue.SimpleQueue) -> None:
    """Hand on what arrives; when the parent is gone, end with everything the tool started."""
    while True:
        frames = []
        for _ in range(2):
            size = stdin.read(8)
            if len(size) < 8:
                os.killpg(0, signal.SIGKILL)
            frames.append(stdin.read(struct.unpack("!Q", size)[0]))
        calls.put(frames)


def outcome(work) -> dict:
    """What a call returned or raised, as JSON can say it."""
    try:
        return {"text": str(work())}
    except BaseException as error:
        try:
            message = str(error)
        except Exception:
            message = ""
        final = isinstance(error, ValueError)
        return {"error": message if final else f"{type(error).__name__}: {message}", "final": final}


def write(replies, reply: dict) -> None:
    """One line of JSON."""
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
