// Viewers of Apus over a WebSocket (docs/media-over-websocket.md); the publisher is a native one. With TLS or without.
#include "load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10, LAST = 0x80, MASKED = 0x80 };

static void send_message(struct connection *c, int opcode, const void *payload, size_t count) {
    static uint8_t frame[16384];
    size_t n = 0;
    if (count > sizeof frame - 16) fail("a message is too large");
    frame[n++] = (uint8_t)(LAST | opcode);
    if (count < 126) {
        frame[n++] = (uint8_t)(MASKED | count);
    } else {
        frame[n++] = MASKED | 126;
        put(frame + n, count, 2);
        n += 2;
    }
    // A mask of zeros leaves the payload as it is.
    memset(frame + n, 0, 4);
    n += 4;
    memcpy(frame + n, payload, count);
    send_all(c, frame, n + count);
}

static void send_text(struct connection *c, const char *text) { send_message(c, TEXT, text, strlen(text)); }

static void open_web_socket(struct connection *c, const char *token) {
    if (c->role == PUBLISHER) {
        apus_protocol.open(c, token);
        return;
    }
    static const char request[] =
        "GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    send_all(c, request, sizeof request - 1);
    await_ready(c);
    c->is_ready = false;
    char hello[8192];
    snprintf(hello, sizeof hello, "{\"hello\":{\"role\":\"ROLE_APP\",\"token\":\"%s\",\"instance\":\"%ld\"}}", token, lrand48() + 1);
    send_text(c, hello);
    await_ready(c);
}

static void play_web_socket(struct connection *c) {
    char request[256];
    snprintf(request, sizeof request, "{\"id\":1,\"request\":\"streams.play\",\"body\":{\"device\":\"%s\"}}", device);
    send_text(c, request);
}

static void take_text(struct connection *c, const uint8_t *bytes, size_t count) {
    static char text[16384];
    size_t kept = count < sizeof text - 1 ? count : sizeof text - 1;
    memcpy(text, bytes, kept);
    text[kept] = 0;
    if (strstr(text, "\"goodbye\"")) fail(text);
    if (strstr(text, "\"error\"")) fail(text);
    if (strstr(text, "\"welcome\"")) c->is_ready = true;
}

static size_t take_web_socket(struct connection *c, uint8_t *bytes, size_t count) {
    if (c->role == PUBLISHER) return apus_protocol.take(c, bytes, count);
    if (!c->is_upgraded) {
        uint8_t *end = memmem(bytes, count, "\r\n\r\n", 4);
        if (!end) return 0;
        if (memcmp(bytes, "HTTP/1.1 101", 12) != 0) fail("the node does not make a WebSocket");
        c->is_upgraded = c->is_ready = true;
        return (size_t)(end - bytes) + 4;
    }
    if (count < 2) return 0;
    size_t head = 2, length = bytes[1] & 127;
    if (length == 126) {
        head = 4;
        if (count < head) return 0;
        length = (size_t)get(bytes + 2, 2);
    } else if (length == 127) {
        head = 10;
        if (count < head) return 0;
        length = (size_t)get(bytes + 2, 8);
    }
    if (count - head < length) return 0;
    uint8_t *payload = bytes + head;
    switch (bytes[0] & 15) {
    case TEXT: take_text(c, payload, length); break;
    case BINARY:
        for (size_t at = 0, n; at < length; at += n)
            if ((n = apus_protocol.take(c, payload + at, length - at)) == 0) fail("a message ends within a frame");
        break;
    case PING: send_message(c, PONG, payload, length); break;
    case CLOSE: fail("the node closed a WebSocket");
    default: break;
    }
    return head + length;
}

static void ping_web_socket(struct connection *c) {
    if (c->role == PUBLISHER) apus_protocol.ping(c);
    else send_message(c, PING, "", 0);
}

static void send_web_socket(struct connection *c, enum kind kind, uint64_t number, const uint8_t *payload, size_t count) {
    apus_protocol.send(c, kind, number, payload, count);
}

const struct protocol wss_protocol = {
    "apus_wss", true, 1, open_web_socket, play_web_socket, send_web_socket, take_web_socket, ping_web_socket};
const struct protocol ws_protocol = {
    "apus_ws", false, 1, open_web_socket, play_web_socket, send_web_socket, take_web_socket, ping_web_socket};
