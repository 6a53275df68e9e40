// What the load generator's files share: connections, protocols, and what they report.
#ifndef FANOUT_LOAD_H
#define FANOUT_LOAD_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kind { VIDEO, KEY_FRAME, AUDIO };
enum role { PUBLISHER, VIEWER };

// A message that arrives in pieces on one RTMP chunk stream.
struct chunk {
    uint8_t *body;
    uint32_t length, filled, timestamp;
    uint8_t type;
    bool extended;
};

struct connection {
    int fd;
    SSL *ssl;            // NULL where the protocol is not encrypted
    enum role role;
    bool is_counted;     // one of the viewers that are measured, not a later join
    bool is_ready;       // the protocol's set-up is done
    double played_at;    // when play was asked for; 0 before, and again once the first key frame is here
    bool is_upgraded;    // the HTTP request has become a WebSocket
    uint32_t stream;     // what the server calls the publisher's stream
    uint8_t *in;         // bytes that no message was made of yet
    size_t in_count, in_capacity;
    uint32_t chunk_size;
    struct chunk *chunks;
};

// How one server is spoken to.
struct protocol {
    const char *name;
    bool is_encrypted;       // the viewers' connections; those of publishers to Apus always are
    int viewers_port;        // of the viewers, beyond the publisher's
    // Says hello and waits until the server took it.
    void (*open)(struct connection *, const char *token);
    // Asks for the stream; the frames follow.
    void (*play)(struct connection *);
    // Sends one frame of the publisher.
    void (*send)(struct connection *, enum kind, uint64_t number, const uint8_t *payload, size_t count);
    // Takes one message off the front of the bytes; returns its size, or 0 where it is not whole.
    size_t (*take)(struct connection *, uint8_t *bytes, size_t count);
    // A sign of life; NULL where the server wants none.
    void (*ping)(struct connection *);
};

extern const struct protocol apus_protocol, wss_protocol, ws_protocol, rtmp_protocol, twin_protocol;
extern const char *device;

// The decoder's record of the stream: what comes before the first frame.
extern const uint8_t avc_record[];
extern const size_t avc_record_count;

void fail(const char *what) __attribute__((noreturn));
void send_all(struct connection *, const void *bytes, size_t count);
// Reads, and takes messages, until the connection is ready.
void await_ready(struct connection *);
// A media frame's payload arrived whole.
void received(struct connection *, enum kind, const uint8_t *payload, size_t count);

static inline void put(uint8_t *to, uint64_t value, int count) {
    for (int i = 0; i < count; i++) to[i] = (uint8_t)(value >> (8 * (count - 1 - i)));
}

static inline uint64_t get(const uint8_t *from, int count) {
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value = value << 8 | from[i];
    return value;
}

#endif
