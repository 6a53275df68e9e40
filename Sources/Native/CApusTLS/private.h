// Declarations shared by the files of this target.
#ifndef CAPUS_TLS_PRIVATE_H
#define CAPUS_TLS_PRIVATE_H

#include "CApusTLS.h"

#include <openssl/ssl.h>
#include <stdatomic.h>

/// The keys with which sessions are sealed into tickets; null in a context that issues none.
typedef struct apus_tls_tickets apus_tls_tickets;

struct apus_tls_context {
    /// One reference of the owner, and one of each connection. Connections call the methods until they are freed.
    atomic_uint references;
    SSL_CTX *settings;
    BIO_METHOD *socket_method;
    apus_tls_tickets *tickets;
    /// Of a server with pre-shared keys; otherwise null.
    apus_tls_key_finder find_key;
    void *key_owner;
    /// Of a client with a pre-shared key; otherwise null.
    char *identity;
    uint8_t *key;
    size_t key_count;
};

struct apus_tls {
    /// In an unused connection: the next unused one.
    apus_tls *next_spare;
    /// Between two threads: allocated alone, not beside the others.
    int is_alone;
    SSL *ssl;
    apus_tls_context *context;
    int socket;
    int is_direct;
    const uint8_t *input;
    size_t input_count;
    uint8_t *output;
    size_t output_count, output_capacity;
    /// During apus_tls_seal: where to put the ciphertext.
    uint8_t *target;
    size_t target_count, target_capacity;
    /// In a client's connection: where to store the server's newest ticket, and, if the connection is resumed, when the
    /// server presented its certificate.
    apus_tls_resumption *resumption;
    int64_t authenticated_at;
};

/// A context with the socket's methods, for one side; null with the reason.
apus_tls_context *apus_tls_context_new(const SSL_METHOD *method, char *reason, size_t reason_size);

/// A connection of either side that has not started; null without memory.
apus_tls *apus_tls_new(apus_tls_context *context, int socket);

void apus_tls_tickets_free(apus_tls_tickets *tickets);
void apus_tls_key_free(apus_tls_context *context);

#endif
