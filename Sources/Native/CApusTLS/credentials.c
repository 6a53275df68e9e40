#include "private.h"

#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/// The longest list of certificates that a peer may present, in bytes.
enum { CERTIFICATES_SIZE_MAX = 32 << 10 };

// MARK: Certificates

/// A key with a password cannot be used, and nobody is asked for the password.
static int no_password(char *password, int size, int is_writing, void *owner) {
    (void)password, (void)size, (void)is_writing, (void)owner;
    return -1;
}

static int fail(char *reason, size_t reason_size) {
    apus_tls_reason(reason, reason_size);
    return 0;
}

/// True if the text ended. Whatever is left of it is no certificate.
static int is_at_end(void) {
    unsigned long error = ERR_peek_last_error();
    return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

static BIO *text_of(const void *pem, size_t count) {
    ERR_clear_error();
    return count <= INT_MAX ? BIO_new_mem_buf(pem, (int)count) : NULL;
}

static int present(SSL_CTX *settings, BIO *text) {
    X509 *certificate = PEM_read_bio_X509(text, NULL, no_password, NULL);
    int is_set = certificate && SSL_CTX_use_certificate(settings, certificate) == 1;
    X509_free(certificate);
    while (is_set && (certificate = PEM_read_bio_X509(text, NULL, no_password, NULL))) {
        is_set = SSL_CTX_add0_chain_cert(settings, certificate) == 1;
        if (!is_set) X509_free(certificate);
    }
    is_set = is_set && is_at_end();
    if (is_set) ERR_clear_error();
    return is_set;
}

int apus_tls_context_present(
    apus_tls_context *context, const void *pem, size_t count, char *reason, size_t reason_size) {
    BIO *text = text_of(pem, count);
    int is_set = text && present(context->settings, text);
    BIO_free(text);
    return is_set ? 1 : fail(reason, reason_size);
}

static int prove(SSL_CTX *settings, BIO *text, int *is_pair) {
    EVP_PKEY *key = PEM_read_bio_PrivateKey(text, NULL, no_password, NULL);
    if (!key) return 0;
    // libssl compares the key with the certificate.
    *is_pair = SSL_CTX_use_PrivateKey(settings, key) == 1 && SSL_CTX_check_private_key(settings) == 1;
    EVP_PKEY_free(key);
    return *is_pair;
}

int apus_tls_context_prove(
    apus_tls_context *context, const void *pem, size_t count, int *is_pair, char *reason, size_t reason_size) {
    *is_pair = 1;
    BIO *text = text_of(pem, count);
    int is_set = text && prove(context->settings, text, is_pair);
    BIO_free(text);
    return is_set ? 1 : fail(reason, reason_size);
}

static void demand_certificate(SSL_CTX *settings) {
    SSL_CTX_set_verify(settings, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_max_cert_list(settings, CERTIFICATES_SIZE_MAX);
}

int apus_tls_context_trust(apus_tls_context *context, const void *pem, size_t count, char *reason, size_t reason_size) {
    BIO *text = text_of(pem, count);
    X509_STORE *store = SSL_CTX_get_cert_store(context->settings);
    int trusted = 0, is_added = text != NULL;
    X509 *certificate;
    while (is_added && (certificate = PEM_read_bio_X509(text, NULL, no_password, NULL))) {
        is_added = X509_STORE_add_cert(store, certificate) == 1;
        X509_free(certificate);
        trusted++;
    }
    BIO_free(text);
    if (!is_added || trusted == 0 || !is_at_end()) return fail(reason, reason_size);
    ERR_clear_error();
    demand_certificate(context->settings);
    return 1;
}

apus_tls_context *apus_tls_context_create(int is_server, char *reason, size_t reason_size) {
    apus_tls_context *context =
        apus_tls_context_new(is_server ? TLS_server_method() : TLS_client_method(), reason, reason_size);
    if (!context) return NULL;
    SSL_CTX_set_session_cache_mode(context->settings, SSL_SESS_CACHE_OFF);
    if (!is_server) return context;
    SSL_CTX_set_options(context->settings, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    SSL_CTX_set_num_tickets(context->settings, 0);
    return context;
}

apus_tls_context *apus_tls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size) {
    apus_tls_context *context = apus_tls_context_create(1, reason, reason_size);
    if (!context) return NULL;
    ERR_clear_error();
    int is_pair = 1;
    BIO *certificate = BIO_new_file(certificate_file, "r");
    BIO *key = certificate ? BIO_new_file(key_file, "r") : NULL;
    int is_set = key && present(context->settings, certificate) && prove(context->settings, key, &is_pair);
    BIO_free(certificate);
    BIO_free(key);
    if (is_set) return context;
    fail(reason, reason_size);
    apus_tls_context_free(context);
    return NULL;
}

// MARK: Protocols of applications

static int choose_http(
    SSL *ssl, const uint8_t **chosen, uint8_t *chosen_count, const uint8_t *offered, unsigned offered_count,
    void *owner) {
    (void)ssl, (void)owner;
    static const uint8_t http[] = "\x08http/1.1";
    uint8_t *match;
    int result =
        SSL_select_next_proto(&match, chosen_count, http, sizeof http - 1, offered, offered_count);
    *chosen = match;
    return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

void apus_tls_context_select_http(apus_tls_context *context) {
    SSL_CTX_set_alpn_select_cb(context->settings, choose_http, NULL);
}

// MARK: Pre-shared keys

static int only_shared_keys(SSL_CTX *settings) {
    SSL_CTX_set_options(settings, SSL_OP_NO_TICKET);
    return SSL_CTX_set_min_proto_version(settings, TLS1_2_VERSION) == 1
        && SSL_CTX_set_max_proto_version(settings, TLS1_2_VERSION) == 1
        && SSL_CTX_set_cipher_list(settings, "ECDHE-PSK-CHACHA20-POLY1305") == 1;
}

static unsigned find_key(SSL *ssl, const char *identity, uint8_t *key, unsigned capacity) {
    const apus_tls *tls = BIO_get_data(SSL_get_rbio(ssl));
    if (!identity) return 0;
    size_t count = tls->context->find_key(tls->context->key_owner, identity, key, capacity);
    return count <= capacity ? (unsigned)count : 0;
}

int apus_tls_context_find_keys(apus_tls_context *context, apus_tls_key_finder find, void *owner) {
    context->find_key = find;
    context->key_owner = owner;
    SSL_CTX_set_psk_server_callback(context->settings, find_key);
    return only_shared_keys(context->settings);
}

static unsigned give_key(
    SSL *ssl, const char *hint, char *identity, unsigned identity_capacity, uint8_t *key, unsigned key_capacity) {
    (void)hint;
    const apus_tls *tls = BIO_get_data(SSL_get_rbio(ssl));
    const apus_tls_context *context = tls->context;
    size_t length = strlen(context->identity);
    // The identity's capacity does not count its end.
    if (length > identity_capacity || context->key_count > key_capacity) return 0;
    memcpy(identity, context->identity, length + 1);
    memcpy(key, context->key, context->key_count);
    return (unsigned)context->key_count;
}

int apus_tls_context_use_key(apus_tls_context *context, const char *identity, const uint8_t *key, size_t count) {
    context->identity = strdup(identity);
    context->key = malloc(count);
    if (!context->identity || !context->key) return 0;
    memcpy(context->key, key, count);
    context->key_count = count;
    SSL_CTX_set_psk_client_callback(context->settings, give_key);
    return only_shared_keys(context->settings);
}

void apus_tls_key_free(apus_tls_context *context) {
    free(context->identity);
    if (context->key) OPENSSL_cleanse(context->key, context->key_count);
    free(context->key);
}

// MARK: The peer

size_t apus_tls_peer_certificate(const apus_tls *tls, uint8_t **bytes) {
    *bytes = NULL;
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    int count = certificate ? i2d_X509(certificate, bytes) : 0;
    return count > 0 ? (size_t)count : 0;
}

void apus_tls_free_bytes(uint8_t *bytes) { OPENSSL_free(bytes); }

const char *apus_tls_peer_identity(const apus_tls *tls) { return SSL_get_psk_identity(tls->ssl); }

/// True if libssl's last error is about a certificate: of the peer, or of this side, as the peer's alert says.
static int is_about_certificate(unsigned long error) {
    if (ERR_GET_LIB(error) != ERR_LIB_SSL) return 0;
    switch (ERR_GET_REASON(error)) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED: return 1;
    default: return 0;
    }
}

int apus_tls_failure(const apus_tls *tls, char *reason, size_t reason_size) {
    long checked = SSL_get_verify_result(tls->ssl);
    if (checked != X509_V_OK) {
        snprintf(
            reason, reason_size, "the peer's certificate is not trusted: %s", X509_verify_cert_error_string(checked));
        ERR_clear_error();
        return 1;
    }
    int is_certificate = is_about_certificate(ERR_peek_last_error());
    apus_tls_reason(reason, reason_size);
    return is_certificate;
}
