// Declarations shared by the files of this target.
#ifndef CAPUS_CRYPTO_PRIVATE_H
#define CAPUS_CRYPTO_PRIVATE_H

#include "CApusCrypto.h"

#include <openssl/evp.h>
#include <openssl/kdf.h>

/// What is fetched once for each process. It is never freed.
typedef struct {
    OSSL_LIB_CTX *context;
    EVP_MD *digests[APUS_SHA256 + 1];
    EVP_MAC *hmac;
    EVP_KDF *hkdf;
    EVP_CIPHER *gcm;
} apus_library;

const apus_library *apus_library_get(void);

/// The contexts of one thread, made at their first use and freed at its end.
typedef struct {
    EVP_MD_CTX *digests[APUS_SHA256 + 1];
    EVP_MAC_CTX *hmacs[APUS_SHA256 + 1];
    EVP_CIPHER_CTX *gcm;
} apus_thread;

apus_thread *apus_thread_get(void);

/// The name that OpenSSL has for a hash.
const char *apus_hash_name(apus_hash hash);

/// Writes libcrypto's reason, or `otherwise` if it has none, and empties the list of errors. Returns 0.
int apus_fail(const char *otherwise, char *reason, size_t reason_size);

#endif
