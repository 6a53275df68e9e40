import ApusCore
import CApusTLS
package import NIOCore

/// One TLS connection of libssl, of either side. In direct mode it sends ciphertext to its socket itself.
///
/// Confined to its connection's event loop.
package struct TLSSession: ~Copyable {
    /// The result of a read.
    package enum Read {
        case bytes(Int)
        case wantsMore
        /// The peer announced that it sends no more.
        case ended
        case failed
    }

    // SAFETY: created in `init`, freed in `deinit`; the type cannot be copied.
    private var pointer: OpaquePointer
    /// Holds the socket's methods, which are called when the connection is freed. It must therefore be released later.
    private let context: AnyObject
    /// Set for a client.
    private let resumption: TLSResumption?

    /// A server's connection; nil without memory. The caller keeps the socket, which must be non-blocking.
    package init?(_ context: TLSServerContext, socket: CInt) {
        guard let pointer = apus_tls_new_server(context.pointer, socket) else { return nil }
        self.pointer = pointer
        self.context = context
        resumption = nil
    }

    /// A server's connection that is never direct; nil without memory.
    package init?(_ context: TLSServerContext) {
        self.init(context, socket: -1)
        setDirect(false)
    }

    /// A client's connection, which is never direct; nil without memory, or if the name is invalid.
    ///
    /// - Parameters:
    ///   - host: The server's name, if it has one. It is sent to the server (RFC 6066 §3).
    ///   - address: The server's numeric address.
    ///   - resumption: Supplies and receives the session's ticket.
    package init?(_ context: TLSClientContext, host: String?, address: String?, resumption: TLSResumption?) {
        guard let pointer = apus_tls_new_connecting(context.pointer, host, address, resumption?.pointer) else {
            return nil
        }
        self.pointer = pointer
        self.context = context
        self.resumption = resumption
    }

    deinit { apus_tls_free(pointer) }

    /// Prepares the connection for another thread, which calls ``arrive(socket:)``. Returns false, and changes nothing,
    /// without memory.
    package mutating func leave() -> Bool {
        guard let moved = apus_tls_leave(pointer) else { return false }
        pointer = moved
        return true
    }

    /// Continues the connection on this thread, over another descriptor of its socket; nil: it is never direct.
    package mutating func arrive(socket: CInt?) { pointer = apus_tls_arrive(pointer, socket ?? -1) }

    /// The addresses of the connection's own object and the library's.
    package struct Addresses {
        package let connection: UnsafeRawPointer
        package let library: UnsafeRawPointer
    }

    package var addresses: Addresses {
        Addresses(connection: UnsafeRawPointer(pointer), library: apus_tls_library_object(pointer))
    }

    /// Supplies ciphertext. It must stay in place until ``handshake()`` and ``read(into:)`` need more.
    package func feed(_ bytes: UnsafeRawBufferPointer) { apus_tls_feed(pointer, bytes.baseAddress, bytes.count) }

    /// Continues the handshake. Returns true when it is complete, false if it needs more ciphertext, nil if it failed.
    package func handshake() -> Bool? {
        switch apus_tls_handshake(pointer) {
        case 1: true
        case 0: false
        default: nil
        }
    }

    /// True if the server's certificate is valid for this name or this address (RFC 6125). Call it after a client's
    /// handshake.
    package func isFor(host: String?, address: String?) -> Bool { apus_tls_is_for(pointer, host, address) == 1 }

    /// True if the handshake used a ticket instead of a certificate. Call it after the handshake.
    package var isResumed: Bool { apus_tls_is_resumed(pointer) == 1 }

    package func read(into bytes: UnsafeMutableRawBufferPointer) -> Read {
        switch apus_tls_read(pointer, bytes.baseAddress, bytes.count) {
        case 0: .wantsMore
        case -1: .ended
        case let count where count > 0: .bytes(count)
        default: .failed
        }
    }

    /// True if ``read(into:)`` may return more without new ciphertext.
    package var hasMore: Bool { apus_tls_has_more(pointer) != 0 }

    /// Sends all of the bytes. Returns the amount of ciphertext in ``takePending()``; nil if the connection is broken.
    package func write(_ bytes: UnsafeRawBufferPointer) -> Int? {
        let waiting = apus_tls_write(pointer, bytes.baseAddress, bytes.count)
        return waiting < 0 ? nil : waiting
    }

    /// Encrypts all of the bytes, and appends the ciphertext to a buffer. For a connection that is not direct, and of
    /// which no ciphertext waits. Returns false if the connection is broken.
    package func seal(_ bytes: UnsafeRawBufferPointer, into output: inout ByteBuffer) -> Bool {
        var isSealed = false
        let capacity = apus_tls_sealed_max(bytes.count)
        // SAFETY: the buffer has room for `capacity` bytes, and libssl's part writes no more.
        output.writeWithUnsafeMutableBytes(minimumWritableBytes: capacity) { room in
            let count = apus_tls_seal(pointer, bytes.baseAddress, bytes.count, room.baseAddress, room.count)
            isSealed = count >= 0
            return max(0, count)
        }
        return isSealed
    }

    /// True if ciphertext waits for ``takePending()`` or ``flush()``.
    package var isWaiting: Bool { apus_tls_waiting(pointer) > 0 }

    /// Sends the waiting ciphertext to the socket. Returns how much still waits; nil if the socket is broken.
    package func flush() -> Int? {
        let waiting = apus_tls_flush(pointer)
        return waiting < 0 ? nil : waiting
    }

    /// Sends close_notify.
    package func close() { apus_tls_close(pointer) }

    /// Sets whether ciphertext is sent to the socket at once, or waits.
    package func setDirect(_ isDirect: Bool) { apus_tls_set_direct(pointer, isDirect ? 1 : 0) }

    /// Returns the waiting ciphertext, if any.
    package func takePending() -> ByteBuffer? {
        var bytes: UnsafeRawPointer?
        let count = apus_tls_pending(pointer, &bytes)
        guard count > 0 else { return nil }
        defer { apus_tls_forget_pending(pointer) }
        return ByteBuffer(bytes: UnsafeRawBufferPointer(start: bytes, count: count))
    }

    /// The reason for which the last call failed.
    package static func reason() -> String {
        var reason = Reason()
        apus_tls_reason(&reason.text, reason.text.count)
        return reason.words
    }

    /// Why the last call failed.
    package func failure() -> TLSError {
        var reason = Reason()
        let isCertificate = apus_tls_failure(pointer, &reason.text, reason.text.count) == 1
        return TLSError(isCertificate ? .certificate : .protocolViolated, reason.words)
    }

    /// The certificate that the peer presented, in DER. Empty if it presented none.
    package func peerCertificate() -> [UInt8] {
        var bytes: UnsafeMutablePointer<UInt8>?
        let count = apus_tls_peer_certificate(pointer, &bytes)
        defer { apus_tls_free_bytes(bytes) }
        // SAFETY: libssl has allocated `count` bytes, which are copied.
        return Array(UnsafeBufferPointer(start: bytes, count: count))
    }

    /// The identity of the pre-shared key; nil if there is none. Call it after the handshake.
    package func peerIdentity() -> String? { apus_tls_peer_identity(pointer).map { String(cString: $0) } }
}

/// Why a connection failed.
package struct TLSError: Error, Sendable, CustomStringConvertible {
    package enum Kind: Sendable {
        /// This side does not accept the peer's certificate, or the peer does not accept this side's.
        case certificate
        /// The connection ended without close_notify, or within the handshake. Anyone may have
        /// ended it (RFC 8446 §6.1).
        case truncated
        /// The peer does not speak TLS, breaks its rules, or has no version or cipher in common.
        case protocolViolated
    }

    package let kind: Kind
    /// In words, most of them libssl's.
    package let reason: String

    init(_ kind: Kind, _ reason: String) { (self.kind, self.reason) = (kind, reason) }

    package var description: String { "TLS failed: \(reason)" }
}
