#include "CApusTestTLS.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct apus_test_tls {
    SSL_CTX *settings;
    SSL *ssl;
    /// What the peer sent, and what is for it.
    BIO *input, *output;
};

static int use_certificate(SSL_CTX *settings, const char *certificate_text, const char *key_text) {
    BIO *certificate_bio = BIO_new_mem_buf(certificate_text, -1), *key_bio = BIO_new_mem_buf(key_text, -1);
    X509 *certificate = PEM_read_bio_X509(certificate_bio, NULL, NULL, NULL);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, NULL);
    int is_used = certificate && key && SSL_CTX_use_certificate(settings, certificate) == 1
        && SSL_CTX_use_PrivateKey(settings, key) == 1;
    X509_free(certificate);
    EVP_PKEY_free(key);
    BIO_free(certificate_bio);
    BIO_free(key_bio);
    return is_used;
}

static int trust(SSL_CTX *settings, const char *text) {
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *authority = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    int is_trusted = authority && X509_STORE_add_cert(SSL_CTX_get_cert_store(settings), authority) == 1;
    X509_free(authority);
    BIO_free(bio);
    SSL_CTX_set_verify(settings, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return is_trusted;
}

/// The name or the address that the server's certificate must be for.
static int expect(SSL *ssl, const char *host, const char *address) {
    X509_VERIFY_PARAM *wanted = SSL_get0_param(ssl);
    if (host) return X509_VERIFY_PARAM_set1_host(wanted, host, 0) == 1;
    return !address || X509_VERIFY_PARAM_set1_ip_asc(wanted, address) == 1;
}

apus_test_tls *apus_test_tls_new(
    int is_server, int version_max, const char *certificate, const char *key, const char *authority,
    const char *server_name, const char *host, const char *address) {
    ERR_clear_error();
    apus_test_tls *tls = calloc(1, sizeof *tls);
    if (!tls) return NULL;
    tls->settings = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    int is_set = tls->settings && SSL_CTX_set_max_proto_version(tls->settings, version_max) == 1
        && (!certificate || use_certificate(tls->settings, certificate, key))
        && (!authority || trust(tls->settings, authority));
    tls->ssl = is_set ? SSL_new(tls->settings) : NULL;
    if (!tls->ssl || !expect(tls->ssl, host, address)
        || (server_name && SSL_set_tlsext_host_name(tls->ssl, server_name) != 1)) {
        apus_test_tls_free(tls);
        return NULL;
    }
    tls->input = BIO_new(BIO_s_mem());
    tls->output = BIO_new(BIO_s_mem());
    SSL_set_bio(tls->ssl, tls->input, tls->output);
    if (is_server) SSL_set_accept_state(tls->ssl);
    else SSL_set_connect_state(tls->ssl);
    return tls;
}

void apus_test_tls_free(apus_test_tls *tls) {
    if (!tls) return;
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->settings);
    free(tls);
}

void apus_test_tls_feed(apus_test_tls *tls, const void *bytes, size_t count) {
    if (count > 0) BIO_write(tls->input, bytes, (int)count);
}

ssize_t apus_test_tls_take(apus_test_tls *tls, void *bytes, size_t capacity) {
    int count = BIO_read(tls->output, bytes, (int)capacity);
    return count > 0 ? count : 0;
}

int apus_test_tls_handshake(apus_test_tls *tls) {
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    return result == 1 ? 1 : SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_READ ? 0 : -1;
}

ssize_t apus_test_tls_read(apus_test_tls *tls, void *bytes, size_t capacity) {
    ERR_clear_error();
    int result = SSL_read(tls->ssl, bytes, (int)capacity);
    if (result > 0) return result;
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ: return 0;
    case SSL_ERROR_ZERO_RETURN: return -1;
    default: return -2;
    }
}

int apus_test_tls_write(apus_test_tls *tls, const void *bytes, size_t count) {
    ERR_clear_error();
    return count == 0 || SSL_write(tls->ssl, bytes, (int)count) == (int)count ? 1 : -1;
}

int apus_test_tls_update_key(apus_test_tls *tls) {
    ERR_clear_error();
    return SSL_key_update(tls->ssl, SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(tls->ssl) == 1;
}

void apus_test_tls_close(apus_test_tls *tls) {
    ERR_clear_error();
    SSL_shutdown(tls->ssl);
}

void apus_test_tls_reason(const apus_test_tls *tls, char *reason, size_t reason_size) {
    long checked = tls ? SSL_get_verify_result(tls->ssl) : X509_V_OK;
    unsigned long error = ERR_peek_last_error();
    if (checked != X509_V_OK) snprintf(reason, reason_size, "%s", X509_verify_cert_error_string(checked));
    else ERR_error_string_n(error, reason, reason_size);
    ERR_clear_error();
}
