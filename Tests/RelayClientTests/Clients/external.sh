#!/usr/bin/env bash
# Two relays, each behind a 1:1 NAT that keeps ports and leads its own packets back: five network namespaces.
#     external.sh up NAME
#     external.sh down NAME
#
#     NAME-a 10.1.0.2 -- 10.1.0.1 NAME-na 203.0.113.11 --+-- 203.0.113.1 NAME-w (clients' and peers')
#     NAME-b 10.2.0.2 -- 10.2.0.1 NAME-nb 203.0.113.12 --+
set -euo pipefail
verb=$1 name=$2

. "$(dirname "$0")/two_nats.sh"

# nat PART HOST NUMBER
nat() {
    local nat=$1 host=$2 number=$3
    host "$nat" "$host" "$number"
    inside "$nat" nft -f - <<RULES
table ip nat {
    chain inward { type nat hook prerouting priority dstnat; ip daddr 203.0.113.1$number dnat to 10.$number.0.2; }
    chain outward { type nat hook postrouting priority srcnat; ip saddr 10.$number.0.2 snat to 203.0.113.1$number; }
}
RULES
}

case "$verb" in
up)
    world
    nat na a 1
    nat nb b 2
    ;;
down) down ;;
*) echo "usage: external.sh up NAME | down NAME" >&2; exit 64 ;;
esac
