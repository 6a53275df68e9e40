# Set-up that every script of this folder shares: the toolchain and Debian's packages.
# Sourced, not run. Functions only; each says plainly what is missing and what to do.

say() { printf '%s\n' "$*" >&2; }

# Ends the script where Swift is missing or older than 6.2.
require_swift() {
    if ! command -v swift >/dev/null 2>&1; then
        say "Swift is not installed, or not in PATH. Apus needs Swift 6.2 or newer: https://swift.org/install/linux"
        exit 1
    fi
    local version
    version=$(swift --version 2>/dev/null | sed -n 's/.*Swift version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' | head -n 1)
    set -- $version
    if [ "${1:-0}" -lt 6 ] || { [ "$1" -eq 6 ] && [ "${2:-0}" -lt 2 ]; }; then
        say "Swift ${1:-?}.${2:-?} is installed; Apus needs 6.2 or newer: https://swift.org/install/linux"
        exit 1
    fi
}

# Installs the Debian packages that are named and missing; lists them where that is not possible.
require_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            sudo=(sudo)
        else
            say "These Debian packages are missing and cannot be installed from here (not root, no sudo):"
            say "    ${missing[*]}"
            say "Install them and run this again."
            exit 1
        fi
    fi
    say "Installing missing packages: ${missing[*]}"
    local log
    log=$(mktemp)
    if ! { "${sudo[@]}" apt-get update -qq &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
        >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        say "Installing failed; the packages are: ${missing[*]}"
        rm -f "$log"
        exit 1
    fi
    rm -f "$log"
}

# The packages that building needs.
require_build_packages() {
    require_packages libssl-dev libavcodec-dev libavformat-dev libavutil-dev libswscale-dev libswresample-dev \
        libzstd-dev libsqlite3-dev libpq-dev libcurl4-openssl-dev zlib1g-dev pkg-config
}

# What `apus provider` needs to recognize and to speak.
require_voice_packages() {
    require_packages libpocketsphinx3 pocketsphinx-en-us espeak-ng
}

# Everything that a build needs.
require_all() {
    require_swift
    require_build_packages
}

# The versions of all dependencies are those of packages.lock, which SwiftPM reads as Package.resolved. A lock that does
# not fit Package.swift is an error.
lock_flags=(--force-resolved-versions)
lock_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cmp -s "$lock_folder/packages.lock" "$lock_folder/../../Package.resolved" ||
    cp "$lock_folder/packages.lock" "$lock_folder/../../Package.resolved"

# Flags of every build: an import that Package.swift does not declare is an error. A module's interface comes from the
# compiler that makes its code, and not from a second one that reads the whole module again.
compiler_flags=(-Xswiftc -no-emit-module-separately-wmo)
build_flags=(--explicit-target-dependency-import-check error "${lock_flags[@]}" "${compiler_flags[@]}")

# Flags of a test run on top: the same build as without tests, since no test needs @testable.
test_flags=(--disable-xctest --disable-testable-imports)
