#include "private.h"

#include <limits.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/rand.h>

int apus_random(void *bytes, size_t count) {
    if (RAND_priv_bytes_ex(apus_library_get()->context, bytes, count, 0) == 1) return 1;
    ERR_clear_error();
    return 0;
}

void apus_cleanse(void *bytes, size_t count) { OPENSSL_cleanse(bytes, count); }

static OSSL_PARAM octets(const char *name, const void *bytes, size_t count) {
    return OSSL_PARAM_construct_octet_string(name, (void *)bytes, count);
}

int apus_hkdf(
    const void *input, size_t input_count, const void *salt, size_t salt_count, const void *info, size_t info_count,
    uint8_t *key, size_t count) {
    OSSL_PARAM parameters[5], *next = parameters;
    *next++ = OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)apus_hash_name(APUS_SHA256), 0);
    *next++ = octets(OSSL_KDF_PARAM_KEY, input, input_count);
    // Without a salt, HKDF has one of zeros.
    if (salt_count > 0) *next++ = octets(OSSL_KDF_PARAM_SALT, salt, salt_count);
    if (info_count > 0) *next++ = octets(OSSL_KDF_PARAM_INFO, info, info_count);
    *next = OSSL_PARAM_construct_end();
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(apus_library_get()->hkdf);
    int is_derived = context && EVP_KDF_derive(context, key, count, parameters) == 1;
    EVP_KDF_CTX_free(context);
    if (!is_derived) ERR_clear_error();
    return is_derived;
}

static EVP_CIPHER_CTX *gcm_context(void) {
    EVP_CIPHER_CTX **context = &apus_thread_get()->gcm;
    if (!*context) *context = EVP_CIPHER_CTX_new();
    return *context;
}

/// Ends the use of a context: the expanded key is overwritten.
static int end(EVP_CIPHER_CTX *context, int is_done) {
    if (context) EVP_CIPHER_CTX_reset(context);
    if (!is_done) ERR_clear_error();
    return is_done;
}

int apus_gcm_seal(
    const uint8_t *key, const uint8_t *nonce, const void *context, size_t context_count, const void *plain,
    size_t count, uint8_t *sealed, uint8_t *tag) {
    EVP_CIPHER_CTX *cipher = gcm_context();
    int written = 0;
    int is_done = cipher && count <= INT_MAX && context_count <= INT_MAX
        && EVP_EncryptInit_ex2(cipher, apus_library_get()->gcm, key, nonce, NULL) == 1
        && (context_count == 0 || EVP_EncryptUpdate(cipher, NULL, &written, context, (int)context_count) == 1)
        && (count == 0 || EVP_EncryptUpdate(cipher, sealed, &written, plain, (int)count) == 1)
        && EVP_EncryptFinal_ex(cipher, tag, &written) == 1
        && EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, APUS_GCM_TAG_SIZE, tag) == 1;
    return end(cipher, is_done);
}

int apus_gcm_open(
    const uint8_t *key, const uint8_t *nonce, const void *context, size_t context_count, const void *sealed,
    size_t count, const uint8_t *tag, uint8_t *plain) {
    EVP_CIPHER_CTX *cipher = gcm_context();
    uint8_t none[APUS_GCM_TAG_SIZE];
    int written = 0;
    int is_done = cipher && count <= INT_MAX && context_count <= INT_MAX
        && EVP_DecryptInit_ex2(cipher, apus_library_get()->gcm, key, nonce, NULL) == 1
        && (context_count == 0 || EVP_DecryptUpdate(cipher, NULL, &written, context, (int)context_count) == 1)
        && (count == 0 || EVP_DecryptUpdate(cipher, plain, &written, sealed, (int)count) == 1)
        && EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, APUS_GCM_TAG_SIZE, (void *)tag) == 1
        && EVP_DecryptFinal_ex(cipher, none, &written) == 1;
    if (!is_done) OPENSSL_cleanse(plain, count);
    return end(cipher, is_done);
}
