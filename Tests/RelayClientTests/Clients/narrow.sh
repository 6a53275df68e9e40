#!/usr/bin/env bash
# A way that becomes narrower behind a router: three network namespaces.
#     narrow.sh up NAME MTU
#     narrow.sh down NAME
#
#     NAME-w 203.0.113.1 (the relay's) -- 1500 -- NAME-r -- MTU -- 198.51.100.2 NAME-p (a peer's)
set -euo pipefail
verb=$1 name=$2

down() {
    local part
    for part in w r p; do ip netns del "$name-$part" 2>/dev/null || true; done
}

case "$verb" in
up)
    trap 'status=$?; [ $status -eq 0 ] || down; exit $status' EXIT
    for part in w r p; do
        ip netns add "$name-$part"
        ip -n "$name-$part" link set lo up
    done
    ip -n "$name-r" link add near type veth peer name eth0 netns "$name-w"
    ip -n "$name-r" link add far mtu "$3" type veth peer name eth0 mtu "$3" netns "$name-p"
    ip -n "$name-r" address add 203.0.113.254/24 dev near
    ip -n "$name-r" address add 198.51.100.254/24 dev far
    ip -n "$name-w" address add 203.0.113.1/24 dev eth0
    ip -n "$name-p" address add 198.51.100.2/24 dev eth0
    for device in near far; do ip -n "$name-r" link set "$device" up; done
    for part in w p; do ip -n "$name-$part" link set eth0 up; done
    ip -n "$name-w" route add default via 203.0.113.254
    ip -n "$name-p" route add default via 198.51.100.254
    ip netns exec "$name-r" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    ;;
down) down ;;
*) echo "usage: narrow.sh up NAME MTU | down NAME" >&2; exit 64 ;;
esac
