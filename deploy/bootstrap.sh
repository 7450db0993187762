#!/usr/bin/env bash
# Makes the virtual environment and installs locked dependencies into it. Called by the Makefile only.
#   bootstrap.sh venv PYTHON VENV      create VENV with uv in it (pip alone takes ten times as long)
#   bootstrap.sh install VENV LOCK     install LOCK (hash-checked) and this project, editable
set -euo pipefail

die() { echo "jobmesh: $*" >&2; exit 1; }

make_venv() {
  local python=$1 venv=$2
  command -v "$python" >/dev/null || die "no '$python' found. Install Python 3.11 or newer, or run: make PYTHON=/path/to/python3 …"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "Python 3.11 or newer is needed, '$python' is $("$python" -V 2>&1). Run: make PYTHON=/path/to/python3.11 …"
  echo "· creating $venv"
  "$python" -m venv "$venv" || die "cannot create a virtual environment (on Debian: apt-get install python3-venv)"
  "$venv/bin/python" -m pip install -q --require-hashes -r requirements/uv.txt 2> >(grep -v '^WARNING' >&2) ||
    die "cannot install uv: is the package index reachable?"
}

install_lock() {
  local venv=$1 lock=$2
  echo "· installing $(grep -c '==' "$lock") locked packages ($lock)"
  "$venv/bin/uv" pip install -q --python "$venv/bin/python" --require-hashes -r "$lock" ||
    die "cannot install $lock: is the package index reachable, and is there disk space ($(df -h . | awk 'NR==2{print $4}') free)?"
  "$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e . ||
    die "cannot install the project itself"
}

case ${1:-} in
  venv) make_venv "$2" "$3" ;;
  install) install_lock "$2" "$3" ;;
  *) die "usage: bootstrap.sh venv PYTHON VENV | install VENV LOCK" ;;
esac
