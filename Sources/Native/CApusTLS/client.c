#include "CApusTLS.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

struct apus_tls_client {
    SSL_CTX *settings;
    SSL *ssl;
};

static SSL_CTX *client_settings(int is_datagram, const char *authority_file) {
    SSL_CTX *settings = SSL_CTX_new(is_datagram ? DTLS_client_method() : TLS_client_method());
    if (!settings) return NULL;
    int is_set = SSL_CTX_set_min_proto_version(settings, is_datagram ? DTLS1_2_VERSION : TLS1_2_VERSION) == 1;
    if (authority_file) {
        SSL_CTX_set_verify(settings, SSL_VERIFY_PEER, NULL);
        is_set = is_set
            && (*authority_file ? SSL_CTX_load_verify_locations(settings, authority_file, NULL)
                                : SSL_CTX_set_default_verify_paths(settings)) == 1;
    }
    if (is_set) return settings;
    SSL_CTX_free(settings);
    return NULL;
}

/// Completes the handshake. Over datagrams it tolerates as many losses as there are seconds.
static int shake_hands(SSL *ssl, int is_datagram, int seconds) {
    for (int tries = 0;; tries++) {
        int result = SSL_connect(ssl);
        if (result == 1) return 1;
        if (!is_datagram || tries >= seconds || SSL_get_error(ssl, result) != SSL_ERROR_WANT_READ) return 0;
    }
}

/// The name or address that the certificate must be for.
static int expect_name(SSL *ssl, const char *name) {
    X509_VERIFY_PARAM *wanted = SSL_get0_param(ssl);
    if (X509_VERIFY_PARAM_set1_ip_asc(wanted, name) == 1) return 1;
    return X509_VERIFY_PARAM_set1_host(wanted, name, 0) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

apus_tls_client *apus_tls_client_connect(
    int socket, int is_datagram, const char *name, const char *authority_file, int seconds, char *reason,
    size_t reason_size) {
    apus_tls_client *client = calloc(1, sizeof *client);
    if (!client) {
        snprintf(reason, reason_size, "out of memory");
        return NULL;
    }
    ERR_clear_error();
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    client->settings = client_settings(is_datagram, authority_file);
    client->ssl = client->settings ? SSL_new(client->settings) : NULL;
    BIO *bio = NULL;
    if (client->ssl) bio = is_datagram ? BIO_new_dgram(socket, BIO_NOCLOSE) : BIO_new_socket(socket, BIO_NOCLOSE);
    if (!bio) {
        apus_tls_reason(reason, reason_size);
        apus_tls_client_free(client);
        return NULL;
    }
    if (is_datagram) {
        struct sockaddr_storage server;
        socklen_t length = sizeof server;
        if (getpeername(socket, (struct sockaddr *)&server, &length) == 0) {
            BIO_ctrl(bio, BIO_CTRL_DGRAM_SET_CONNECTED, 0, &server);
        }
    }
    SSL_set_bio(client->ssl, bio, bio);
    if (!expect_name(client->ssl, name) || !shake_hands(client->ssl, is_datagram, seconds)) {
        long checked = SSL_get_verify_result(client->ssl);
        if (checked != X509_V_OK) {
            snprintf(reason, reason_size, "its certificate is not taken: %s", X509_verify_cert_error_string(checked));
            ERR_clear_error();
        } else {
            apus_tls_reason(reason, reason_size);
        }
        apus_tls_client_free(client);
        return NULL;
    }
    return client;
}

void apus_tls_client_free(apus_tls_client *client) {
    if (!client) return;
    if (client->ssl && SSL_is_init_finished(client->ssl)) SSL_shutdown(client->ssl);
    SSL_free(client->ssl);
    SSL_CTX_free(client->settings);
    ERR_clear_error();
    free(client);
}

int apus_tls_client_has_pending(const apus_tls_client *client) { return SSL_has_pending(client->ssl); }

ssize_t apus_tls_client_read(apus_tls_client *client, void *bytes, size_t capacity) {
    size_t count = 0;
    ERR_clear_error();
    int result = SSL_read_ex(client->ssl, bytes, capacity, &count);
    if (result == 1) return (ssize_t)count;
    switch (SSL_get_error(client->ssl, result)) {
    case SSL_ERROR_WANT_READ: return 0;
    default: return -1;
    }
}

ssize_t apus_tls_client_write(apus_tls_client *client, const void *bytes, size_t count) {
    size_t written = 0;
    ERR_clear_error();
    return SSL_write_ex(client->ssl, bytes, count, &written) == 1 ? (ssize_t)written : -1;
}
