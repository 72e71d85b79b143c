"""The process in which tools declared ``process=True`` run: one call after another, until it is killed or its
parent is gone.

Started as a script, so that it imports nothing of agentkit unless a tool does. It guards a run against tools
that hang, crash or leak; it confines nothing: what a model wrote belongs into the sandbox.
"""

import json
import os
import queue
import signal
import struct
import sys
import threading


def main() -> None:
    """Read (import path, call) pairs from stdin; for each write "ready", run it, and write what came of it."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a tool prints is no reply
    calls: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=read, args=(os.fdopen(os.dup(0), "rb"), calls), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while True:
        path, pickled = calls.get()
        sys.path[:] = json.loads(path)
        try:
            import dill

            work = dill.loads(pickled)
        except Exception as error:
            write(
                replies,
                {"error": f"the tool cannot be loaded in a process of its own: {error}", "final": True},
            )
            continue
        write(replies, {"ready": True})
        write(replies, outcome(work))


def read(stdin, calls: queue.SimpleQueue) -> None:
    """Hand on what arrives; when the parent is gone, end with everything the tool started."""
    while True:
        frames = [
            stdin.read(struct.unpack("!Q", size)[0]) for _ in range(2) if len(size := stdin.read(8)) == 8
        ]
        if len(frames) < 2:
            os.killpg(0, signal.SIGKILL)
        calls.put(frames)


def outcome(work) -> dict:
    """What a call returned or raised, as JSON can say it."""
    try:
        return {"text": str(work())}
    except BaseException as error:
        try:
            said = str(error)
        except Exception:
            said = ""
        final = isinstance(error, ValueError)
        return {"error": said if final else f"{type(error).__name__}: {said}", "final": final}


def write(replies, reply: dict) -> None:
    """One line of JSON."""
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
