import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import ApusThreads
import ApusTraversal
import Foundation
import Glibc
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// Clients that change entities at a fixed rate, whatever the answers take: a change is due every interval, and its
/// time counts from then. A change that fails is sent again, as an app would, until its time is over.
///
/// Isolation: the clients are tasks; what they saw is behind a `Mutex`.
final class ChangeLoad: Sendable {
    /// A change that was acknowledged.
    struct Change: Sendable {
        var due: MonotonicTime
        var milliseconds: Double
    }

    struct Seen: Sendable {
        var changes: [Change] = []
        /// Changes that were not acknowledged within ``ChangeLoad/timeout``, with the last error.
        var failures: [String] = []
        /// Attempts that failed and were repeated.
        var repeatedCount = 0
    }

    /// How long a change may take.
    static let timeout = Duration.seconds(10)
    private static let retryDelay = Duration.milliseconds(20)
    private static let doorCount = 2_000

    private let sessions: [ClientSession]
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let interval: Duration
    private let seen = Mutex(Seen())
    private let isStopped = Atomic(false)

    /// - Parameter rate: changes a second, of all clients together.
    init(_ local: LocalCluster, clients: Int, rate: Int) async throws {
        interval = .nanoseconds(1_000_000_000 * clients / rate)
        var log = Logger(label: "bench") { StreamLogHandler.standardError(label: $0) }
        log.logLevel = .error
        var sessions: [ClientSession] = []
        for number in 0..<clients {
            let token = try await local.mint(
                role: .app, access: AccessID(unchecked: "change-\(number)"),
                account: AccountID(unchecked: "change-\(number)"))
            let first = local.endpoints[number % local.endpoints.count]
            let (states, feed) = AsyncStream.makeStream(of: LinkState.self)
            let session = try ClientSession(
                configuration: ClientConfiguration(
                    endpoints: [first] + local.endpoints.filter { $0 != first }, authorityFile: local.authorityFile,
                    token: token, role: .app),
                eventLoop: group.next(), log: log, onLinkState: { state, _ in feed.yield(state) })
            session.start()
            for await state in states where state == .online { break }
            sessions.append(session)
        }
        self.sessions = sessions
    }

    /// Runs until ``stop()``.
    func run() async {
        await withDiscardingTaskGroup { group in
            for (number, session) in sessions.enumerated() {
                group.addTask { await self.run(session, number) }
            }
        }
        for session in sessions { session.close() }
        try? await group.shutdownGracefully()
    }

    func stop() { isStopped.store(true, ordering: .relaxed) }

    var result: Seen { seen.withLock { $0 } }

    private func run(_ session: ClientSession, _ number: Int) async {
        var random = SeededRandom(seed: UInt64(number))
        // The clients' changes are spread over the interval.
        var due = MonotonicTime.now() + interval * (Double(number) / Double(sessions.count))
        await withDiscardingTaskGroup { group in
            while !isStopped.load(ordering: .relaxed) {
                let wait = due - .now()
                if wait > .zero { try? await Task.sleep(for: wait) }
                let (door, time) = ("door-\(random.next() % UInt64(Self.doorCount))", due)
                group.addTask { await self.change(door, session, due: time) }
                due = due + interval
            }
        }
    }

    private func change(_ door: String, _ session: ClientSession, due: MonotonicTime) async {
        let request = DoorPassRequest.with { ($0.door, $0.quiet) = (door, true) }
        var repeated = 0
        while true {
            do throws(ApusError) {
                _ = try await session.ask(request)
                let milliseconds = (MonotonicTime.now() - due).milliseconds
                seen.withLock { seen in
                    seen.changes.append(Change(due: due, milliseconds: milliseconds))
                    seen.repeatedCount += repeated
                }
                return
            } catch {
                guard MonotonicTime.now() - due < Self.timeout else {
                    seen.withLock { seen in
                        seen.failures.append("\(error)")
                        seen.repeatedCount += repeated
                    }
                    return
                }
                repeated += 1
                try? await Task.sleep(for: Self.retryDelay)
            }
        }
    }
}

/// Clients of the relays, each with an allocation that it keeps through the restarts of nodes: it follows redirects,
/// and moves to another node when nothing comes back.
///
/// Concurrency model: each thread has its own clients. What they saw is behind a `Mutex`.
final class AllocationLoad: Sendable {
    struct Seen: Sendable {
        /// Messages that came back from the peer.
        var echoCount = 0
        /// Allocations that moved to another node.
        var movedCount = 0
        /// Allocations that could not be kept, with the last error.
        var failures: [String] = []
        /// The longest time for which a message of a client did not come back.
        var silences: [Double] = []
    }

    /// Allocations of one user; the default limit is 128 at a node.
    private static let allocationsPerUser = 32
    private static let threadCount = 4
    /// The time between two messages of a client.
    private static let interval = Duration.seconds(1)
    /// Every so many messages a client refreshes its allocation, and sees a redirect.
    private static let refreshRounds = 3
    /// How long a client tries to keep its allocation.
    private static let timeout = Duration.seconds(10)

    private let threads: [OSThread]
    private let shared: Shared

    private final class Shared: Sendable {
        let seen = Mutex(Seen())
        let isStopped = Atomic(false)
        let readyCount = Atomic(0)
    }

    /// Allocates and begins. Waits until every client has its allocation.
    init(_ local: LocalCluster, count: Int, peer: TransportAddress) throws {
        let endpoints = local.mark.nodes.compactMap { $0.relay.flatMap { HostPort($0) } }
        let access = try RelayAccess(local)
        let shared = Shared()
        self.shared = shared
        threads = try (0..<Self.threadCount).map { thread in
            let numbers = (0..<count).filter { $0 % Self.threadCount == thread }
            let issued = numbers.map {
                access.issue(user: "upgrade-\($0 / Self.allocationsPerUser)", lifetime: 7200)
            }
            return try OSThread(name: "allocations-\(thread)") {
                Self.run(Array(zip(numbers, issued)), endpoints, peer, shared)
            }
        }
        let deadline = MonotonicTime.now() + .seconds(60)
        while shared.readyCount.load(ordering: .relaxed) < Self.threadCount {
            guard MonotonicTime.now() < deadline else {
                throw ApusError(.deadlineExceeded, "not every client of the relays has its allocation")
            }
            usleep(50_000)
        }
    }

    /// Ends the clients; what they saw.
    func stop() -> Seen {
        shared.isStopped.store(true, ordering: .relaxed)
        for thread in threads { thread.join() }
        return shared.seen.withLock { $0 }
    }

    private struct Client {
        var client: MovableClient
        var longest = Duration.zero
    }

    private static func run(
        _ numbers: [(Int, (username: String, password: String))], _ endpoints: [HostPort], _ peer: TransportAddress,
        _ shared: Shared
    ) {
        var clients: [Client] = []
        for (number, issued) in numbers {
            do throws(ApusError) {
                let client = try MovableClient(endpoints[number % endpoints.count], issued, peer: peer)
                clients.append(Client(client: client))
            } catch {
                shared.seen.withLock { $0.failures.append("the first allocation: \(error)") }
            }
        }
        _ = shared.readyCount.wrappingAdd(1, ordering: .relaxed)
        var round = 0
        while !shared.isStopped.load(ordering: .relaxed), !clients.isEmpty {
            let start = MonotonicTime.now()
            let count = clients.count
            round += 1
            // Spread over the interval: clients of different houses do not send at the same moment.
            for index in clients.indices.reversed() {
                let rest = interval * (count - index) / count - (MonotonicTime.now() - start)
                if rest > .zero { usleep(useconds_t(rest.nanoseconds / 1000)) }
                let isRefresh = (round + index).isMultiple(of: refreshRounds)
                if !keep(&clients[index], isRefresh, endpoints, shared) { clients.remove(at: index) }
            }
        }
        let silences = clients.map(\.longest.milliseconds)
        shared.seen.withLock { $0.silences += silences }
    }

    /// Sends a message to the peer over the relay; moves if it does not come back or the node redirects. Returns false
    /// if the allocation is lost.
    private static func keep(
        _ client: inout Client, _ isRefresh: Bool, _ endpoints: [HostPort], _ shared: Shared
    ) -> Bool {
        let asked = MonotonicTime.now()
        if client.client.isReached() {
            if isRefresh, client.client.isRedirected() { shared.seen.withLock { $0.movedCount += 1 } }
            shared.seen.withLock { $0.echoCount += 1 }
            return true
        }
        var last = ApusError(.unavailable)
        while MonotonicTime.now() - asked < timeout {
            for endpoint in endpoints {
                do throws(ApusError) {
                    try client.client.goOn(at: endpoint)
                    guard client.client.isReached() else { continue }
                    client.longest = max(client.longest, MonotonicTime.now() - asked)
                    shared.seen.withLock { $0.movedCount += 1 }
                    return true
                } catch {
                    last = error
                }
            }
            usleep(100_000)
        }
        shared.seen.withLock { $0.failures.append("\(last)") }
        return false
    }
}

extension MovableClient {
    /// True if a message comes back within 100 ms, or one of two more.
    func isReached() -> Bool { (try? reachesPeer()) ?? false }

    /// Follows a redirect of a draining node. False if there is none.
    func isRedirected() -> Bool { (try? followAlternate()) != nil }
}
