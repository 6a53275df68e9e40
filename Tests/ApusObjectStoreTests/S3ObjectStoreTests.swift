import ApusCore
import ApusObjectStore
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite(
    "Objects in S3 servers that others made",
    .enabled(if: S3Server.python != nil, "moto and nanio are not installed (scripts/lib/s3-servers.sh)"), .serialized)
struct S3ObjectStoreTests {
    private let folder = Folder()

    private func limits(_ change: (inout ObjectStoreLimits) -> Void = { _ in }) -> ObjectStoreLimits {
        var limits = ObjectStoreLimits()
        limits.backoffFirst = .milliseconds(5)
        limits.backoffLongest = .milliseconds(50)
        limits.attemptTimeout = .seconds(5)
        limits.attemptsMax = 8
        limits.leftoverAgeMin = .zero
        change(&limits)
        return limits
    }

    @Test("moto: all promises, with and without a prefix, by path and by host")
    func moto() async throws {
        let server = try S3Server.moto()
        let plain = try await S3ObjectStore(try server.configuration(folder), limits: limits())
        try await plain.check()
        try await ObjectStorePromises.expectObjects(plain, "a/b")
        try await ObjectStorePromises.expectNothingReplaced(plain, "k")
        try await ObjectStorePromises.expectLists(plain, "l", pages: [1, 5, 1_000])
        try await ObjectStorePromises.expectSizeBound(
            try await S3ObjectStore(
                try server.configuration(folder), limits: limits { $0.objectByteCountMax = 10_000 }))
        let prefixed = try await S3ObjectStore(try server.configuration(folder, prefix: "deep/er"), limits: limits())
        try await ObjectStorePromises.expectLists(prefixed, "l", pages: [3])
        try await ObjectStorePromises.expectOneWinner([plain, plain], "r", rounds: 5)
        var byHost = try server.configuration(folder, prefix: "host")
        byHost.endpoint = "http://localhost:\(server.port)"
        byHost.addressing = .host
        let hosted = try await S3ObjectStore(byHost, limits: limits())
        try await ObjectStorePromises.expectObjects(hosted, "h", size: 1_000)
        for store in [plain, prefixed, hosted] { await store.shutdown() }
        await #expect(throws: ApusError.self) { try await plain.head(try ObjectName("a")) }
    }

    @Test("moto: large objects are uploaded in parts, never replaced, and an upload that ended is a leftover")
    func parts() async throws {
        let server = try S3Server.moto()
        let limits = limits {
            $0.partByteCount = 5 << 20
            $0.singleByteCountMax = 6 << 20
        }
        let store = try await S3ObjectStore(try server.configuration(folder), limits: limits)
        try await store.check()
        let content = ObjectStorePromises.bytes(11 << 20)
        let (name, other) = (try ObjectName("large"), try ObjectName("other"))
        guard case .stored(let head) = try await store.put(name, ObjectContent(content)) else {
            Issue.record("not stored")
            return
        }
        #expect(head.byteCount == content.count && head.tag.hasSuffix("-3"))
        let range = (5 << 20) - 100..<(5 << 20) + 100
        #expect(try await store.get(name, range: range)?.bytes == Array(content[range]))
        #expect(try await store.put(name, ObjectContent(content)) == .exists(head, isSame: true))
        var changed = content
        changed[changed.count - 1] ^= 1
        #expect(try await store.put(name, ObjectContent(changed)) == .exists(head, isSame: false))
        #expect(try await store.leftovers(olderThan: .zero) == ObjectLeftovers())
        // A put whose content fails in the second part is aborted; one that is cancelled stays until it is swept.
        let failing = ObjectContent(byteCount: content.count) { range throws(ApusError) in
            guard range.lowerBound == 0 else { throw ApusError(.noRoute) }
            return Array(content[range])
        }
        await #expect(throws: ApusError(.noRoute)) { try await store.put(other, failing) }
        #expect(try await store.head(other) == nil)
        #expect(try await store.leftovers(olderThan: .zero).count == 0)
        let readCount = Atomic<Int>(0)
        let stopped = ObjectContent(byteCount: content.count) { range throws(ApusError) in
            // The digest and the tag are made first.
            let isSent = range.lowerBound > 0 && readCount.add(1, ordering: .relaxed).newValue > 4
            if isSent, (try? await Task.sleep(for: .seconds(60))) == nil { throw ApusError(.cancelled) }
            return Array(content[range])
        }
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                await #expect(throws: ApusError(.cancelled)) { try await store.put(other, stopped) }
            }
            while try await store.leftovers(olderThan: .zero).byteCount == 0 {}
            group.cancelAll()
        }
        let left = ObjectLeftovers(count: 1, byteCount: 5 << 20)
        #expect(try await store.leftovers(olderThan: .zero) == left)
        #expect(try await store.removeLeftovers(olderThan: .zero) == left)
        #expect(try await store.leftovers(olderThan: .zero) == ObjectLeftovers())
        #expect(try await store.head(other) == nil)
        await store.shutdown()
    }

    @Test("nanio: it checks signatures and ranges; wrong keys are refused, and so is a server that replaces objects")
    func nanio() async throws {
        let server = try S3Server.nanio()
        let store = try await S3ObjectStore(try server.configuration(folder, prefix: "p"), limits: limits())
        try await ObjectStorePromises.expectObjects(store, "a/b")
        let error = await #expect(throws: ApusError(.storageFailed)) { try await store.check() }
        #expect(error?.message.contains("If-None-Match") == true)
        let keys = S3Server.credentials.replacing("apus-test-secret", with: "another-secret")
        let wrong = try await S3ObjectStore(try server.configuration(folder, credentials: keys), limits: limits())
        let name = try ObjectName("x")
        let refused = await #expect(throws: ApusError(.storageFailed)) {
            try await wrong.put(name, ObjectContent([1]))
        }
        #expect(refused?.message.contains("refuses the keys") == true && refused?.message.contains("secret") == false)
        for store in [store, wrong] { await store.shutdown() }
    }

    @Test("Keys that others may read, a bucket that is not there and a server that is away are refused with advice")
    func advice() async throws {
        let server = try S3Server.moto()
        var configuration = try server.configuration(folder)
        let file = try #require(configuration.credentialsFile)
        try FileManager.default.setAttributes([.posixPermissions: 0o640], ofItemAtPath: file)
        let open = await #expect(throws: ApusError(.configurationInvalid)) { try await S3ObjectStore(configuration) }
        #expect(open?.message.contains("chmod 600") == true)
        try FileManager.default.setAttributes([.posixPermissions: 0o600], ofItemAtPath: file)
        configuration.bucket = "absent"
        let absent = try await S3ObjectStore(configuration, limits: limits())
        let name = try ObjectName("x")
        let missing = await #expect(throws: ApusError(.storageFailed)) {
            try await absent.put(name, ObjectContent([1]))
        }
        #expect(missing?.message.contains("no such bucket") == true, "\(String(describing: missing))")
        configuration.endpoint = "http://127.0.0.1:\(try FreePort.next())"
        let away = try await S3ObjectStore(configuration, limits: limits { $0.attemptsMax = 3 })
        await #expect(throws: ApusError(.storageFailed)) { try await away.get(name, range: nil) }
        for store in [absent, away] { await store.shutdown() }
    }

    @Test(
        "Behind a proxy that fails a fifth of the time: what is acknowledged is there, and nothing is replaced",
        arguments: [UInt64(1), 2])
    func faults(seed: UInt64) async throws {
        let server = try S3Server.moto()
        let proxy = try S3Server.proxy(of: server)
        let limits = limits {
            $0.attemptTimeout = .milliseconds(700)
            $0.attemptsMax = 12
        }
        let store = try await S3ObjectStore(try proxy.configuration(folder), limits: limits)
        let direct = try await S3ObjectStore(try server.configuration(folder), limits: limits)
        try proxy.change(
            #"{"seed": \#(seed), "error": 0.08, "late": 0.05, "cut": 0.04, "lost": 0.05, "stall": 0.01, "tag": 0.1}"#)
        let outcomes = await withTaskGroup(of: Attempt.self) { group in
            for task in 0..<6 {
                group.addTask { await Self.attempts(task, on: store) }
            }
            return await group.reduce(into: Attempt()) { $0.add($1) }
        }
        #expect(outcomes.errors.allSatisfy { $0 == .storageFailed || $0 == .deadlineExceeded }, "\(outcomes.errors)")
        #expect(outcomes.errors.count <= 3, "repeated attempts get through: \(outcomes.errors.count)")
        #expect(outcomes.acknowledged.count >= 40)
        // Each name has what its one winner has put, read past the proxy.
        for (name, winners) in outcomes.acknowledged {
            let found = try await direct.get(name, range: nil)?.bytes
            #expect(winners.count == 1 && found == winners.first, "\(name): \(winners.count)")
        }
        let faultCount = try proxy.change("{}")
        // Of 288 requests at least, a third: 95 with a standard deviation of 8.
        #expect(faultCount > 60, "\(faultCount)")
        // Reads are exact as well.
        try proxy.change(#"{"seed": \#(seed), "error": 0.1, "cut": 0.2, "lost": 0.1, "tag": 0.3}"#)
        for (name, winners) in outcomes.acknowledged.prefix(20) {
            #expect(try await store.get(name, range: 10..<500)?.bytes == winners.first.map { Array($0[10..<500]) })
        }
        let page = try await store.list(prefix: "", after: nil, countMax: nil)
        #expect(Set(page.entries.map(\.name)).isSuperset(of: outcomes.acknowledged.keys))
        for store in [store, direct] { await store.shutdown() }
    }

    /// What the puts of a task have achieved.
    private struct Attempt: Sendable {
        /// By name: contents of which the store has said that it stored them.
        var acknowledged: [ObjectName: [[UInt8]]] = [:]
        var errors: [ErrorCode] = []

        mutating func add(_ other: Self) {
            acknowledged.merge(other.acknowledged) { $0 + $1 }
            errors += other.errors
        }
    }

    /// Two tasks each put different contents under the same names.
    private static func attempts(_ task: Int, on store: S3ObjectStore) async -> Attempt {
        var attempt = Attempt()
        for index in 0..<24 {
            let content = ObjectStorePromises.bytes(600, seed: UInt64(task * 1_000 + index))
            do throws(ApusError) {
                let name = try ObjectName("f/\(task / 2)/\(index)")
                if case .stored = try await store.put(name, ObjectContent(content)) {
                    attempt.acknowledged[name, default: []].append(content)
                }
            } catch {
                attempt.errors.append(error.code)
            }
        }
        return attempt
    }

    @Test("A server that is away and comes back is used again without a restart; a stalled one costs a bounded time")
    func away() async throws {
        let server = try S3Server.moto()
        let proxy = try S3Server.proxy(of: server)
        let limits = limits {
            $0.attemptTimeout = .milliseconds(200)
            $0.attemptsMax = 3
            $0.operationTimeout = .seconds(2)
        }
        let store = try await S3ObjectStore(try proxy.configuration(folder), limits: limits)
        let name = try ObjectName("a")
        try proxy.change(#"{"away": true}"#)
        await #expect(throws: ApusError(.storageFailed)) { try await store.put(name, ObjectContent([1])) }
        try proxy.change(#"{"stall": 1, "stall_seconds": 20}"#)
        let start = MonotonicTime.now()
        let error = await #expect(throws: ApusError.self) { try await store.head(name) }
        #expect([.storageFailed, .deadlineExceeded].contains(error?.code))
        #expect(MonotonicTime.now() - start < .seconds(5))
        try proxy.change("{}")
        switch try await store.put(name, ObjectContent([1])) {
        case .stored(let head), .exists(let head, isSame: true): #expect(head.byteCount == 1)
        case .exists(_, isSame: false): Issue.record("another content was stored")
        }
        await store.shutdown()
    }
}
