import ApusCore
import ApusEtcd
import ApusStorage
import ApusTestKit
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Members of etcd are killed, stopped and cut off, and answers are lost.
@Suite("Ownership store in etcd under faults (D4)", .serialized, .enabled(if: EtcdServer.program != nil))
struct EtcdFaultTests {
    /// What several callers did. Each swap appends an id of its own to the value.
    private final class History: Sendable {
        private let ids = Mutex<(acknowledged: Set<UInt32>, uncertain: Set<UInt32>)>(([], []))

        func acknowledge(_ id: UInt32) { ids.withLock { _ = $0.acknowledged.insert(id) } }
        /// It was sent, and failed with 10021: made or not.
        func leaveOpen(_ id: UInt32) { ids.withLock { _ = $0.uncertain.insert(id) } }
        func all() -> (acknowledged: Set<UInt32>, uncertain: Set<UInt32>) { ids.withLock { $0 } }
    }

    private static func ids(_ value: OwnershipValue?) -> [UInt32] {
        let bytes = value?.bytes ?? []
        return stride(from: 0, to: bytes.count - 3, by: 4).map { start in
            bytes[start..<(start + 4)].reduce(0) { $0 << 8 | UInt32($1) }
        }
    }

    private static func bytes(_ id: UInt32) -> [UInt8] {
        (0..<4).map { UInt8(truncatingIfNeeded: id >> UInt32((3 - $0) * 8)) }
    }

    /// Appends ids until the time is over.
    private static func append(
        caller: UInt32, to store: EtcdOwnershipStore, until end: MonotonicTime, _ history: History
    ) async {
        var count: UInt32 = 0
        while MonotonicTime.now() < end {
            do throws(ApusError) {
                let value = try await store.read()
                let id = caller << 24 | count
                count += 1
                do throws(ApusError) {
                    let revision = try await store.compareAndSwap(
                        expected: value?.revision ?? 0, value: (value?.bytes ?? []) + bytes(id))
                    if revision != nil { history.acknowledge(id) }
                } catch {
                    history.leaveOpen(id)
                }
            } catch {
                // No read came back. There is nothing to record.
            }
            // etcd keeps every revision, and each has all ids.
            try? await Task.sleep(for: .milliseconds(10))
        }
    }

    @Test("Leaders are killed during swaps: no acknowledged swap is lost, and none is made twice")
    func leaderKilled() async throws {
        let server = try EtcdServer(memberCount: 3)
        let configuration = server.configuration()
        let history = History()
        let stores = [
            try await openStore(configuration), try await openStore(configuration), try await openStore(configuration),
        ]
        let end = MonotonicTime.now() + .seconds(12)
        try await withThrowingTaskGroup(of: Void.self) { group in
            for (index, store) in stores.enumerated() {
                group.addTask { await Self.append(caller: UInt32(index), to: store, until: end, history) }
            }
            group.addTask {
                for _ in 0..<2 {
                    try await Task.sleep(for: .seconds(1))
                    var leader = 0
                    try await eventually("a member leads") { await code { leader = try server.leader() } == nil }
                    try server.signal(SIGKILL, leader)
                    try await Task.sleep(for: .seconds(3))
                    try server.start(leader)
                }
            }
            try await group.waitForAll()
        }
        var found: [UInt32] = []
        try await eventually("etcd answers") { await code { found = Self.ids(try await stores[0].read()) } == nil }
        let (acknowledged, uncertain) = history.all()
        #expect(Set(found).count == found.count, "a swap was made twice")
        #expect(acknowledged.subtracting(found).isEmpty, "an acknowledged swap was lost")
        #expect(Set(found).subtracting(acknowledged).isSubset(of: uncertain), "a lost swap was made")
        #expect(acknowledged.count > 50, "the load was too low: \(acknowledged.count)")
        for store in stores { await store.close() }
        server.stop()
    }

    @Test("Without a majority calls fail with 10021 within their time, and go on when it is back", arguments: [1, 2])
    func noMajority(aliveCount: Int) async throws {
        // With one member left alive there is no majority; with two there is one.
        let server = try EtcdServer(memberCount: 3)
        let configuration = server.configuration()
        let store = try await openStore(configuration)
        let revision = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        let stopped = Array((0..<3).prefix(3 - aliveCount))
        for index in stopped { try server.signal(SIGSTOP, index) }
        if aliveCount == 1 {
            for _ in 0..<3 {
                let begin = MonotonicTime.now()
                #expect(await code { _ = try await store.read() } == .storageFailed)
                let swap = await code { _ = try await store.compareAndSwap(expected: revision, value: [2]) }
                #expect(swap == .storageFailed)
                #expect(MonotonicTime.now() - begin < configuration.timeout * 3)
            }
        } else {
            try await eventually("the two others answer") { await code { _ = try await store.read() } == nil }
        }
        // A node that starts meanwhile waits for longer than one that runs.
        let opening = Task { try await openStore(configuration) }
        try await Task.sleep(for: configuration.timeout * 2)
        for index in stopped { try server.signal(SIGCONT, index) }
        try await opening.value.close()
        var found: OwnershipValue?
        try await eventually("etcd answers again") { await code { found = try await store.read() } == nil }
        // What failed may have been made.
        let value = try #require(found)
        #expect(value.bytes == [1] || (aliveCount == 1 && value.bytes == [2]))
        var isMade = false
        try await eventually("a swap is made") {
            await code {
                let current = try await store.read()
                isMade = try await store.compareAndSwap(expected: current?.revision ?? 0, value: [3]) != nil
            } == nil && isMade
        }
        await store.close()
        server.stop()
    }

    @Test("A swap whose answer is lost fails with 10021, and the next read shows it")
    func answerLost() async throws {
        let server = try EtcdServer.shared.get()
        let proxy = try await CuttingProxy.open(at: try FreePort.next(), to: server.port(0))
        var configuration = server.configuration()
        configuration.endpoints = [try plain(proxy.port)]
        configuration.timeout = .milliseconds(500)
        let store = try await openStore(configuration)
        let first = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        proxy.set(.dropsAnswers)
        let begin = MonotonicTime.now()
        let swap = await code { _ = try await store.compareAndSwap(expected: first, value: [2]) }
        #expect(swap == .storageFailed)
        #expect(MonotonicTime.now() - begin < configuration.timeout * 2)
        proxy.set(.open)
        var value: OwnershipValue?
        try await eventually("etcd answers") { await code { value = try await store.read() } == nil }
        let made = try #require(value)
        #expect(made.bytes == [2] && made.revision > first)
        // The caller's own swap counts as another's: it lost.
        #expect(try await store.compareAndSwap(expected: first, value: [2]) == nil)
        #expect(try await store.compareAndSwap(expected: made.revision, value: [3]) != nil)
        await store.close()
        try await proxy.close()
    }

    @Test("A watch that was cut off continues after a compaction of what it missed", arguments: [false, true])
    func compaction(isCompacted: Bool) async throws {
        let server = try EtcdServer()
        let proxy = try await CuttingProxy.open(at: try FreePort.next(), to: server.port(0))
        let direct = server.configuration()
        var configuration = direct
        configuration.endpoints = [try plain(proxy.port)]
        let (watched, other) = (try await openStore(configuration), try await openStore(direct))
        try await whileWatching(watched) { reports in
            let first = try #require(try await other.compareAndSwap(expected: 0, value: [1]))
            try await eventually("the first change is reported") { reports.contains(first) }
            proxy.set(.cut)
            var last = first
            for count in 2...6 {
                last = try #require(try await other.compareAndSwap(expected: last, value: [UInt8(count)]))
            }
            let newest = last
            #expect(!reports.contains(newest))
            if isCompacted { try server.control("compact", "\(newest)") }
            proxy.set(.open)
            try await eventually("the newest change is reported") { reports.contains(newest) }
            // The watch that follows is not the read.
            let next = try #require(try await other.compareAndSwap(expected: newest, value: [7]))
            try await eventually("the next change is reported") { reports.contains(next) }
        }
        for store in [watched, other] { await store.close() }
        try await proxy.close()
        server.stop()
    }

    @Test("A watch whose connection is silent is opened again")
    func silence() async throws {
        let server = try EtcdServer.shared.get()
        let proxy = try await CuttingProxy.open(at: try FreePort.next(), to: server.port(0))
        let direct = server.configuration()
        var configuration = direct
        configuration.endpoints = [
            try plain(proxy.port), direct.endpoints[0],
        ]
        configuration.pollInterval = .milliseconds(100)
        let (watched, other) = (try await openStore(configuration), try await openStore(direct))
        try await whileWatching(watched) { reports in
            let first = try #require(try await other.compareAndSwap(expected: 0, value: [1]))
            try await eventually("the first change is reported") { reports.contains(first) }
            proxy.set(.dropsAnswers)
            let next = try #require(try await other.compareAndSwap(expected: first, value: [2]))
            // Over the other endpoint.
            try await eventually("the next change is reported") { reports.contains(next) }
        }
        for store in [watched, other] { await store.close() }
        try await proxy.close()
    }
}
