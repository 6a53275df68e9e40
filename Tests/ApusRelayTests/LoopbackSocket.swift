import ApusTraversal
import Glibc

/// A datagram or stream socket of 127.0.0.1 that a test plays a client or a peer with.
final class LoopbackSocket {
    static let host: UInt32 = 0x7F00_0001

    let descriptor: Int32
    let address: TransportAddress

    /// A datagram socket, on a port that the system chooses where none is given.
    init(port: UInt16 = 0) {
        descriptor = socket(AF_INET, Int32(SOCK_DGRAM.rawValue), 0)
        _ = Self.withAddress(TransportAddress(v4: Self.host, port: port)) { [descriptor] in bind(descriptor, $0, $1) }
        address = Self.local(descriptor)
    }

    /// A datagram socket of ::1; for sending with ``sendV6(_:to:)`` and receiving alone.
    init(v6: Void) {
        descriptor = socket(AF_INET6, Int32(SOCK_DGRAM.rawValue), 0)
        var raw = sockaddr_in6()
        raw.sin6_family = sa_family_t(AF_INET6)
        raw.sin6_addr = in6addr_loopback
        var length = socklen_t(MemoryLayout<sockaddr_in6>.size)
        withUnsafeMutablePointer(to: &raw) { [descriptor] in
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                _ = bind(descriptor, $0, length)
                _ = getsockname(descriptor, $0, &length)
            }
        }
        address = TransportAddress(v6High: 0, low: 1, port: UInt16(bigEndian: raw.sin6_port))
    }

    /// Sends from a socket of ::1 to a port of ::1.
    func sendV6(_ bytes: [UInt8], to port: UInt16) {
        var raw = sockaddr_in6()
        raw.sin6_family = sa_family_t(AF_INET6)
        raw.sin6_addr = in6addr_loopback
        raw.sin6_port = port.bigEndian
        withUnsafePointer(to: &raw) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                _ = sendto(descriptor, bytes, bytes.count, 0, $0, socklen_t(MemoryLayout<sockaddr_in6>.size))
            }
        }
    }

    /// A datagram socket at an address of 127.0.0.0/8 that sends to one place alone.
    init(datagramsTo endpoint: TransportAddress, from host: UInt32 = LoopbackSocket.host) {
        descriptor = socket(AF_INET, Int32(SOCK_DGRAM.rawValue), 0)
        _ = Self.withAddress(TransportAddress(v4: host, port: 0)) { [descriptor] in bind(descriptor, $0, $1) }
        _ = Self.withAddress(endpoint) { [descriptor] in connect(descriptor, $0, $1) }
        address = Self.local(descriptor)
    }

    /// A connection; the kernel keeps so many bytes that were not read, or as many as it likes.
    init(
        connectedTo endpoint: TransportAddress, from host: UInt32 = LoopbackSocket.host, receiveBytes: Int32? = nil
    ) {
        descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        if host != Self.host {
            _ = Self.withAddress(TransportAddress(v4: host, port: 0)) { [descriptor] in bind(descriptor, $0, $1) }
        }
        if var bytes = receiveBytes {
            setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &bytes, socklen_t(MemoryLayout<Int32>.size))
        }
        _ = Self.withAddress(endpoint) { [descriptor] in connect(descriptor, $0, $1) }
        address = Self.local(descriptor)
    }

    /// A listening socket, on a port that the system chooses.
    init(listening: Void) {
        descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        _ = Self.withAddress(TransportAddress(v4: Self.host, port: 0)) { [descriptor] in bind(descriptor, $0, $1) }
        listen(descriptor, 64)
        address = Self.local(descriptor)
    }

    private init(adopting descriptor: Int32) {
        self.descriptor = descriptor
        address = Self.local(descriptor)
    }

    /// The next connection of a listening socket, and where it comes from; nil where none comes in time.
    func accept(milliseconds: Int32 = 5_000) -> (socket: LoopbackSocket, remote: TransportAddress)? {
        var ready = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        guard poll(&ready, 1, milliseconds) > 0 else { return nil }
        var raw = sockaddr_in()
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        let connection = withUnsafeMutablePointer(to: &raw) { [descriptor] in
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { Glibc.accept(descriptor, $0, &length) }
        }
        guard connection >= 0 else { return nil }
        let remote = TransportAddress(v4: UInt32(bigEndian: raw.sin_addr.s_addr), port: UInt16(bigEndian: raw.sin_port))
        return (LoopbackSocket(adopting: connection), remote)
    }

    /// Lets the kernel cut what is sent into datagrams of this size; false where it cannot.
    func cut(into size: Int32) -> Bool {
        var size = size
        // UDP_SEGMENT of Linux, which Glibc's module does not have.
        return setsockopt(descriptor, Int32(IPPROTO_UDP), 103, &size, socklen_t(MemoryLayout<Int32>.size)) == 0
    }

    /// Says that nothing more is written.
    func end() { shutdown(descriptor, Int32(SHUT_WR)) }

    /// Writes as much as the kernel takes at once; how much that was.
    func writeNow(_ bytes: [UInt8]) -> Int {
        max(0, Glibc.send(descriptor, bytes, bytes.count, Int32(MSG_NOSIGNAL) | Int32(MSG_DONTWAIT)))
    }

    /// Whether the other end's kernel has all that was written.
    func hasSentAll(within milliseconds: Int) -> Bool {
        var waiting: Int32 = 0
        for _ in 0..<milliseconds {
            // SIOCOUTQ of Linux.
            guard ioctl(descriptor, UInt(TIOCOUTQ), &waiting) == 0, waiting > 0 else { return waiting == 0 }
            usleep(1_000)
        }
        return false
    }

    deinit { close(descriptor) }

    private static func withAddress<Result>(
        _ address: TransportAddress, _ body: (UnsafePointer<sockaddr>, socklen_t) -> Result
    ) -> Result {
        var raw = sockaddr_in()
        raw.sin_family = sa_family_t(AF_INET)
        raw.sin_port = address.port.bigEndian
        raw.sin_addr.s_addr = address.v4.bigEndian
        return withUnsafePointer(to: &raw) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                body($0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
    }

    /// Where a socket of IPv4 is bound.
    static func local(_ descriptor: Int32) -> TransportAddress {
        var raw = sockaddr_in()
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        withUnsafeMutablePointer(to: &raw) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { _ = getsockname(descriptor, $0, &length) }
        }
        return TransportAddress(v4: UInt32(bigEndian: raw.sin_addr.s_addr), port: UInt16(bigEndian: raw.sin_port))
    }

    func send(_ bytes: [UInt8], to address: TransportAddress) {
        _ = Self.withAddress(address) { sendto(descriptor, bytes, bytes.count, 0, $0, $1) }
    }

    /// Writes to the connection; the kernel takes all of it or the connection is gone.
    func write(_ bytes: [UInt8]) {
        _ = Glibc.send(descriptor, bytes, bytes.count, Int32(MSG_NOSIGNAL))
    }

    /// The next datagram, or what the connection has; nil where nothing comes in time.
    func receive(milliseconds: Int32 = 5_000, atMost countMax: Int = 65_536) -> [UInt8]? {
        var ready = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
        guard poll(&ready, 1, milliseconds) > 0 else { return nil }
        var bytes = [UInt8](repeating: 0, count: countMax)
        let count = recv(descriptor, &bytes, bytes.count, 0)
        return count < 0 ? nil : Array(bytes.prefix(count))
    }

    /// So many bytes of the connection, or what came before nothing came any more.
    func receive(bytes count: Int) -> [UInt8] {
        var all: [UInt8] = []
        while all.count < count, let more = receive(atMost: count - all.count), !more.isEmpty { all += more }
        return all
    }
}

/// Waits; only where a test looks for something that another process of the kernel does.
func pause(milliseconds: UInt32) { usleep(milliseconds * 1_000) }
