import ApusCore
import ApusStorage
import Foundation
import GRDB
import Testing

@Suite("The ownership file of earlier releases (D4)")
struct OwnershipImportTests {
    /// A file as earlier releases made it: revision 41, the given value.
    private static func write(_ value: [UInt8], to path: String) throws {
        let hex = value.map { byte in (byte < 16 ? "0" : "") + String(byte, radix: 16) }.joined()
        let sql = """
            PRAGMA application_id = 1097889139;
            CREATE TABLE grdb_migrations (identifier TEXT NOT NULL PRIMARY KEY);
            INSERT INTO grdb_migrations VALUES ('0 identity'), ('1 ownership value');
            CREATE TABLE identity (cluster TEXT NOT NULL) STRICT;
            INSERT INTO identity (cluster) VALUES ('test');
            CREATE TABLE ownership (id INTEGER PRIMARY KEY CHECK (id = 1),
                revision INTEGER NOT NULL CHECK (revision > 0), value BLOB NOT NULL) STRICT;
            INSERT INTO ownership VALUES (1, 41, x'\(hex)');
            """
        try DatabaseQueue(path: path).writeWithoutTransaction { try $0.execute(sql: sql) }
    }

    @Test("Its map is taken over once, under the next revision, by however many start at once")
    func takenOver() async throws {
        let scratch = try Scratch()
        let (file, path) = (scratch.path + "/ownership.sqlite", scratch.path + "/ownership")
        try Self.write([1, 2, 3], to: file)
        try await withThrowingTaskGroup(of: LocalOwnershipStore.self) { group in
            for _ in 0..<6 {
                group.addTask { try await LocalOwnershipStore(path: path, cluster: testCluster, importing: file) }
            }
            for try await store in group {
                #expect(try await store.read() == OwnershipValue(revision: 42, bytes: [1, 2, 3]))
            }
        }
        let again = try await LocalOwnershipStore(path: path, cluster: testCluster, importing: file)
        #expect(try await again.compareAndSwap(expected: 42, value: [4]) == 43)
        let third = try await LocalOwnershipStore(path: path, cluster: testCluster, importing: file)
        #expect(try await third.revision() == 43)
    }

    @Test("Nodes of an earlier release cannot read the file any more, and see that it changed")
    func closedToOthers() async throws {
        let scratch = try Scratch()
        let (file, path) = (scratch.path + "/ownership.sqlite", scratch.path + "/ownership")
        try Self.write([1, 2, 3], to: file)
        _ = try await LocalOwnershipStore(path: path, cluster: testCluster, importing: file)
        let row = try DatabaseQueue(path: file).read { database in
            try Row.fetchOne(database, sql: "SELECT revision, hex(substr(value, 1, 1)) AS first FROM ownership")
        }
        #expect(try #require(row)["revision"] as Int > 41)
        // A field of a wire type that does not exist: no map begins so.
        #expect(try #require(row)["first"] as String == "07")
    }

    @Test("A map that was taken over is not taken a second time when the directory is gone: 10020")
    func gone() async throws {
        let scratch = try Scratch()
        let (file, path) = (scratch.path + "/ownership.sqlite", scratch.path + "/ownership")
        try Self.write([1, 2, 3], to: file)
        _ = try await LocalOwnershipStore(path: path, cluster: testCluster, importing: file)
        try FileManager.default.removeItem(atPath: path)
        await #expect(throws: ApusError(.stateForeign)) {
            try await LocalOwnershipStore(path: path, cluster: testCluster, importing: file)
        }
    }

    @Test("Without such a file a store begins empty")
    func absent() async throws {
        let scratch = try Scratch()
        let store = try await LocalOwnershipStore(
            path: scratch.path + "/ownership", cluster: testCluster, importing: scratch.path + "/ownership.sqlite")
        #expect(try await store.read() == nil)
        #expect(!FileManager.default.fileExists(atPath: scratch.path + "/ownership.sqlite"))
    }
}
