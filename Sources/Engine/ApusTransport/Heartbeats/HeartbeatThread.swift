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

/// The logic that runs on the heartbeat thread: the failure detector of the layer above the transport.
///
/// Every method is called on the thread. None may block.
package protocol HeartbeatDriver: Sendable {
    /// Called every ``HeartbeatConfiguration/tickInterval``, after all datagrams that have arrived.
    mutating func tick(now: MonotonicTime) -> [HeartbeatOutbound]
    /// Called for an authentic datagram of a peer's incarnation that is not a replay.
    mutating func received(_ arrival: HeartbeatArrival) -> [HeartbeatOutbound]
    /// The greatest recent lateness of the ticks. It is sent to the peers.
    var lateness: Duration { get }
    /// Datagrams that the socket dropped since it was opened, because they were not read in time. Set every second.
    var droppedCount: UInt32 { get set }
}

/// A received datagram.
package struct HeartbeatArrival: Sendable {
    package var message: HeartbeatMessage
    package var sender: NodeID
    /// Nil if the peer sends version 1.
    package var vitals: HeartbeatVitals?
    /// The time of the read, on the monotonic clock and in Unix milliseconds.
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
    /// The UDP address to listen at: the address and port number of the transport.
    package var bind: HostPort
    /// The interval between two ticks of the driver.
    package var tickInterval: Duration = .milliseconds(10)
    /// The same for a node without peers.
    package var tickIntervalAlone: Duration = .milliseconds(50)
    /// The most peers that datagrams are exchanged with. Further peers are ignored. A map has no more slots.
    package var peerCountMax = 1000

    package init(bind: HostPort) { self.bind = bind }
}

extension NodeConditions.Kind {
    /// No datagram of this node is sent. Its peers will declare it dead.
    package static let heartbeatsBlocked = Self("heartbeats_blocked", isUnhealthy: true)
}

/// The heartbeat thread: one OS thread with a UDP socket, a clock and a driver that decides (D4).
///
/// The thread runs at real-time priority if the process may. It works for microseconds at a time, and peers would take
/// its lateness for a failure. Each turn reads all datagrams that have arrived before it ticks the driver. A node that
/// was late itself therefore judges no peer while that peer's datagrams wait in its own socket. Send errors never end
/// the thread: ``SocketRepairStateMachine`` decides when it needs a new socket.
///
/// ``HeartbeatSeal`` authenticates the datagrams. Datagrams of another cluster, forged or replayed ones, and those of
/// an incarnation that is not a peer are counted and ignored. The thread never answers to the source address of a
/// datagram.
///
/// Concurrency model: all state is confined to the thread. Other threads post work to a mailbox behind a `Mutex`, and
/// wake it.
package final class HeartbeatThread<Driver: HeartbeatDriver>: Sendable {
    private let configuration: HeartbeatConfiguration
    private let identity: NodeID
    private let makeLoop: @Sendable (HeartbeatMailbox<Driver>) -> HeartbeatLoop<Driver>
    private let mailbox: HeartbeatMailbox<Driver>

    /// - Parameters:
    ///   - identity: The incarnation of this node, which its datagrams carry.
    ///   - condition: Called on the thread, with ``NodeConditions/Kind/heartbeatsBlocked`` and a sentence when the
    ///     condition begins, and with nil when it ends.
    /// - Throws: 10007 if the process has no descriptor left.
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
    /// - Returns: The bound address, with its actual port.
    /// - Throws: 10019 if the address is in use, 10022 if it cannot be bound, 10018 if no thread can be started.
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

    /// Sets the peers. Names are resolved on another thread. A peer whose name does not resolve is sent no datagrams
    /// until the next call. The sequence numbers of a peer are remembered against replays as long as its incarnation is
    /// in the list.
    package func setPeers(_ peers: [Peer]) {
        let wanted = Array(peers.filter { $0.id != identity }.prefix(configuration.peerCountMax))
        _ = mailbox.post { $0.setPeers(wanted) }
    }

    /// Seals with these keys, and accepts them, from now on.
    package func use(_ seal: HeartbeatSeal) { _ = mailbox.post { $0.seal = seal } }

    /// Ignores the datagrams of a peer whose certificate is revoked, or accepts them again. Has no effect for an
    /// incarnation that is not a peer.
    package func setRevoked(_ peer: NodeID, _ isRevoked: Bool) {
        _ = mailbox.post { $0.setRevoked(peer, isRevoked) }
    }

    /// Runs the body with the driver on the thread, and sends the datagrams that it returns.
    package func perform(_ body: @escaping @Sendable (inout Driver, MonotonicTime) -> [HeartbeatOutbound]) {
        _ = mailbox.post { $0.perform(body) }
    }

    /// Reads from the driver on the thread. Waits before ``start()``; returns nil after ``stop()``.
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

/// Work that other threads post to the heartbeat thread.
///
/// Concurrency model: any thread. A `Mutex` guards the work. The descriptor stays open as long as this value exists.
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

    /// Accepts no more work. Work that was accepted is still done.
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
