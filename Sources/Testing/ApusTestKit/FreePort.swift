import Foundation
import Synchronization

/// Ports for the processes that tests start.
package enum FreePort {
    /// Below the ports that the system gives out by itself: hundreds of sockets come and go there.
    private static let range = 10_000..<20_000
    private static let last = Mutex(Int.random(in: range))

    /// A port that nobody has at this address, by TCP or UDP, and that this process gave to no other test.
    ///
    /// - Parameter address: an address of this machine, in digits.
    /// - Throws: ``TestFailure`` where no port of the range is free there, or the address is not one of this machine.
    package static func next(at address: String = "127.0.0.1") throws -> Int {
        for _ in 0..<100 {
            let port = last.withLock { last in
                // turnutils_peer takes the port after its own as well.
                last = last + 2 < range.upperBound ? last + 2 : range.lowerBound
                return last
            }
            if isFree(port, at: address, SOCK_STREAM), isFree(port, at: address, SOCK_DGRAM) { return port }
        }
        throw TestFailure("no port is free at \(address), or it is not an address of this machine")
    }

    /// Whether a socket of this type can be bound.
    ///
    /// It closes on exec: a process that another test starts in this moment would keep the port otherwise.
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
            // As servers bind: what is left of connections that ended is not in their way.
            var isOn: Int32 = 1
            setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &isOn, socklen_t(MemoryLayout<Int32>.size))
        }
        return bind(descriptor, found.pointee.ai_addr, found.pointee.ai_addrlen) == 0
            && (type == SOCK_DGRAM || listen(descriptor, 1) == 0)
    }
}
