import ApusCore
import ApusLocal
import ApusThreads
import ApusTraversal
import Glibc
import Synchronization

/// A client with a ticket and a channel, whose allocation can move to another node.
final class MovableClient {
    private let issued: (username: String, password: String)
    private var probe: TurnProbe

    /// Allocates and binds. Throws as ``TurnProbe/allocate(withTicket:)``.
    init(
        _ server: HostPort, _ issued: (username: String, password: String), peer: TransportAddress
    ) throws(ApusError) {
        self.issued = issued
        probe = try TurnProbe(
            TurnEndpoint(server: server, transport: .udp), username: issued.username, password: issued.password)
        _ = try probe.allocate(withTicket: true)
        try probe.bind(peer)
    }

    /// Moves the allocation to a server. Throws as ``TurnProbe/allocate(withTicket:)``, and 21025 if there is no new
    /// relayed address.
    func goOn(at server: HostPort) throws(ApusError) {
        let next = try TurnProbe(
            TurnEndpoint(server: server, transport: .udp), username: issued.username, password: issued.password)
        guard try next.goOn(with: probe.ticket) != nil, !next.ticket.isEmpty else {
            throw ApusError(.unavailable, "\(server) did not send the new relayed address")
        }
        probe = next
    }

    /// Follows the redirect of a draining node. Throws as ``goOn(at:)``, and 21025 if there is no redirect.
    func followAlternate() throws(ApusError) {
        do throws(ApusError) {
            try probe.refresh()
        } catch {
            guard let alternate = probe.alternate else { throw error }
            return try goOn(at: HostPort(host: alternate.hostDescription, port: Int(alternate.port)))
        }
        throw ApusError(.unavailable, "\(probe.server) did not redirect its client")
    }

    /// True if data over the old channel comes back from the peer.
    func reachesPeer() throws(ApusError) -> Bool {
        for number in 0..<3 as Range<UInt8> {
            let message: [UInt8] = [9, 8, 7, number]
            try probe.send(message)
            if try probe.receive(.milliseconds(500)) == message { return true }
        }
        return false
    }
}

/// A client with an allocation at each of two nodes, for uninterrupted service. It sends a message every few
/// milliseconds over the first, and switches to the second if nothing comes back for a while.
/// Concurrency model: the work runs on a separate thread. ``longestSilence`` and ``stop()`` may be called from any
/// thread.
final class WarmClient: Sendable {
    private static let interval = Duration.milliseconds(5)
    /// The silence after which it switches: about the longest time for which a network delays a packet.
    private static let silenceLimit = Duration.milliseconds(100)

    private struct State {
        var isStopping = false
        var longest = Duration.zero
    }

    private let state: Shared
    private let thread: OSThread

    private final class Shared: Sendable {
        let value = Mutex(State())
    }

    /// Allocates at both nodes and starts sending. Throws as ``TurnProbe/allocate(withTicket:)``.
    init(
        _ first: HostPort, _ second: HostPort, _ issued: (username: String, password: String), peer: TransportAddress
    ) throws(ApusError) {
        let shared = Shared()
        let ready = Shared()
        state = shared
        ready.value.withLock { $0.isStopping = true }
        thread = try OSThread(name: "warm-client") {
            Self.run(first, second, issued, peer, shared, ready: { ready.value.withLock { $0.isStopping = false } })
        }
        let deadline = MonotonicTime.now() + .seconds(10)
        while ready.value.withLock({ $0.isStopping }) {
            guard MonotonicTime.now() < deadline else {
                stop()
                throw ApusError(.deadlineExceeded, "the client with two allocations did not start")
            }
            usleep(10_000)
        }
    }

    /// The longest time between two messages that came back.
    var longestSilence: Duration { state.value.withLock { $0.longest } }

    func stop() {
        state.value.withLock { $0.isStopping = true }
        thread.join()
    }

    private static func run(
        _ first: HostPort, _ second: HostPort, _ issued: (username: String, password: String),
        _ peer: TransportAddress, _ shared: Shared, ready: () -> Void
    ) {
        func open(_ server: HostPort) -> TurnProbe? {
            guard
                let probe = try? TurnProbe(
                    TurnEndpoint(server: server, transport: .udp), username: issued.username,
                    password: issued.password),
                (try? probe.allocate()) != nil, (try? probe.bind(peer)) != nil
            else { return nil }
            return probe
        }
        guard let used = open(first), let warm = open(second) else { return }
        var probe = used
        var lastHeard = MonotonicTime.now()
        ready()
        while !shared.value.withLock({ $0.isStopping }) {
            // A send error is ignored: a dead machine would not cause one.
            try? probe.send([1, 2, 3, 4, 5, 6, 7, 8])
            if (try? probe.receive(interval)) != nil {
                let now = MonotonicTime.now()
                let silence = now - lastHeard
                lastHeard = now
                shared.value.withLock { $0.longest = max($0.longest, silence) }
                usleep(useconds_t(interval.nanoseconds / 1_000))
            } else {
                usleep(1_000)
                if MonotonicTime.now() - lastHeard > silenceLimit { probe = warm }
            }
        }
    }
}

/// A peer that echoes what it receives. Its thread ends with ``stop()``.
final class EchoPeer: Sendable {
    let address: TransportAddress
    private let thread: OSThread
    private let isStopping: Flag

    private final class Flag: Sendable {
        let value = Atomic<Bool>(false)
    }

    /// Throws 10018 if the system provides no socket.
    init() throws(ApusError) {
        let descriptor = socket(AF_INET, Int32(SOCK_DGRAM.rawValue), 0)
        var bound = sockaddr_in()
        bound.sin_family = sa_family_t(AF_INET)
        bound.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        var limit = timeval(tv_sec: 0, tv_usec: 100_000)
        setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
        // SAFETY: the same memory, under the type of the system's functions.
        let isOpen = withUnsafeMutablePointer(to: &bound) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                bind(descriptor, address, length) == 0 && getsockname(descriptor, address, &length) == 0
            }
        }
        guard descriptor >= 0, isOpen else { throw ApusError(.internalFailure, "no socket for a peer") }
        address = TransportAddress(v4: 0x7f00_0001, port: UInt16(bigEndian: bound.sin_port))
        let flag = Flag()
        isStopping = flag
        thread = try OSThread(name: "echo-peer") {
            Self.run(descriptor, until: { flag.value.load(ordering: .relaxed) })
            close(descriptor)
        }
    }

    func stop() {
        isStopping.value.store(true, ordering: .relaxed)
        thread.join()
    }

    private static func run(_ descriptor: Int32, until isStopping: () -> Bool) {
        var bytes = [UInt8](repeating: 0, count: 2_048)
        while !isStopping() {
            var from = sockaddr_storage()
            var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
            // SAFETY: the same memory, under the type of the system's functions.
            withUnsafeMutablePointer(to: &from) { pointer in
                pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                    let count = recvfrom(descriptor, &bytes, bytes.count, 0, address, &length)
                    if count > 0 { _ = sendto(descriptor, bytes, count, 0, address, length) }
                }
            }
        }
    }
}
