import ApusTestKit
import Foundation
import Testing

@Suite("Three servers, as docs/three-servers.md sets them up", .timeLimit(.minutes(6)))
struct ThreeServersTests {
    @Test(
        "Set up, all keys changed, a certificate withdrawn, a machine replaced, a node killed: no frame is lost",
        .enabled(if: IsolatedClusterTests.isRoot, "only root can make network namespaces"))
    func everything() throws {
        let outcome = try Cluster.run(
            ["scripts/lib/try_three_servers.py", "--apus", Cluster.apus], binary: "/usr/bin/python3")
        // What failed is at the end, behind the logs.
        let reason = outcome.all.components(separatedBy: "Failed after ").last ?? ""
        #expect(outcome.status == 0, "\(reason.prefix(1000))\n\(outcome.all.suffix(20_000))")
        #expect(outcome.all.contains("viewer-c has the newest frames"))
    }
}
