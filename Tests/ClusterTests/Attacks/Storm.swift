import Foundation

#if canImport(Glibc)
import Glibc
#endif

/// Clients that connect and say nothing.
final class Storm {
    private var sockets: [CInt] = []

    deinit { end() }

    func connect(_ port: Int, count: Int) {
        for _ in 0..<count { sockets.append(Self.open(port, flags: CInt(SOCK_NONBLOCK.rawValue))) }
    }

    /// Sends bytes on every connection; those that the other side has closed take none.
    func send(_ bytes: [UInt8]) {
        for socket in sockets where socket >= 0 {
            _ = Glibc.send(socket, bytes, bytes.count, CInt(MSG_NOSIGNAL) | CInt(MSG_DONTWAIT))
        }
    }

    /// Connections that the other side has not closed.
    var openCount: Int {
        sockets.count { socket in
            var byte: UInt8 = 0
            let count = recv(socket, &byte, 1, CInt(MSG_PEEK) | CInt(MSG_DONTWAIT))
            return count < 0 && errno == EAGAIN
        }
    }

    func end() {
        for socket in sockets where socket >= 0 { _ = Glibc.close(socket) }
        sockets = []
    }

    /// Whether the other side closes a new connection in time.
    func isClosed(_ port: Int, within seconds: Int) -> Bool {
        let socket = Self.open(port, flags: 0)
        defer { _ = Glibc.close(socket) }
        var timeout = timeval(tv_sec: seconds, tv_usec: 0)
        setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, socklen_t(MemoryLayout<timeval>.size))
        var byte: UInt8 = 0
        let count = recv(socket, &byte, 1, 0)
        return count == 0 || (count < 0 && errno == ECONNRESET)
    }

    private static func open(_ port: Int, flags: CInt) -> CInt {
        let socket = Glibc.socket(AF_INET, CInt(SOCK_STREAM.rawValue) | flags | CInt(SOCK_CLOEXEC.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(port).bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                _ = Glibc.connect(socket, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
        return socket
    }
}
