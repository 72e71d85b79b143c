#!/usr/bin/env bash
# Measure on this machine's GPU what a CPU cannot show: tests/gpu/run.sh base|vllm [--wheels DIR] [--out DIR] ...
# With --wheels DIR packages come from that folder, without an index and beside the machine's own: on a machine without
# a network, whose torch may be another than the pinned one. PYTHON names the interpreter. Further options:
# tests/gpu/run.sh base --help.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheels='' arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --wheels) wheels=${2:?"--wheels needs a folder of wheels"}; shift 2 ;;
    --wheels=*) wheels=${1#--wheels=}; shift ;;
    *) arguments+=("$1"); shift ;;
  esac
done
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=$(command -v python3 || command -v python)
  if [ -z "$wheels" ] && [ -x "$root/.venv/bin/python" ]; then python=$root/.venv/bin/python; fi
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if [ -n "$wheels" ]; then
  compgen -G "$wheels/*.whl" >/dev/null || { echo "there is no wheel in $wheels" >&2; exit 2; }
  site=${AGENTKIT_SITE:-${TMPDIR:-/tmp}/agentkit-site}
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$site" "$wheels"/*.whl
  export PYTHONPATH=$PYTHONPATH:$site
fi
exec "$python" "$root/tests/gpu/measure.py" ${arguments[@]+"${arguments[@]}"}
