#include "private.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>

size_t apus_digest_size(apus_hash hash) { return hash == APUS_MD5 ? 16 : hash == APUS_SHA1 ? 20 : 32; }

static size_t finish(EVP_MD_CTX *context, uint8_t *digest) {
    unsigned count = 0;
    if (EVP_DigestFinal_ex(context, digest, &count) == 1) return count;
    ERR_clear_error();
    return 0;
}

size_t apus_digest(apus_hash hash, const void *bytes, size_t count, uint8_t *digest) {
    EVP_MD_CTX **context = &apus_thread_get()->digests[hash];
    if (!*context && !(*context = EVP_MD_CTX_new())) return 0;
    if (EVP_DigestInit_ex2(*context, apus_library_get()->digests[hash], NULL) == 1
        && EVP_DigestUpdate(*context, bytes, count) == 1)
        return finish(*context, digest);
    ERR_clear_error();
    return 0;
}

apus_hasher *apus_hasher_new(apus_hash hash) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context && EVP_DigestInit_ex2(context, apus_library_get()->digests[hash], NULL) == 1) return context;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return NULL;
}

int apus_hasher_update(apus_hasher *hasher, const void *bytes, size_t count) {
    if (EVP_DigestUpdate(hasher, bytes, count) == 1) return 1;
    ERR_clear_error();
    return 0;
}

size_t apus_hasher_finish(apus_hasher *hasher, uint8_t *digest) { return finish(hasher, digest); }

void apus_hasher_free(apus_hasher *hasher) { EVP_MD_CTX_free(hasher); }

/// The thread's context for a hash. It keeps the hash; each use sets a key.
static EVP_MAC_CTX *hmac_context(apus_hash hash) {
    EVP_MAC_CTX **context = &apus_thread_get()->hmacs[hash];
    if (*context) return *context;
    OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)apus_hash_name(hash), 0),
        OSSL_PARAM_construct_end(),
    };
    EVP_MAC_CTX *made = EVP_MAC_CTX_new(apus_library_get()->hmac);
    if (made && EVP_MAC_CTX_set_params(made, parameters) == 1) return *context = made;
    EVP_MAC_CTX_free(made);
    return NULL;
}

size_t apus_hmac(
    apus_hash hash, const void *key, size_t key_count, const void *first, size_t first_count, const void *second,
    size_t second_count, uint8_t *code) {
    // Without a key's address EVP_MAC_init would use the key of the call before.
    static const uint8_t empty[1];
    EVP_MAC_CTX *context = hmac_context(hash);
    size_t count = 0;
    if (context && EVP_MAC_init(context, key ? key : empty, key_count, NULL) == 1
        && (first_count == 0 || EVP_MAC_update(context, first, first_count) == 1)
        && (second_count == 0 || EVP_MAC_update(context, second, second_count) == 1)
        && EVP_MAC_final(context, code, &count, APUS_DIGEST_SIZE_MAX) == 1)
        return count;
    ERR_clear_error();
    return 0;
}

int apus_hmac_is_valid(
    apus_hash hash, const void *key, size_t key_count, const void *first, size_t first_count, const void *second,
    size_t second_count, const void *expected, size_t expected_count) {
    uint8_t code[APUS_DIGEST_SIZE_MAX];
    size_t count = apus_hmac(hash, key, key_count, first, first_count, second, second_count, code);
    return expected_count > 0 && expected_count <= count && CRYPTO_memcmp(code, expected, expected_count) == 0;
}

int apus_is_equal(const void *left, const void *right, size_t count) { return CRYPTO_memcmp(left, right, count) == 0; }
