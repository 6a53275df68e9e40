#!/usr/bin/env bash
# Two hosts behind two NATs, and between these a network with the relay: five network namespaces.
#     nat.sh up NAME KIND_A KIND_B ENDPOINT     KIND: preserving or random; ENDPOINT: any, udp, tcp or tls
#     nat.sh down NAME
#
#     NAME-a 10.1.0.2 -- 10.1.0.1 NAME-na 203.0.113.11 --+-- 203.0.113.1 NAME-w (the relay's)
#     NAME-b 10.2.0.2 -- 10.2.0.1 NAME-nb 203.0.113.12 --+
#
# A preserving NAT keeps the port where it is free, so that all peers see the same one; a random NAT takes
# another port for each peer (symmetric). Both let in only what answers. With an endpoint only that endpoint of the
# relay can be reached from behind the NATs.
set -euo pipefail
verb=$1 name=$2

. "$(dirname "$0")/two_nats.sh"

# nat PART HOST NUMBER KIND ENDPOINT
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
    *) echo "unknown endpoint: $5" >&2; exit 64 ;;
    esac
    host "$nat" "$host" "$number"
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
    world
    nat na a 1 "$3" "$5"
    nat nb b 2 "$4" "$5"
    ;;
down) down ;;
*) echo "usage: nat.sh up NAME KIND_A KIND_B ENDPOINT | down NAME" >&2; exit 64 ;;
esac
