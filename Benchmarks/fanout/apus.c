// Apus's client door, as far as a publisher and a viewer need it: proto/apus/client.proto in link frames
// (u32 length, u8 kind, u8 flags, u16 method, u32 correlation), and the twin's plain framing.
#include "load.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { HELLO = 0x01, WELCOME = 0x02, GOODBYE = 0x03, REQUEST = 0x10, RESPONSE = 0x11, MEDIA = 0x20, PING = 0x30, PONG = 0x31 };
enum { METHOD_PUBLISH = 1, METHOD_PLAY = 3 };
enum { HEADER = 12, MEDIA_HEADER = 40, FLAG_KEY = 1, FLAG_CONFIGURATION = 2, FLAG_FAILURE = 4 };
enum { TRACK_VIDEO = 0, TRACK_AUDIO = 1 };

static uint32_t epoch;

static void send_frame(struct connection *c, int kind, int method, uint32_t correlation, const uint8_t *payload, size_t count) {
    uint8_t frame[65536];
    if (count > sizeof frame - HEADER) fail("a frame is too large");
    put(frame, count + HEADER - 4, 4);
    frame[4] = (uint8_t)kind;
    frame[5] = 0;
    put(frame + 6, (uint64_t)method, 2);
    put(frame + 8, correlation, 4);
    memcpy(frame + HEADER, payload, count);
    send_all(c, frame, HEADER + count);
}

static size_t put_varint(uint8_t *to, uint64_t value) {
    size_t n = 0;
    for (; value >= 128; value >>= 7) to[n++] = (uint8_t)(value | 128);
    to[n++] = (uint8_t)value;
    return n;
}

static size_t put_text(uint8_t *to, int field, const char *text) {
    size_t n = 0, count = strlen(text);
    to[n++] = (uint8_t)(field << 3 | 2);
    n += put_varint(to + n, count);
    memcpy(to + n, text, count);
    return n + count;
}

static void send_media(struct connection *c, uint64_t sequence, int64_t pts, int flags, int track, const uint8_t *payload, size_t count) {
    uint8_t body[MEDIA_HEADER + 32768];
    if (count > 32768) fail("a frame is too large");
    put(body, 0, 4);
    put(body + 4, epoch, 4);
    put(body + 8, sequence, 8);
    put(body + 16, (uint64_t)pts, 8);
    put(body + 24, 0, 4);
    put(body + 28, count, 4);
    put(body + 32, 0, 4);
    body[36] = (uint8_t)flags;
    body[37] = (uint8_t)track;
    body[38] = 0;
    body[39] = 1;
    memcpy(body + MEDIA_HEADER, payload, count);
    send_frame(c, MEDIA, 0, c->stream, body, MEDIA_HEADER + count);
}

static uint64_t sequence;

static void send_configuration(struct connection *c, int codec, int track, uint32_t first, uint32_t second, uint32_t third, const uint8_t *extra, size_t count) {
    uint8_t body[128] = {1, (uint8_t)codec, 2, 0};
    put(body + 4, first, 4);
    put(body + 8, second, 4);
    put(body + 12, third, 4);
    put(body + 16, count, 2);
    memcpy(body + 18, extra, count);
    send_media(c, sequence++, 0, FLAG_CONFIGURATION, track, body, 18 + count);
}

static void open_apus(struct connection *c, const char *token) {
    uint8_t body[8192];
    if (strlen(token) > 4096) fail("the token is too long");
    size_t n = 0;
    const uint8_t versions[] = {0x08, 1, 0x10, 1, 0x18, c->role == PUBLISHER ? 1 : 2};
    memcpy(body, versions, sizeof versions);
    n += sizeof versions;
    n += put_text(body + n, 4, token);
    n += put_text(body + n, 6, "fanout-bench");
    send_frame(c, HELLO, 0, 0, body, n);
    await_ready(c);
    if (c->role == VIEWER) return;
    c->is_ready = false;
    epoch = (uint32_t)time(NULL);
    n = 0;
    body[n++] = 0x10;
    n += put_varint(body + n, epoch);
    body[n++] = 0x19;
    put(body + n, 0x0102030405060708, 8);
    n += 8;
    send_frame(c, REQUEST, METHOD_PUBLISH, 1, body, n);
    await_ready(c);
    static const uint8_t aac[] = {0x11, 0x90};
    send_configuration(c, 1, TRACK_VIDEO, 1280, 720, 25000, avc_record, avc_record_count);
    send_configuration(c, 16, TRACK_AUDIO, 48000, 2, 1024, aac, sizeof aac);
}

static void play_apus(struct connection *c) {
    uint8_t body[256];
    send_frame(c, REQUEST, METHOD_PLAY, 1, body, put_text(body, 1, device));
}

static void send_apus(struct connection *c, enum kind kind, uint64_t number, const uint8_t *payload, size_t count) {
    int64_t pts = kind == AUDIO ? (int64_t)number * 64000 / 3 : (int64_t)number * 40000;
    send_media(c, sequence++, pts, kind == KEY_FRAME ? FLAG_KEY : 0, kind == AUDIO ? TRACK_AUDIO : TRACK_VIDEO, payload, count);
}

static size_t take_apus(struct connection *c, uint8_t *bytes, size_t count) {
    if (count < 4) return 0;
    size_t size = 4 + (size_t)get(bytes, 4);
    if (count < size) return 0;
    if (size < HEADER) fail("a frame is shorter than its header");
    uint8_t *payload = bytes + HEADER;
    switch (bytes[4]) {
    case WELCOME: c->is_ready = true; break;
    case GOODBYE: fail("the node said goodbye"); break;
    case RESPONSE:
        if (bytes[5] & FLAG_FAILURE) fail("the node refused the stream");
        if (c->role == PUBLISHER) {
            uint64_t value = 0;
            for (int shift = 0, i = 1; (size_t)i < size - HEADER; i++, shift += 7) {
                value |= (uint64_t)(payload[i] & 127) << shift;
                if (payload[i] < 128) break;
            }
            c->stream = (uint32_t)value;
        }
        c->is_ready = true;
        break;
    case MEDIA:
        if (size < HEADER + MEDIA_HEADER) fail("a media frame is cut off");
        if (payload[36] & FLAG_CONFIGURATION) break;
        received(c, payload[37] == TRACK_AUDIO ? AUDIO : payload[36] & FLAG_KEY ? KEY_FRAME : VIDEO,
                 payload + MEDIA_HEADER, size - HEADER - MEDIA_HEADER);
        break;
    case PING: send_frame(c, PONG, 0, (uint32_t)get(bytes + 8, 4), payload, 0); break;
    default: break;
    }
    return size;
}

static void ping_apus(struct connection *c) { send_frame(c, PING, 0, 0, (const uint8_t *)"", 0); }

const struct protocol apus_protocol = {"apus", true, 0, open_apus, play_apus, send_apus, take_apus, ping_apus};

// ---- The twin: u32 length of the payload, u8 kind, payload.

static void open_twin(struct connection *c, const char *token) {
    (void)token;
    c->is_ready = true;
}

static void play_twin(struct connection *c) { (void)c; }

static void send_twin(struct connection *c, enum kind kind, uint64_t number, const uint8_t *payload, size_t count) {
    (void)number;
    uint8_t frame[32768 + 5];
    put(frame, count, 4);
    frame[4] = (uint8_t)kind;
    memcpy(frame + 5, payload, count);
    send_all(c, frame, 5 + count);
}

static size_t take_twin(struct connection *c, uint8_t *bytes, size_t count) {
    if (count < 5) return 0;
    size_t size = 5 + (size_t)get(bytes, 4);
    if (count < size) return 0;
    received(c, (enum kind)bytes[4], bytes + 5, size - 5);
    return size;
}

const struct protocol twin_protocol = {"twin", true, 0, open_twin, play_twin, send_twin, take_twin, NULL};
