// TLS connections on libssl, without blocking calls or threads (RFC 8446).
//
// The caller supplies ciphertext as it arrives. A connection sends ciphertext to its socket itself. What the socket
// does not accept is kept for the caller, in order. Nothing here is thread-safe, except that many threads may use one
// context; a connection belongs to one thread.
#ifndef CAPUS_TLS_H
#define CAPUS_TLS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/// The certificate, key and settings of connections.
typedef struct apus_tls_context apus_tls_context;

/// One connection.
typedef struct apus_tls apus_tls;

// MARK: Contexts

/// A context for one side, with TLS 1.3 only, that presents no certificate, demands none and has no tickets; null
/// without memory, with the reason in `reason`. The functions below change it before its first connection. Each returns
/// 1, or 0 with libssl's reason.
apus_tls_context *apus_tls_context_create(int is_server, char *reason, size_t reason_size);

/// Presents the first certificate of a PEM text. The others are its issuers.
int apus_tls_context_present(
    apus_tls_context *context, const void *pem, size_t count, char *reason, size_t reason_size);
/// Proves that certificate with its private key, a PEM text without a password. Call it after
/// apus_tls_context_present. `is_pair` is 0 if the key was read and belongs to another certificate.
int apus_tls_context_prove(
    apus_tls_context *context, const void *pem, size_t count, int *is_pair, char *reason, size_t reason_size);

/// Demands a certificate of the peer that an authority of a PEM text has issued. No other authority is trusted.
int apus_tls_context_trust(apus_tls_context *context, const void *pem, size_t count, char *reason, size_t reason_size);

/// Also allows TLS 1.2 with forward secrecy and AEAD: 1, or 0 if libssl refuses.
int apus_tls_context_allow_12(apus_tls_context *context);
/// Keeps the buffers of an idle connection, 33 KiB. For connections that are few and busy.
void apus_tls_context_keep_buffers(apus_tls_context *context);
/// Selects HTTP/1.1 if a client offers it among other protocols (RFC 7301).
void apus_tls_context_select_http(apus_tls_context *context);

/// Finds the key of an identity and writes at most `capacity` bytes of it. Returns its length, or 0 if there is none.
typedef size_t (*apus_tls_key_finder)(void *owner, const char *identity, uint8_t *key, size_t capacity);

/// Uses TLS 1.2 with pre-shared keys instead of certificates: ECDHE with ChaCha20-Poly1305 (RFC 7905). A server finds
/// the keys of its clients; the owner must outlive the context's connections. 1, or 0 if libssl refuses.
int apus_tls_context_find_keys(apus_tls_context *context, apus_tls_key_finder find, void *owner);
/// The same for a client, which has one key: 1, or 0 without memory.
int apus_tls_context_use_key(apus_tls_context *context, const char *identity, const uint8_t *key, size_t count);

/// Allows clients of a new context to resume their sessions with a ticket that every server with this secret accepts
/// (RFC 8446 section 4.6.1): 1, or 0 if libssl refuses. Keys are derived from the secret and the wall clock, and change
/// once per lifetime. Tickets of the previous epoch and, since clocks differ, of the next one are accepted too.
/// `clock_offset` is added to the clock, in seconds.
int apus_tls_context_allow_tickets(
    apus_tls_context *context, const uint8_t secret[32], int64_t lifetime_seconds, int64_t clock_offset);
/// Keeps the tickets that servers send, for connections that have an apus_tls_resumption.
void apus_tls_context_keep_tickets(apus_tls_context *context);

/// A context for servers with the certificate and key of PEM files; null if a file cannot be used, with the reason.
apus_tls_context *apus_tls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size);

/// Releases a context. Its connections continue.
void apus_tls_context_free(apus_tls_context *context);

// MARK: Connections

/// A connection over a non-blocking socket, which the caller keeps; null without memory. When it is freed, its few
/// bytes are kept for the thread's next one.
apus_tls *apus_tls_new_server(apus_tls_context *context, int socket);
void apus_tls_free(apus_tls *tls);

/// Takes a connection out of this thread's memory, so that another thread continues it with apus_tls_arrive or frees it.
/// Returns it at its new address; null without memory, with nothing changed.
apus_tls *apus_tls_leave(apus_tls *tls);
/// Continues a connection on this thread, over another descriptor of its socket; -1 for none. Returns its new address.
apus_tls *apus_tls_arrive(apus_tls *tls, int socket);

/// Supplies the next ciphertext. It must stay in place until the calls that consume it are done.
void apus_tls_feed(apus_tls *tls, const void *bytes, size_t count);

/// Continues the handshake: 1 when it is complete, 0 if more ciphertext is needed, -1 if it failed.
int apus_tls_handshake(apus_tls *tls);

/// Decrypts: the number of bytes, 0 if more ciphertext is needed, -1 after the peer's close_notify, -2 if the
/// connection is broken.
ssize_t apus_tls_read(apus_tls *tls, void *bytes, size_t capacity);

/// True if apus_tls_read may return more without new ciphertext.
int apus_tls_has_more(const apus_tls *tls);

/// Encrypts all of the bytes and sends them. Returns the amount of ciphertext that waits for the caller, or -1 if the
/// connection is broken.
ssize_t apus_tls_write(apus_tls *tls, const void *bytes, size_t count);

/// The most ciphertext that `count` bytes can become: each record of 16 KiB grows by less than 64 bytes, and a key
/// update may come before them.
static inline size_t apus_tls_sealed_max(size_t count) { return count + (count / 16384 + 2) * 64; }

/// Encrypts all of the bytes to `output`, which has room for apus_tls_sealed_max. For a connection that is not direct,
/// and of which no ciphertext waits. Returns the amount of ciphertext, or -1 if the connection is broken.
ssize_t apus_tls_seal(apus_tls *tls, const void *bytes, size_t count, void *output, size_t capacity);

/// Sends the waiting ciphertext. Returns how much still waits, or -1 if the socket is broken.
ssize_t apus_tls_flush(apus_tls *tls);

/// The amount of ciphertext that waits for the caller or for apus_tls_flush.
size_t apus_tls_waiting(const apus_tls *tls);

/// Sends close_notify.
void apus_tls_close(apus_tls *tls);

/// The address of libssl's part of the connection, only for prefetching.
const void *apus_tls_library_object(const apus_tls *tls);

/// Sets whether ciphertext is sent to the socket at once (the initial state), or waits for the caller.
void apus_tls_set_direct(apus_tls *tls, int is_direct);

/// The ciphertext that waits for the caller, valid until the next call of any other function.
size_t apus_tls_pending(const apus_tls *tls, const void **bytes);

/// Removes the waiting ciphertext: the caller has taken it.
void apus_tls_forget_pending(apus_tls *tls);

// MARK: Connecting

/// The newest ticket that a client received, for its next connections. It belongs to their thread.
typedef struct apus_tls_resumption apus_tls_resumption;

/// Creates it without a ticket; null without memory.
apus_tls_resumption *apus_tls_resumption_new(void);
/// Its connections must be freed first.
void apus_tls_resumption_free(apus_tls_resumption *resumption);

/// A client's connection, whose ciphertext always waits for the caller; null without memory. `host` is the server's
/// name if it has one, `address` its address as text. A session is resumed if `resumption`, which may be null, has a
/// ticket from a server whose certificate is valid for this one too and was presented within a day.
apus_tls *apus_tls_new_connecting(
    apus_tls_context *context, const char *host, const char *address, apus_tls_resumption *resumption);

/// True if the server's certificate is valid for this name or this address, either of which may be null. Call it after
/// the handshake.
int apus_tls_is_for(const apus_tls *tls, const char *host, const char *address);

/// True if a session was resumed. Call it after the handshake.
int apus_tls_is_resumed(const apus_tls *tls);

// MARK: The peer

/// The certificate that the peer presented, in DER: its size, or 0 if there is none. The caller frees it with
/// apus_tls_free_bytes.
size_t apus_tls_peer_certificate(const apus_tls *tls, uint8_t **bytes);
void apus_tls_free_bytes(uint8_t *bytes);

/// The identity of the pre-shared key, valid as long as the connection; null if there is none. Call it after the
/// handshake.
const char *apus_tls_peer_identity(const apus_tls *tls);

/// The reason for which the last call for a connection failed. Returns 1 if it is a certificate, of either side.
/// Empties libssl's list of errors.
int apus_tls_failure(const apus_tls *tls, char *reason, size_t reason_size);

// MARK: Datagrams

// DTLS 1.2 server sessions (RFC 6347) on a datagram socket that many clients share. The caller supplies one datagram at
// a time. A session sends each datagram to its client itself; a datagram that the kernel does not accept is lost, as on
// any path.

/// The certificate, key, settings, and cookie key of sessions.
typedef struct apus_dtls_context apus_dtls_context;

/// A listener for clients. Once a client has verified its address, this is that client's session.
typedef struct apus_dtls apus_dtls;

/// The longest payload of a record, in bytes (RFC 6347 section 4.1). No datagram has more plaintext in one record.
enum { APUS_DTLS_PAYLOAD_MAX = 16384 };

/// A context; null if a file cannot be used, with the reason in `reason`.
apus_dtls_context *apus_dtls_server_context(
    const char *certificate_file, const char *key_file, char *reason, size_t reason_size);
/// Releases a context. Its sessions continue.
void apus_dtls_context_free(apus_dtls_context *context);

/// A listener on a socket, which the caller keeps; null without memory.
apus_dtls *apus_dtls_new(apus_dtls_context *context, int socket);
void apus_dtls_free(apus_dtls *dtls);

/// Checks a client's first datagram: 1 if it has the cookie of its address, which makes this its session; 0 if the
/// cookie was sent, or the datagram needs no answer. Nothing is stored then (RFC 6347 section 4.2.1). `minute` counts
/// minutes from any origin. A cookie is valid in its own minute and the next.
int apus_dtls_listen(
    apus_dtls *dtls, const void *datagram, size_t count, const struct sockaddr *client, socklen_t client_length,
    uint64_t minute);

/// Supplies a datagram. It must stay in place until the calls that consume it are done.
void apus_dtls_feed(apus_dtls *dtls, const void *datagram, size_t count);

/// Continues the handshake: 1 when it is complete, 0 if more is needed, -1 if it failed.
int apus_dtls_handshake(apus_dtls *dtls);

/// Retransmits the handshake if that is due: -1 after too many retransmissions.
int apus_dtls_tick(apus_dtls *dtls);

/// Decrypts one record: the number of bytes, 0 if another datagram is needed, -1 after the peer's close_notify, -2 if
/// the session is broken.
ssize_t apus_dtls_read(apus_dtls *dtls, void *bytes, size_t capacity);

/// Encrypts the bytes as one record and sends it: 1 if it was sent, 0 if the kernel did not accept it, -1 if the
/// session is broken.
int apus_dtls_write(apus_dtls *dtls, const void *bytes, size_t count);

/// Sends close_notify.
void apus_dtls_close(apus_dtls *dtls);

// MARK: A client

/// A client's connection (TLS 1.2 or newer, or DTLS 1.2) for commands that probe a server. Its calls block.
typedef struct apus_tls_client apus_tls_client;

/// Completes a handshake over a connected socket, which the caller keeps: null if that fails, with the reason in
/// `reason`. `name` is the host name or address that the certificate must be valid for. `authority_file` is a PEM file
/// of trusted authorities: empty for the system's, NULL to check nothing. No read waits longer than `seconds`.
apus_tls_client *apus_tls_client_connect(
    int socket, int is_datagram, const char *name, const char *authority_file, int seconds, char *reason,
    size_t reason_size);
/// Sends close_notify and frees the connection.
void apus_tls_client_free(apus_tls_client *client);

/// True if a read need not wait for the socket.
int apus_tls_client_has_pending(const apus_tls_client *client);

/// The number of bytes, of one record for a datagram; 0 if nothing came in time; -1 at the end.
ssize_t apus_tls_client_read(apus_tls_client *client, void *bytes, size_t capacity);

/// Sends all of the bytes; -1 if the connection is broken.
ssize_t apus_tls_client_write(apus_tls_client *client, const void *bytes, size_t count);

/// The reason for which the last call of this thread failed. Empties libssl's list of errors.
void apus_tls_reason(char *reason, size_t reason_size);

#endif
