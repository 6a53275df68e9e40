package import ApusCore
import ApusCrypto
import CApusTLS
import Foundation

/// Why a context cannot be made, with libssl's reason.
package enum TLSContextError: Error, CustomStringConvertible {
    case authority(String)
    case certificate(String)
    case key(String)
    /// The key is another certificate's.
    case pair(String)
    /// The library refuses a setting.
    case library(String)

    package var description: String {
        switch self {
        case .authority(let reason), .certificate(let reason), .key(let reason), .pair(let reason),
            .library(let reason):
            reason
        }
    }
}

/// A certificate, with those of its issuers behind it, and its private key. Both are PEM texts.
package struct TLSIdentity: Sendable {
    package var chain: [UInt8]
    package var key: [UInt8]

    package init(chain: [UInt8], key: [UInt8]) { (self.chain, self.key) = (chain, key) }
}

/// The authorities whose certificates are accepted.
package struct TLSTrust: Sendable {
    fileprivate let pem: [UInt8]

    /// Those of a PEM text, and no other.
    package static func authorities(_ pem: [UInt8]) -> TLSTrust { TLSTrust(pem: pem) }
}

/// A server's certificate and TLS settings, shared by its connections. TLS 1.3 only (RFC 8446), if nothing else is
/// said.
///
/// Sendable: many threads may use libssl's contexts once they are created.
package final class TLSServerContext: @unchecked Sendable {  // SAFETY: two `let`; libssl locks shared state.
    let pointer: OpaquePointer
    /// Kept for libssl, which calls it.
    private let keys: KeyFinder?

    private final class KeyFinder: Sendable {
        let find: @Sendable (String) -> [UInt8]?
        init(_ find: @escaping @Sendable (String) -> [UInt8]?) { self.find = find }
    }

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
        keys = nil
        guard let tickets else { return }
        guard
            apus_tls_context_allow_tickets(pointer, tickets.secret, tickets.lifetimeSeconds, tickets.clockOffset) == 1
        else { throw ApusError(.internalFailure, "the TLS library refuses session tickets") }
    }

    /// - Parameters:
    ///   - trust: The authorities of the clients' certificates. Without it clients present none.
    ///   - keepsBuffers: Idle connections keep their buffers of 33 KiB. For connections that are few and busy.
    package init(
        _ identity: TLSIdentity, trust: TLSTrust? = nil, keepsBuffers: Bool = false
    ) throws(TLSContextError) {
        pointer = try ContextPointer.make(isServer: true)
        keys = nil
        if keepsBuffers { apus_tls_context_keep_buffers(pointer) }
        if let trust { try ContextPointer.trust(pointer, trust) }
        try ContextPointer.present(pointer, identity)
    }

    /// TLS 1.3 or 1.2 for HTTP/1.1.
    package init(http identity: TLSIdentity) throws(TLSContextError) {
        pointer = try ContextPointer.make(isServer: true)
        keys = nil
        try ContextPointer.present(pointer, identity)
        try ContextPointer.allow12(pointer)
        apus_tls_context_select_http(pointer)
    }

    /// TLS 1.2 with pre-shared keys: ECDHE with ChaCha20-Poly1305 (RFC 7905). Neither side has a certificate.
    ///
    /// - Parameter find: The key of an identity; nil if there is none. Called on the connections' event loops.
    package init(sharedKeys find: @escaping @Sendable (String) -> [UInt8]?) throws(TLSContextError) {
        pointer = try ContextPointer.make(isServer: true)
        let keys = KeyFinder(find)
        self.keys = keys
        // SAFETY: the connections hold this context, and it holds `keys`.
        let owner = Unmanaged.passUnretained(keys).toOpaque()
        let isSet = apus_tls_context_find_keys(
            pointer,
            { owner, identity, bytes, capacity in
                guard let owner, let identity, let bytes else { return 0 }
                let keys = Unmanaged<KeyFinder>.fromOpaque(owner).takeUnretainedValue()
                guard let key = keys.find(String(cString: identity)), key.count <= capacity else { return 0 }
                // SAFETY: libssl has room for `capacity` bytes.
                UnsafeMutableRawBufferPointer(start: bytes, count: capacity).copyBytes(from: key)
                return key.count
            }, owner)
        guard isSet == 1 else { throw .library("TLS with pre-shared keys is not available") }
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
        let key = HKDF.deriveKey(
            inputKeyMaterial: clusterKey, info: Data("apus tls session tickets".utf8),
            outputByteCount: 32)
        secret = key.withUnsafeBytes { Array($0) }  // SAFETY: copied within the closure.
        lifetimeSeconds = max(1, lifetime.components.seconds)
        self.clockOffset = clockOffset
    }
}

/// A client's trusted authorities and TLS settings, shared by its connections. TLS 1.3 only (RFC 8446), if nothing else
/// is said.
///
/// Sendable: as ``TLSServerContext``.
package final class TLSClientContext: @unchecked Sendable {  // SAFETY: one `let`; libssl locks shared state.
    let pointer: OpaquePointer

    /// Reads the PEM file of the trusted authorities. Connections may resume sessions.
    ///
    /// - Throws: 10022 if it cannot be used.
    package init(authorityFile: String) throws(ApusError) {
        do {
            pointer = try ContextPointer.make(isServer: false)
            try ContextPointer.trust(pointer, .authorities(try Self.text(of: authorityFile)))
        } catch {
            throw ApusError(
                .configurationInvalid, "the authority's certificate \(authorityFile) cannot be used: \(error)")
        }
        apus_tls_context_keep_tickets(pointer)
    }

    /// - Parameters:
    ///   - identity: The certificate for servers that demand one.
    ///   - keepsBuffers: As for a server.
    package init(trust: TLSTrust, identity: TLSIdentity? = nil, keepsBuffers: Bool = false) throws(TLSContextError) {
        pointer = try ContextPointer.make(isServer: false)
        if keepsBuffers { apus_tls_context_keep_buffers(pointer) }
        try ContextPointer.trust(pointer, trust)
        if let identity { try ContextPointer.present(pointer, identity) }
    }

    /// TLS 1.3 or 1.2, for servers whose certificates nobody has signed, such as cameras. It protects from those who
    /// listen, not from those who answer in the server's place.
    package init(acceptingAnyCertificate: Void) throws(TLSContextError) {
        pointer = try ContextPointer.make(isServer: false)
        try ContextPointer.allow12(pointer)
    }

    /// As ``TLSServerContext/init(sharedKeys:)``.
    package init(sharedKey: [UInt8], identity: String) throws(TLSContextError) {
        pointer = try ContextPointer.make(isServer: false)
        guard apus_tls_context_use_key(pointer, identity, sharedKey, sharedKey.count) == 1 else {
            throw .library("TLS with pre-shared keys is not available")
        }
    }

    deinit { apus_tls_context_free(pointer) }

    private static func text(of file: String) throws(TLSContextError) -> [UInt8] {
        guard let text = FileManager.default.contents(atPath: file) else { throw .authority("it cannot be read") }
        return [UInt8](text)
    }
}

extension TLSIdentity {
    /// Reads two PEM files.
    ///
    /// - Throws: Foundation's error if one cannot be read.
    package init(certificateFile: String, keyFile: String) throws {
        chain = [UInt8](try Data(contentsOf: URL(fileURLWithPath: certificateFile)))
        key = [UInt8](try Data(contentsOf: URL(fileURLWithPath: keyFile)))
    }
}

/// The steps of making a context. Its owner frees the pointer.
private enum ContextPointer {
    static func make(isServer: Bool) throws(TLSContextError) -> OpaquePointer {
        var reason = Reason()
        guard let pointer = apus_tls_context_create(isServer ? 1 : 0, &reason.text, reason.text.count) else {
            throw .library(reason.words)
        }
        return pointer
    }

    static func trust(_ pointer: OpaquePointer, _ trust: TLSTrust) throws(TLSContextError) {
        var reason = Reason()
        let pem = trust.pem
        guard apus_tls_context_trust(pointer, pem, pem.count, &reason.text, reason.text.count) == 1 else {
            throw .authority(reason.words)
        }
    }

    static func present(_ pointer: OpaquePointer, _ identity: TLSIdentity) throws(TLSContextError) {
        var reason = Reason()
        let (chain, key) = (identity.chain, identity.key)
        guard apus_tls_context_present(pointer, chain, chain.count, &reason.text, reason.text.count) == 1 else {
            throw .certificate(reason.words)
        }
        var isPair: CInt = 1
        guard apus_tls_context_prove(pointer, key, key.count, &isPair, &reason.text, reason.text.count) == 1 else {
            throw isPair == 1 ? .key(reason.words) : .pair(reason.words)
        }
    }

    static func allow12(_ pointer: OpaquePointer) throws(TLSContextError) {
        guard apus_tls_context_allow_12(pointer) == 1 else { throw .library("TLS 1.2 is not available") }
    }
}

/// A text that libssl writes.
struct Reason {
    var text = [CChar](repeating: 0, count: 256)
    var words: String { String(nullTerminated: text) }
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
