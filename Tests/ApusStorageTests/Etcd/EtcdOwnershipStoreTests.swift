import ApusCore
import ApusEtcd
import ApusStorage
import ApusTestKit
import Foundation
import Synchronization
import Testing

/// Revisions that a watch reported.
final class Reports: Sendable {
    private let revisions = Mutex<[UInt64]>([])

    func add(_ revision: UInt64) { revisions.withLock { $0.append(revision) } }
    func contains(_ revision: UInt64) -> Bool { revisions.withLock { $0.contains(revision) } }
}

/// Opens a store for the test cluster.
func openStore(_ configuration: EtcdConfiguration, seen: OwnershipMark? = nil) async throws -> EtcdOwnershipStore {
    try await EtcdOwnershipStore(configuration, cluster: testCluster, seen: seen, log: quietLog)
}

/// An endpoint on loopback without TLS.
func plain(_ port: Int) throws -> EtcdEndpoint { try #require(EtcdEndpoint("http://127.0.0.1:\(port)")) }

/// Follows the store's watch while the body runs.
func whileWatching(_ store: EtcdOwnershipStore, _ body: @Sendable (Reports) async throws -> Void) async throws {
    let reports = Reports()
    try await withThrowingTaskGroup(of: Void.self) { group in
        group.addTask { await store.watch { reports.add($0) } }
        try await body(reports)
        group.cancelAll()
    }
}

@Suite("Ownership store in etcd (D4, D9)", .serialized, .enabled(if: EtcdServer.program != nil))
struct EtcdOwnershipStoreTests {
    @Test("A node that was a member accepts only the same store, and not an older one")
    func mark() async throws {
        let configuration = try EtcdServer.shared.get().configuration()
        let store = try await openStore(configuration)
        let revision = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        await store.close()
        func outcome(_ store: StoreID, _ revision: UInt64) async -> ErrorCode? {
            let seen = OwnershipMark(store: store, revision: revision)
            return await code { try await openStore(configuration, seen: seen).close() }
        }
        #expect(await outcome(store.identity, revision) == nil)
        #expect(await outcome(store.identity, revision + 1) == .stateForeign)
        #expect(await outcome(.random(), 0) == .stateForeign)
        // A member does not create a store where there is none.
        var empty = configuration
        empty.prefix += "other/"
        let seen = OwnershipMark(store: store.identity, revision: 0)
        #expect(await code { try await openStore(empty, seen: seen).close() } == .stateForeign)
        #expect(await code { try await openStore(empty).close() } == nil)
    }

    @Test("If another store takes its place, every call fails with 10020 and nothing is swapped")
    func otherIdentity() async throws {
        let server = try EtcdServer.shared.get()
        let configuration = server.configuration()
        let store = try await openStore(configuration)
        let revision = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        let key = "\(configuration.prefix)\(testCluster)/store"
        try server.control("put", key, StoreID.random().description)
        #expect(await code { _ = try await store.read() } == .stateForeign)
        #expect(await code { _ = try await store.revision() } == .stateForeign)
        let swap = await code { _ = try await store.compareAndSwap(expected: revision, value: [2]) }
        #expect(swap == .stateForeign)
        try server.control("del", key)
        #expect(await code { _ = try await store.read() } == .stateForeign)
        // A new node does not create an identity for a map without one.
        #expect(await code { try await openStore(configuration).close() } == .stateForeign)
        try server.control("put", key, store.identity.description)
        #expect(try await store.read() == OwnershipValue(revision: revision, bytes: [1]))
        await store.close()
    }

    @Test(
        "A map of any size is read over a new connection, and again over the same",
        arguments: [60_000, 64_000, 65_000, 66_000, 70_000, 130_000, 200_000, 1 << 20])
    func size(byteCount: Int) async throws {
        let configuration = try EtcdServer.shared.get().configuration()
        let store = try await openStore(configuration)
        let bytes = (0..<byteCount).map { UInt8(truncatingIfNeeded: $0 &* 31) }
        let revision = try #require(try await store.compareAndSwap(expected: 0, value: bytes))
        await store.close()
        for _ in 0..<3 {
            let store = try await openStore(configuration)
            for _ in 0..<5 {
                #expect(try await store.read() == OwnershipValue(revision: revision, bytes: bytes))
            }
            await store.close()
        }
    }

    @Test("A change is reported at once, also the first one")
    func watch() async throws {
        let configuration = try EtcdServer.shared.get().configuration()
        let (watched, other) = (try await openStore(configuration), try await openStore(configuration))
        try await whileWatching(watched) { reports in
            var revision: UInt64 = 0
            for count in 1...5 {
                revision = try #require(
                    try await other.compareAndSwap(expected: revision, value: [UInt8(count)]))
                let begin = MonotonicTime.now()
                let last = revision
                try await eventually("the change is reported") { reports.contains(last) }
                // Below the interval of polls. The first watch may be opening.
                #expect(count == 1 || MonotonicTime.now() - begin < configuration.pollInterval / 2)
            }
        }
        for store in [watched, other] { await store.close() }
    }

    @Test("A map is restored above the revisions that nodes have seen, under the identity that they know")
    func restore() async throws {
        let server = try EtcdServer.shared.get()
        let configuration = server.configuration()
        let store = try await openStore(configuration)
        let first = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        // As in an etcd that was set up again.
        try server.control("del", configuration.prefix, "--prefix=true")
        #expect(await code { _ = try await store.read() } == .stateForeign)
        let lost = await EtcdRestore.look(configuration, cluster: testCluster, log: quietLog)
        #expect(lost.found == nil && lost.reason != nil)

        let record = RevisionFile(cluster: testCluster, store: store.identity, revision: first + 300, value: [1, 2])
        let restored = try await EtcdRestore.put(record, configuration, log: quietLog)
        #expect(restored >= first + 300)
        #expect(try await store.read() == OwnershipValue(revision: restored, bytes: [1, 2]))
        let found = await EtcdRestore.look(configuration, cluster: testCluster, log: quietLog)
        #expect(found.found == OwnershipMark(store: store.identity, revision: restored) && found.value == [1, 2])
        #expect(try await store.compareAndSwap(expected: restored, value: [3]) != nil)
        await store.close()
        let seen = OwnershipMark(store: store.identity, revision: restored)
        #expect(await code { try await openStore(configuration, seen: seen).close() } == nil)

        var distant = record
        distant.revision = UInt64(EtcdRestore.raiseCountMax) * 2 + restored
        let tooFar = distant
        #expect(await code { _ = try await EtcdRestore.put(tooFar, configuration, log: quietLog) } == .storageFailed)
    }

    @Test("A store that is closed fails with 10021")
    func closed() async throws {
        let store = try await openStore(try EtcdServer.shared.get().configuration())
        await store.close()
        #expect(await code { _ = try await store.read() } == .storageFailed)
    }

    @Test("An endpoint that refuses connections is left for the next one")
    func deadEndpoint() async throws {
        var configuration = try EtcdServer.shared.get().configuration()
        let dead = try plain(try FreePort.next())
        configuration.endpoints = [dead, dead] + configuration.endpoints
        let store = try await openStore(configuration)
        let first = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        try await whileWatching(store) { reports in
            try await eventually("the value is reported") { reports.contains(first) }
            let next = try #require(try await store.compareAndSwap(expected: first, value: [2]))
            try await eventually("the watch finds the endpoint") { reports.contains(next) }
        }
        await store.close()
        configuration.endpoints = [dead]
        let failure = await #expect(throws: ApusError.self) { _ = try await openStore(configuration) }
        #expect(failure?.code == .storageFailed && failure?.message.contains("cannot be reached") == true)
    }

    // MARK: TLS and users

    @Test("TLS is verified: the authority must be the one that signed the member's certificate")
    func encryption() async throws {
        guard TestCertificate.canBeMade else { return }
        let (certificate, other) = (try TestCertificate(), try TestCertificate())
        let server = try EtcdServer(certificate: certificate)
        var configuration = server.configuration()
        let store = try await openStore(configuration)
        #expect(try await store.compareAndSwap(expected: 0, value: [1]) != nil)
        await store.close()
        configuration.authorityFile = other.certificate
        let begin = MonotonicTime.now()
        let failure = await #expect(throws: ApusError.self) { _ = try await openStore(configuration) }
        #expect(failure?.code == .storageFailed && failure?.message.contains("cannot be reached") == true)
        #expect(MonotonicTime.now() - begin < configuration.timeout * 2)
        configuration.authorityFile = certificate.certificate + ".missing"
        #expect(await code { _ = try await openStore(configuration) } == .storageFailed)
        server.stop()
    }

    @Test("A certificate that names neither the endpoint's host nor its address is refused")
    func otherAddress() async throws {
        guard TestCertificate.canBeMade else { return }
        let server = try EtcdServer(certificate: try TestCertificate(addresses: ["192.0.2.1"], names: ["etcd.example"]))
        var configuration = server.configuration()
        for host in ["127.0.0.1", "localhost"] {
            configuration.endpoints = [try #require(EtcdEndpoint("https://\(host):\(server.port(0))"))]
            let tried = configuration
            #expect(await code { _ = try await openStore(tried) } == .storageFailed, "\(host)")
        }
        server.stop()
    }

    @Test("A user needs its password, and a token that etcd forgot is replaced")
    func users() async throws {
        let server = try EtcdServer()
        let folder = Folder()
        let password = folder.file("password")
        var configuration = server.configuration()
        configuration.user = "apus"
        configuration.passwordFile = password
        // A user that is configured before authentication is enabled.
        try Data("first\n".utf8).write(to: URL(fileURLWithPath: password))
        try await openStore(configuration).close()

        // Newer releases of etcd have this role from the start.
        _ = try? server.control("role", "add", "root")
        for command in [["user", "add", "root:root"], ["user", "add", "apus:first"], ["role", "add", "apus"]] {
            try server.control(command[0], command[1], command[2])
        }
        try server.control("user", "grant-role", "root", "root")
        try server.control("role", "grant-permission", "apus", "readwrite", configuration.prefix, "--prefix=true")
        try server.control("user", "grant-role", "apus", "apus")
        try server.control("auth", "enable")

        try Data("wrong\n".utf8).write(to: URL(fileURLWithPath: password))
        let failure = await #expect(throws: ApusError.self) { _ = try await openStore(configuration) }
        #expect(failure?.code == .storageFailed && failure?.message.contains("refuses the user") == true)
        #expect(failure?.message.contains("wrong") == false)

        try Data("first\n".utf8).write(to: URL(fileURLWithPath: password))
        let store = try await openStore(configuration)
        let revision = try #require(try await store.compareAndSwap(expected: 0, value: [1]))
        // A new password ends the user's tokens.
        try Data("second\n".utf8).write(to: URL(fileURLWithPath: password))
        try server.control(
            "user", "passwd", "apus", "--interactive=false", user: "root:root", input: "second\n")
        let next = try #require(try await store.compareAndSwap(expected: revision, value: [2]))
        #expect(try await store.revision() == next)
        try await whileWatching(store) { reports in
            try await eventually("the watch is permitted") { reports.contains(next) }
        }
        await store.close()

        // A range of keys for which the user has no permission.
        configuration.prefix = "other/"
        let elsewhere = configuration
        #expect(await code { _ = try await openStore(elsewhere) } == .storageFailed)
        server.stop()
    }
}
