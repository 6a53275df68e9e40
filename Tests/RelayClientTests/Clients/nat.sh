#!/usr/bin/env bash
# Two hosts behind two NATs, and between these a network with the relay: five network namespaces.
#     nat.sh up NAME KIND_A KIND_B DOOR     KIND: preserving or random; DOOR: any, udp, tcp or tls
#     nat.sh down NAME
#
#     NAME-a 10.1.0.2 -- 10.1.0.1 NAME-na 203.0.113.11 --+-- 203.0.113.1 NAME-w (the relay's)
#     NAME-b 10.2.0.2 -- 10.2.0.1 NAME-nb 203.0.113.12 --+
#
# A preserving NAT keeps the port where it is free, so that all peers see the same one; a random NAT takes
# another port for each peer (symmetric). Both let in only what answers. With a door only that door of the
# relay can be reached from behind the NATs.
set -euo pipefail
verb=$1 name=$2

down() {
    local part
    for part in a b na nb w; do ip netns del "$name-$part" 2>/dev/null || true; done
}

inside() { ip netns exec "$name-$1" "${@:2}"; }

# nat PART HOST NUMBER KIND DOOR
nat() {
    local nat=$1 host=$2 number=$3 masquerade allowed
    case "$4" in
    preserving) masquerade=masquerade ;;
    random) masquerade="masquerade fully-random" ;;
    *) echo "unknown kind of NAT: $4" >&2; exit 64 ;;
    esac
    case "$5" in
    any) allowed="accept" ;;
    udp) allowed="ip daddr 203.0.113.1 udp dport 3478 accept" ;;
    tcp) allowed="ip daddr 203.0.113.1 tcp dport 3478 accept" ;;
    tls) allowed="ip daddr 203.0.113.1 tcp dport 5349 accept" ;;
    *) echo "unknown door: $5" >&2; exit 64 ;;
    esac
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
    # What nobody behind the NAT asked for is dropped before it makes an entry that would take a port.
    inside "$nat" nft -f - <<RULES
table ip nat {
    chain outward { type nat hook postrouting priority srcnat; oifname "wan" $masquerade; }
}
table ip filter {
    chain through {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname "lan" $allowed
    }
    chain inward { type filter hook input priority filter; policy drop; iifname "lan" accept; }
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
    nat na a 1 "$3" "$5"
    nat nb b 2 "$4" "$5"
    ;;
down) down ;;
*) echo "usage: nat.sh up NAME KIND_A KIND_B DOOR | down NAME" >&2; exit 64 ;;
esac
