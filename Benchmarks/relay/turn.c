// The client's side of TURN as far as the load needs it (RFC 8489, RFC 8656): Allocate, ChannelBind.
#include "generator.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COOKIE 0x2112A442u

static const char *user = "", *password = "";
static struct {
    unsigned char realm[256], nonce[512], key[16];
    int realm_length, nonce_length;
} credentials;

void turn_begin(struct message *message, int method) {
    static uint64_t number = 0;
    memset(message, 0, sizeof *message);
    put16(message->bytes, method);
    uint32_t cookie = htonl(COOKIE);
    memcpy(message->bytes + 4, &cookie, 4);
    number++;
    uint64_t mixed = number * 0x9E3779B97F4A7C15u ^ now_ns();
    memcpy(message->bytes + 8, &mixed, 8);
    memcpy(message->bytes + 16, &number, 4);
    message->length = 20;
}

void turn_attribute(struct message *message, int type, const void *value, int count) {
    unsigned char *end = message->bytes + message->length;
    put16(end, type);
    put16(end + 2, count);
    memcpy(end + 4, value, count);
    message->length += 4 + ((count + 3) & ~3);
    put16(message->bytes + 2, message->length - 20);
}

void turn_sign(struct message *message, const unsigned char key[16]) {
    // The length covers the integrity attribute itself (RFC 8489 §14.5).
    put16(message->bytes + 2, message->length - 20 + 24);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned count = 0;
    HMAC(EVP_sha1(), key, 16, message->bytes, message->length, digest, &count);
    turn_attribute(message, INTEGRITY, digest, 20);
}

static void protect(struct message *message) {
    if (credentials.nonce_length == 0) return;
    turn_attribute(message, USERNAME, user, strlen(user));
    turn_attribute(message, REALM, credentials.realm, credentials.realm_length);
    turn_attribute(message, NONCE, credentials.nonce, credentials.nonce_length);
    turn_sign(message, credentials.key);
}

const unsigned char *turn_find(const struct message *message, int type, int *count) {
    for (int offset = 20; offset + 4 <= message->length;) {
        int length = get16(message->bytes + offset + 2);
        if (offset + 4 + length > message->length) return NULL;
        if ((int)get16(message->bytes + offset) == type) {
            *count = length;
            return message->bytes + offset + 4;
        }
        offset += 4 + ((length + 3) & ~3);
    }
    return NULL;
}

// Sends a request until its answer comes, five times at most.
static int ask(int client, int is_stream, const struct message *request, struct message *answer) {
    for (int tries = 0; tries < 5; tries++) {
        if (send(client, request->bytes, request->length, MSG_NOSIGNAL) < 0) fail("send a request");
        struct pollfd ready = {client, POLLIN, 0};
        while (poll(&ready, 1, 500) > 0) {
            if (is_stream) {
                if (recv(client, answer->bytes, 20, MSG_WAITALL) != 20) fail("receive an answer");
                int rest = get16(answer->bytes + 2);
                if (rest > (int)sizeof answer->bytes - 20) fail("a long answer");
                if (rest > 0 && recv(client, answer->bytes + 20, rest, MSG_WAITALL) != rest) fail("an answer");
                answer->length = 20 + rest;
            } else {
                answer->length = recv(client, answer->bytes, sizeof answer->bytes, 0);
                if (answer->length < 20) continue;
            }
            if (memcmp(answer->bytes + 8, request->bytes + 8, 12) == 0) return get16(answer->bytes);
        }
    }
    errno = ETIMEDOUT;
    fail("no answer");
    return 0;
}

int turn_error(const struct message *answer) {
    int count = 0;
    const unsigned char *value = turn_find(answer, ERROR_CODE, &count);
    return value != NULL && count >= 4 ? value[2] * 100 + value[3] : 0;
}

// Takes realm and nonce of a 401 or 438 and makes the key (RFC 8489 §9.2.2).
static void learn(const struct message *answer) {
    int count = 0;
    const unsigned char *value = turn_find(answer, REALM, &count);
    if (value != NULL && count < 256) memcpy(credentials.realm, value, credentials.realm_length = count);
    value = turn_find(answer, NONCE, &count);
    if (value != NULL && count < 512) memcpy(credentials.nonce, value, credentials.nonce_length = count);
    unsigned char text[512];
    int length = strlen(user);
    if (length > 128 || strlen(password) > 64) fail("long credentials");
    memcpy(text, user, length);
    text[length++] = ':';
    memcpy(text + length, credentials.realm, credentials.realm_length);
    length += credentials.realm_length;
    text[length++] = ':';
    memcpy(text + length, password, strlen(password));
    length += strlen(password);
    EVP_Digest(text, length, credentials.key, NULL, EVP_md5(), NULL);
}

static struct message answer;

static void request(int client, int is_stream, int method, void (*fill)(struct message *, const void *), const void *with) {
    struct message question;
    int error = 0;
    for (int tries = 0; tries < 3; tries++) {
        turn_begin(&question, method);
        fill(&question, with);
        protect(&question);
        if (ask(client, is_stream, &question, &answer) == (method | 0x0100)) return;
        error = turn_error(&answer);
        if (error != 401 && error != 438) break;
        learn(&answer);
    }
    fprintf(stderr, "generator: the server answers method %d with error %d\n", method, error);
    exit(1);
}

static void fill_allocate(struct message *message, const void *with) {
    (void)with;
    turn_attribute(message, TRANSPORT, "\x11\0\0\0", 4);
}

struct binding {
    int number;
    const struct sockaddr_in *peer;
};

static void fill_bind(struct message *message, const void *with) {
    const struct binding *binding = with;
    unsigned char number[4] = {0}, value[8] = {0, 1};
    put16(number, binding->number);
    turn_attribute(message, CHANNEL_NUMBER, number, 4);
    put16(value + 2, ntohs(binding->peer->sin_port) ^ COOKIE >> 16);
    uint32_t address = htonl(ntohl(binding->peer->sin_addr.s_addr) ^ COOKIE);
    memcpy(value + 4, &address, 4);
    turn_attribute(message, PEER, value, 8);
}

void turn_credentials(const char *name, const char *secret) {
    if (name != NULL) user = name;
    if (secret != NULL) password = secret;
}

struct sockaddr_in turn_allocate(int client, int is_stream) {
    // A nonce may be bound to the client's address: each client begins anew.
    credentials.nonce_length = 0;
    request(client, is_stream, ALLOCATE, fill_allocate, NULL);
    int count = 0;
    const unsigned char *value = turn_find(&answer, RELAYED, &count);
    if (value == NULL || count != 8) fail("no relayed address");
    uint32_t address;
    memcpy(&address, value + 4, 4);
    struct sockaddr_in relayed = {.sin_family = AF_INET, .sin_port = htons(get16(value + 2) ^ COOKIE >> 16)};
    relayed.sin_addr.s_addr = address ^ htonl(COOKIE);
    return relayed;
}

void turn_bind(int client, int is_stream, int number, const struct sockaddr_in *peer) {
    request(client, is_stream, CHANNEL_BIND, fill_bind, &(struct binding){number, peer});
}
