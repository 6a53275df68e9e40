#!/usr/bin/env bash
# Prints the Python of a virtual environment in the build folder that has two S3 servers of PyPI: moto, which has
# conditional writes, and nanio, which checks signatures. Exit 1 where they cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/setup.sh
folder=$PWD/.build/s3-servers wanted="moto[server]==5.2.5 nanio==0.1.7"
if [ "$(cat "$folder/wanted" 2>/dev/null)" != "$wanted" ]; then
    python3 -c 'import ensurepip' 2>/dev/null || (require_packages python3 python3-venv) || exit 1
    rm -rf "$folder"
    # shellcheck disable=SC2086
    if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --prefer-binary $wanted; } >&2; then
        say "moto and nanio cannot be installed: python3 with venv and a route to the Python Package Index are needed."
        rm -rf "$folder"
        exit 1
    fi
    printf '%s\n' "$wanted" >"$folder/wanted"
fi
printf '%s\n' "$folder/bin/python"
