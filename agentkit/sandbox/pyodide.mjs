// Runs in Deno: one Python program in Pyodide, without any permission once Pyodide is loaded. See pyodide.py.
// In: standard input, {code, stdin, files: {name: base64}}. Out: one byte when the program starts, then what it prints.
const folder = Deno.args[0];
const { loadPyodide } = await import(`file://${folder}/pyodide.mjs`);
const request = await new Response(Deno.stdin.readable).json();
const python = await loadPyodide({ indexURL: `${folder}/`, jsglobals: {}, env: { _: "main.py" } });
Deno.permissions.revokeSync({ name: "read" });

const writer = (stream) => ({
  write: (bytes) => {
    for (let at = 0; at < bytes.length; ) at += stream.writeSync(bytes.subarray(at));
    return bytes.length;
  },
});
python.setStdout(writer(Deno.stdout));
python.setStderr(writer(Deno.stderr));
let given = new TextEncoder().encode(request.stdin);
python.setStdin({
  read: (buffer) => {
    const piece = given.subarray(0, buffer.length);
    buffer.set(piece);
    given = given.subarray(piece.length);
    return piece.length;
  },
});
for (const [name, content] of Object.entries(request.files)) {
  const path = `${python.FS.cwd()}/${name}`;
  python.FS.mkdirTree(path.replace(/\/[^/]*$/, ""));
  python.FS.writeFile(path, Uint8Array.fromBase64(content));
}

const start = python.runPython(`
import atexit, io, linecache, os, sys, traceback, types

def start(code):
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True))
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.argv[:], sys.path[:0] = ["main.py"], [os.getcwd()]
    linecache.cache["main.py"] = (len(code), None, code.splitlines(True), "main.py")
    flush = (sys.stdout.flush, sys.stderr.flush)
    status = 0
    try:
        try:
            exec(compile(code, "main.py", "exec", dont_inherit=True), main.__dict__)
        finally:
            atexit._run_exitfuncs()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except MemoryError as error:
        main.__dict__.clear()
        status = 86
        print("MemoryError", file=sys.stderr)
    except BaseException as error:
        status = 1
        try:
            traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        except BaseException:
            os.write(2, type(error).__name__.encode())
    for last in flush:
        try:
            last()
        except BaseException:
            status = status or 1
    return status & 255
start
`);
Deno.stdout.writeSync(new Uint8Array([10]));
try {
  Deno.exit(await start.callPromising(request.code)); // promising: asyncio.run can wait
} catch (error) { // the interpreter itself broke, ran out of memory, or the program ended it
  const ended = typeof error?.status === "number" ? error.status : error?.type === "MemoryError" ? 86 : 1;
  if (ended) Deno.stderr.writeSync(new TextEncoder().encode(`the interpreter stopped: ${String(error).slice(0, 500)}\n`));
  Deno.exit(ended);
}
