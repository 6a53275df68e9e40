// RTMP as far as a publisher and a viewer need it: the plain handshake, chunks, and four commands
// (Adobe's Real Time Messaging Protocol 1.0, §5.2 to §5.4 and §7.2).
#include "load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { SET_CHUNK_SIZE = 1, USER_CONTROL = 4, AUDIO_MESSAGE = 8, VIDEO_MESSAGE = 9, COMMAND = 20 };
enum { HANDSHAKE = 1536, CHUNK_STREAMS = 64, MESSAGE_MAX = 1 << 20 };

static void send_message(struct connection *c, int chunk_stream, int type, uint32_t stream, uint32_t timestamp, const uint8_t *body, size_t count) {
    uint8_t message[12 + 65536];
    if (count > 65536) fail("a message is too large");
    message[0] = (uint8_t)chunk_stream;
    put(message + 1, timestamp & 0xffffff, 3);
    put(message + 4, count, 3);
    message[7] = (uint8_t)type;
    for (int i = 0; i < 4; i++) message[8 + i] = (uint8_t)(stream >> (8 * i));
    memcpy(message + 12, body, count);
    send_all(c, message, 12 + count);
}

// AMF0 (§7.1.1): 0 number, 2 string, 3 object, 5 null.
static size_t text(uint8_t *to, const char *value, bool is_typed) {
    size_t n = 0, count = strlen(value);
    if (is_typed) to[n++] = 2;
    put(to + n, count, 2);
    memcpy(to + n + 2, value, count);
    return n + 2 + count;
}

static size_t number(uint8_t *to, double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    to[0] = 0;
    put(to + 1, bits, 8);
    return 9;
}

static void command(struct connection *c, uint32_t stream, const char *name, double call, const char *first, const char *second) {
    uint8_t body[256];
    size_t n = text(body, name, true);
    n += number(body + n, call);
    body[n++] = 5;
    if (first) n += text(body + n, first, true);
    if (second) n += text(body + n, second, true);
    send_message(c, 3, COMMAND, stream, 0, body, n);
}

static void receive_exactly(struct connection *c, uint8_t *to, size_t count) {
    for (size_t n = 0; n < count;) {
        ssize_t got = recv(c->fd, to + n, count - n, 0);
        if (got <= 0) fail("the RTMP handshake was cut off");
        n += (size_t)got;
    }
}

static void open_rtmp(struct connection *c, const char *token) {
    (void)token;
    static uint8_t hello[1 + HANDSHAKE], answer[1 + 2 * HANDSHAKE];
    hello[0] = 3;
    send_all(c, hello, sizeof hello);
    receive_exactly(c, answer, sizeof answer);
    send_all(c, answer + 1, HANDSHAKE);
    c->chunk_size = 128;
    c->chunks = calloc(CHUNK_STREAMS, sizeof *c->chunks);
    uint8_t body[256];
    put(body, 65536, 4);
    send_message(c, 2, SET_CHUNK_SIZE, 0, 0, body, 4);
    size_t n = text(body, "connect", true);
    n += number(body + n, 1);
    body[n++] = 3;
    n += text(body + n, "app", false);
    n += text(body + n, "live", true);
    n += text(body + n, "tcUrl", false);
    n += text(body + n, "rtmp://127.0.0.1/live", true);
    put(body + n, 9, 3);
    send_message(c, 3, COMMAND, 0, 0, body, n + 3);
    command(c, 0, "createStream", 2, NULL, NULL);
    await_ready(c);
    c->stream = 1;
    if (c->role == VIEWER) return;
    c->is_ready = false;
    command(c, 1, "publish", 3, device, "live");
    await_ready(c);
    uint8_t video[64] = {0x17, 0}, audio[] = {0xaf, 0, 0x11, 0x90};
    memcpy(video + 5, avc_record, avc_record_count);
    send_message(c, 6, VIDEO_MESSAGE, 1, 0, video, 5 + avc_record_count);
    send_message(c, 4, AUDIO_MESSAGE, 1, 0, audio, sizeof audio);
}

static void play_rtmp(struct connection *c) { command(c, 1, "play", 3, device, NULL); }

static void send_rtmp(struct connection *c, enum kind kind, uint64_t number, const uint8_t *payload, size_t count) {
    uint8_t body[65536];
    if (kind == AUDIO) {
        body[0] = 0xaf;
        body[1] = 1;
        memcpy(body + 2, payload, count);
        send_message(c, 4, AUDIO_MESSAGE, 1, (uint32_t)(number * 64 / 3), body, 2 + count);
    } else {
        memset(body, 0, 5);
        body[0] = kind == KEY_FRAME ? 0x17 : 0x27;
        body[1] = 1;
        memcpy(body + 5, payload, count);
        send_message(c, 6, VIDEO_MESSAGE, 1, (uint32_t)(number * 40), body, 5 + count);
    }
}

static void message(struct connection *c, const struct chunk *m) {
    const uint8_t *body = m->body;
    switch (m->type) {
    case SET_CHUNK_SIZE: c->chunk_size = (uint32_t)get(body, 4); break;
    case USER_CONTROL:
        if (m->length >= 6 && get(body, 2) == 6) {
            uint8_t pong[6] = {0, 7};
            memcpy(pong + 2, body + 2, 4);
            send_message(c, 2, USER_CONTROL, 0, 0, pong, 6);
        }
        break;
    case COMMAND:
        // "_result" of createStream is the second; "onStatus" answers publish and play.
        if (m->length > 10 && memcmp(body + 3, "_error", 6) == 0) fail("nginx refused a command");
        if (m->length > 18 && memcmp(body + 3, "_result", 7) == 0 && body[11] == 0x40) c->is_ready = true;
        if (m->length > 11 && memcmp(body + 3, "onStatus", 8) == 0) c->is_ready = true;
        break;
    case AUDIO_MESSAGE:
        if (m->length > 2 && body[1] == 1) received(c, AUDIO, body + 2, m->length - 2);
        break;
    case VIDEO_MESSAGE:
        if (m->length > 5 && body[1] == 1)
            received(c, body[0] == 0x17 ? KEY_FRAME : VIDEO, body + 5, m->length - 5);
        break;
    default: break;
    }
}

// One chunk (§5.3.1); a message is whole with its last one.
static size_t take_rtmp(struct connection *c, uint8_t *bytes, size_t count) {
    static const size_t sizes[] = {11, 7, 3, 0};
    if (count < 1) return 0;
    int format = bytes[0] >> 6, id = bytes[0] & 63;
    if (id < 2) fail("an RTMP chunk stream over 63 is not expected");
    struct chunk *m = &c->chunks[id];
    size_t n = 1 + sizes[format];
    if (count < n) return 0;
    bool extended = format < 3 ? get(bytes + 1, 3) == 0xffffff : m->extended;
    if (extended) n += 4;
    uint32_t length = format < 2 ? (uint32_t)get(bytes + 4, 3) : m->length;
    if (length > MESSAGE_MAX) fail("an RTMP message is too large");
    uint32_t rest = length - m->filled, piece = rest < c->chunk_size ? rest : c->chunk_size;
    if (count < n + piece) return 0;
    if (format < 2) {
        m->type = bytes[7];
        if (length > m->length || !m->body) m->body = realloc(m->body, length + 1);
        m->length = length;
    }
    m->extended = extended;
    memcpy(m->body + m->filled, bytes + n, piece);
    m->filled += piece;
    if (m->filled == m->length) {
        m->filled = 0;
        message(c, m);
    }
    return n + piece;
}

const struct protocol rtmp_protocol = {"nginx_rtmp", false, 0, open_rtmp, play_rtmp, send_rtmp, take_rtmp, NULL};
