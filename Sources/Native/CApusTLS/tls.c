#include "private.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// MARK: Between libssl and the socket

static int keep_output(apus_tls *tls, const char *bytes, size_t count) {
    if (tls->output_capacity - tls->output_count < count) {
        size_t capacity = tls->output_capacity * 2 > tls->output_count + count ? tls->output_capacity * 2 : tls->output_count + count;
        uint8_t *output = realloc(tls->output, capacity);
        if (!output) return 0;
        tls->output = output;
        tls->output_capacity = capacity;
    }
    memcpy(tls->output + tls->output_count, bytes, count);
    tls->output_count += count;
    return 1;
}

/// Accepts everything: libssl never sees a full socket.
static int socket_write(BIO *bio, const char *bytes, int count) {
    apus_tls *tls = BIO_get_data(bio);
    ssize_t sent = 0;
    // A flag left by an earlier read would make a failure here look like a need for more input.
    BIO_clear_retry_flags(bio);
    if (tls->is_direct && tls->output_count == 0) {
        sent = send(tls->socket, bytes, (size_t)count, MSG_NOSIGNAL | MSG_DONTWAIT);
        // Full, or broken: in the first case the caller waits; in the second it detects and reports the error.
        if (sent < 0) sent = 0;
    } else if (tls->target && tls->output_count == 0 && (size_t)count <= tls->target_capacity - tls->target_count) {
        memcpy(tls->target + tls->target_count, bytes, (size_t)count);
        tls->target_count += (size_t)count;
        return count;
    }
    if (sent < count && !keep_output(tls, bytes + sent, (size_t)(count - sent))) return -1;
    return count;
}

static int socket_read(BIO *bio, char *bytes, int capacity) {
    apus_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (tls->input_count == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t count = tls->input_count < (size_t)capacity ? tls->input_count : (size_t)capacity;
    memcpy(bytes, tls->input, count);
    tls->input += count;
    tls->input_count -= count;
    return (int)count;
}

static long socket_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// MARK: Contexts

void apus_tls_reason(char *reason, size_t reason_size) {
    unsigned long error = ERR_peek_last_error();
    // Its words only: the whole text has numbers of the library, which mean nothing to others.
    const char *words = error ? ERR_reason_error_string(error) : "the peer broke off";
    if (error && ERR_SYSTEM_ERROR(error)) words = strerror(ERR_GET_REASON(error));
    if (words) snprintf(reason, reason_size, "%s", words);
    else ERR_error_string_n(error, reason, reason_size);
    ERR_clear_error();
}

apus_tls_context *apus_tls_context_new(const SSL_METHOD *method, char *reason, size_t reason_size) {
    // Threads that still run when the process ends must find the library intact.
    OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL);
    apus_tls_context *context = calloc(1, sizeof *context);
    if (!context) {
        snprintf(reason, reason_size, "out of memory");
        return NULL;
    }
    ERR_clear_error();
    context->references = 1;
    context->settings = SSL_CTX_new(method);
    context->socket_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "apus socket");
    SSL_CTX *settings = context->settings;
    // AES-128-GCM first: the cheapest if the processor has AES. A client without it still gets ChaCha20.
    if (!settings || !context->socket_method
        || !BIO_meth_set_write(context->socket_method, socket_write)
        || !BIO_meth_set_read(context->socket_method, socket_read)
        || !BIO_meth_set_ctrl(context->socket_method, socket_control)
        || !SSL_CTX_set_min_proto_version(settings, TLS1_3_VERSION)
        || !SSL_CTX_set_ciphersuites(settings, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384")) {
        apus_tls_reason(reason, reason_size);
        apus_tls_context_free(context);
        return NULL;
    }
    // Renegotiation would let a peer make this side compute. It and compression exist before TLS 1.3 only.
    SSL_CTX_set_options(settings, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    // Buffers are released between writes, so an idle connection uses little memory.
    SSL_CTX_set_mode(settings, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

int apus_tls_context_allow_12(apus_tls_context *context) {
    SSL_CTX_set_options(context->settings, SSL_OP_NO_TICKET);
    return SSL_CTX_set_min_proto_version(context->settings, TLS1_2_VERSION)
        && SSL_CTX_set_cipher_list(context->settings, "ECDHE+AESGCM:ECDHE+CHACHA20");
}

void apus_tls_context_keep_buffers(apus_tls_context *context) {
    SSL_CTX_clear_mode(context->settings, SSL_MODE_RELEASE_BUFFERS);
}

void apus_tls_context_free(apus_tls_context *context) {
    if (!context || atomic_fetch_sub(&context->references, 1) > 1) return;
    SSL_CTX_free(context->settings);
    BIO_meth_free(context->socket_method);
    apus_tls_tickets_free(context->tickets);
    apus_tls_key_free(context);
    free(context);
}

// MARK: Connections

/// Connections are allocated side by side: a fan-out visits all of them for each frame, and a page look-up for each
/// would cost more than the rest of the work. Only the thread that returned a connection reuses it.
static _Thread_local apus_tls *spares;
enum { SPARES_AT_ONCE = 64 };

static apus_tls *take_spare(void) {
    if (!spares) {
        apus_tls *block = calloc(SPARES_AT_ONCE, sizeof *block);
        if (!block) return NULL;
        for (int i = SPARES_AT_ONCE - 1; i >= 0; i--) {
            block[i].next_spare = spares;
            spares = &block[i];
        }
    }
    apus_tls *tls = spares;
    spares = tls->next_spare;
    memset(tls, 0, sizeof *tls);
    return tls;
}

static void give_back(apus_tls *tls) {
    if (tls->is_alone) {
        free(tls);
        return;
    }
    tls->next_spare = spares;
    spares = tls;
}

/// Copies a connection to another place, from which its socket's methods are called from now on.
static void copy_to(apus_tls *copy, const apus_tls *tls, int is_alone) {
    *copy = *tls;
    copy->next_spare = NULL;
    copy->is_alone = is_alone;
    BIO_set_data(SSL_get_rbio(copy->ssl), copy);
}

apus_tls *apus_tls_leave(apus_tls *tls) {
    apus_tls *copy = malloc(sizeof *copy);
    if (!copy) return NULL;
    copy_to(copy, tls, 1);
    give_back(tls);
    return copy;
}

apus_tls *apus_tls_arrive(apus_tls *tls, int socket) {
    apus_tls *copy = take_spare();
    if (copy) {
        copy_to(copy, tls, 0);
        give_back(tls);
        tls = copy;
    }
    tls->socket = socket;
    return tls;
}

apus_tls *apus_tls_new(apus_tls_context *context, int socket) {
    apus_tls *tls = take_spare();
    if (!tls) return NULL;
    atomic_fetch_add(&context->references, 1);
    tls->context = context;
    tls->socket = socket;
    tls->is_direct = 1;
    tls->ssl = SSL_new(context->settings);
    BIO *bio = tls->ssl ? BIO_new(context->socket_method) : NULL;
    if (!bio) {
        apus_tls_free(tls);
        return NULL;
    }
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    return tls;
}

apus_tls *apus_tls_new_server(apus_tls_context *context, int socket) {
    apus_tls *tls = apus_tls_new(context, socket);
    if (tls) SSL_set_accept_state(tls->ssl);
    return tls;
}

void apus_tls_free(apus_tls *tls) {
    if (!tls) return;
    SSL_free(tls->ssl);
    apus_tls_context_free(tls->context);
    free(tls->output);
    give_back(tls);
}

void apus_tls_feed(apus_tls *tls, const void *bytes, size_t count) {
    tls->input = bytes;
    tls->input_count = count;
}

/// Empties libssl's list of errors, which SSL_get_error reads too. The list is nearly always empty, and to empty it costs
/// as much as a tenth of a small record.
static void forget_errors(void) {
    if (ERR_peek_error()) ERR_clear_error();
}

int apus_tls_handshake(apus_tls *tls) {
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    if (result == 1) return 1;
    return SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_READ ? 0 : -1;
}

ssize_t apus_tls_read(apus_tls *tls, void *bytes, size_t capacity) {
    forget_errors();
    size_t count = 0;
    int result = SSL_read_ex(tls->ssl, bytes, capacity, &count);
    if (result == 1) return (ssize_t)count;
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ: return 0;
    case SSL_ERROR_ZERO_RETURN: return -1;
    default: return -2;
    }
}

int apus_tls_has_more(const apus_tls *tls) { return tls->input_count > 0 || SSL_has_pending(tls->ssl); }

ssize_t apus_tls_write(apus_tls *tls, const void *bytes, size_t count) {
    size_t written = 0;
    if (SSL_write_ex(tls->ssl, bytes, count, &written) != 1) return -1;
    return (ssize_t)tls->output_count;
}

ssize_t apus_tls_seal(apus_tls *tls, const void *bytes, size_t count, void *output, size_t capacity) {
    size_t written = 0;
    tls->target = output;
    tls->target_count = 0;
    tls->target_capacity = capacity;
    forget_errors();
    int result = SSL_write_ex(tls->ssl, bytes, count, &written);
    tls->target = NULL;
    return result == 1 ? (ssize_t)tls->target_count : -1;
}

ssize_t apus_tls_flush(apus_tls *tls) {
    if (tls->output_count == 0) return 0;
    ssize_t sent = send(tls->socket, tls->output, tls->output_count, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR ? (ssize_t)tls->output_count : -1;
    if ((size_t)sent == tls->output_count) {
        apus_tls_forget_pending(tls);
        return 0;
    }
    memmove(tls->output, tls->output + sent, tls->output_count - (size_t)sent);
    tls->output_count -= (size_t)sent;
    return (ssize_t)tls->output_count;
}

void apus_tls_close(apus_tls *tls) {
    ERR_clear_error();
    SSL_shutdown(tls->ssl);
    ERR_clear_error();
}

const void *apus_tls_library_object(const apus_tls *tls) { return tls->ssl; }
size_t apus_tls_waiting(const apus_tls *tls) { return tls->output_count; }

void apus_tls_set_direct(apus_tls *tls, int is_direct) { tls->is_direct = is_direct; }

size_t apus_tls_pending(const apus_tls *tls, const void **bytes) {
    *bytes = tls->output;
    return tls->output_count;
}

void apus_tls_forget_pending(apus_tls *tls) {
    free(tls->output);
    tls->output = NULL;
    tls->output_count = 0;
    tls->output_capacity = 0;
}
