#!/usr/bin/env bash
# Builds the tests and the programs that they start, in release mode.
# `swift build --build-tests` would also compile the tools of other packages' plugins, such as protoc in 586 steps.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib/setup.sh
swift build -c release --disable-xctest "${build_flags[@]}" --product apusPackageTests
# The programs are compiled by now, and their imports are checked. What is left is linking.
for product in apus apus-bench apus-doors apus-registers; do
    swift build -c release --disable-xctest "${lock_flags[@]}" "${compiler_flags[@]}" --product "$product"
done
# A wall clock that is wrong, for tests (Tests/Tools/wrong_clock.c). The Swift toolchain has a C compiler.
clang=$(command -v clang || echo "$(dirname "$(readlink -f "$(command -v swift)")")/clang")
"$clang" -shared -fPIC -O2 -Wall -Wextra -o "$(swift build -c release "${build_flags[@]}" --show-bin-path)/libapus-wrong-clock.so" \
    Tests/Tools/wrong_clock.c
