# Gets the relay's clients that others made, and prints the Python that has aioice and aiortc.
# turnutils_uclient and its peer come from Debian's coturn, nft and ip from nftables and iproute2, the browser from
# chromium (some 100 MB), libnice from libnice-dev; the Python is a virtual environment in the build folder, and so is
# the agent on libnice, which is compiled. Whatever cannot be had is said,
# and the tests that want it are left out. Run, or source and call `relay_clients`.

relay_client_packages() {
    local missing=
    command -v turnutils_uclient >/dev/null || missing=coturn
    (require_packages iproute2 nftables openssl) || say "Tests with network namespaces, or with TLS, are left out."
    command -v chromium >/dev/null || (require_packages chromium) || say "Tests with Chromium are left out."
    [ -n "$missing" ] || return 0
    if ! (require_packages coturn); then
        say "Tests with turnutils_uclient are left out."
        return 0
    fi
    # The package starts its server at 3478, the port that belongs to the relay here.
    local sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
    if [ -d /run/systemd/system ]; then
        "${sudo[@]}" systemctl disable --now coturn >&2 2>/dev/null || say "coturn's service cannot be stopped."
    elif [ -x /etc/init.d/coturn ]; then
        "${sudo[@]}" /etc/init.d/coturn stop >/dev/null 2>&1 || true
    fi
}

# The agent on libnice beside the Python.
nice_agent() {
    local source=Tests/RelayClientTests/Clients/nice_agent.c words
    [ "$1/nice_agent" -nt "$source" ] && return 0
    pkg-config --exists nice 2>/dev/null || (require_packages libnice-dev pkg-config) || return 1
    command -v cc >/dev/null || (require_packages gcc) || return 1
    words=$(pkg-config --cflags --libs nice) || return 1
    # shellcheck disable=SC2086
    cc -O1 -o "$1/nice_agent" "$source" $words >&2
}

relay_clients() {
    relay_client_packages
    local folder=$PWD/.build/relay-clients
    local wanted="aioice==0.13.0 aiortc==1.16.0"
    if [ "$(cat "$folder/wanted" 2>/dev/null)" != "$wanted" ] || ! "$folder/bin/python" -c 'import aioice' 2>/dev/null; then
        python3 -c 'import ensurepip' 2>/dev/null || (require_packages python3 python3-venv) || return 1
        rm -rf "$folder"
        # shellcheck disable=SC2086
        if ! { python3 -m venv "$folder" && "$folder/bin/python" -m pip install --quiet --prefer-binary $wanted; } >&2; then
            say "aioice and aiortc cannot be installed: python3 with venv and a route to the Python Package Index are needed."
            rm -rf "$folder"
            return 1
        fi
        printf '%s\n' "$wanted" >"$folder/wanted"
    fi
    nice_agent "$folder" || say "Tests with libnice are left out."
    printf '%s\n' "$folder/bin/python"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    cd "$(dirname "$0")/../.."
    . scripts/lib/setup.sh
    relay_clients
fi
