import ApusCore
import ApusLocal
import ApusThreads
import ApusTraversal
import Glibc
import Synchronization

/// A client whose allocation has a ticket and a channel, and that can go on at another node.
final class MovableClient {
    private let issued: (username: String, password: String)
    private var probe: TurnProbe

    /// Allocates and binds. Throws as ``TurnProbe/allocate(withTicket:)``.
    init(
        _ server: HostPort, _ issued: (username: String, password: String), peer: TransportAddress
    ) throws(ApusError) {
        self.issued = issued
        probe = try TurnProbe(
            TurnDoor(server: server, transport: .udp), username: issued.username, password: issued.password)
        _ = try probe.allocate(withTicket: true)
        try probe.bind(peer)
    }

    /// Throws as ``TurnProbe/allocate(withTicket:)``, and 21025 where the allocation has no new relayed address.
    func goOn(at server: HostPort) throws(ApusError) {
        let next = try TurnProbe(
            TurnDoor(server: server, transport: .udp), username: issued.username, password: issued.password)
        guard try next.goOn(with: probe.ticket) != nil, !next.ticket.isEmpty else {
            throw ApusError(.unavailable, "\(server) does not tell the new relayed address")
        }
        probe = next
    }

    /// Goes on where the node that leaves sends it. Throws as ``goOn(at:)``, and 21025 where it is not sent elsewhere.
    func followAlternate() throws(ApusError) {
        do throws(ApusError) {
            try probe.refresh()
        } catch {
            guard let alternate = probe.alternate else { throw error }
            return try goOn(at: HostPort(host: alternate.hostDescription, port: Int(alternate.port)))
        }
        throw ApusError(.unavailable, "\(probe.server) does not send its client elsewhere")
    }

    /// True where what is sent over the channel that it had comes back from the peer.
    func reachesPeer() throws(ApusError) -> Bool {
        for number in 0..<3 as Range<UInt8> {
            let message: [UInt8] = [9, 8, 7, number]
            try probe.send(message)
            if try probe.receive(.milliseconds(500)) == message { return true }
        }
        return false
    }
}

/// A client with an allocation at each of two nodes, as one that must not fall silent has: it sends a message every few
/// milliseconds over the first, and goes over to the second when nothing came back for a while.
///
/// Concurrency model: the work is a thread's of its own; ``longestSilence`` and ``stop()`` from any thread.
final class WarmClient: Sendable {
    private static let interval = Duration.milliseconds(5)
    /// Silence after which it goes over: about as long as a network may hold a packet back.
    private static let patience = Duration.milliseconds(100)

    private struct State {
        var isStopping = false
        var longest = Duration.zero
    }

    private let state: Shared
    private let thread: OSThread

    private final class Shared: Sendable {
        let value = Mutex(State())
    }

    /// Allocates at both and begins to send. Throws as ``TurnProbe/allocate(withTicket:)``.
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
                throw ApusError(.deadlineExceeded, "the client with two allocations does not begin")
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
                    TurnDoor(server: server, transport: .udp), username: issued.username, password: issued.password),
                (try? probe.allocate()) != nil, (try? probe.bind(peer)) != nil
            else { return nil }
            return probe
        }
        guard let used = open(first), let warm = open(second) else { return }
        var probe = used
        var lastHeard = MonotonicTime.now()
        ready()
        while !shared.value.withLock({ $0.isStopping }) {
            // A refused datagram is no news: where a machine died nothing says so.
            try? probe.send([1, 2, 3, 4, 5, 6, 7, 8])
            if (try? probe.receive(interval)) != nil {
                let now = MonotonicTime.now()
                let silence = now - lastHeard
                lastHeard = now
                shared.value.withLock { $0.longest = max($0.longest, silence) }
                usleep(useconds_t(interval.nanoseconds / 1_000))
            } else {
                usleep(1_000)
                if MonotonicTime.now() - lastHeard > patience { probe = warm }
            }
        }
    }
}

/// A peer that sends back what it gets. Its thread ends with ``stop()``.
final class EchoPeer: Sendable {
    let address: TransportAddress
    private let thread: OSThread
    private let isStopping: Flag

    private final class Flag: Sendable {
        let value = Atomic<Bool>(false)
    }

    /// Throws 10018 where the system gives no socket.
    init() throws(ApusError) {
        let descriptor = socket(AF_INET, Int32(SOCK_DGRAM.rawValue), 0)
        var bound = sockaddr_in()
        bound.sin_family = sa_family_t(AF_INET)
        bound.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        var limit = timeval(tv_sec: 0, tv_usec: 100_000)
        setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
        // SAFETY: the same memory under the type that the system's functions want.
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
            // SAFETY: the same memory under the type that the system's functions want.
            withUnsafeMutablePointer(to: &from) { pointer in
                pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                    let count = recvfrom(descriptor, &bytes, bytes.count, 0, address, &length)
                    if count > 0 { _ = sendto(descriptor, bytes, count, 0, address, length) }
                }
            }
        }
    }
}
