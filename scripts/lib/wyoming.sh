#!/usr/bin/env bash
# Prints the Python of a virtual environment in the build folder that has PyPI's wyoming, the reference implementation
# of the protocol. Exit 1 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/setup.sh
folder=$PWD/.build/wyoming wanted=wyoming==1.10.2
if [ "$(cat "$folder/wanted" 2>/dev/null)" != "$wanted" ]; then
    python3 -c 'import ensurepip' 2>/dev/null || (require_packages python3 python3-venv) || exit 1
    rm -rf "$folder"
    if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --prefer-binary "$wanted"; } >&2; then
        say "wyoming cannot be installed: python3 with venv and a route to the Python Package Index are needed."
        rm -rf "$folder"
        exit 1
    fi
    printf '%s\n' "$wanted" >"$folder/wanted"
fi
printf '%s\n' "$folder/bin/python"
