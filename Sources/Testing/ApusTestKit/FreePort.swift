import Foundation
import Synchronization

/// Ports for the processes that tests start.
package enum FreePort {
    /// Below the ports that the system assigns itself: hundreds of sockets are opened and closed there.
    private static let range = 10_000..<20_000
    private static let last = Mutex(Int.random(in: range))

    /// A port that is free at this address, over TCP and UDP, and that this process assigned to no other test.
    ///
    /// - Parameter address: an address of this machine, numeric.
    /// - Throws: ``TestFailure`` if no port of the range is free there, or the address is not one of this machine.
    package static func next(at address: String = "127.0.0.1") throws -> Int {
        for _ in 0..<100 {
            let port = last.withLock { last in
                // turnutils_peer uses the port after its own as well.
                last = last + 2 < range.upperBound ? last + 2 : range.lowerBound
                return last
            }
            if isFree(port, at: address, SOCK_STREAM), isFree(port, at: address, SOCK_DGRAM) { return port }
        }
        throw TestFailure("no port is free at \(address), or it is not an address of this machine")
    }

    /// True if a socket of this type can be bound.
    ///
    /// It closes on exec: otherwise a process that another test starts at this moment would keep the port.
    private static func isFree(_ port: Int, at address: String, _ type: __socket_type) -> Bool {
        var hints = addrinfo()
        hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV
        hints.ai_socktype = Int32(type.rawValue)
        var found: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(address, "\(port)", &hints, &found) == 0, let found else { return false }
        defer { freeaddrinfo(found) }
        let flags = Int32(type.rawValue | SOCK_CLOEXEC.rawValue)
        let descriptor = socket(found.pointee.ai_family, flags, 0)
        guard descriptor >= 0 else { return false }
        defer { close(descriptor) }
        if type == SOCK_STREAM {
            // As servers bind: remains of closed connections do not block them.
            var isOn: Int32 = 1
            setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &isOn, socklen_t(MemoryLayout<Int32>.size))
        }
        return bind(descriptor, found.pointee.ai_addr, found.pointee.ai_addrlen) == 0
            && (type == SOCK_DGRAM || listen(descriptor, 1) == 0)
    }
}
