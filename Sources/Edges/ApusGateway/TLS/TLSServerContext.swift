package import ApusCore
import CApusTLS
import NIOCore

/// The client door's certificate and TLS settings, shared by its connections: TLS 1.3 only (RFC 8446).
///
/// Sendable: libssl's contexts may be used by many threads once they are made.
package final class TLSServerContext: @unchecked Sendable {  // SAFETY: one `let`; libssl locks what it shares.
    let pointer: OpaquePointer

    /// Reads PEM files. Throws 10022 where one cannot be used.
    package init(certificateFile: String, keyFile: String) throws(ApusError) {
        var reason = [CChar](repeating: 0, count: 256)
        guard let pointer = apus_tls_server_context(certificateFile, keyFile, &reason, reason.count) else {
            throw ApusError(
                .configurationInvalid,
                "the client door's certificate \(certificateFile) with the key \(keyFile) cannot be used: "
                    + String(nullTerminated: reason))
        }
        self.pointer = pointer
    }

    deinit { apus_tls_context_free(pointer) }
}

/// One TLS connection of libssl; sends ciphertext to its socket by itself while it is direct.
///
/// Confined to its connection's event loop.
struct TLSSession: ~Copyable {
    /// What reading found.
    enum Read {
        case bytes(Int)
        case wantsMore
        /// The peer said that it sends no more.
        case ended
        case failed
    }

    // SAFETY: made in `init`, freed in `deinit`; the type cannot be copied.
    private let pointer: OpaquePointer
    /// Holds the methods of the socket, which freeing the connection calls; so it must go after it.
    private let context: TLSServerContext

    /// Nil without memory. The socket stays its owner's, and must not block.
    init?(_ context: TLSServerContext, socket: CInt) {
        guard let pointer = apus_tls_new_server(context.pointer, socket) else { return nil }
        self.pointer = pointer
        self.context = context
    }

    deinit { apus_tls_free(pointer) }

    /// Where the connection's own object and the library's are.
    struct Addresses {
        let connection: UnsafeRawPointer
        let library: UnsafeRawPointer
    }

    var addresses: Addresses {
        Addresses(connection: UnsafeRawPointer(pointer), library: apus_tls_library_object(pointer))
    }

    /// Gives ciphertext, which must stay in place until ``handshake()`` and ``read(into:)`` want more.
    func feed(_ bytes: UnsafeRawBufferPointer) { apus_tls_feed(pointer, bytes.baseAddress, bytes.count) }

    /// True when the handshake is done, false when it wants more, nil when it failed.
    func handshake() -> Bool? {
        switch apus_tls_handshake(pointer) {
        case 1: true
        case 0: false
        default: nil
        }
    }

    func read(into bytes: UnsafeMutableRawBufferPointer) -> Read {
        switch apus_tls_read(pointer, bytes.baseAddress, bytes.count) {
        case 0: .wantsMore
        case -1: .ended
        case let count where count > 0: .bytes(count)
        default: .failed
        }
    }

    /// Whether ``read(into:)`` may find more without new ciphertext.
    var hasMore: Bool { apus_tls_has_more(pointer) != 0 }

    /// Sends all of the bytes; returns how much ciphertext waits in ``takePending(_:)``, or nil where the connection is
    /// broken.
    func write(_ bytes: UnsafeRawBufferPointer) -> Int? {
        let waiting = apus_tls_write(pointer, bytes.baseAddress, bytes.count)
        return waiting < 0 ? nil : waiting
    }

    /// Says that nothing more is sent.
    func close() { apus_tls_close(pointer) }

    /// Whether ciphertext goes to the socket at once, or waits.
    func setDirect(_ isDirect: Bool) { apus_tls_set_direct(pointer, isDirect ? 1 : 0) }

    /// Hands over the ciphertext that waits, if any.
    func takePending() -> ByteBuffer? {
        var bytes: UnsafeRawPointer?
        let count = apus_tls_pending(pointer, &bytes)
        guard count > 0 else { return nil }
        defer { apus_tls_forget_pending(pointer) }
        return ByteBuffer(bytes: UnsafeRawBufferPointer(start: bytes, count: count))
    }

    /// Why the last call failed.
    static func reason() -> String {
        var reason = [CChar](repeating: 0, count: 256)
        apus_tls_reason(&reason, reason.count)
        return String(nullTerminated: reason)
    }
}
