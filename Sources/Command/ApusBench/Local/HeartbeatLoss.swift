import ApusCore
import Foundation

/// Drops a share of the datagrams to some ports, and thereby heartbeats, with its own nftables table.
/// Needs root and Debian's package nftables. The table is removed with the scope.
struct HeartbeatLoss {
    private let table: String
    private let nft: String

    /// - Throws: 10022 if nft is missing, 10018 if the kernel refuses the table.
    init(percent: Int, ports: [Int], scope: BenchScope) throws {
        guard
            let nft = ["/usr/sbin/nft", "/sbin/nft"].first(where: { FileManager.default.isExecutableFile(atPath: $0) })
        else { throw ApusError(.configurationInvalid, "nft is missing: install the package nftables") }
        let table = "apus_bench_\(getpid())"
        (self.nft, self.table) = (nft, table)
        let list = ports.map { "\($0)" }.joined(separator: ", ")
        let rules = """
            add table inet \(table)
            add chain inet \(table) lost { type filter hook input priority 0 ; }
            add rule inet \(table) lost udp dport { \(list) } numgen random mod 100 < \(percent) counter drop
            """
        scope.onEnd { try? FailoverStage.run(nft, ["delete", "table", "inet", table]) }
        let file = "\(NSTemporaryDirectory())/\(table).nft"
        try Data("\(rules)\n".utf8).write(to: URL(fileURLWithPath: file))
        defer { try? FileManager.default.removeItem(atPath: file) }
        do {
            try FailoverStage.run(nft, ["-f", file])
        } catch {
            throw ApusError(.internalFailure, "heartbeats cannot be dropped; root is needed: \(error)")
        }
    }

    /// The number of dropped datagrams.
    func lostCount() throws -> UInt64 {
        let lister = try BenchProcess(nft, ["list", "table", "inet", table])
        var count: UInt64 = 0
        while let line = lister.line() {
            let words = line.split(separator: " ")
            guard let index = words.firstIndex(of: "packets"), words.indices.contains(index + 1) else { continue }
            count += UInt64(words[index + 1]) ?? 0
        }
        lister.stop()
        return count
    }
}
