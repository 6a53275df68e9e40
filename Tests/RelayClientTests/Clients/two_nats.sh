# Sourced, with $name set: two hosts behind two NATs, and a network between these, in five namespaces.
#
#     NAME-a 10.1.0.2 -- 10.1.0.1 NAME-na 203.0.113.11 --+-- 203.0.113.1 NAME-w
#     NAME-b 10.2.0.2 -- 10.2.0.1 NAME-nb 203.0.113.12 --+
# shellcheck shell=bash disable=SC2154
down() {
    local part
    for part in a b na nb w; do ip netns del "$name-$part" 2>/dev/null || true; done
}

inside() { ip netns exec "$name-$1" "${@:2}"; }

# The network between the NATs; whatever fails from here on takes all down again.
world() {
    trap 'status=$?; [ $status -eq 0 ] || down; exit $status' EXIT
    ip netns add "$name-w"
    ip -n "$name-w" link set lo up
    ip -n "$name-w" link add wan type bridge
    ip -n "$name-w" address add 203.0.113.1/24 dev wan
    ip -n "$name-w" link set wan up
}

# host NAT HOST NUMBER: a host and the router before it, which translates nothing yet.
host() {
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
}
