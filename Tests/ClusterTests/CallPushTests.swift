import ApusClient
import ApusCore
import ApusTestKit
import Foundation
import Testing

@Suite("Calls by push notification (CALL-9, CALL-10)", .serialized, .timeLimit(.minutes(3)))
struct CallPushTests {
    private static let bell = DeviceID(unchecked: "bell")

    /// The payload for the app in a request to the webhook.
    private func payload(_ request: HTTPReceiver.Request) throws -> String {
        let message = try #require(JSONSerialization.jsonObject(with: Data(request.body.utf8)) as? [String: Any])
        let body = try JSONSerialization.data(withJSONObject: try #require(message["body"]))
        return String(decoding: body, as: UTF8.self)
    }

    @Test("An app that is away is called by push: it connects, rings once, accepts; a late push never rings")
    func away() async throws {
        let receiver = try await HTTPReceiver.start { _, count in count == 1 ? 503 : 200 }
        let cluster = try Cluster(
            nodes: 3, basePort: 32_410,
            environment: ["APUS_PUSH_WEBHOOK_URL": "http://127.0.0.1:\(receiver.port)/push"])
        defer { cluster.down() }
        let bell = try await CallClient(cluster, 1, device: "bell").ready()
        defer { bell.close() }
        await fails(.targetOffline) { () throws(ApusError) in _ = try await bell.session.startCall(to: []) }

        let first = try await CallClient(cluster, 2, access: "phone").ready()
        try await first.session.registerPush(.webhook, token: "token-of-phone")
        first.close()
        let call = try await bell.start([], type: .oneToMany, extra: #"{"bizType":"screen_ipc"}"#).id
        try await eventually("the webhook has the notification, which it refused once") { receiver.requests.count >= 2 }
        let request = receiver.requests[1]
        #expect(request.headers["idempotency-key"] == receiver.requests[0].headers["idempotency-key"])
        #expect(request.body.contains("token-of-phone") && request.body.contains(call))

        // The app starts, and asks for the call. Its notice comes over the connection, too, and it rings once.
        let app = try await CallClient(cluster, 3, access: "phone").ready()
        defer { app.close() }
        for _ in 0..<2 { #expect(try await !app.session.joinCall(push: payload(request)).isEnded) }
        let ring = try await app.next(call) { if case .ring = $0.stage { true } else { false } }
        #expect(ring.extra == #"{"bizType":"screen_ipc"}"# && ring.peer == .device(Self.bell))
        #expect(try await app.session.acceptCall(call).isAccepted)
        _ = try await bell.next(call) { $0.stage == .accepted }
        try await app.session.hangUpCall(call)
        #expect(try await bell.end(call)?.code == .peerHungUp)
        let rings = app.notices(of: call).count { if case .ring = $0.stage { true } else { false } }
        #expect(rings == 1)

        // A notification that comes after the end, of this side or for want of an answer, and what is none (CALL-9).
        await fails(.callUnknown) { () throws(ApusError) in
            _ = try await app.session.joinCall(push: Self.payload(of: "000-" + String(repeating: "0", count: 32)))
        }
        await fails(.callUnknown) { () throws(ApusError) in
            _ = try await app.session.joinCall(push: Self.payload(of: call))
        }
        let missed = try await bell.start([], type: .oneToMany, timeout: .seconds(5)).id
        #expect(try await bell.end(missed)?.code == .callNotAnswered)
        await fails(.callTimedOut) { () throws(ApusError) in
            _ = try await app.session.joinCall(push: Self.payload(of: missed))
        }
        for text in ["", "{}", #"{"link":"https://example.org"}"#] {
            await fails(.callDataInvalid) { () throws(ApusError) in _ = try await app.session.joinCall(push: text) }
        }
        let cancelled = try await bell.start([], type: .oneToMany).id
        try await eventually("it is pushed, too") { receiver.requests.contains { $0.body.contains(cancelled) } }
        try await bell.session.hangUpCall(cancelled)
        await fails(.callCancelled) { () throws(ApusError) in
            _ = try await app.session.joinCall(push: Self.payload(of: cancelled))
        }

        try await app.session.unregisterPush()
        let live = try await bell.start([], type: .oneToMany).id
        _ = try await app.next(live) { if case .ring = $0.stage { true } else { false } }
        try await Task.sleep(for: .seconds(1))
        let isNotified = receiver.requests.contains { $0.body.contains(live) }
        #expect(!isNotified, "an app that has ended its registration was notified")
        try await receiver.stop()
    }

    /// As of an app whose clock is two hours ahead, or whose data are strings as those of Firebase.
    private static func payload(of call: String) -> String {
        let param = #"{"sessionId":"\#(call)","timeout":30}"#
        let link = "apus://rtcCall?param=\(param.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? "")"
        return #"{"link":"\#(link)","ts":"\#(Int(Date().timeIntervalSince1970) - 7200)","voipEnable":"true"}"#
    }

    @Test("The notification comes although the owner of the call is killed right after the call began")
    func kills() async throws {
        let receiver = try await HTTPReceiver.start { _, _ in 200 }
        let cluster = try Cluster(
            nodes: 3, basePort: 32_380,
            environment: ["APUS_PUSH_WEBHOOK_URL": "http://127.0.0.1:\(receiver.port)/push"])
        defer { cluster.down() }
        // The owner of the call is that of the account's shard.
        let why = try cluster.run("why", "local", "--json")
        let owner = try #require((1...3).first { why.output.contains("\"owner\":\"n\($0)\"") }, "\(why.all)")
        let bell = try await CallClient(cluster, owner % 3 + 1, device: "bell").ready()
        let first = try await CallClient(cluster, (owner + 1) % 3 + 1, access: "phone").ready()
        defer { bell.close() }
        try await first.session.registerPush(.webhook, token: "token-of-phone")
        first.close()
        let call = try await bell.start([], type: .oneToMany).id
        #expect(try cluster.run("cluster", "kill", "\(owner)").status == 0)
        try await eventually("the webhook has the notification") {
            receiver.requests.contains { $0.body.contains(call) }
        }
        let app = try await CallClient(cluster, owner % 3 + 1, access: "phone").ready()
        defer { app.close() }
        _ = try await eventually { () throws(ApusError) in
            try await app.session.joinCall(push: Self.payload(of: call))
        }
        #expect(try await app.session.acceptCall(call).isAccepted)
        try await receiver.stop()
    }

    @Test("An app whose token is revoked is not notified any more, and is no client that could be reached (IV-A6)")
    func revoked() async throws {
        let receiver = try await HTTPReceiver.start { _, _ in 200 }
        let cluster = try Cluster(
            nodes: 3, basePort: 31_400,
            environment: ["APUS_PUSH_WEBHOOK_URL": "http://127.0.0.1:\(receiver.port)/push"])
        defer { cluster.down() }
        let bell = try await CallClient(cluster, 1, device: "bell").ready()
        defer { bell.close() }
        let phone = try await CallClient(cluster, 2, access: "phone").ready()
        try await phone.session.registerPush(.webhook, token: "token-of-phone")
        phone.close()
        let call = try await bell.start([], type: .oneToMany).id
        try await eventually("it is notified") { receiver.requests.contains { $0.body.contains(call) } }
        try await bell.session.hangUpCall(call)
        try await eventually("it is told that the call is over, which it has not taken") {
            receiver.requests.contains { $0.body.contains(call) && $0.body.contains("call.cancel") }
        }
        // The phone goes to another account: it is called for that one, and no longer for the former.
        let other = try await CallClient(cluster, 3, access: "phone", account: "neighbours").ready()
        try await other.session.registerPush(.webhook, token: "token-of-phone")
        other.close()
        await fails(.targetOffline) { () throws(ApusError) in
            _ = try await bell.session.startCall(to: [], type: .oneToMany)
        }
        let again = try await CallClient(cluster, 2, access: "phone").ready()
        try await again.session.registerPush(.webhook, token: "token-of-phone")
        again.close()
        // Tokens of the same second would stay.
        try await Task.sleep(for: .seconds(2))
        let count = receiver.requests.count
        #expect(try cluster.run("admin", "revoke", "--identity", "phone", "--account", "local").status == 0)
        try await Task.sleep(for: .seconds(2))
        await fails(.targetOffline) { () throws(ApusError) in
            _ = try await bell.session.startCall(to: [], type: .oneToMany)
        }
        #expect(receiver.requests.count == count)
        try await receiver.stop()
    }
}
