// What the files of this target share.
#ifndef CAPUS_TLS_PRIVATE_H
#define CAPUS_TLS_PRIVATE_H

#include "CApusTLS.h"

#include <openssl/ssl.h>
#include <stdatomic.h>

/// How sessions are sealed into tickets; null in a context that issues none.
typedef struct apus_tls_tickets apus_tls_tickets;

struct apus_tls_context {
    /// One of the owner, and one of each connection: these call the methods until they are freed.
    atomic_uint references;
    SSL_CTX *settings;
    BIO_METHOD *socket_method;
    apus_tls_tickets *tickets;
};

struct apus_tls {
    /// Of one that is not in use: the next such one.
    apus_tls *next_spare;
    SSL *ssl;
    apus_tls_context *context;
    int socket;
    int is_direct;
    const uint8_t *input;
    size_t input_count;
    uint8_t *output;
    size_t output_count, output_capacity;
    /// Of a client's connection: where the server's newest ticket goes, and when the server showed its certificate, if
    /// the connection is resumed.
    apus_tls_resumption *resumption;
    int64_t authenticated_at;
};

/// A context with the way to the socket, for one side; null with the reason.
apus_tls_context *apus_tls_context_new(const SSL_METHOD *method, char *reason, size_t reason_size);

/// A connection of either side, which is not begun yet; null without memory.
apus_tls *apus_tls_new(apus_tls_context *context, int socket);

void apus_tls_tickets_free(apus_tls_tickets *tickets);

#endif
