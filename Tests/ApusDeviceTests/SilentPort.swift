import Glibc
import Testing

/// A port of the loopback that answers no new connection: its queue is full, and nobody accepts what waits there.
final class SilentPort: Sendable {
    let port: UInt16
    private let sockets: [Int32]

    init() throws {
        // The kernel keeps one connection more than the backlog.
        let sockets = (0..<3).map { _ in
            socket(AF_INET, Int32(SOCK_STREAM.rawValue) | Int32(SOCK_NONBLOCK.rawValue), 0)
        }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        // SAFETY: the pointers are used only inside the calls.
        let isListening = withUnsafeMutablePointer(to: &address) { address in
            address.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                guard bind(sockets[0], address, length) == 0, listen(sockets[0], 0) == 0,
                    getsockname(sockets[0], address, &length) == 0
                else { return false }
                for other in sockets.dropFirst() { _ = connect(other, address, length) }
                return true
            }
        }
        self.sockets = sockets
        port = UInt16(bigEndian: address.sin_port)
        try #require(isListening)
    }

    deinit { for socket in sockets { close(socket) } }
}
