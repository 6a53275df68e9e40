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
    private let pointer: OpaquePointer
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
        var reason = [CChar](repeating: 0, count: 256)
        apus_tls_reason(&reason, reason.count)
        return String(nullTerminated: reason)
    }

    /// The reason for which a client's handshake failed.
    package func connectingReason() -> String {
        var reason = [CChar](repeating: 0, count: 256)
        apus_tls_connecting_reason(pointer, &reason, reason.count)
        return String(nullTerminated: reason)
    }
}
