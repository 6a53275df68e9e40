// A DTLS 1.2 client on libssl for tests. It neither blocks nor has a socket. It belongs to one thread.
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

#endif
