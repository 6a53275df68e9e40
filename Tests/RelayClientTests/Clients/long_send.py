"""Sends what is longer than the way to a peer that echoes, by Send indications with and without DONT-FRAGMENT.

    long_send.py RELAY_HOST RELAY_PORT USER PASSWORD PEER_HOST PEER_PORT BYTES

Prints a line for each of: two with DONT-FRAGMENT, the first of which goes until a router has no room for it, then one
without. A line is "icmp TYPE CODE DATA", "echo BYTES" or "nothing".
"""

import hashlib
import hmac
import os
import socket
import struct
import sys

ALLOCATE, SEND, CREATE_PERMISSION, DATA_INDICATION = 0x0003, 0x0016, 0x0008, 0x0017
USERNAME, INTEGRITY, ERROR_CODE, PEER, DATA, REALM, NONCE = 0x0006, 0x0008, 0x0009, 0x0012, 0x0013, 0x0014, 0x0015
REQUESTED_TRANSPORT, DONT_FRAGMENT, ICMP = 0x0019, 0x001A, 0x8004
COOKIE = 0x2112A442


def attribute(kind, value=b""):
    return struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)


def message(kind, attributes):
    return struct.pack("!HHI", kind, len(attributes), COOKIE) + os.urandom(12) + attributes


def peer_address(host, port):
    packed = struct.unpack("!I", socket.inet_aton(host))[0] ^ COOKIE
    return attribute(PEER, struct.pack("!BBHI", 0, 1, port ^ COOKIE >> 16, packed))


def attributes_of(data):
    found, offset = {}, 20
    while offset + 4 <= len(data):
        kind, size = struct.unpack_from("!HH", data, offset)
        found.setdefault(kind, data[offset + 4 : offset + 4 + size])
        offset += 4 + size + -size % 4
    return found


class Client:
    def __init__(self, endpoint, user, password):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(2)
        self.socket.connect(endpoint)
        self.user, self.password, self.proof, self.key = user, password, b"", b""

    def ask(self, kind, attributes):
        """Asks, and again with the nonce where the relay wants it."""
        for _ in range(2):
            request = message(kind, attributes + self.proof)
            if self.proof:
                # The length counts the code that is not there yet (RFC 8489 section 14.5).
                counted = request[:2] + struct.pack("!H", len(request) - 20 + 24) + request[4:]
                request = counted + attribute(INTEGRITY, hmac.new(self.key, counted, hashlib.sha1).digest())
            self.socket.send(request)
            answer = self.socket.recv(65536)
            found = attributes_of(answer)
            if answer[0] == 1 and answer[1] & 0x10 == 0:
                return found
            realm = found[REALM].decode()
            self.proof = attribute(USERNAME, self.user.encode()) + attribute(REALM, found[REALM])
            self.proof += attribute(NONCE, found[NONCE])
            self.key = hashlib.md5(f"{self.user}:{realm}:{self.password}".encode()).digest()
        raise SystemExit(f"refused: {found.get(ERROR_CODE)}")

    def send(self, peer, payload, more=b""):
        self.socket.send(message(SEND, peer + more + attribute(DATA, payload)))
        try:
            answer = self.socket.recv(65536)
        except TimeoutError:
            return "nothing"
        found = attributes_of(answer)
        if struct.unpack_from("!H", answer)[0] != DATA_INDICATION or found[PEER] != peer[4:]:
            return "something else"
        if ICMP in found:
            told, data = struct.unpack("!xxHI", found[ICMP])
            return f"icmp {told >> 8} {told & 0xFF} {data}"
        return f"echo {len(found[DATA])}" if found[DATA] == payload else "something else"


def main():
    host, port, user, password, peer_host, peer_port, size = sys.argv[1:]
    client = Client((host, int(port)), user, password)
    peer, payload = peer_address(peer_host, int(peer_port)), bytes(range(256)) * (int(size) // 256 + 1)
    client.ask(ALLOCATE, attribute(REQUESTED_TRANSPORT, bytes([17, 0, 0, 0])))
    client.ask(CREATE_PERMISSION, peer)
    # Until the peer is there.
    for _ in range(10):
        if client.send(peer, b"here") == "echo 4":
            break
    for more in [attribute(DONT_FRAGMENT), attribute(DONT_FRAGMENT), b""]:
        print(client.send(peer, payload[: int(size)], more), flush=True)


main()
