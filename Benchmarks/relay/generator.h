// Shared by the parts of the relay's load generator.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <sys/socket.h>

enum { ALLOCATE = 0x003, REFRESH = 0x004, CHANNEL_BIND = 0x009 };
enum {
    USERNAME = 0x0006,
    INTEGRITY = 0x0008,
    ERROR_CODE = 0x0009,
    CHANNEL_NUMBER = 0x000C,
    LIFETIME = 0x000D,
    PEER = 0x0012,
    REALM = 0x0014,
    NONCE = 0x0015,
    RELAYED = 0x0016,
    TRANSPORT = 0x0019
};

// A STUN message under way.
struct message {
    unsigned char bytes[2048];
    int length;
};

static inline void put16(unsigned char *bytes, unsigned value) { bytes[0] = value >> 8, bytes[1] = value; }
static inline unsigned get16(const unsigned char *bytes) { return bytes[0] << 8 | bytes[1]; }

void turn_begin(struct message *message, int method);
void turn_attribute(struct message *message, int type, const void *value, int count);
// MESSAGE-INTEGRITY under a long-term key; it is the last attribute.
void turn_sign(struct message *message, const unsigned char key[16]);
const unsigned char *turn_find(const struct message *message, int type, int *count);
// The number of an error answer, or 0.
int turn_error(const struct message *answer);

void fail(const char *what);
uint64_t now_ns(void);

// Who the client is, where a server asks; pointers stay valid.
void turn_credentials(const char *name, const char *secret);

// Allocates a UDP relay over a connected socket: its address. Ends the process where the server refuses.
struct sockaddr_in turn_allocate(int client, int is_stream);
// Binds a channel to a peer. Ends the process where the server refuses.
void turn_bind(int client, int is_stream, int number, const struct sockaddr_in *peer);
