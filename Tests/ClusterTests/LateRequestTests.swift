import ApusTestKit
import Foundation
import Testing

/// A request is carried out once, also when its first copy waits in the buffers of a connection on a cut path (D15).
@Suite(
    "Requests on a cut path (D4, D15)", .serialized, .timeLimit(.minutes(3)),
    .enabled(if: IsolatedClusterTests.isRoot, "only root can make network namespaces"))
struct LateRequestTests {
    private typealias Isolated = IsolatedClusterTests.Isolated

    private static let binary = URL(fileURLWithPath: Cluster.apus).deletingLastPathComponent().path + "/apus-registers"
    private static let registerCount = 12
    /// More than an entity remembers, so that it does not recognize a request that it carried out before.
    private static let laterCount = 150

    /// The lines of curl's configuration for one write.
    private static func write(
        _ value: Int, to register: Int, at address: String, key: String = UUID().uuidString, _ token: String
    ) -> [String] {
        [
            "silent", #"url = "http://\#(address)/v1/registers/late-\#(register)/write""#, "max-time = 5",
            #"header = "Authorization: Bearer \#(token)""#, #"header = "Idempotency-Key: \#(key)""#,
            #"header = "Content-Type: application/json""#, #"data = "{\"value\":\"\#(value)\"}""#,
        ]
    }

    private static func start(_ lines: [String], in folder: String) throws -> (Process, Pipe) {
        let file = "\(folder)/\(UUID().uuidString).curl"
        try lines.joined(separator: "\n").write(toFile: file, atomically: true, encoding: .utf8)
        let (process, output) = (Process(), Pipe())
        process.executableURL = URL(fileURLWithPath: "/usr/bin/curl")
        process.arguments = ["--config", file]
        process.standardOutput = output
        process.standardError = FileHandle.nullDevice
        try process.run()
        return (process, output)
    }

    private static func end(_ started: (Process, Pipe)) throws -> String {
        let text = String(decoding: try started.1.fileHandleForReading.readToEnd() ?? Data(), as: UTF8.self)
        started.0.waitUntilExit()
        return text
    }

    @Test(
        "A request that was sent again, on another path or at another node, is not carried out a second time",
        arguments: [["cut", "1-3"], ["partition", "1", "2,3"]])
    func once(fault: [String]) async throws {
        let cluster = Isolated(binary: Self.binary)
        defer { cluster.down() }
        try cluster.verb("up", "--isolated", "--nodes", "3")
        let status = try cluster.status()
        let token = try Cluster.run(
            ["admin", "token", "--role", "app", "--dir", cluster.directory], binary: Self.binary
        ).output.trimmingCharacters(in: .whitespacesAndNewlines)
        let (first, second) = (status.nodes[0].addresses.http, status.nodes[1].addresses.http)
        let registers = 0..<Self.registerCount
        let run = { (lines: [String]) in try Self.end(try Self.start(lines, in: cluster.directory)) }
        // The connections exist before the fault.
        for register in registers {
            #expect(try run(Self.write(1, to: register, at: first, token)).contains(#""value":"1""#))
        }

        try cluster.verb(fault)
        // Requests to other nodes go to connections on which nothing arrives.
        let keys = registers.map { _ in UUID().uuidString }
        let early = try registers.map {
            try Self.start(
                Self.write(1000 + $0, to: $0, at: first, key: keys[$0], token), in: cluster.directory)
        }
        for (register, request) in zip(registers, early) {
            let answer = #""value":"\#(1000 + register)""#
            if try Self.end(request).contains(answer) { continue }
            // A node that is cut off from all others ends, and its client asks another one.
            #expect(fault[0] == "partition")
            let isAnswered = await waited(.seconds(5), every: .milliseconds(50)) {
                let lines = Self.write(1000 + register, to: register, at: second, key: keys[register], token)
                return (try? run(lines))?.contains(answer) == true
            }
            #expect(isAnswered != nil, "late-\(register)")
        }
        let later = try registers.map { register in
            let requests = (1...Self.laterCount).map {
                Self.write(2000 + $0, to: register, at: second, token).joined(separator: "\n")
            }
            return try Self.start([requests.joined(separator: "\nnext\n")], in: cluster.directory)
        }
        let last = 2000 + Self.laterCount
        for request in later { #expect(try Self.end(request).contains(#""value":"\#(last)""#)) }
        try cluster.verb("heal")
        // TCP sends again after at most twice the time that the fault lasted.
        try await Task.sleep(for: .seconds(8))
        for register in registers {
            let outcome = try Cluster.run(
                [
                    "curl", "--silent", "--max-time", "5", "--header", "Authorization: Bearer \(token)",
                    "http://\(second)/v1/registers/late-\(register)",
                ], binary: "/usr/bin/env")
            #expect(outcome.output.contains(#""value":"\#(last)""#), "late-\(register): \(outcome.output)")
        }
    }
}
