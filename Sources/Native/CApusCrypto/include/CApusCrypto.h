// Hashes, message authentication, encryption, keys and certificates of libcrypto (OpenSSL 3), behind few functions.
//
// Algorithms are fetched once for each process, into a library context of its own: the machine's openssl.cnf does not
// change what they are. Every function may be called by any thread. Contexts of hashes and ciphers are kept for each
// thread, so that a call neither fetches nor allocates them.
//
// No function leaves an error in the thread's list of errors, where libssl would take it for one of a connection.
#ifndef CAPUS_CRYPTO_H
#define CAPUS_CRYPTO_H

#include <stddef.h>
#include <stdint.h>

// MARK: Hashes

typedef enum { APUS_MD5, APUS_SHA1, APUS_SHA256 } apus_hash;

/// The longest digest or code, in bytes.
enum { APUS_DIGEST_SIZE_MAX = 32 };

/// The size of a digest, in bytes.
size_t apus_digest_size(apus_hash hash);
/// The digest of all of the bytes: its size, or 0 without memory.
size_t apus_digest(apus_hash hash, const void *bytes, size_t count, uint8_t *digest);

/// A digest of bytes that come in parts. It belongs to one thread at a time.
typedef struct evp_md_ctx_st apus_hasher;
/// Null without memory.
apus_hasher *apus_hasher_new(apus_hash hash);
/// 1, or 0 if it fails.
int apus_hasher_update(apus_hasher *hasher, const void *bytes, size_t count);
/// The size of the digest, or 0 if it fails. The hasher can only be freed then.
size_t apus_hasher_finish(apus_hasher *hasher, uint8_t *digest);
void apus_hasher_free(apus_hasher *hasher);

/// The HMAC (RFC 2104) of two parts, the second of which may be empty, with SHA-1 or SHA-256: its size, or 0 without
/// memory. The thread's context keeps the key until the next call.
size_t apus_hmac(
    apus_hash hash, const void *key, size_t key_count, const void *first, size_t first_count, const void *second,
    size_t second_count, uint8_t *code);

/// True if `expected` is the first part of the code that apus_hmac returns. The time does not depend on the bytes.
int apus_hmac_is_valid(
    apus_hash hash, const void *key, size_t key_count, const void *first, size_t first_count, const void *second,
    size_t second_count, const void *expected, size_t expected_count);

/// True if the bytes are the same. The time depends on the count alone.
int apus_is_equal(const void *left, const void *right, size_t count);

// MARK: Keys without structure

/// Random bytes for keys: 1, or 0 if there are none.
int apus_random(void *bytes, size_t count);
/// Overwrites with zeros what will not be read any more.
void apus_cleanse(void *bytes, size_t count);

/// HKDF with SHA-256 (RFC 5869): 1, or 0 if it fails. `count` is at most 255 * 32.
int apus_hkdf(
    const void *input, size_t input_count, const void *salt, size_t salt_count, const void *info, size_t info_count,
    uint8_t *key, size_t count);

enum { APUS_GCM_KEY_SIZE = 32, APUS_GCM_NONCE_SIZE = 12, APUS_GCM_TAG_SIZE = 16 };

/// Seals with AES-256-GCM (NIST SP 800-38D): 1, or 0 if it fails. `sealed` receives `count` bytes. The tag is also one of
/// `context`, which is not sealed and may be empty.
int apus_gcm_seal(
    const uint8_t *key, const uint8_t *nonce, const void *context, size_t context_count, const void *plain,
    size_t count, uint8_t *sealed, uint8_t *tag);
/// Opens what apus_gcm_seal made: 1, or 0 if the key, the nonce, the context, the bytes or the tag are others.
int apus_gcm_open(
    const uint8_t *key, const uint8_t *nonce, const void *context, size_t context_count, const void *sealed,
    size_t count, const uint8_t *tag, uint8_t *plain);

// MARK: Keys of signatures and agreements

/// A private or public key.
typedef struct evp_pkey_st apus_key;

typedef enum { APUS_P256, APUS_ED25519, APUS_X25519 } apus_key_kind;

/// The longest PEM text of a key, in bytes.
enum { APUS_KEY_PEM_SIZE_MAX = 16384 };
/// The size of raw keys of Ed25519 and X25519, of a P-256 signature (r and s) and of an Ed25519 signature, in bytes.
enum { APUS_RAW_KEY_SIZE = 32, APUS_SIGNATURE_SIZE = 64 };

/// A new private key; null if it fails.
apus_key *apus_key_new(apus_key_kind kind);
void apus_key_free(apus_key *key);

/// Reads the one private key of a PEM text, in PKCS#8, SEC 1 or PKCS#1, without a password. Its numbers are checked if
/// it is of an elliptic curve. Null with the reason.
apus_key *apus_key_read_private(const void *pem, size_t count, char *reason, size_t reason_size);
/// Reads the one public key of a PEM text (SubjectPublicKeyInfo), as above.
apus_key *apus_key_read_public(const void *pem, size_t count, char *reason, size_t reason_size);
/// True for a key of the curve P-256.
int apus_key_is_p256(const apus_key *key);
/// The private key in PKCS#8, as PEM text: its size, or 0 if it does not fit.
size_t apus_key_write_private(const apus_key *key, char *pem, size_t capacity);
/// The public key as SubjectPublicKeyInfo, as PEM text: its size, or 0 if it does not fit.
size_t apus_key_write_public(const apus_key *key, char *pem, size_t capacity);

/// A key of Ed25519 or X25519 from its 32 bytes; null if it fails.
apus_key *apus_key_from_private(apus_key_kind kind, const uint8_t *bytes);
apus_key *apus_key_from_public(apus_key_kind kind, const uint8_t *bytes);
/// The 32 bytes of such a key: 1, or 0 if it fails.
int apus_key_private_bytes(const apus_key *key, uint8_t *bytes);
int apus_key_public_bytes(const apus_key *key, uint8_t *bytes);

/// Signs with ECDSA and SHA-256 (P-256; FIPS 186-4), as r and s of 32 bytes each: 1, or 0 if it fails.
int apus_key_sign_p256(apus_key *key, const void *bytes, size_t count, uint8_t *signature);
int apus_key_verify_p256(apus_key *key, const void *bytes, size_t count, const uint8_t *signature);
/// Signs with Ed25519 (RFC 8032): 1, or 0 if it fails.
int apus_key_sign_ed25519(apus_key *key, const void *bytes, size_t count, uint8_t *signature);
int apus_key_verify_ed25519(apus_key *key, const void *bytes, size_t count, const uint8_t *signature);

/// The secret of two keys of X25519 (RFC 7748): 1, or 0 if the public key is a point of small order.
int apus_key_agree(apus_key *own, apus_key *other, uint8_t *secret);

// MARK: Certificates

/// A certificate (RFC 5280).
typedef struct x509_st apus_certificate;

/// The longest certificate, in DER, and the longest serial number, in bytes.
enum { APUS_CERTIFICATE_SIZE_MAX = 65536, APUS_SERIAL_SIZE_MAX = 64 };

/// Reads all of the bytes as one certificate in DER; null with the reason.
apus_certificate *apus_certificate_read(const void *der, size_t count, char *reason, size_t reason_size);
void apus_certificate_free(apus_certificate *certificate);

/// The content of the serial number's INTEGER: its size, or 0 if it does not fit.
size_t apus_certificate_serial(const apus_certificate *certificate, uint8_t *serial, size_t capacity);
/// The validity, in Unix seconds: 1, or 0 if a time is not valid.
int apus_certificate_validity(const apus_certificate *certificate, int64_t *not_before, int64_t *not_after);

typedef enum { APUS_NAME_DNS, APUS_NAME_ADDRESS, APUS_NAME_URI } apus_name_kind;

/// Calls for each DNS name, address and URI of the alternative names, in their order: 1, or 0 if the extension is
/// malformed or there are two.
int apus_certificate_names(
    const apus_certificate *certificate, void *owner,
    void (*each)(void *owner, apus_name_kind kind, const uint8_t *bytes, size_t count));

/// True if the certificate was signed with the private key of another.
int apus_certificate_is_signed_by(apus_certificate *certificate, const apus_certificate *issuer);

/// A range of the bytes that come with the fields of a certificate.
typedef struct {
    size_t offset, count;
} apus_range;

/// One alternative name.
typedef struct {
    apus_name_kind kind;
    apus_range content;
} apus_name;

/// What a new certificate says.
typedef struct {
    /// In UTF-8.
    apus_range organization, common_name;
    /// Big-endian, and positive.
    apus_range serial;
    /// In Unix seconds.
    int64_t not_before, not_after;
    /// An authority that issues certificates of ends alone; otherwise an end, with its uses and names.
    int is_authority, is_server, is_client;
    size_t name_count;
} apus_certificate_fields;

/// Issues a certificate, in DER, for the public part of `subject`. Without an `issuer` its subject is its issuer. The
/// ranges are of `bytes`. The caller frees the certificate with apus_bytes_free. Its size, or 0 with the reason.
size_t apus_certificate_issue(
    const apus_certificate_fields *fields, const apus_name *names, const uint8_t *bytes, apus_key *subject,
    const apus_certificate *issuer, apus_key *issuer_key, uint8_t **der, char *reason, size_t reason_size);
void apus_bytes_free(uint8_t *bytes);

// MARK: Errors

/// True if this thread's list of errors is not empty. For tests.
int apus_has_errors(void);

#endif
