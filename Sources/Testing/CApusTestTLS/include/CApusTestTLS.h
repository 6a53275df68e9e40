// A DTLS 1.2 client on libssl that neither waits nor has a socket, for tests. It belongs to one thread.
#ifndef CAPUS_TEST_TLS_H
#define CAPUS_TEST_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct apus_test_dtls apus_test_dtls;

/// A client that offers these ciphers (in libssl's words) and takes every certificate; null if libssl refuses.
apus_test_dtls *apus_test_dtls_new(const char *ciphers);
void apus_test_dtls_free(apus_test_dtls *client);

/// Gives one datagram of the server, which must stay in place until the calls that consume it are done.
void apus_test_dtls_feed(apus_test_dtls *client, const void *datagram, size_t count);

/// Goes on with the handshake: 1 when it is done, 0 when more is wanted, -1 when it failed.
int apus_test_dtls_handshake(apus_test_dtls *client);

/// Sends what was lost of the handshake again, if its time has come: -1 when it has been sent often enough.
int apus_test_dtls_tick(apus_test_dtls *client);

/// Decrypts one record: the number of bytes, 0 when another datagram is wanted, -1 when the session is over.
ssize_t apus_test_dtls_read(apus_test_dtls *client, void *bytes, size_t capacity);

/// Encrypts the bytes as one record: 1, or -1 when the session is broken.
int apus_test_dtls_write(apus_test_dtls *client, const void *bytes, size_t count);

/// Makes close_notify.
void apus_test_dtls_close(apus_test_dtls *client);

/// Moves the oldest datagram that the client made to `bytes`: its size, or -1 if there is none.
ssize_t apus_test_dtls_take(apus_test_dtls *client, void *bytes, size_t capacity);

/// Sets how many seconds the calling thread's clock (gettimeofday, by which libssl repeats handshakes) is ahead.
void apus_test_clock_set(int64_t seconds);

#endif
