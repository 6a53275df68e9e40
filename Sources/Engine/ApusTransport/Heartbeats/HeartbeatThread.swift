package import ApusCore
import ApusThreads
package import ApusWire
import CApusNet
package import Logging
import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What decides on the heartbeat thread: the failure detector, which lives above the transport.
///
/// Every call comes on the thread; none may block.
package protocol HeartbeatDriver: Sendable {
    /// Comes every ``HeartbeatConfiguration/tickInterval``, after every datagram that has arrived by then.
    mutating func tick(now: MonotonicTime) -> [HeartbeatOutbound]
    /// A datagram that is authentic, not a replay, and from a life of a peer.
    mutating func received(_ arrival: HeartbeatArrival) -> [HeartbeatOutbound]
    /// How late the ticks were lately, at their worst; peers are told.
    var lateness: Duration { get }
    /// Datagrams that the socket dropped since it was opened, because nobody read them in time; set every second.
    var droppedCount: UInt32 { get set }
}

/// A datagram that arrived.
package struct HeartbeatArrival: Sendable {
    package var message: HeartbeatMessage
    package var sender: NodeID
    /// Nil from a peer that sends version 1.
    package var vitals: HeartbeatVitals?
    /// When it was read, on the monotonic clock and in Unix milliseconds.
    package var now: MonotonicTime
    package var wallMilliseconds: UInt64

    package init(
        _ message: HeartbeatMessage, from sender: NodeID, vitals: HeartbeatVitals? = nil, now: MonotonicTime,
        wallMilliseconds: UInt64 = 0
    ) {
        self.message = message
        self.sender = sender
        self.vitals = vitals
        self.now = now
        self.wallMilliseconds = wallMilliseconds
    }
}

/// A datagram to send.
package struct HeartbeatOutbound: Sendable, Equatable {
    package var message: HeartbeatMessage
    package var receiver: NodeID

    package init(_ message: HeartbeatMessage, to receiver: NodeID) {
        self.message = message
        self.receiver = receiver
    }
}

package struct HeartbeatConfiguration: Sendable {
    /// Where datagrams are taken: the transport's address and port number, on UDP.
    package var bind: HostPort
    /// How often the driver is ticked.
    package var tickInterval: Duration = .milliseconds(10)
    /// Peers that datagrams go to and come from; more are ignored.
    package var peerCountMax = 64

    package init(bind: HostPort) { self.bind = bind }
}

extension NodeConditions.Kind {
    /// No datagram of this node leaves it; its peers will take it for dead.
    package static let heartbeatsBlocked = Self("heartbeats_blocked", isUnhealthy: true)
}

/// The heartbeat thread: a UDP socket, a clock, and a driver that decides, alone on one OS thread (D4).
///
/// The thread runs at real-time priority where the process may, since it works for microseconds at a time and its
/// lateness looks like a death to others. In each turn it first reads all that has arrived and only then ticks the
/// driver, so that an observer that was itself late judges nobody by what waits in its own socket. Errors of sending
/// never end it: ``SocketRepairStateMachine`` says when a new socket is due.
///
/// Datagrams are authenticated with ``HeartbeatSeal``. Those of another cluster, forged, replayed, or from a
/// life that is not a peer are counted and have no other effect; nothing is ever sent back to an address that a
/// datagram came from.
///
/// Concurrency model: all state is confined to the thread; other threads leave work in a mailbox behind a `Mutex`,
/// and wake it.
package final class HeartbeatThread<Driver: HeartbeatDriver>: Sendable {
    private let configuration: HeartbeatConfiguration
    private let identity: NodeID
    private let makeLoop: @Sendable (HeartbeatMailbox<Driver>) -> HeartbeatLoop<Driver>
    private let mailbox: HeartbeatMailbox<Driver>

    /// - Parameters:
    ///   - identity: The life that this node takes; datagrams say it.
    ///   - condition: Gets ``NodeConditions/Kind/heartbeatsBlocked`` with a sentence when it begins, with nil when it
    ///     ends; called on the thread.
    /// - Throws: 10007 where the process has no descriptor left.
    package init(
        configuration: HeartbeatConfiguration, identity: NodeID, cluster: ClusterID, seal: HeartbeatSeal,
        driver: Driver, condition: @escaping @Sendable (NodeConditions.Kind, String?) -> Void = { _, _ in },
        logger: Logger
    ) throws(ApusError) {
        self.configuration = configuration
        self.identity = identity
        mailbox = try HeartbeatMailbox()
        makeLoop = { mailbox in
            HeartbeatLoop(
                configuration: configuration, identity: identity, clusterHash: StableHash.hash(cluster.rawValue),
                seal: seal, driver: driver, mailbox: mailbox, condition: condition, logger: logger)
        }
    }

    deinit { mailbox.end() }

    /// Opens the socket and starts the thread.
    ///
    /// - Returns: The address that was bound, with its actual port.
    /// - Throws: 10019 where the address is in use, 10022 where it cannot be bound, 10018 without a thread.
    package func start() async throws(ApusError) -> HostPort {
        let address = configuration.bind
        let (makeLoop, mailbox) = (makeLoop, mailbox)
        let opened = await withCheckedContinuation { (done: CheckedContinuation<Result<Int, ApusError>, Never>) in
            do throws(ApusError) {
                _ = try OSThread(name: "apus-heartbeat") {
                    let loop = makeLoop(mailbox)
                    let opened = loop.open()
                    done.resume(returning: opened)
                    if case .failure = opened { mailbox.end() }
                    loop.run()
                }
            } catch {
                done.resume(returning: .failure(error))
            }
        }
        return HostPort(host: address.host, port: try opened.get())
    }

    /// Makes the peers fit the list. Names are resolved away from the thread; a peer whose name does not resolve gets
    /// no datagrams until the next call. What came from a peer is remembered against replays as long as its
    /// life stays in the list.
    package func setPeers(_ peers: [Peer]) {
        let wanted = Array(peers.filter { $0.id != identity }.prefix(configuration.peerCountMax))
        _ = mailbox.post { $0.setPeers(wanted) }
    }

    /// Gives the driver something from outside, on the thread; what it returns is sent.
    package func perform(_ body: @escaping @Sendable (inout Driver, MonotonicTime) -> [HeartbeatOutbound]) {
        _ = mailbox.post { $0.perform(body) }
    }

    /// As ``perform(_:)``, for a look at the driver; nil after ``stop()``, and waits before ``start()``.
    package func read<Value: Sendable>(_ body: @escaping @Sendable (Driver) -> Value) async -> Value? {
        await withCheckedContinuation { done in
            if !mailbox.post({ done.resume(returning: body($0.driver)) }) { done.resume(returning: nil) }
        }
    }

    /// Closes the socket and ends the thread.
    package func stop() async {
        await withCheckedContinuation { (done: CheckedContinuation<Void, Never>) in
            let isPosted = mailbox.post { loop in
                loop.close()
                done.resume()
            }
            mailbox.end()
            if !isPosted { done.resume() }
        }
    }
}

/// What other threads leave for the heartbeat thread.
///
/// Concurrency model: any thread; the work sits behind a `Mutex`, and the descriptor lives as long as this value.
final class HeartbeatMailbox<Driver: HeartbeatDriver>: Sendable {
    typealias Work = @Sendable (HeartbeatLoop<Driver>) -> Void

    private struct Content {
        var work: [Work] = []
        var isEnded = false
    }

    private let content = Mutex(Content())
    /// Becomes readable with each piece of work.
    let wake: CInt

    init() throws(ApusError) {
        wake = apus_wake_open()
        guard wake >= 0 else {
            throw ApusError(.overloaded, "no descriptor for the heartbeat thread: raise the limit of open files")
        }
    }

    deinit { apus_close(wake) }

    /// False after ``end()``.
    func post(_ work: @escaping Work) -> Bool {
        let isTaken = content.withLock { content in
            guard !content.isEnded else { return false }
            content.work.append(work)
            return true
        }
        if isTaken { apus_wake(wake) }
        return isTaken
    }

    /// Nothing more is taken; what is there is still done.
    func end() {
        content.withLock { $0.isEnded = true }
        apus_wake(wake)
    }

    func take() -> (work: [Work], isEnded: Bool) {
        apus_wake_clear(wake)
        return content.withLock { content in
            defer { content.work = [] }
            return (content.work, content.isEnded)
        }
    }
}
