#include "CApusTestTLS.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

struct datagram {
    struct datagram *next;
    size_t count;
    unsigned char bytes[];
};

struct apus_test_dtls {
    SSL *ssl;
    const unsigned char *input;
    size_t input_count;
    struct datagram *first, **end;
};

static _Thread_local int64_t seconds_ahead;

void apus_test_clock_set(int64_t seconds) { seconds_ahead = seconds; }

/// Replaces the C library's function: libssl reads this clock and no other.
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    *now = (struct timeval){.tv_sec = time.tv_sec + seconds_ahead, .tv_usec = time.tv_nsec / 1000};
    return result;
}

static int memory_write(BIO *bio, const char *bytes, int count) {
    apus_test_dtls *client = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    struct datagram *datagram = malloc(sizeof *datagram + (size_t)count);
    if (!datagram) return -1;
    datagram->next = NULL;
    datagram->count = (size_t)count;
    memcpy(datagram->bytes, bytes, (size_t)count);
    *client->end = datagram;
    client->end = &datagram->next;
    return count;
}

static int memory_read(BIO *bio, char *bytes, int capacity) {
    apus_test_dtls *client = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (client->input_count == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t count = client->input_count < (size_t)capacity ? client->input_count : (size_t)capacity;
    memcpy(bytes, client->input, count);
    client->input_count = 0;
    return (int)count;
}

static long memory_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

/// What all clients share; made once, and kept.
static SSL_CTX *settings;
static BIO_METHOD *method;
static void make_shared(void) {
    settings = SSL_CTX_new(DTLS_client_method());
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "apus test datagrams");
    if (!settings || !method) return;
    SSL_CTX_set_options(settings, SSL_OP_NO_QUERY_MTU);
    BIO_meth_set_write(method, memory_write);
    BIO_meth_set_read(method, memory_read);
    BIO_meth_set_ctrl(method, memory_control);
}

apus_test_dtls *apus_test_dtls_new(const char *ciphers) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_shared);
    apus_test_dtls *client = calloc(1, sizeof *client);
    if (!client) return NULL;
    client->end = &client->first;
    client->ssl = settings && method ? SSL_new(settings) : NULL;
    BIO *bio = client->ssl ? BIO_new(method) : NULL;
    if (!bio || SSL_set_cipher_list(client->ssl, ciphers) != 1) {
        BIO_free(bio);
        apus_test_dtls_free(client);
        return NULL;
    }
    BIO_set_data(bio, client);
    BIO_set_init(bio, 1);
    SSL_set_bio(client->ssl, bio, bio);
    SSL_set_mtu(client->ssl, 1200);
    SSL_set_connect_state(client->ssl);
    return client;
}

void apus_test_dtls_free(apus_test_dtls *client) {
    if (!client) return;
    while (apus_test_dtls_take(client, NULL, 0) >= 0) {}
    SSL_free(client->ssl);
    free(client);
}

void apus_test_dtls_feed(apus_test_dtls *client, const void *datagram, size_t count) {
    client->input = datagram;
    client->input_count = count;
}

int apus_test_dtls_handshake(apus_test_dtls *client) {
    ERR_clear_error();
    int result = SSL_do_handshake(client->ssl);
    return result == 1 ? 1 : SSL_get_error(client->ssl, result) == SSL_ERROR_WANT_READ ? 0 : -1;
}

int apus_test_dtls_tick(apus_test_dtls *client) {
    ERR_clear_error();
    client->input_count = 0;
    return DTLSv1_handle_timeout(client->ssl) < 0 ? -1 : 0;
}

ssize_t apus_test_dtls_read(apus_test_dtls *client, void *bytes, size_t capacity) {
    ERR_clear_error();
    int result = SSL_read(client->ssl, bytes, (int)capacity);
    return result > 0 ? result : SSL_get_error(client->ssl, result) == SSL_ERROR_WANT_READ ? 0 : -1;
}

int apus_test_dtls_write(apus_test_dtls *client, const void *bytes, size_t count) {
    ERR_clear_error();
    return SSL_write(client->ssl, bytes, (int)count) > 0 ? 1 : -1;
}

void apus_test_dtls_close(apus_test_dtls *client) {
    SSL_shutdown(client->ssl);
}

ssize_t apus_test_dtls_take(apus_test_dtls *client, void *bytes, size_t capacity) {
    struct datagram *datagram = client->first;
    if (!datagram) return -1;
    client->first = datagram->next;
    if (!client->first) client->end = &client->first;
    ssize_t count = (ssize_t)(datagram->count < capacity ? datagram->count : capacity);
    if (count > 0) memcpy(bytes, datagram->bytes, (size_t)count);
    free(datagram);
    return count;
}
