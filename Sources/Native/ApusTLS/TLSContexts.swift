package import ApusCore
import CApusTLS
import Crypto
import Foundation

/// A server's certificate and TLS settings, shared by its connections: TLS 1.3 only (RFC 8446).
///
/// Sendable: libssl's contexts may be used by many threads once they are made.
package final class TLSServerContext: @unchecked Sendable {  // SAFETY: one `let`; libssl locks what it shares.
    let pointer: OpaquePointer

    /// Reads PEM files. Throws 10022 if one cannot be used.
    ///
    /// - Parameter tickets: Clients that come back resume their session with a ticket; nil: they do not.
    package init(certificateFile: String, keyFile: String, tickets: TLSTicketKeys? = nil) throws(ApusError) {
        var reason = [CChar](repeating: 0, count: 256)
        guard let pointer = apus_tls_server_context(certificateFile, keyFile, &reason, reason.count) else {
            throw ApusError(
                .configurationInvalid,
                "the client listener's certificate \(certificateFile) with the key \(keyFile) cannot be used: "
                    + String(nullTerminated: reason))
        }
        self.pointer = pointer
        guard let tickets else { return }
        guard
            apus_tls_context_allow_tickets(pointer, tickets.secret, tickets.lifetimeSeconds, tickets.clockOffset) == 1
        else { throw ApusError(.internalFailure, "the TLS library refuses session tickets") }
    }

    deinit { apus_tls_context_free(pointer) }
}

/// The secret under which servers of one cluster seal TLS session tickets, so that each resumes what any other began.
///
/// The keys in use follow from the secret and the wall clock: they change once in a lifetime, and a ticket is taken in
/// its own epoch and in the next. A ticket is no session of the cluster: it spares the certificate and its signature,
/// and says nothing of who the client is (SECURITY.md).
package struct TLSTicketKeys: Sendable {
    let secret: [UInt8]
    let lifetimeSeconds: Int64
    let clockOffset: Int64

    /// - Parameters:
    ///   - clusterKey: 32 bytes.
    ///   - lifetime: How long a ticket may be used, at least 1 s.
    ///   - clockOffset: Added to the wall clock, in seconds; for tests.
    package init(clusterKey: [UInt8], lifetime: Duration, clockOffset: Int64 = 0) {
        let key = HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: clusterKey), info: Data("apus tls session tickets".utf8),
            outputByteCount: 32)
        secret = key.withUnsafeBytes { Array($0) }  // SAFETY: copied in the closure.
        lifetimeSeconds = max(1, lifetime.components.seconds)
        self.clockOffset = clockOffset
    }
}

/// Whom a client trusts, with its TLS settings, shared by its connections: TLS 1.3 only (RFC 8446).
///
/// Sendable: as ``TLSServerContext``.
package final class TLSClientContext: @unchecked Sendable {  // SAFETY: one `let`; libssl locks what it shares.
    let pointer: OpaquePointer

    /// Reads the PEM file of those who may have signed a server's certificate. Throws 10022 if it cannot be used.
    package init(authorityFile: String) throws(ApusError) {
        var reason = [CChar](repeating: 0, count: 256)
        guard let pointer = apus_tls_connecting_context(authorityFile, &reason, reason.count) else {
            throw ApusError(
                .configurationInvalid,
                "the authority's certificate \(authorityFile) cannot be used: " + String(nullTerminated: reason))
        }
        self.pointer = pointer
    }

    deinit { apus_tls_context_free(pointer) }
}

/// The newest ticket that a client was given, with which its next connection, to whichever node, resumes the TLS
/// session. A ticket may be used by several connections at once; after 24 h the server shows its certificate again.
///
/// Confined to the event loop of the connections that share it.
package final class TLSResumption: @unchecked Sendable {  // SAFETY: confined to its connections' event loop.
    // SAFETY: made in `init`, freed in `deinit`; each connection holds this object until it is freed.
    let pointer: OpaquePointer?

    /// Without a ticket; the first connection is a full handshake.
    package init() { pointer = apus_tls_resumption_new() }

    deinit { apus_tls_resumption_free(pointer) }
}
