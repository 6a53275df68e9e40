// TLS server connections on libssl, with no call that blocks and no thread of their own (RFC 8446).
//
// A connection is fed ciphertext as it comes, and sends ciphertext to its socket by itself; what the socket
// does not take is kept for the caller, in order. Nothing here is thread-safe but the use of one context by
// many threads; a connection belongs to one thread.
#ifndef CAPUS_TLS_H
#define CAPUS_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/// Certificate, key and settings that connections share.
typedef struct apus_tls_context apus_tls_context;

/// One connection.
typedef struct apus_tls apus_tls;

/// A context for servers that takes TLS 1.3 only; null where a file cannot be used, with the reason in `reason`.
apus_tls_context *apus_tls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size);
void apus_tls_context_free(apus_tls_context *context);

/// A connection over a socket that does not block and stays the caller's; null without memory.
apus_tls *apus_tls_new_server(apus_tls_context *context, int socket);
void apus_tls_free(apus_tls *tls);

/// Gives the next ciphertext, which must stay in place until the calls that consume it are done.
void apus_tls_feed(apus_tls *tls, const void *bytes, size_t count);

/// Goes on with the handshake: 1 when it is done, 0 when more ciphertext is wanted, -1 when it failed.
int apus_tls_handshake(apus_tls *tls);

/// Decrypts: the number of bytes, 0 when more ciphertext is wanted, -1 after the peer's close_notify, -2 when the
/// connection is broken.
ssize_t apus_tls_read(apus_tls *tls, void *bytes, size_t capacity);

/// Encrypts all of the bytes and sends them: the ciphertext that waits for the caller now, or -1 when the
/// connection is broken.
ssize_t apus_tls_write(apus_tls *tls, const void *bytes, size_t count);

/// Sends close_notify.
void apus_tls_close(apus_tls *tls);

/// Where libssl's part of the connection is; to fetch it into the cache, for nothing else.
const void *apus_tls_library_object(const apus_tls *tls);

/// Whether ciphertext goes to the socket at once (true from the start), or waits for the caller.
void apus_tls_set_direct(apus_tls *tls, int is_direct);

/// The ciphertext that waits for the caller, until the next call of any other function.
size_t apus_tls_pending(const apus_tls *tls, const void **bytes);

/// Forgets the ciphertext that waited: the caller has it.
void apus_tls_forget_pending(apus_tls *tls);

/// Why the last call of this thread failed; empties libssl's list of errors.
void apus_tls_reason(char *reason, size_t reason_size);

#endif
