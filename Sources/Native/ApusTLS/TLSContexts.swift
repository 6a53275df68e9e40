package import ApusCore
import CApusTLS
import Crypto
import Foundation

/// A server's certificate and TLS settings, shared by its connections. TLS 1.3 only (RFC 8446).
///
/// Sendable: many threads may use libssl's contexts once they are created.
package final class TLSServerContext: @unchecked Sendable {  // SAFETY: one `let`; libssl locks shared state.
    let pointer: OpaquePointer

    /// Reads PEM files.
    ///
    /// - Parameter tickets: Keys with which returning clients resume their sessions; nil disables resumption.
    /// - Throws: 10022 if a file cannot be used.
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

/// The secret with which the servers of one cluster seal TLS session tickets, so that each can resume a session of any
/// other.
///
/// The keys are derived from the secret and the wall clock. They change once per lifetime, and a ticket is valid in its
/// own epoch and the next. A TLS ticket is not a session of the cluster: it saves the certificate and its signature,
/// and does not identify the client (SECURITY.md).
package struct TLSTicketKeys: Sendable {
    let secret: [UInt8]
    let lifetimeSeconds: Int64
    let clockOffset: Int64

    /// - Parameters:
    ///   - clusterKey: 32 bytes.
    ///   - lifetime: The lifetime of a ticket, at least 1 s.
    ///   - clockOffset: Added to the wall clock, in seconds; for tests.
    package init(clusterKey: [UInt8], lifetime: Duration, clockOffset: Int64 = 0) {
        let key = HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: clusterKey), info: Data("apus tls session tickets".utf8),
            outputByteCount: 32)
        secret = key.withUnsafeBytes { Array($0) }  // SAFETY: copied within the closure.
        lifetimeSeconds = max(1, lifetime.components.seconds)
        self.clockOffset = clockOffset
    }
}

/// A client's trusted authorities and TLS settings, shared by its connections. TLS 1.3 only (RFC 8446).
///
/// Sendable: as ``TLSServerContext``.
package final class TLSClientContext: @unchecked Sendable {  // SAFETY: one `let`; libssl locks shared state.
    let pointer: OpaquePointer

    /// Reads the PEM file of the trusted authorities.
    ///
    /// - Throws: 10022 if it cannot be used.
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

/// The newest ticket that a client received. Its next connection, to any node, resumes the TLS session with it. Several
/// connections may use a ticket at once. After 24 h the server presents its certificate again.
///
/// Confined to the event loop of the connections that share it.
package final class TLSResumption: @unchecked Sendable {  // SAFETY: confined to its connections' event loop.
    // SAFETY: created in `init`, freed in `deinit`. Each connection holds this object until it is freed.
    let pointer: OpaquePointer?

    /// Has no ticket: the first connection does a full handshake.
    package init() { pointer = apus_tls_resumption_new() }

    deinit { apus_tls_resumption_free(pointer) }
}
