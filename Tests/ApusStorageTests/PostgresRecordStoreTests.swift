import ApusCore
import ApusPQ
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

@Suite("Records in PostgreSQL (D9, D16)", .serialized, .enabled(if: PostgresServer.programs != nil))
struct PostgresRecordStoreTests {
    private func schema() throws -> String { try PostgresServer.shared.get().url(schema: "t-\(UUID().uuidString)") }

    private func open(_ url: String, timeout: Duration = .seconds(5)) async throws -> PostgresRecordStore {
        var connections = PostgresLimits()
        connections.timeout = timeout
        return try await PostgresRecordStore(url: url, cluster: testCluster, connections: connections)
    }

    private func run(_ url: String, _ sql: String) throws -> PostgresResult {
        let end = MonotonicTime.now() + .seconds(10)
        return try PostgresConnection(url: url, until: end).run(sql, until: end)
    }

    @Test("Bytes and arrays are written as the server reads them")
    func text() throws {
        let texts: [String?] = ["", "a", nil, #"a"b\c"#, "é{},", "NULL"]
        let end = MonotonicTime.now() + .seconds(10)
        let connection = try PostgresConnection(url: try schema(), until: end)
        let result = try connection.run(
            "SELECT u FROM unnest($1::text[]) WITH ORDINALITY AS t (u, n) ORDER BY n", [PostgresText.array(texts)],
            until: end)
        #expect(result.rows == texts.map { [$0] })
        let bytes = [UInt8](0...255)
        #expect(PostgresText.bytes(from: PostgresText.bytes(bytes)) == bytes)
        #expect(PostgresText.bytes(from: #"\x0"#) == nil && PostgresText.bytes(from: #"\xzz"#) == nil)
        let array = try connection.run(
            "SELECT unnest($1::bytea[])", [PostgresText.array([PostgresText.bytes(bytes)])], until: end)
        #expect(array.rows == [[PostgresText.bytes(bytes)]])
    }

    @Test("Stores of several machines make each record once, and count every change", arguments: [1, 4])
    func severalStores(counterCount: Int) async throws {
        let url = try schema()
        let count = try await withThrowingTaskGroup(of: Int.self) { group in
            for caller in 0..<4 {
                group.addTask {
                    let store = try await open(url)
                    var doneCount = 0
                    while doneCount < 40 {
                        let name = "counter-\((doneCount + caller) % counterCount)"
                        let found = try await store.records("things", [OrderedKey(.text(name))])[0]
                        do throws(ApusError) {
                            try await store.commit(
                                write(
                                    name, [(found?.body[0] ?? 0) + 1],
                                    if: found.map { .version($0.version) } ?? .absent))
                            doneCount += 1
                        } catch {
                            guard error.code == .versionConflict else { throw error }
                        }
                    }
                    await store.close()
                    return doneCount
                }
            }
            return try await group.reduce(0, +)
        }
        let store = try await open(url)
        let page = try await store.page(RecordScan("things"))
        #expect(page.records.reduce(0) { $0 + Int($1.body[0]) } == count && count == 160)
        #expect(page.records.allSatisfy { $0.version == UInt64($0.body[0]) })
        await store.close()
    }

    @Test("Connections that the server ended are made anew, for reads and for writes")
    func ended() async throws {
        let url = try schema()
        let store = try await open(url)
        for round in 1...3 {
            try await store.commit(write("cam", [UInt8(round)]))
            #expect(try await store.records("things", [OrderedKey(.text("cam"))])[0]?.version == UInt64(round))
            _ = try run(
                url,
                """
                SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE pid <> pg_backend_pid() AND query LIKE '%records%'
                """)
        }
        await store.close()
    }

    @Test("A record whose entries are damaged refuses its own steps with 10020, and no others")
    func damagedEntries() async throws {
        let url = try schema()
        let store = try await open(url)
        try await store.commit(write("bad", [1], entries: [("by", "x")]))
        _ = try run(url, #"UPDATE records SET entries = '\xff'"#)
        try await expectOnlyDamagedRefused(store)
        await store.close()
    }

    /// What the server does at the first commit of a record, before it makes it: a trigger that is put off to the
    /// commit.
    private func atFirstCommit(_ url: String, _ action: String) throws {
        let end = MonotonicTime.now() + .seconds(10)
        let connection = try PostgresConnection(url: url, until: end)
        for statement in [
            "CREATE SEQUENCE commits",
            """
            CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN IF nextval('commits') = 1 THEN \(action); END IF; RETURN NULL; END $$
            """,
            """
            CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT OR UPDATE ON records DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION at_commit()
            """,
        ] { try connection.run(statement, until: end) }
    }

    @Test("A commit whose connection ends under it has an unknown outcome (10021), and is not made a second time")
    func unknownOutcome() async throws {
        let url = try schema()
        let store = try await open(url)
        try atFirstCommit(url, "PERFORM pg_terminate_backend(pg_backend_pid())")
        await #expect(throws: ApusError(.storageFailed)) { try await store.commit(write("cam", [1])) }
        #expect(try run(url, "SELECT last_value FROM commits").rows == [["1"]])
        #expect(try await store.commit(write("cam", [2])) == 1)
        await store.close()
    }

    @Test("A commit that the server refuses for another transaction's sake is made anew")
    func refusedCommit() async throws {
        let url = try schema()
        let store = try await open(url)
        try atFirstCommit(url, "RAISE EXCEPTION 'between' USING ERRCODE = '40001'")
        #expect(try await store.commit(write("cam", [1])) == 1)
        #expect(try run(url, "SELECT last_value FROM commits").rows == [["2"]])
        await store.close()
    }

    @Test("A server that is stopped ends a call at its deadline with 10021, and is used again when it goes on")
    func stopped() async throws {
        // A server of its own: the other tests go on.
        let server = try PostgresServer()
        let url = try server.url(schema: "stopped")
        let store = try await open(url, timeout: .milliseconds(500))
        try await store.commit(write("cam", [1]))
        let backends = try run(url, "SELECT pid FROM pg_stat_activity WHERE datname = 'postgres'").rows
            .compactMap { $0[0].flatMap { Int32($0) } }
        let processes = backends + [server.process]
        for process in processes { kill(process, SIGSTOP) }
        let start = MonotonicTime.now()
        await #expect(throws: ApusError(.storageFailed)) { try await store.commit(write("cam", [2])) }
        await #expect(throws: ApusError(.storageFailed)) {
            try await store.records("things", [OrderedKey(.text("cam"))])
        }
        #expect(MonotonicTime.now() - start < .seconds(5))
        for process in processes { kill(process, SIGCONT) }
        try await store.commit(write("cam", [3]))
        #expect(try await store.records("things", [OrderedKey(.text("cam"))])[0]?.body == [3])
        await store.close()
    }

    @Test("Reads that wait for a stopped server are bounded (10007), can be cancelled (10006), and end with the store")
    func waitingReads() async throws {
        // A server of its own: the other tests go on.
        let server = try PostgresServer()
        let url = try server.url(schema: "waiting")
        var limits = PostgresLimits()
        (limits.timeout, limits.readerCountMax, limits.waitingReadCountMax) = (.seconds(1), 1, 8)
        let store = try await PostgresRecordStore(url: url, cluster: testCluster, connections: limits)
        // Reads that were cancelled keep their places until their turn.
        let other = try await PostgresRecordStore(url: url, cluster: testCluster, connections: limits)
        for store in [store, other] { _ = try await store.records("things", []) }
        let processes =
            try run(url, "SELECT pid FROM pg_stat_activity WHERE datname = 'postgres'").rows
            .compactMap { $0[0].flatMap { Int32($0) } } + [server.process]
        for process in processes { kill(process, SIGSTOP) }
        defer { withExtendedLifetime(server) { for process in processes { kill(process, SIGCONT) } } }

        await withTaskGroup(of: ErrorCode?.self) { group in
            for _ in 0..<20 {
                group.addTask { await code { _ = try await store.records("things", [OrderedKey(.text("cam"))]) } }
            }
            // One is at the server, eight wait.
            for _ in 0..<11 {
                let refused: ErrorCode? = await group.next() ?? nil
                #expect(refused == .overloaded)
            }
            group.cancelAll()
            let others = await group.reduce(into: [ErrorCode?]()) { $0.append($1) }
            let cancelledCount = others.count { $0 == .cancelled }
            #expect(cancelledCount >= 7, "\(others)")
        }

        let start = MonotonicTime.now()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for _ in 0..<8 {
                group.addTask {
                    let failure = await code { _ = try await other.records("things", [OrderedKey(.text("cam"))]) }
                    #expect(failure == .storageFailed)
                }
            }
            // All are asked by then.
            try await Task.sleep(for: .milliseconds(300))
            await other.close()
            try await group.waitForAll()
        }
        #expect(MonotonicTime.now() - start < .seconds(8), "those that wait are not tried one after the other")
    }

    @Test("Another cluster's tables are refused with 10020, and a server without TLS where TLS is asked for with 10021")
    func refused() async throws {
        let url = try schema()
        await (try open(url)).close()
        await #expect(throws: ApusError(.stateForeign)) {
            try await PostgresRecordStore(url: url, cluster: ClusterID(unchecked: "other"))
        }
        let encrypted = url.replacingOccurrences(of: "sslmode=disable", with: "sslmode=require")
        await #expect(throws: ApusError(.storageFailed)) { try await open(encrypted) }
        await #expect(throws: ApusError(.storageFailed)) {
            try await open("postgresql://apus@127.0.0.1:1/postgres?sslmode=disable")
        }
    }

    @Test(
        "Over TLS a server is believed where its certificate is of the named authority and for the named host",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"))
    func encrypted() async throws {
        let (own, other) = (try TestCertificate(), try TestCertificate())
        let server = try PostgresServer(certificate: own)
        let url = try server.url(schema: "encrypted")
        func verified(by root: TestCertificate, host: String = "127.0.0.1") -> String {
            url.replacingOccurrences(of: "sslmode=disable", with: "sslmode=verify-full&sslrootcert=\(root.certificate)")
                .replacingOccurrences(of: "@127.0.0.1", with: "@\(host)")
        }
        let store = try await open(verified(by: own))
        try await store.commit(write("cam", [1]))
        #expect(try await store.records("things", [OrderedKey(.text("cam"))])[0]?.body == [1])
        // The one that asks has none.
        let encrypted = try run(url, "SELECT count(*) FROM pg_stat_ssl WHERE ssl")
        #expect(encrypted.rows.first?.first.flatMap { $0 }.flatMap { Int($0) } ?? 0 >= 2, "\(encrypted)")
        await store.close()
        for refused in [verified(by: other), verified(by: own, host: "localhost")] {
            await #expect(throws: ApusError(.storageFailed)) { try await open(refused) }
        }
    }
}
