import ApusCore
import CApusTLS
package import NIOCore

/// One TLS connection of libssl, of either side; sends ciphertext to its socket by itself while it is direct.
///
/// Confined to its connection's event loop.
package struct TLSSession: ~Copyable {
    /// What reading found.
    package enum Read {
        case bytes(Int)
        case wantsMore
        /// The peer said that it sends no more.
        case ended
        case failed
    }

    // SAFETY: made in `init`, freed in `deinit`; the type cannot be copied.
    private let pointer: OpaquePointer
    /// Holds the methods of the socket, which freeing the connection calls; so it must go after it.
    private let context: AnyObject
    /// Of a client.
    private let resumption: TLSResumption?

    /// A server's; nil without memory. The socket stays its owner's, and must not block.
    package init?(_ context: TLSServerContext, socket: CInt) {
        guard let pointer = apus_tls_new_server(context.pointer, socket) else { return nil }
        self.pointer = pointer
        self.context = context
        resumption = nil
    }

    /// A client's, which is never direct; nil without memory, or where the name cannot be one.
    ///
    /// - Parameters:
    ///   - host: The server's name, if it has one; sent to it (RFC 6066 §3).
    ///   - address: The server's address, numeric.
    ///   - resumption: Gives and takes the session's ticket.
    package init?(_ context: TLSClientContext, host: String?, address: String?, resumption: TLSResumption?) {
        guard let pointer = apus_tls_new_connecting(context.pointer, host, address, resumption?.pointer) else {
            return nil
        }
        self.pointer = pointer
        self.context = context
        self.resumption = resumption
    }

    deinit { apus_tls_free(pointer) }

    /// Where the connection's own object and the library's are.
    package struct Addresses {
        package let connection: UnsafeRawPointer
        package let library: UnsafeRawPointer
    }

    package var addresses: Addresses {
        Addresses(connection: UnsafeRawPointer(pointer), library: apus_tls_library_object(pointer))
    }

    /// Gives ciphertext, which must stay in place until ``handshake()`` and ``read(into:)`` want more.
    package func feed(_ bytes: UnsafeRawBufferPointer) { apus_tls_feed(pointer, bytes.baseAddress, bytes.count) }

    /// True when the handshake is done, false when it wants more, nil when it failed.
    package func handshake() -> Bool? {
        switch apus_tls_handshake(pointer) {
        case 1: true
        case 0: false
        default: nil
        }
    }

    /// After the handshake of a client: whether the server's certificate is for this name or this address (RFC 6125).
    package func isFor(host: String?, address: String?) -> Bool { apus_tls_is_for(pointer, host, address) == 1 }

    /// After the handshake: whether it was without a certificate, on the strength of a ticket.
    package var isResumed: Bool { apus_tls_is_resumed(pointer) == 1 }

    package func read(into bytes: UnsafeMutableRawBufferPointer) -> Read {
        switch apus_tls_read(pointer, bytes.baseAddress, bytes.count) {
        case 0: .wantsMore
        case -1: .ended
        case let count where count > 0: .bytes(count)
        default: .failed
        }
    }

    /// Whether ``read(into:)`` may find more without new ciphertext.
    package var hasMore: Bool { apus_tls_has_more(pointer) != 0 }

    /// Sends all of the bytes; returns how much ciphertext waits in ``takePending()``, or nil if the connection is
    /// broken.
    package func write(_ bytes: UnsafeRawBufferPointer) -> Int? {
        let waiting = apus_tls_write(pointer, bytes.baseAddress, bytes.count)
        return waiting < 0 ? nil : waiting
    }

    /// Whether ciphertext waits for ``takePending()`` or ``flush()``.
    package var isWaiting: Bool { apus_tls_waiting(pointer) > 0 }

    /// Sends the ciphertext that waits to the socket; how much still waits, or nil if the socket is broken.
    package func flush() -> Int? {
        let waiting = apus_tls_flush(pointer)
        return waiting < 0 ? nil : waiting
    }

    /// Says that nothing more is sent.
    package func close() { apus_tls_close(pointer) }

    /// Whether ciphertext goes to the socket at once, or waits.
    package func setDirect(_ isDirect: Bool) { apus_tls_set_direct(pointer, isDirect ? 1 : 0) }

    /// Hands over the ciphertext that waits, if any.
    package func takePending() -> ByteBuffer? {
        var bytes: UnsafeRawPointer?
        let count = apus_tls_pending(pointer, &bytes)
        guard count > 0 else { return nil }
        defer { apus_tls_forget_pending(pointer) }
        return ByteBuffer(bytes: UnsafeRawBufferPointer(start: bytes, count: count))
    }

    /// Why the last call failed.
    package static func reason() -> String {
        var reason = [CChar](repeating: 0, count: 256)
        apus_tls_reason(&reason, reason.count)
        return String(nullTerminated: reason)
    }

    /// Why a client's handshake failed.
    package func connectingReason() -> String {
        var reason = [CChar](repeating: 0, count: 256)
        apus_tls_connecting_reason(pointer, &reason, reason.count)
        return String(nullTerminated: reason)
    }
}
