#!/usr/bin/env bash
# Two relays, each behind a 1:1 NAT that keeps ports and leads its own packets back: five network namespaces.
#     external.sh up NAME
#     external.sh down NAME
#
#     NAME-a 10.1.0.2 -- 10.1.0.1 NAME-na 203.0.113.11 --+-- 203.0.113.1 NAME-w (clients' and peers')
#     NAME-b 10.2.0.2 -- 10.2.0.1 NAME-nb 203.0.113.12 --+
set -euo pipefail
verb=$1 name=$2

down() {
    local part
    for part in a b na nb w; do ip netns del "$name-$part" 2>/dev/null || true; done
}

inside() { ip netns exec "$name-$1" "${@:2}"; }

# nat PART HOST NUMBER
nat() {
    local nat=$1 host=$2 number=$3
    ip netns add "$name-$nat"
    ip netns add "$name-$host"
    ip -n "$name-$nat" link add lan type veth peer name eth0 netns "$name-$host"
    ip -n "$name-$nat" link add wan type veth peer name "$nat" netns "$name-w"
    ip -n "$name-w" link set "$nat" master wan up
    ip -n "$name-$nat" address add "203.0.113.1$number/24" dev wan
    ip -n "$name-$nat" address add "10.$number.0.1/24" dev lan
    ip -n "$name-$nat" link set wan up
    ip -n "$name-$nat" link set lan up
    ip -n "$name-$host" link set lo up
    ip -n "$name-$host" address add "10.$number.0.2/24" dev eth0
    ip -n "$name-$host" link set eth0 up
    ip -n "$name-$host" route add default via "10.$number.0.1"
    inside "$nat" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    inside "$nat" nft -f - <<RULES
table ip nat {
    chain inward { type nat hook prerouting priority dstnat; ip daddr 203.0.113.1$number dnat to 10.$number.0.2; }
    chain outward { type nat hook postrouting priority srcnat; ip saddr 10.$number.0.2 snat to 203.0.113.1$number; }
}
RULES
}

case "$verb" in
up)
    trap 'status=$?; [ $status -eq 0 ] || down; exit $status' EXIT
    ip netns add "$name-w"
    ip -n "$name-w" link set lo up
    ip -n "$name-w" link add wan type bridge
    ip -n "$name-w" address add 203.0.113.1/24 dev wan
    ip -n "$name-w" link set wan up
    nat na a 1
    nat nb b 2
    ;;
down) down ;;
*) echo "usage: external.sh up NAME | down NAME" >&2; exit 64 ;;
esac
