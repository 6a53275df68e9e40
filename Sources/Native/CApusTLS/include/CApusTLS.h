// TLS connections on libssl, with no call that blocks and no thread of their own (RFC 8446).
//
// A connection is fed ciphertext as it comes, and sends ciphertext to its socket by itself; what the socket
// does not take is kept for the caller, in order. Nothing here is thread-safe but the use of one context by
// many threads; a connection belongs to one thread.
#ifndef CAPUS_TLS_H
#define CAPUS_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/// Certificate, key and settings that connections share.
typedef struct apus_tls_context apus_tls_context;

/// One connection.
typedef struct apus_tls apus_tls;

/// A context for servers that takes TLS 1.3 only; null if a file cannot be used, with the reason in `reason`.
apus_tls_context *apus_tls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size);

/// Lets connections of a new context be TLS 1.2 with forward secrecy and AEAD, too: 1, or 0 if libssl refuses.
int apus_tls_context_allow_12(apus_tls_context *context);
/// Lets clients of a new context resume their sessions with a ticket that any server with this secret takes (RFC 8446
/// section 4.6.1): 1, or 0 if libssl refuses. Keys follow from the secret and the wall clock, and change once in a
/// lifetime; tickets of the epoch before and, where clocks differ, of the next are taken too. `clock_offset` is added to
/// the clock, in seconds.
int apus_tls_context_allow_tickets(
    apus_tls_context *context, const uint8_t secret[32], int64_t lifetime_seconds, int64_t clock_offset);

/// Gives a context up; its connections go on.
void apus_tls_context_free(apus_tls_context *context);

/// A connection over a socket that does not block and stays the caller's; null without memory. Its few bytes are kept
/// for the thread's next one when it is freed.
apus_tls *apus_tls_new_server(apus_tls_context *context, int socket);
void apus_tls_free(apus_tls *tls);

/// Gives the next ciphertext, which must stay in place until the calls that consume it are done.
void apus_tls_feed(apus_tls *tls, const void *bytes, size_t count);

/// Goes on with the handshake: 1 when it is done, 0 when more ciphertext is wanted, -1 when it failed.
int apus_tls_handshake(apus_tls *tls);

/// Decrypts: the number of bytes, 0 when more ciphertext is wanted, -1 after the peer's close_notify, -2 when the
/// connection is broken.
ssize_t apus_tls_read(apus_tls *tls, void *bytes, size_t capacity);

/// Whether apus_tls_read may find more without new ciphertext.
int apus_tls_has_more(const apus_tls *tls);

/// Encrypts all of the bytes and sends them: the ciphertext that waits for the caller now, or -1 when the
/// connection is broken.
ssize_t apus_tls_write(apus_tls *tls, const void *bytes, size_t count);

/// Sends the ciphertext that waits: what still waits, or -1 when the socket is broken.
ssize_t apus_tls_flush(apus_tls *tls);

/// The ciphertext that waits for the caller or for apus_tls_flush now.
size_t apus_tls_waiting(const apus_tls *tls);

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

// MARK: Connecting

/// The newest ticket that a client was given, for its next connections. It belongs to the thread of these.
typedef struct apus_tls_resumption apus_tls_resumption;

/// Holds no ticket yet; null without memory.
apus_tls_resumption *apus_tls_resumption_new(void);
/// Its connections must be freed before.
void apus_tls_resumption_free(apus_tls_resumption *resumption);

/// A context for clients that takes TLS 1.3 only, and servers whose certificate is signed by one of a PEM file; null
/// if that cannot be used, with the reason in `reason`.
apus_tls_context *apus_tls_connecting_context(const char *authority_file, char *reason, size_t reason_size);

/// A client's connection whose ciphertext always waits for the caller; null without memory. `host` is the server's name
/// if it has one, `address` its address as text. A session is resumed where `resumption`, which may be null, has a
/// ticket of a server whose certificate is for this one too, and shown within a day.
apus_tls *apus_tls_new_connecting(
    apus_tls_context *context, const char *host, const char *address, apus_tls_resumption *resumption);

/// After the handshake: whether the server's certificate is for this name or this address, either of which may be null.
int apus_tls_is_for(const apus_tls *tls, const char *host, const char *address);

/// After the handshake: whether a session was resumed.
int apus_tls_is_resumed(const apus_tls *tls);

/// Why the handshake of a client failed; empties libssl's list of errors.
void apus_tls_connecting_reason(const apus_tls *tls, char *reason, size_t reason_size);

// MARK: Datagrams

// DTLS 1.2 server sessions (RFC 6347) on a datagram socket that many clients share. A session is fed one datagram at
// a time, and sends each datagram to its client by itself; one that the kernel does not take is lost, as on any way.

/// Certificate, key, settings, and the key of cookies, that sessions share.
typedef struct apus_dtls_context apus_dtls_context;

/// What listens for clients, and with a client that has shown its address, that client's session.
typedef struct apus_dtls apus_dtls;

/// Bytes of a record's payload, at most (RFC 6347 section 4.1); no datagram has more plaintext in one record.
enum { APUS_DTLS_PAYLOAD_MAX = 16384 };

/// A context; null if a file cannot be used, with the reason in `reason`.
apus_dtls_context *apus_dtls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size);
/// Gives a context up; its sessions go on.
void apus_dtls_context_free(apus_dtls_context *context);

/// What listens on a socket that stays the caller's; null without memory.
apus_dtls *apus_dtls_new(apus_dtls_context *context, int socket);
void apus_dtls_free(apus_dtls *dtls);

/// Looks at a client's first datagram: 1 when it has the cookie of its address, which makes this its session; 0 when
/// it was given the cookie, or is not worth an answer. Nothing is kept of it then (RFC 6347 section 4.2.1).
/// `minute` counts minutes from anywhere: a cookie is good in its own one and in the next.
int apus_dtls_listen(
    apus_dtls *dtls, const void *datagram, size_t count, const struct sockaddr *client, socklen_t client_length,
    uint64_t minute);

/// Gives a datagram, which must stay in place until the calls that consume it are done.
void apus_dtls_feed(apus_dtls *dtls, const void *datagram, size_t count);

/// Goes on with the handshake: 1 when it is done, 0 when more is wanted, -1 when it failed.
int apus_dtls_handshake(apus_dtls *dtls);

/// Sends what was lost of the handshake again, if its time has come: -1 when it has been sent often enough.
int apus_dtls_tick(apus_dtls *dtls);

/// Decrypts one record: the number of bytes, 0 when another datagram is wanted, -1 after the peer's close_notify, -2
/// when the session is broken.
ssize_t apus_dtls_read(apus_dtls *dtls, void *bytes, size_t capacity);

/// Encrypts the bytes as one record and sends it: 1 when it went, 0 when the kernel did not take it, -1 when the
/// session is broken.
int apus_dtls_write(apus_dtls *dtls, const void *bytes, size_t count);

/// Sends close_notify.
void apus_dtls_close(apus_dtls *dtls);

// MARK: A client

/// A client's connection (TLS 1.2 or newer, or DTLS 1.2) for commands that probe a server; its calls wait.
typedef struct apus_tls_client apus_tls_client;

/// Shakes hands over a connected socket, which stays the caller's: null if that fails, with the reason in `reason`.
/// `name` is the host name or address that the certificate must be for, `authority_file` a PEM file of those who may
/// have signed it: empty for the system's, NULL to check nothing. No read waits longer than `seconds`.
apus_tls_client *apus_tls_client_connect(
    int socket, int is_datagram, const char *name, const char *authority_file, int seconds, char *reason,
    size_t reason_size);
/// Says close_notify and forgets the connection.
void apus_tls_client_free(apus_tls_client *client);

/// Whether a read need not wait for the socket.
int apus_tls_client_has_pending(const apus_tls_client *client);

/// The number of bytes, of one record of a datagram; 0 when nothing came in time; -1 at the end.
ssize_t apus_tls_client_read(apus_tls_client *client, void *bytes, size_t capacity);

/// Sends all of the bytes; -1 when the connection is broken.
ssize_t apus_tls_client_write(apus_tls_client *client, const void *bytes, size_t count);

/// Why the last call of this thread failed; empties libssl's list of errors.
void apus_tls_reason(char *reason, size_t reason_size);

#endif
