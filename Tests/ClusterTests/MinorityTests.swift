import ApusTestKit
import Foundation
import Testing

/// A minority of several nodes acknowledges nothing that the majority does not know of (D4, D15).
@Suite(
    "A minority answers no requests to entities (D4, D15)", .serialized, .timeLimit(.minutes(3)),
    .enabled(if: IsolatedClusterTests.hasEtcd))
struct MinorityTests {
    private typealias Isolated = IsolatedClusterTests.Isolated

    private static let binary = URL(fileURLWithPath: Cluster.apus).deletingLastPathComponent().path + "/apus-registers"
    /// Of a tenth of them the owner and the standby are in the minority: the second standby has them (decision 46).
    private static let registers = (0..<48).map { "r-\($0)" }

    private struct Answer: Decodable {
        var value: String?
        var code: Int?
    }

    private struct Client {
        let token: String
        let address: String

        /// One attempt; nil if there is no answer within three seconds.
        func send(_ path: String, _ body: String? = nil) throws -> Answer? {
            var arguments = [
                "curl", "--silent", "--max-time", "3", "--header", "Authorization: Bearer \(token)",
                "http://\(address)/v1/registers/\(path)",
            ]
            if let body { arguments += ["--header", "Content-Type: application/json", "--data", body] }
            let outcome = try Cluster.run(arguments, binary: "/usr/bin/env")
            guard outcome.status == 0 else { return nil }
            return try JSONDecoder().decode(Answer.self, from: Data(outcome.output.utf8))
        }

        func write(_ register: String, _ value: Int) throws -> Answer? {
            try send("\(register)/write", #"{"value":"\#(value)"}"#)
        }
    }

    @Test("Two nodes that are cut from three and from etcd refuse requests; the three serve them; nothing is lost")
    func split() async throws {
        let cluster = Isolated(binary: Self.binary)
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--etcd", "--nodes", "5")
        let status = try cluster.status()
        let token = try Cluster.run(
            ["admin", "token", "--role", "app", "--dir", cluster.directory], binary: Self.binary
        ).output.trimmingCharacters(in: .whitespacesAndNewlines)
        let clients = status.nodes.map { Client(token: token, address: $0.addresses.http) }
        var acknowledged: [String: Int] = [:]
        for (value, register) in Self.registers.enumerated() {
            #expect(try clients[value % 5].write(register, value + 1)?.value == "\(value + 1)")
            acknowledged[register] = value + 1
        }

        // Without the store they do not see that they were declared dead.
        for node in ["1", "2"] { try cluster.verb("cut-store", node) }
        try cluster.verb("partition", "1,2", "3,4,5")
        let isPaused = await waited(.seconds(5)) {
            let nodes = (try? cluster.status().nodes) ?? []
            return nodes.prefix(2).allSatisfy { ($0.conditions ?? []).contains { $0.type == "answers_paused" } }
        }
        #expect(isPaused != nil, "the minority does not report that it holds its answers")
        for (number, register) in Self.registers.enumerated() {
            let answer = try clients[number % 2].write(register, 1000)
            #expect(answer?.code == 10_010, "\(register): the minority answered \(answer as Any)")
        }
        for (number, register) in Self.registers.enumerated() {
            let before = try clients[2 + number % 3].send(register)?.value
            #expect(before == acknowledged[register].map { "\($0)" }, "\(register): the majority has lost its value")
            let value = 2000 + number
            #expect(
                try clients[2 + number % 3].write(register, value)?.value == "\(value)", "\(register): no service")
            acknowledged[register] = value
        }

        try cluster.verb("heal")
        let isWhole = await waited(.seconds(20)) {
            let nodes = (try? cluster.status().nodes) ?? []
            return nodes.count == 5 && nodes.allSatisfy { $0.state == "up" && ($0.conditions ?? []).isEmpty }
        }
        #expect(isWhole != nil)
        for (number, register) in Self.registers.enumerated() {
            #expect(try clients[number % 5].send(register)?.value == acknowledged[register].map { "\($0)" })
        }
    }
}
