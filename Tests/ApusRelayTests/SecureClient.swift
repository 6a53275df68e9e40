import ApusTraversal
import CApusTLS
import Glibc

/// A client over TLS or DTLS, by libssl's own sockets.
final class SecureClient {
    let socket: LoopbackSocket
    private let tls: OpaquePointer

    /// Nil where there is no handshake within five seconds. Takes any certificate where no authority is given.
    ///
    /// - Parameters:
    ///   - receiveBytes: of a connection, what the kernel keeps unread; as much as it likes where nil.
    ///   - prelude: what is sent before the handshake.
    init?(
        _ endpoint: TransportAddress, isDatagram: Bool, authority: String? = nil, receiveBytes: Int32? = nil,
        prelude: [UInt8] = []
    ) {
        socket =
            isDatagram
            ? LoopbackSocket(datagramsTo: endpoint) : LoopbackSocket(connectedTo: endpoint, receiveBytes: receiveBytes)
        if !prelude.isEmpty { socket.write(prelude) }
        // Writing to a connection that the relay has closed fails; it does not end the tests.
        signal(SIGPIPE, SIG_IGN)
        var reason = [CChar](repeating: 0, count: 256)
        guard
            let tls = apus_tls_client_connect(
                socket.descriptor, isDatagram ? 1 : 0, "127.0.0.1", authority, 5, &reason, reason.count)
        else { return nil }
        self.tls = tls
    }

    deinit { apus_tls_client_free(tls) }

    func write(_ bytes: [UInt8]) { _ = apus_tls_client_write(tls, bytes, bytes.count) }

    /// The next piece; empty where the server has closed, nil where nothing comes in five seconds.
    func receive() -> [UInt8]? {
        var bytes = [UInt8](repeating: 0, count: 20_000)
        let count = apus_tls_client_read(tls, &bytes, bytes.count)
        return count == 0 ? nil : Array(bytes.prefix(max(0, count)))
    }

    /// So many bytes, or what came before nothing came any more.
    func receive(bytes count: Int) -> [UInt8] {
        var all: [UInt8] = []
        while all.count < count, let more = receive(), !more.isEmpty { all += more }
        return all
    }
}

/// A ClientHello of DTLS 1.2 by hand, for clients that do not mean it (RFC 6347 §4.2).
enum HandmadeHello {
    /// - Parameter cookie: what the server gave; empty for the first hello.
    static func bytes(cookie: [UInt8] = []) -> [UInt8] {
        let extensions: [UInt8] =
            [0, 10, 0, 4, 0, 2, 0, 0x17]  // P-256
            + [0, 11, 0, 2, 1, 0]  // uncompressed points
            + [0, 13, 0, 4, 0, 2, 4, 3]  // ECDSA with SHA-256
            + [0, 23, 0, 0]  // extended master secret
        let body: [UInt8] =
            [0xFE, 0xFD] + [UInt8](repeating: 5, count: 32) + [0] + [UInt8(cookie.count)] + cookie
            + [0, 2, 0xC0, 0x2B] + [1, 0] + [0, UInt8(extensions.count)] + extensions
        let number: UInt8 = cookie.isEmpty ? 0 : 1
        let message: [UInt8] = [1, 0, 0, UInt8(body.count), 0, number, 0, 0, 0, 0, 0, UInt8(body.count)] + body
        return [22, 0xFE, 0xFF, 0, 0, 0, 0, 0, 0, 0, number, 0, UInt8(message.count)] + message
    }

    /// The cookie of a HelloVerifyRequest; nil where it is none.
    static func cookie(of answer: [UInt8]) -> [UInt8]? {
        guard answer.count > 28, answer[0] == 22, answer[13] == 3 else { return nil }
        return Array(answer[28...].prefix(Int(answer[27])))
    }
}
