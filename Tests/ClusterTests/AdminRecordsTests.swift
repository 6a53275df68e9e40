import Foundation
import Testing

/// `apus admin records`, `backup` and `restore`, at a real cluster.
@Suite(.serialized, .timeLimit(.minutes(5)))
struct AdminRecordsTests {
    private static func json(_ line: Substring) throws -> [String: Any] {
        try #require(try JSONSerialization.jsonObject(with: Data(line.utf8)) as? [String: Any])
    }

    @Test("Records are shown as JSON, copied while the cluster runs, and put back while it does not")
    func roundTrip() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 22_800)
        defer { cluster.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25")
        _ = try await cluster.primary(of: "cam/0")
        let device = try cluster.run("admin", "records", "get", "devices", "cam")
        #expect(device.status == 0, "\(device.all)")
        let shown = try Self.json(device.output.split(separator: "\n")[0])
        #expect(shown["collection"] as? String == "devices" && shown["version"] as? Int == 1)
        #expect((shown["writer"] as? String)?.hasPrefix("n") == true && (shown["epoch"] as? Int ?? 0) > 0)
        let body = try #require(shown["record"] as? [String: Any])
        #expect(body["device"] as? String == "cam" && body["account"] as? String == "local")
        let scan = try cluster.run("admin", "records", "scan", "devices", "local", "--by", "account")
        #expect(scan.output == device.output, "\(scan.all)")
        #expect(try cluster.run("admin", "records", "scan", "devices", "other", "--by", "account").output.isEmpty)
        #expect(try cluster.run("admin", "records", "get", "devices", "none").status != 0)
        let unknown = try cluster.run("admin", "records", "scan", "nothing")
        #expect(unknown.status != 0 && unknown.errors.contains("revocations"), "\(unknown.all)")

        let copy = cluster.file("copy.sqlite")
        let backup = try cluster.run("admin", "backup", copy)
        #expect(backup.status == 0, "\(backup.all)")
        #expect(try cluster.run("admin", "revoke", "--token-id", "some").status == 0)
        let revocations = try cluster.run("admin", "records", "scan", "revocations")
        #expect(revocations.output.split(separator: "\n").count == 1, "\(revocations.all)")
        let refused = try cluster.run("admin", "restore", copy)
        #expect(refused.status != 0 && refused.errors.contains("in use by process"), "\(refused.all)")

        #expect(try cluster.run("cluster", "down").status == 0)
        let restored = try cluster.run("admin", "restore", copy)
        #expect(restored.status == 0, "\(restored.all)")
        #expect(try cluster.run("cluster", "up").status == 0)
        #expect(try cluster.run("admin", "records", "scan", "revocations").output.isEmpty)
        #expect(try cluster.run("admin", "records", "get", "devices", "cam").output == device.output)
    }
}
