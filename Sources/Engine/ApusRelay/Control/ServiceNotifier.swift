import ApusCore
import Glibc

/// Notifies the service manager that started this process (sd_notify(3)): a datagram to `$NOTIFY_SOCKET`.
///
/// Notifications are best effort: a lost one is not repeated, and no failure stops the relay. A value; safe to share.
package struct ServiceNotifier: Sendable {
    package enum State: String, Sendable {
        case ready = "READY=1"
        case stopping = "STOPPING=1"
        case watchdog = "WATCHDOG=1"
    }

    /// The longest path of a socket (unix(7)).
    private static let pathByteCountMax = 107

    private let path: [UInt8]
    /// The interval at which the service manager expects ``State/watchdog``; nil: never.
    package let watchdogInterval: Duration?

    /// Nil if no service manager listens.
    package init?(environment: [String: String]) {
        guard let path = environment["NOTIFY_SOCKET"], path.hasPrefix("/") || path.hasPrefix("@"),
            (2...Self.pathByteCountMax).contains(path.utf8.count)
        else { return nil }
        self.path = Array(path.utf8)
        // WATCHDOG_PID names the process that is watched. In a container it may be another one.
        let isMeant = environment["WATCHDOG_PID"].map { $0 == "\(getpid())" } ?? true
        let microseconds = environment["WATCHDOG_USEC"].flatMap { Int64($0) } ?? 0
        watchdogInterval = isMeant && microseconds > 0 ? .microseconds(microseconds) : nil
    }

    /// Sends one state. Returns false if it was not accepted.
    ///
    /// - Parameter span: how long the state may last from now on, if that is longer than the manager's own time-out
    ///   (EXTEND_TIMEOUT_USEC).
    @discardableResult
    package func tell(_ state: State, extendedBy span: Duration? = nil) -> Bool {
        let more = span.map { "\nEXTEND_TIMEOUT_USEC=\($0.nanoseconds / 1_000)" } ?? ""
        let socket = Glibc.socket(
            AF_UNIX, Int32(SOCK_DGRAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue), 0)
        guard socket >= 0 else { return false }
        defer { close(socket) }
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        let length = MemoryLayout<sa_family_t>.size + path.count
        let text = Array((state.rawValue + more).utf8)
        // SAFETY: the path has at most 107 bytes of the 108 of `sun_path`; the rest stays 0. `@` stands for the leading
        // 0 of an abstract socket's name. The pointers do not leave the closures.
        let sent = withUnsafeMutableBytes(of: &address) { bytes in
            for (index, byte) in path.enumerated() {
                bytes[MemoryLayout<sa_family_t>.size + index] = index == 0 && byte == UInt8(ascii: "@") ? 0 : byte
            }
            let base = bytes.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: sockaddr.self)
            let isAbstract = path.first == UInt8(ascii: "@")
            return sendto(socket, text, text.count, 0, base, socklen_t(isAbstract ? length : length + 1))
        }
        return sent == text.count
    }
}
