import ApusCore
import ApusCrypto
import ApusTestKit
import ApusOutgoing
import Foundation
import Logging
import ServiceLifecycle
import Testing

@Suite("Webhooks over HTTP, and the spool directory (CALL-10)", .serialized, .timeLimit(.minutes(1)))
struct WebhookSenderTests {
    private static let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

    /// Runs a sender while the body does.
    private func withSender(
        _ configuration: WebhookConfiguration, _ body: @Sendable (WebhookSender) async throws -> Void
    ) async throws {
        let sender = WebhookSender(configuration, limited: LogLimiter(Self.log)) { 1_700_000_000 }
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask { try await sender.run() }
            try await body(sender)
            group.cancelAll()
        }
    }

    private func message(_ id: String, _ body: String = "{}", lasts: Duration = .seconds(20)) -> WebhookMessage {
        WebhookMessage(id: id, owner: id, body: Array(body.utf8), expiresAt: .now() + lasts)
    }

    @Test(
        "A request has the message's id and a signature that the receiver can check; it is repeated until it is taken")
    func signed() async throws {
        let folder = Folder()
        let secret = folder.path + "/secret"
        try Data("s3cret\nnext\n".utf8).write(to: URL(fileURLWithPath: secret))
        let receiver = try await HTTPReceiver.start { _, count in count <= 2 ? 503 : 204 }
        var configuration = WebhookConfiguration()
        configuration.url = "http://127.0.0.1:\(receiver.port)/hooks?x=1"
        configuration.secretFile = secret
        try await withSender(configuration) { sender in
            sender.send(message("call.phone", #"{"a":1}"#))
            try await eventually("three requests arrived") { receiver.requests.count == 3 }
            try await Task.sleep(for: .milliseconds(600))
        }
        let requests = receiver.requests
        #expect(requests.count == 3, "what was taken came again")
        for request in requests {
            #expect(request.method == "POST" && request.path == "/hooks?x=1" && request.body == #"{"a":1}"#)
            #expect(request.headers["idempotency-key"] == "call.phone")
            #expect(request.headers["content-type"] == "application/json")
            let code = HMAC<SHA256>.authenticationCode(
                for: Data(#"1700000000.{"a":1}"#.utf8), using: Data("s3cret".utf8))
            let hex = code.map { String(format: "%02x", $0) }.joined()
            #expect(request.headers["apus-signature"] == "t=1700000000,v1=\(hex)")
        }
        try await receiver.stop()
    }

    @Test("A signature is the same as in earlier releases (D3)")
    func signature() {
        let value = WebhookSignature.value(
            of: Array("{}".utf8), secrets: [Array("s3cret".utf8)], wallSeconds: 1_700_000_000)
        #expect(value == "t=1700000000,v1=97926816e98fbb41ccb1673225ff29a2f35369099990e1b1561651e7bd097ebf")
    }

    @Test(
        "A message that is refused, or whose time is over, is not sent again; a silent receiver delays no other message"
    )
    func ends() async throws {
        let refusing = try await HTTPReceiver.start { _, _ in 400 }
        var configuration = WebhookConfiguration()
        configuration.url = "http://127.0.0.1:\(refusing.port)/"
        try await withSender(configuration) { sender in
            sender.send(message("a"))
            try await eventually("the request arrived") { refusing.requests.count == 1 }
            try await Task.sleep(for: .seconds(1))
        }
        #expect(refusing.requests.count == 1)
        try await refusing.stop()

        let silent = try await HTTPReceiver.start { _, count in count == 1 ? nil : 200 }
        configuration.url = "http://127.0.0.1:\(silent.port)/"
        configuration.timeout = .milliseconds(300)
        try await withSender(configuration) { sender in
            sender.send(message("slow"))
            try await eventually("the first request arrived") { silent.requests.count == 1 }
            sender.send(message("other"))
            try await eventually("the second request arrived") { silent.requests.count >= 2 }
            try await eventually("the first one came again") { silent.requests.count == 3 }
        }
        #expect(silent.requests.map { $0.headers["idempotency-key"] } == ["slow", "other", "slow"])
        try await silent.stop()
    }

    @Test("The spool directory receives each message as a whole file, once, up to its bound")
    func spool() throws {
        let folder = Folder()
        let spool = SpoolDirectory(path: folder.path, countMax: 2)
        try spool.write(message("a", "1"))
        try spool.write(message("b", "2"))
        #expect(throws: ApusError(.overloaded)) { try spool.write(message("c", "3")) }
        // A repetition replaces its file, also in a full directory.
        try spool.write(message("a", "1"))
        let names = try FileManager.default.contentsOfDirectory(atPath: folder.path).sorted()
        #expect(names == ["a.json", "b.json"])
        #expect(try String(contentsOfFile: folder.path + "/a.json", encoding: .utf8) == "1")
        let missing = SpoolDirectory(path: folder.path + "/missing", countMax: 2)
        #expect(throws: ApusError(.storageFailed)) { try missing.write(message("a")) }
    }
}
