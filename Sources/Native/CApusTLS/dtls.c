#include "CApusTLS.h"

#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    SECRET_BYTES = 32,
    COOKIE_BYTES = 20,
    /// Handshake datagrams fit every common path (RFC 8085 section 3.2), including tunnels.
    HANDSHAKE_MTU = 1200,
};

struct apus_dtls_context {
    /// One reference of the owner, and one of each session. Sessions call the methods until they are freed.
    atomic_uint references;
    SSL_CTX *settings;
    BIO_METHOD *method;
    unsigned char secret[SECRET_BYTES];
};

struct apus_dtls {
    SSL *ssl;
    apus_dtls_context *context;
    int socket;
    int was_refused;
    struct sockaddr_in6 client;
    socklen_t client_length;
    uint64_t minute;
    const uint8_t *input;
    size_t input_count;
};

// MARK: Between libssl and the socket

/// One call is one datagram.
static int datagram_write(BIO *bio, const char *bytes, int count) {
    apus_dtls *dtls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t sent = sendto(
        dtls->socket, bytes, (size_t)count, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&dtls->client,
        dtls->client_length);
    // A datagram that the kernel does not accept is lost, as on the network.
    dtls->was_refused = sent < 0;
    return count;
}

/// Returns each datagram once and as a whole. A datagram that does not fit is truncated, as the kernel does.
static int datagram_read(BIO *bio, char *bytes, int capacity) {
    apus_dtls *dtls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (dtls->input_count == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t count = dtls->input_count < (size_t)capacity ? dtls->input_count : (size_t)capacity;
    memcpy(bytes, dtls->input, count);
    dtls->input_count = 0;
    return (int)count;
}

static long datagram_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    switch (command) {
    case BIO_CTRL_FLUSH: return 1;
    case BIO_CTRL_DGRAM_QUERY_MTU:
    case BIO_CTRL_DGRAM_GET_FALLBACK_MTU: return HANDSHAKE_MTU;
    case BIO_CTRL_DGRAM_GET_MTU_OVERHEAD: return 48;
    default: return 0;
    }
}

// MARK: Cookies

/// A MAC over the client's address and the minute.
static int make_cookie(const apus_dtls *dtls, uint64_t minute, unsigned char cookie[EVP_MAX_MD_SIZE]) {
    unsigned char facts[8 + 2 + 2 + 16] = {0};
    size_t count = 0;
    const struct sockaddr *client = (const struct sockaddr *)&dtls->client;
    memcpy(facts, &minute, 8);
    memcpy(facts + 8, &client->sa_family, 2);
    if (client->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)client;
        memcpy(facts + 10, &v4->sin_port, 2);
        memcpy(facts + 12, &v4->sin_addr, 4);
        count = 16;
    } else {
        memcpy(facts + 10, &dtls->client.sin6_port, 2);
        memcpy(facts + 12, &dtls->client.sin6_addr, 16);
        count = 28;
    }
    unsigned length = 0;
    return HMAC(EVP_sha256(), dtls->context->secret, SECRET_BYTES, facts, count, cookie, &length) != NULL;
}

static int give_cookie(SSL *ssl, unsigned char *cookie, unsigned *count) {
    unsigned char code[EVP_MAX_MD_SIZE];
    const apus_dtls *dtls = SSL_get_app_data(ssl);
    if (!make_cookie(dtls, dtls->minute, code)) return 0;
    memcpy(cookie, code, COOKIE_BYTES);
    *count = COOKIE_BYTES;
    return 1;
}

static int check_cookie(SSL *ssl, const unsigned char *cookie, unsigned count) {
    unsigned char code[EVP_MAX_MD_SIZE];
    const apus_dtls *dtls = SSL_get_app_data(ssl);
    if (count != COOKIE_BYTES) return 0;
    for (uint64_t age = 0; age < 2; age++) {
        if (make_cookie(dtls, dtls->minute - age, code) && CRYPTO_memcmp(code, cookie, COOKIE_BYTES) == 0) return 1;
    }
    return 0;
}

// MARK: Contexts

apus_dtls_context *apus_dtls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size) {
    apus_dtls_context *context = calloc(1, sizeof *context);
    if (!context) {
        snprintf(reason, reason_size, "out of memory");
        return NULL;
    }
    ERR_clear_error();
    context->references = 1;
    context->settings = SSL_CTX_new(DTLS_server_method());
    context->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "apus datagrams");
    SSL_CTX *settings = context->settings;
    if (!settings || !context->method
        || RAND_bytes(context->secret, SECRET_BYTES) != 1
        || !BIO_meth_set_write(context->method, datagram_write)
        || !BIO_meth_set_read(context->method, datagram_read)
        || !BIO_meth_set_ctrl(context->method, datagram_control)
        || !SSL_CTX_set_min_proto_version(settings, DTLS1_2_VERSION)
        || !SSL_CTX_set_cipher_list(settings, "ECDHE+AESGCM:ECDHE+CHACHA20")
        || SSL_CTX_use_certificate_chain_file(settings, certificate_file) != 1
        || SSL_CTX_use_PrivateKey_file(settings, key_file, SSL_FILETYPE_PEM) != 1
        || SSL_CTX_check_private_key(settings) != 1) {
        apus_tls_reason(reason, reason_size);
        apus_dtls_context_free(context);
        return NULL;
    }
    SSL_CTX_set_options(
        settings, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA | SSL_OP_NO_RENEGOTIATION
            | SSL_OP_NO_TICKET | SSL_OP_NO_QUERY_MTU);
    SSL_CTX_set_session_cache_mode(settings, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_cookie_generate_cb(settings, give_cookie);
    SSL_CTX_set_cookie_verify_cb(settings, check_cookie);
    return context;
}

void apus_dtls_context_free(apus_dtls_context *context) {
    if (!context || atomic_fetch_sub(&context->references, 1) > 1) return;
    SSL_CTX_free(context->settings);
    BIO_meth_free(context->method);
    OPENSSL_cleanse(context->secret, SECRET_BYTES);
    free(context);
}

// MARK: Sessions

apus_dtls *apus_dtls_new(apus_dtls_context *context, int socket) {
    apus_dtls *dtls = calloc(1, sizeof *dtls);
    if (!dtls) return NULL;
    atomic_fetch_add(&context->references, 1);
    dtls->context = context;
    dtls->socket = socket;
    dtls->ssl = SSL_new(context->settings);
    BIO *bio = dtls->ssl ? BIO_new(context->method) : NULL;
    if (!bio) {
        apus_dtls_free(dtls);
        return NULL;
    }
    BIO_set_data(bio, dtls);
    BIO_set_init(bio, 1);
    SSL_set_bio(dtls->ssl, bio, bio);
    SSL_set_app_data(dtls->ssl, dtls);
    SSL_set_mtu(dtls->ssl, HANDSHAKE_MTU);
    SSL_set_accept_state(dtls->ssl);
    return dtls;
}

void apus_dtls_free(apus_dtls *dtls) {
    if (!dtls) return;
    SSL_free(dtls->ssl);
    apus_dtls_context_free(dtls->context);
    free(dtls);
}

int apus_dtls_listen(
    apus_dtls *dtls, const void *datagram, size_t count, const struct sockaddr *client, socklen_t client_length,
    uint64_t minute) {
    if (client_length > sizeof dtls->client) return 0;
    memset(&dtls->client, 0, sizeof dtls->client);
    memcpy(&dtls->client, client, client_length);
    dtls->client_length = client_length;
    dtls->minute = minute;
    BIO_ADDR *unused = BIO_ADDR_new();
    if (!unused) return 0;
    apus_dtls_feed(dtls, datagram, count);
    ERR_clear_error();
    int result = DTLSv1_listen(dtls->ssl, unused);
    BIO_ADDR_free(unused);
    ERR_clear_error();
    return result == 1;
}

/// The part of a datagram that libssl may see. A protected record (epoch above 0) that is too short for its explicit
/// nonce and tag must be ignored (RFC 6347 section 4.1.2.7), but ends the session in libssl 3.0. It is cut off, with
/// what follows.
static size_t sound_count(const apus_dtls *dtls, const uint8_t *datagram, size_t count) {
    enum { HEADER_BYTES = 13, NONCE_BYTES = 8, TAG_BYTES = 16 };
    const SSL_CIPHER *cipher = SSL_get_current_cipher(dtls->ssl);
    int has_nonce = !cipher || SSL_CIPHER_get_cipher_nid(cipher) != NID_chacha20_poly1305;
    size_t length_min = (has_nonce ? NONCE_BYTES : 0) + TAG_BYTES;
    size_t start = 0;
    while (count - start >= HEADER_BYTES) {
        const uint8_t *header = datagram + start;
        size_t length = (size_t)header[11] << 8 | header[12];
        if ((header[3] || header[4]) && length < length_min) return start;
        if (length > count - start - HEADER_BYTES) break;
        start += HEADER_BYTES + length;
    }
    return count;
}

void apus_dtls_feed(apus_dtls *dtls, const void *datagram, size_t count) {
    dtls->input = datagram;
    dtls->input_count = sound_count(dtls, datagram, count);
}

int apus_dtls_handshake(apus_dtls *dtls) {
    ERR_clear_error();
    int result = SSL_do_handshake(dtls->ssl);
    if (result == 1) return 1;
    return SSL_get_error(dtls->ssl, result) == SSL_ERROR_WANT_READ ? 0 : -1;
}

int apus_dtls_tick(apus_dtls *dtls) {
    ERR_clear_error();
    dtls->input_count = 0;
    return DTLSv1_handle_timeout(dtls->ssl) < 0 ? -1 : 0;
}

ssize_t apus_dtls_read(apus_dtls *dtls, void *bytes, size_t capacity) {
    ERR_clear_error();
    size_t count = 0;
    int result = SSL_read_ex(dtls->ssl, bytes, capacity, &count);
    if (result == 1) return (ssize_t)count;
    switch (SSL_get_error(dtls->ssl, result)) {
    case SSL_ERROR_WANT_READ: return 0;
    case SSL_ERROR_ZERO_RETURN: return -1;
    default: return -2;
    }
}

int apus_dtls_write(apus_dtls *dtls, const void *bytes, size_t count) {
    size_t written = 0;
    ERR_clear_error();
    dtls->was_refused = 0;
    if (SSL_write_ex(dtls->ssl, bytes, count, &written) != 1) return -1;
    return dtls->was_refused ? 0 : 1;
}

void apus_dtls_close(apus_dtls *dtls) {
    ERR_clear_error();
    SSL_shutdown(dtls->ssl);
    ERR_clear_error();
}
