#include "private.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>

static const char *const hash_names[] = {[APUS_MD5] = "MD5", [APUS_SHA1] = "SHA1", [APUS_SHA256] = "SHA256"};

const char *apus_hash_name(apus_hash hash) { return hash_names[hash]; }

// MARK: The process

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
static apus_library library;
static pthread_key_t thread_key;

static void thread_end(void *contexts);

static void library_begin(void) {
    // Threads that still run while the process exits may use what libcrypto would free.
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
    library.context = OSSL_LIB_CTX_new();
    for (apus_hash hash = APUS_MD5; hash <= APUS_SHA256; hash++)
        library.digests[hash] = EVP_MD_fetch(library.context, hash_names[hash], NULL);
    library.hmac = EVP_MAC_fetch(library.context, "HMAC", NULL);
    library.hkdf = EVP_KDF_fetch(library.context, "HKDF", NULL);
    library.gcm = EVP_CIPHER_fetch(library.context, "AES-256-GCM", NULL);
    pthread_key_create(&thread_key, thread_end);
    ERR_clear_error();
}

const apus_library *apus_library_get(void) {
    pthread_once(&library_once, library_begin);
    return &library;
}

// MARK: Threads

static _Thread_local apus_thread thread;
static _Thread_local int is_registered;

static void thread_end(void *contexts) {
    apus_thread *ended = contexts;
    for (apus_hash hash = APUS_MD5; hash <= APUS_SHA256; hash++) {
        EVP_MD_CTX_free(ended->digests[hash]);
        EVP_MAC_CTX_free(ended->hmacs[hash]);
    }
    EVP_CIPHER_CTX_free(ended->gcm);
    // Destructors that run after this one may hash.
    *ended = (apus_thread){0};
    is_registered = 0;
}

apus_thread *apus_thread_get(void) {
    if (!is_registered) {
        apus_library_get();
        is_registered = pthread_setspecific(thread_key, &thread) == 0;
    }
    return &thread;
}

// MARK: Errors

int apus_fail(const char *otherwise, char *reason, size_t reason_size) {
    unsigned long error = ERR_peek_last_error();
    const char *text = error ? ERR_reason_error_string(error) : NULL;
    if (reason_size > 0) snprintf(reason, reason_size, "%s", text ? text : otherwise);
    ERR_clear_error();
    return 0;
}

int apus_has_errors(void) { return ERR_peek_error() != 0; }
