#!/usr/bin/env bash
# Generates the Python code for everything under proto/ into the folder given (gen/ by default).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-gen} bin=${BIN:-.venv/bin}
rm -rf "$out"/jobmesh "$out"/buf "$out"/etcd
mkdir -p "$out"
# shellcheck disable=SC2046
PATH="$bin:$PATH" "$bin/python" -m grpc_tools.protoc -Iproto -Iproto/third_party \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  $(cd proto && find jobmesh -name '*.proto' | sort) \
  $(cd proto/third_party && find . -name '*.proto' | sed 's|^\./||' | sort)
# Files without a service get empty _grpc modules: noise.
find "$out" -name '*_pb2_grpc.py*' | while read -r f; do
  base=${f%_pb2_grpc.py*}; name=${base#"$out"/}
  for root in proto proto/third_party; do
    if [ -f "$root/$name.proto" ] && ! grep -q '^service ' "$root/$name.proto"; then rm -f "$f"; fi
  done
done
