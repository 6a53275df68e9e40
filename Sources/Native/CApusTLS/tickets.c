#include "private.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Tickets of TLS 1.3 (RFC 8446 section 4.6.1), sealed as RFC 5077 section 4 recommends: AES-256-CBC, then HMAC-SHA-256.
// The keys are derived from a secret that all nodes have and from the time, so the nodes exchange nothing.

enum { KEY_SIZE = 32, NAME_SIZE = 16, LABEL_SIZE = 8, EPOCHS_KEPT = 3 };

static const uint8_t label[LABEL_SIZE] = {'a', 'p', 'u', 's', 't', 'l', 's', '1'};

typedef struct {
    int64_t epoch;
    int is_set;
    uint8_t encryption[KEY_SIZE], authentication[KEY_SIZE];
} epoch_keys;

struct apus_tls_tickets {
    uint8_t secret[KEY_SIZE];
    int64_t lifetime, clock_offset;
    EVP_CIPHER *cipher;
    pthread_mutex_t lock;
    /// Guarded by the lock: derived keys, by the epoch modulo the array's length.
    epoch_keys keys[EPOCHS_KEPT];
};

void apus_tls_tickets_free(apus_tls_tickets *tickets) {
    if (!tickets) return;
    EVP_CIPHER_free(tickets->cipher);
    pthread_mutex_destroy(&tickets->lock);
    OPENSSL_cleanse(tickets, sizeof *tickets);
    free(tickets);
}

static int derive(const apus_tls_tickets *tickets, uint8_t purpose, int64_t epoch, uint8_t *key) {
    uint8_t message[9] = {purpose};
    for (int i = 0; i < 8; i++) message[1 + i] = (uint8_t)((uint64_t)epoch >> (56 - 8 * i));
    unsigned count = 0;
    return HMAC(EVP_sha256(), tickets->secret, KEY_SIZE, message, sizeof message, key, &count) && count == KEY_SIZE;
}

/// Derives the keys of an epoch near the present into `found`: 1, or 0 if they cannot be derived.
static int find_keys(apus_tls_tickets *tickets, int64_t epoch, epoch_keys *found) {
    int is_found = 1;
    pthread_mutex_lock(&tickets->lock);
    epoch_keys *kept = &tickets->keys[(uint64_t)epoch % EPOCHS_KEPT];
    if (!kept->is_set || kept->epoch != epoch) {
        is_found = derive(tickets, 'e', epoch, kept->encryption) && derive(tickets, 'a', epoch, kept->authentication);
        kept->epoch = epoch;
        kept->is_set = is_found;
    }
    *found = *kept;
    pthread_mutex_unlock(&tickets->lock);
    return is_found;
}

/// Seals or opens one ticket, for SSL_CTX_set_tlsext_ticket_key_evp_cb(3): 1, 0 for a ticket of another key, -1 on
/// failure.
static int ticket_key(
    SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, int is_sealed) {
    apus_tls_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    apus_tls_tickets *tickets = context->tickets;
    int64_t now = ((int64_t)time(NULL) + tickets->clock_offset) / tickets->lifetime;
    int64_t epoch = 0;
    if (is_sealed) {
        epoch = now;
        memcpy(name, label, LABEL_SIZE);
        for (int i = 0; i < 8; i++) name[LABEL_SIZE + i] = (uint8_t)((uint64_t)epoch >> (56 - 8 * i));
        if (RAND_bytes(iv, EVP_CIPHER_get_iv_length(tickets->cipher)) != 1) return -1;
    } else {
        if (memcmp(name, label, LABEL_SIZE) != 0) return 0;
        uint64_t bits = 0;
        for (int i = 0; i < 8; i++) bits = bits << 8 | name[LABEL_SIZE + i];
        epoch = (int64_t)bits;
        // The next epoch too: the clock of the node that sealed the ticket may be ahead.
        if (epoch < now - 1 || epoch > now + 1) return 0;
    }
    epoch_keys keys;
    if (!find_keys(tickets, epoch, &keys)) return -1;
    OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, keys.authentication, KEY_SIZE),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, "SHA256", 0),
        OSSL_PARAM_construct_end(),
    };
    int is_set = EVP_MAC_CTX_set_params(mac, parameters)
        && (is_sealed ? EVP_EncryptInit_ex2(cipher, tickets->cipher, keys.encryption, iv, NULL)
                      : EVP_DecryptInit_ex2(cipher, tickets->cipher, keys.encryption, iv, NULL));
    OPENSSL_cleanse(&keys, sizeof keys);
    return is_set ? 1 : -1;
}

int apus_tls_context_allow_tickets(
    apus_tls_context *context, const uint8_t secret[32], int64_t lifetime_seconds, int64_t clock_offset) {
    static const unsigned char id_context[] = "apus clients";
    if (lifetime_seconds <= 0 || context->tickets) return 0;
    apus_tls_tickets *tickets = calloc(1, sizeof *tickets);
    if (!tickets) return 0;
    memcpy(tickets->secret, secret, KEY_SIZE);
    tickets->lifetime = lifetime_seconds;
    tickets->clock_offset = clock_offset;
    pthread_mutex_init(&tickets->lock, NULL);
    tickets->cipher = EVP_CIPHER_fetch(NULL, "AES-256-CBC", NULL);
    context->tickets = tickets;
    SSL_CTX *settings = context->settings;
    SSL_CTX_set_app_data(settings, context);
    SSL_CTX_set_timeout(settings, lifetime_seconds);
    return tickets->cipher && SSL_CTX_set_session_id_context(settings, id_context, sizeof id_context - 1)
        && SSL_CTX_set_tlsext_ticket_key_evp_cb(settings, ticket_key) && SSL_CTX_set_num_tickets(settings, 1);
}
