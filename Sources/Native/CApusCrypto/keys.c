#include "private.h"

#include <limits.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <string.h>

static OSSL_LIB_CTX *library(void) { return apus_library_get()->context; }

static const char *kind_name(apus_key_kind kind) {
    return kind == APUS_ED25519 ? "ED25519" : kind == APUS_X25519 ? "X25519" : "EC";
}

static int done(int is_done) {
    if (!is_done) ERR_clear_error();
    return is_done;
}

apus_key *apus_key_new(apus_key_kind kind) {
    EVP_PKEY *key = kind == APUS_P256 ? EVP_PKEY_Q_keygen(library(), NULL, "EC", "P-256")
                                      : EVP_PKEY_Q_keygen(library(), NULL, kind_name(kind));
    done(key != NULL);
    return key;
}

void apus_key_free(apus_key *key) { EVP_PKEY_free(key); }

// MARK: PEM

/// The one document of a PEM text, and its label; null with the reason. The caller frees both.
static unsigned char *read_document(
    const void *pem, size_t count, char **label, long *size, char *reason, size_t reason_size) {
    *label = NULL;
    ERR_clear_error();
    if (count > APUS_KEY_PEM_SIZE_MAX) {
        apus_fail("the text is too long for a key", reason, reason_size);
        return NULL;
    }
    BIO *text = BIO_new_mem_buf(pem, (int)count);
    char *header = NULL, *next_label = NULL, *next_header = NULL;
    unsigned char *content = NULL, *next = NULL;
    long next_size = 0;
    int is_read = text && PEM_read_bio(text, label, &header, &content, size) == 1;
    if (!is_read) apus_fail("there is no key", reason, reason_size);
    if (is_read && *header) {
        is_read = apus_fail("the key has a password", reason, reason_size);
    } else if (is_read && PEM_read_bio(text, &next_label, &next_header, &next, &next_size) == 1) {
        is_read = apus_fail("there is more than one key", reason, reason_size);
    }
    BIO_free(text);
    OPENSSL_free(header);
    OPENSSL_free(next_label);
    OPENSSL_free(next_header);
    OPENSSL_clear_free(next, (size_t)next_size);
    if (is_read) return content;
    OPENSSL_clear_free(content, content ? (size_t)*size : 0);
    OPENSSL_free(*label);
    *label = NULL;
    return NULL;
}

static EVP_PKEY *decode_pkcs8(const unsigned char **bytes, long size) {
    PKCS8_PRIV_KEY_INFO *info = d2i_PKCS8_PRIV_KEY_INFO(NULL, bytes, size);
    EVP_PKEY *key = info ? EVP_PKCS82PKEY_ex(info, library(), NULL) : NULL;
    PKCS8_PRIV_KEY_INFO_free(info);
    return key;
}

static EVP_PKEY *decode_private(const char *label, const unsigned char **bytes, long size) {
    if (strcmp(label, "PRIVATE KEY") == 0) return decode_pkcs8(bytes, size);
    if (strcmp(label, "EC PRIVATE KEY") == 0)
        return d2i_PrivateKey_ex(EVP_PKEY_EC, NULL, bytes, size, library(), NULL);
    if (strcmp(label, "RSA PRIVATE KEY") == 0)
        return d2i_PrivateKey_ex(EVP_PKEY_RSA, NULL, bytes, size, library(), NULL);
    return NULL;
}

/// True if the numbers of a key of an elliptic curve fit each other and the curve.
static int is_consistent(EVP_PKEY *key, int is_private) {
    if (!EVP_PKEY_is_a(key, "EC")) return 1;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(library(), key, NULL);
    int is_valid = context && (is_private ? EVP_PKEY_check(context) : EVP_PKEY_public_check(context)) == 1;
    EVP_PKEY_CTX_free(context);
    return is_valid;
}

static apus_key *read_key(const void *pem, size_t count, int is_private, char *reason, size_t reason_size) {
    char *label = NULL;
    long size = 0;
    unsigned char *content = read_document(pem, count, &label, &size, reason, reason_size);
    if (!content) return NULL;
    const unsigned char *next = content;
    EVP_PKEY *key = NULL;
    if (is_private) {
        key = decode_private(label, &next, size);
    } else if (strcmp(label, "PUBLIC KEY") == 0) {
        key = d2i_PUBKEY_ex(NULL, &next, size, library(), NULL);
    }
    int is_read = key && next == content + size && is_consistent(key, is_private);
    OPENSSL_clear_free(content, (size_t)size);
    OPENSSL_free(label);
    if (is_read) {
        ERR_clear_error();
        return key;
    }
    EVP_PKEY_free(key);
    apus_fail("it is not a key of this kind", reason, reason_size);
    return NULL;
}

apus_key *apus_key_read_private(const void *pem, size_t count, char *reason, size_t reason_size) {
    return read_key(pem, count, 1, reason, reason_size);
}

apus_key *apus_key_read_public(const void *pem, size_t count, char *reason, size_t reason_size) {
    return read_key(pem, count, 0, reason, reason_size);
}

int apus_key_is_p256(const apus_key *key) {
    char group[32];
    size_t count = 0;
    int is_p256 = EVP_PKEY_is_a(key, "EC") && EVP_PKEY_get_group_name(key, group, sizeof group, &count) == 1
        && EC_curve_nist2nid("P-256") == OBJ_sn2nid(group);
    return done(is_p256);
}

/// Copies what was written to memory, without an end: its size, or 0 if it does not fit.
static size_t copy_text(BIO *text, int is_written, char *pem, size_t capacity) {
    char *start = NULL;
    long count = is_written ? BIO_get_mem_data(text, &start) : 0;
    size_t size = count > 0 && (size_t)count <= capacity ? (size_t)count : 0;
    if (size > 0) memcpy(pem, start, size);
    if (count > 0) OPENSSL_cleanse(start, (size_t)count);
    BIO_free(text);
    done(size > 0);
    return size;
}

size_t apus_key_write_private(const apus_key *key, char *pem, size_t capacity) {
    BIO *text = BIO_new(BIO_s_mem());
    int is_written = text && PEM_write_bio_PKCS8PrivateKey(text, key, NULL, NULL, 0, NULL, NULL) == 1;
    return copy_text(text, is_written, pem, capacity);
}

size_t apus_key_write_public(const apus_key *key, char *pem, size_t capacity) {
    BIO *text = BIO_new(BIO_s_mem());
    return copy_text(text, text && PEM_write_bio_PUBKEY(text, key) == 1, pem, capacity);
}

// MARK: Raw keys

apus_key *apus_key_from_private(apus_key_kind kind, const uint8_t *bytes) {
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key_ex(library(), kind_name(kind), NULL, bytes, APUS_RAW_KEY_SIZE);
    done(key != NULL);
    return key;
}

apus_key *apus_key_from_public(apus_key_kind kind, const uint8_t *bytes) {
    EVP_PKEY *key = EVP_PKEY_new_raw_public_key_ex(library(), kind_name(kind), NULL, bytes, APUS_RAW_KEY_SIZE);
    done(key != NULL);
    return key;
}

int apus_key_private_bytes(const apus_key *key, uint8_t *bytes) {
    size_t count = APUS_RAW_KEY_SIZE;
    return done(EVP_PKEY_get_raw_private_key(key, bytes, &count) == 1 && count == APUS_RAW_KEY_SIZE);
}

int apus_key_public_bytes(const apus_key *key, uint8_t *bytes) {
    size_t count = APUS_RAW_KEY_SIZE;
    return done(EVP_PKEY_get_raw_public_key(key, bytes, &count) == 1 && count == APUS_RAW_KEY_SIZE);
}

// MARK: Signatures

/// The longest signature of P-256 in DER: two INTEGERs of 33 bytes in a SEQUENCE.
enum { DER_SIGNATURE_SIZE_MAX = 72 };

static int sign(
    apus_key *key, const char *hash, const void *bytes, size_t count, uint8_t *signature, size_t *signature_size) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int is_done = context && EVP_DigestSignInit_ex(context, NULL, hash, library(), NULL, key, NULL) == 1
        && EVP_DigestSign(context, signature, signature_size, bytes, count) == 1;
    EVP_MD_CTX_free(context);
    return done(is_done);
}

static int verify(
    apus_key *key, const char *hash, const void *bytes, size_t count, const uint8_t *signature, size_t size) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int is_valid = context && EVP_DigestVerifyInit_ex(context, NULL, hash, library(), NULL, key, NULL) == 1
        && EVP_DigestVerify(context, signature, size, bytes, count) == 1;
    EVP_MD_CTX_free(context);
    return done(is_valid);
}

int apus_key_sign_p256(apus_key *key, const void *bytes, size_t count, uint8_t *signature) {
    uint8_t der[DER_SIGNATURE_SIZE_MAX];
    size_t size = sizeof der;
    if (!sign(key, apus_hash_name(APUS_SHA256), bytes, count, der, &size)) return 0;
    const uint8_t *next = der;
    ECDSA_SIG *numbers = d2i_ECDSA_SIG(NULL, &next, (long)size);
    int half = APUS_SIGNATURE_SIZE / 2;
    int is_done = numbers && BN_bn2binpad(ECDSA_SIG_get0_r(numbers), signature, half) == half
        && BN_bn2binpad(ECDSA_SIG_get0_s(numbers), signature + half, half) == half;
    ECDSA_SIG_free(numbers);
    return done(is_done);
}

int apus_key_verify_p256(apus_key *key, const void *bytes, size_t count, const uint8_t *signature) {
    int half = APUS_SIGNATURE_SIZE / 2;
    ECDSA_SIG *numbers = ECDSA_SIG_new();
    BIGNUM *r = BN_bin2bn(signature, half, NULL), *s = BN_bin2bn(signature + half, half, NULL);
    int is_set = numbers && r && s && ECDSA_SIG_set0(numbers, r, s) == 1;
    if (!is_set) BN_free(r), BN_free(s);
    uint8_t der[DER_SIGNATURE_SIZE_MAX], *next = der;
    int size = is_set ? i2d_ECDSA_SIG(numbers, &next) : 0;
    ECDSA_SIG_free(numbers);
    return done(size > 0) && verify(key, apus_hash_name(APUS_SHA256), bytes, count, der, (size_t)size);
}

int apus_key_sign_ed25519(apus_key *key, const void *bytes, size_t count, uint8_t *signature) {
    size_t size = APUS_SIGNATURE_SIZE;
    return sign(key, NULL, bytes, count, signature, &size) && size == APUS_SIGNATURE_SIZE;
}

int apus_key_verify_ed25519(apus_key *key, const void *bytes, size_t count, const uint8_t *signature) {
    return verify(key, NULL, bytes, count, signature, APUS_SIGNATURE_SIZE);
}

// MARK: Agreement

int apus_key_agree(apus_key *own, apus_key *other, uint8_t *secret) {
    size_t count = APUS_RAW_KEY_SIZE;
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_pkey(library(), own, NULL);
    int is_done = context && EVP_PKEY_derive_init(context) == 1 && EVP_PKEY_derive_set_peer(context, other) == 1
        && EVP_PKEY_derive(context, secret, &count) == 1 && count == APUS_RAW_KEY_SIZE;
    EVP_PKEY_CTX_free(context);
    return done(is_done);
}
