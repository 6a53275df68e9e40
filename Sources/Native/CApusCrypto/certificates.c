#include "private.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

// MARK: Reading

apus_certificate *apus_certificate_read(const void *der, size_t count, char *reason, size_t reason_size) {
    ERR_clear_error();
    if (count > APUS_CERTIFICATE_SIZE_MAX) {
        apus_fail("it is too long for a certificate", reason, reason_size);
        return NULL;
    }
    const unsigned char *next = der;
    X509 *certificate = X509_new_ex(apus_library_get()->context, NULL);
    // On failure d2i_X509 frees what it was given.
    if (certificate && d2i_X509(&certificate, &next, (long)count)) {
        int64_t not_before, not_after;
        uint8_t serial[APUS_SERIAL_SIZE_MAX];
        if (next == (const unsigned char *)der + count
            && apus_certificate_validity(certificate, &not_before, &not_after)
            && apus_certificate_serial(certificate, serial, sizeof serial) > 0) {
            ERR_clear_error();
            return certificate;
        }
        X509_free(certificate);
    }
    apus_fail("it is not a certificate", reason, reason_size);
    return NULL;
}

void apus_certificate_free(apus_certificate *certificate) { X509_free(certificate); }

size_t apus_certificate_serial(const apus_certificate *certificate, uint8_t *serial, size_t capacity) {
    unsigned char *encoded = NULL;
    int size = i2d_ASN1_INTEGER(X509_get0_serialNumber(certificate), &encoded);
    const unsigned char *content = encoded;
    long count = 0;
    int tag, class;
    int is_read = size > 0 && (ASN1_get_object(&content, &count, &tag, &class, size) & 0x80) == 0 && count > 0
        && (size_t)count <= capacity;
    if (is_read) memcpy(serial, content, (size_t)count);
    OPENSSL_free(encoded);
    if (!is_read) ERR_clear_error();
    return is_read ? (size_t)count : 0;
}

static int seconds(const ASN1_TIME *time, int64_t *value) {
    struct tm fields;
    if (ASN1_TIME_to_tm(time, &fields) != 1) return 0;
    *value = timegm(&fields);
    return 1;
}

int apus_certificate_validity(const apus_certificate *certificate, int64_t *not_before, int64_t *not_after) {
    if (seconds(X509_get0_notBefore(certificate), not_before) && seconds(X509_get0_notAfter(certificate), not_after))
        return 1;
    ERR_clear_error();
    return 0;
}

static int kind_of(const GENERAL_NAME *name, apus_name_kind *kind) {
    switch (name->type) {
    case GEN_DNS: *kind = APUS_NAME_DNS; return 1;
    case GEN_IPADD: *kind = APUS_NAME_ADDRESS; return 1;
    case GEN_URI: *kind = APUS_NAME_URI; return 1;
    default: return 0;
    }
}

int apus_certificate_names(
    const apus_certificate *certificate, void *owner,
    void (*each)(void *owner, apus_name_kind kind, const uint8_t *bytes, size_t count)) {
    int critical = 0;
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, &critical, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        apus_name_kind kind;
        if (!kind_of(name, &kind)) continue;
        // The three kinds are strings.
        const ASN1_STRING *text = GENERAL_NAME_get0_value(name, NULL);
        each(owner, kind, ASN1_STRING_get0_data(text), (size_t)ASN1_STRING_length(text));
    }
    int is_valid = names || critical == -1;
    GENERAL_NAMES_free(names);
    ERR_clear_error();
    return is_valid;
}

int apus_certificate_is_signed_by(apus_certificate *certificate, const apus_certificate *issuer) {
    EVP_PKEY *key = X509_get0_pubkey(issuer);
    int is_signed = key && X509_verify(certificate, key) == 1;
    ERR_clear_error();
    return is_signed;
}

// MARK: Issuing

/// RFC 5280 section 4.2.1.2: the SHA-1 hash of the public key's bits.
static ASN1_OCTET_STRING *identifier_of(EVP_PKEY *key) {
    X509_PUBKEY *info = NULL;
    const unsigned char *bits = NULL;
    int count = 0;
    uint8_t digest[APUS_DIGEST_SIZE_MAX];
    ASN1_OCTET_STRING *identifier = ASN1_OCTET_STRING_new();
    int is_set = identifier && X509_PUBKEY_set(&info, key) == 1
        && X509_PUBKEY_get0_param(NULL, &bits, &count, NULL, info) == 1
        && apus_digest(APUS_SHA1, bits, (size_t)count, digest) == 20
        && ASN1_OCTET_STRING_set(identifier, digest, 20) == 1;
    X509_PUBKEY_free(info);
    if (is_set) return identifier;
    ASN1_OCTET_STRING_free(identifier);
    return NULL;
}

static int add(X509 *certificate, int kind, void *value, int is_critical) {
    return value && X509_add1_ext_i2d(certificate, kind, value, is_critical, X509V3_ADD_DEFAULT) == 1;
}

static int add_constraints(X509 *certificate, int is_authority) {
    BASIC_CONSTRAINTS *value = BASIC_CONSTRAINTS_new();
    int is_set = value != NULL;
    if (is_set && is_authority) {
        value->ca = 0xff;
        // Its certificates are those of ends.
        value->pathlen = ASN1_INTEGER_new();
        is_set = value->pathlen && ASN1_INTEGER_set(value->pathlen, 0) == 1;
    }
    is_set = is_set && add(certificate, NID_basic_constraints, value, 1);
    BASIC_CONSTRAINTS_free(value);
    return is_set;
}

static int add_key_usage(X509 *certificate, int is_authority) {
    enum { DIGITAL_SIGNATURE = 0, CERTIFICATE_SIGN = 5, LIST_SIGN = 6 };
    ASN1_BIT_STRING *value = ASN1_BIT_STRING_new();
    int is_set = value
        && (is_authority ? ASN1_BIT_STRING_set_bit(value, CERTIFICATE_SIGN, 1) == 1
                    && ASN1_BIT_STRING_set_bit(value, LIST_SIGN, 1) == 1
                         : ASN1_BIT_STRING_set_bit(value, DIGITAL_SIGNATURE, 1) == 1)
        && add(certificate, NID_key_usage, value, 1);
    ASN1_BIT_STRING_free(value);
    return is_set;
}

static int add_purposes(X509 *certificate, const apus_certificate_fields *fields) {
    EXTENDED_KEY_USAGE *value = EXTENDED_KEY_USAGE_new();
    int is_set = value
        && (!fields->is_server || sk_ASN1_OBJECT_push(value, OBJ_nid2obj(NID_server_auth)) > 0)
        && (!fields->is_client || sk_ASN1_OBJECT_push(value, OBJ_nid2obj(NID_client_auth)) > 0)
        && add(certificate, NID_ext_key_usage, value, 0);
    EXTENDED_KEY_USAGE_free(value);
    return is_set;
}

static GENERAL_NAME *name_of(apus_name_kind kind, const uint8_t *bytes, size_t count) {
    int is_address = kind == APUS_NAME_ADDRESS;
    GENERAL_NAME *name = GENERAL_NAME_new();
    ASN1_STRING *text = ASN1_STRING_type_new(is_address ? V_ASN1_OCTET_STRING : V_ASN1_IA5STRING);
    if (name && text && ASN1_STRING_set(text, bytes, (int)count) == 1) {
        GENERAL_NAME_set0_value(name, is_address ? GEN_IPADD : kind == APUS_NAME_DNS ? GEN_DNS : GEN_URI, text);
        return name;
    }
    GENERAL_NAME_free(name);
    ASN1_STRING_free(text);
    return NULL;
}

static int add_names(X509 *certificate, const apus_name *names, size_t count, const uint8_t *bytes) {
    GENERAL_NAMES *value = GENERAL_NAMES_new();
    int is_set = value != NULL;
    for (size_t i = 0; is_set && i < count; i++) {
        apus_range content = names[i].content;
        GENERAL_NAME *name = name_of(names[i].kind, bytes + content.offset, content.count);
        is_set = name && sk_GENERAL_NAME_push(value, name) > 0;
        if (!is_set) GENERAL_NAME_free(name);
    }
    is_set = is_set && add(certificate, NID_subject_alt_name, value, 0);
    GENERAL_NAMES_free(value);
    return is_set;
}

static int add_identifier(X509 *certificate, EVP_PKEY *key) {
    ASN1_OCTET_STRING *value = identifier_of(key);
    int is_set = add(certificate, NID_subject_key_identifier, value, 0);
    ASN1_OCTET_STRING_free(value);
    return is_set;
}

static int add_issuer_identifier(X509 *certificate, EVP_PKEY *issuer_key) {
    AUTHORITY_KEYID *value = AUTHORITY_KEYID_new();
    int is_set = value && (value->keyid = identifier_of(issuer_key))
        && add(certificate, NID_authority_key_identifier, value, 0);
    AUTHORITY_KEYID_free(value);
    return is_set;
}

/// Adds a text as it is. Its length is not bounded, which X.520 bounds to 64: a cluster's name may be longer.
static int add_text(X509_NAME *name, int kind, const uint8_t *bytes, apus_range range) {
    const unsigned char *text = bytes + range.offset;
    return X509_NAME_add_entry_by_NID(name, kind, V_ASN1_UTF8STRING, text, (int)range.count, -1, 0) == 1;
}

static int set_subject(
    X509 *certificate, const apus_certificate_fields *fields, const uint8_t *bytes, const X509 *issuer) {
    X509_NAME *name = X509_get_subject_name(certificate);
    return add_text(name, NID_organizationName, bytes, fields->organization)
        && add_text(name, NID_commonName, bytes, fields->common_name)
        && X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer) : name) == 1;
}

static int set_fields(X509 *certificate, const apus_certificate_fields *fields, const uint8_t *bytes) {
    BIGNUM *serial = BN_bin2bn(bytes + fields->serial.offset, (int)fields->serial.count, NULL);
    int is_set = serial && BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(certificate)) != NULL
        && X509_set_version(certificate, X509_VERSION_3) == 1
        && ASN1_TIME_set(X509_getm_notBefore(certificate), fields->not_before) != NULL
        && ASN1_TIME_set(X509_getm_notAfter(certificate), fields->not_after) != NULL;
    BN_free(serial);
    return is_set;
}

/// The hash of a key's signatures: as strong as its curve, none for Ed25519, which has its own.
static const EVP_MD *signature_hash(const EVP_PKEY *key) {
    if (EVP_PKEY_is_a(key, "ED25519")) return NULL;
    if (!EVP_PKEY_is_a(key, "EC") || EVP_PKEY_get_bits(key) <= 256) return EVP_sha256();
    return EVP_PKEY_get_bits(key) <= 384 ? EVP_sha384() : EVP_sha512();
}

size_t apus_certificate_issue(
    const apus_certificate_fields *fields, const apus_name *names, const uint8_t *bytes, apus_key *subject,
    const apus_certificate *issuer, apus_key *issuer_key, uint8_t **der, char *reason, size_t reason_size) {
    ERR_clear_error();
    *der = NULL;
    int is_end = !fields->is_authority;
    X509 *certificate = X509_new_ex(apus_library_get()->context, NULL);
    int is_signed = certificate && set_fields(certificate, fields, bytes)
        && set_subject(certificate, fields, bytes, issuer) && X509_set_pubkey(certificate, subject) == 1
        && add_constraints(certificate, !is_end) && add_key_usage(certificate, !is_end)
        && (!is_end || add_purposes(certificate, fields))
        && (!is_end || add_names(certificate, names, fields->name_count, bytes)) && add_identifier(certificate, subject)
        && (!is_end || add_issuer_identifier(certificate, issuer_key))
        && X509_sign(certificate, issuer_key, signature_hash(issuer_key)) > 0;
    int size = is_signed ? i2d_X509(certificate, der) : 0;
    X509_free(certificate);
    if (size > 0) {
        ERR_clear_error();
        return (size_t)size;
    }
    apus_fail("without memory", reason, reason_size);
    return 0;
}

void apus_bytes_free(uint8_t *bytes) { OPENSSL_free(bytes); }
