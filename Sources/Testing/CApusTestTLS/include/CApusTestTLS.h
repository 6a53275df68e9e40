// The other end of connections in tests, on libssl: a DTLS 1.2 client, and TLS of either side. It neither blocks nor has
// a socket. It belongs to one thread.
#ifndef CAPUS_TEST_TLS_H
#define CAPUS_TEST_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct apus_test_dtls apus_test_dtls;

/// A client that offers these ciphers (in libssl's syntax) and accepts every certificate; null if libssl refuses.
apus_test_dtls *apus_test_dtls_new(const char *ciphers);
void apus_test_dtls_free(apus_test_dtls *client);

/// Supplies one datagram of the server. It must stay in place until the calls that consume it are done.
void apus_test_dtls_feed(apus_test_dtls *client, const void *datagram, size_t count);

/// Continues the handshake: 1 when it is complete, 0 if more is needed, -1 if it failed.
int apus_test_dtls_handshake(apus_test_dtls *client);

/// Retransmits the handshake if that is due: -1 after too many retransmissions.
int apus_test_dtls_tick(apus_test_dtls *client);

/// Decrypts one record: the number of bytes, 0 if another datagram is needed, -1 if the session has ended.
ssize_t apus_test_dtls_read(apus_test_dtls *client, void *bytes, size_t capacity);

/// Encrypts the bytes as one record: 1, or -1 if the session is broken.
int apus_test_dtls_write(apus_test_dtls *client, const void *bytes, size_t count);

/// Makes close_notify.
void apus_test_dtls_close(apus_test_dtls *client);

/// Moves the oldest datagram that the client produced to `bytes`: its size, or -1 if there is none.
ssize_t apus_test_dtls_take(apus_test_dtls *client, void *bytes, size_t capacity);

/// Sets how many seconds the calling thread's clock is ahead (gettimeofday, which libssl uses for retransmissions).
void apus_test_clock_set(int64_t seconds);

// MARK: Streams

/// One side of a TLS connection, on libssl's own memory.
typedef struct apus_test_tls apus_test_tls;

/// Any text but the first two numbers may be null. Certificates and keys are PEM texts.
///
/// `version_max` is 0 for the newest one, or 0x0303 for TLS 1.2. With `authority` the peer must present a certificate of
/// it; of a server it must be for `host`, or without one for `address`. `server_name` is sent to the server.
apus_test_tls *apus_test_tls_new(
    int is_server, int version_max, const char *certificate, const char *key, const char *authority,
    const char *server_name, const char *host, const char *address);
void apus_test_tls_free(apus_test_tls *tls);

/// Supplies ciphertext of the peer, which is copied.
void apus_test_tls_feed(apus_test_tls *tls, const void *bytes, size_t count);
/// Moves ciphertext for the peer to `bytes`: its size, or 0 if there is none.
ssize_t apus_test_tls_take(apus_test_tls *tls, void *bytes, size_t capacity);

/// Continues the handshake: 1 when it is complete, 0 if more is needed, -1 if it failed.
int apus_test_tls_handshake(apus_test_tls *tls);
/// Decrypts: the number of bytes, 0 if more ciphertext is needed, -1 after close_notify, -2 if the connection is broken.
ssize_t apus_test_tls_read(apus_test_tls *tls, void *bytes, size_t capacity);
/// Encrypts all of the bytes: 1, or -1 if the connection is broken.
int apus_test_tls_write(apus_test_tls *tls, const void *bytes, size_t count);
/// Changes the keys, and requests that the peer does too (RFC 8446 section 4.6.3): 1, or 0 if that is not possible.
int apus_test_tls_update_key(apus_test_tls *tls);
/// Makes close_notify.
void apus_test_tls_close(apus_test_tls *tls);
/// Why the last call failed; also of apus_test_tls_new, which returned null.
void apus_test_tls_reason(const apus_test_tls *tls, char *reason, size_t reason_size);

#endif
