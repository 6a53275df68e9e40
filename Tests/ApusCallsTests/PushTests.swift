import ApusCalls
import ApusCore
import Foundation
import Testing

@Suite("What a push notification of a call says (CALL-10, CALL-11)")
struct PushTests {
    private static let content = CallPushContent(
        call: "abc-0123456789abcdef0123456789abcdef", caller: "front-door", called: "family", type: 2,
        extra: #"{"bizType":"screen_ipc","note":"ä & \"b\""}"#, startedMs: 1_700_000_000_500,
        ringEndMs: 1_700_000_030_500)

    private func message(_ provider: String, _ content: CallPushContent = content) throws -> [String: Any] {
        let registration = try PushRegistration(provider: provider, token: "70cafe", topic: "com.example.door")
        let bytes = content.message(to: registration, access: "phone")
        return try #require(JSONSerialization.jsonObject(with: Data(bytes)) as? [String: Any])
    }

    /// The JSON object in the link, as an app reads it.
    private func param(_ body: [String: Any]) throws -> [String: Any] {
        let address = try #require(body["link"] as? String)
        let link = try #require(URLComponents(string: address))
        #expect(link.scheme == "apus" && link.host == "rtcCall")
        let items = link.queryItems ?? []
        let text = try #require(items.first { $0.name == "param" }?.value)
        return try #require(JSONSerialization.jsonObject(with: Data(text.utf8)) as? [String: Any])
    }

    @Test("The payload has link, ts and voipEnable, and the link the event message of the call")
    func payload() throws {
        let message = try message("webhook")
        #expect(message["type"] as? String == "call.ring" && message["account"] as? String == "family")
        #expect(message["access"] as? String == "phone" && message["token"] as? String == "70cafe")
        #expect(message["expires"] as? Int == 1_700_000_030)
        let body = try #require(message["body"] as? [String: Any])
        #expect(body["ts"] as? Int == 1_700_000_000 && body["voipEnable"] as? Bool == true)
        let param = try param(body)
        #expect(param["sessionId"] as? String == Self.content.call && param["curId"] as? String == "family")
        #expect(param["targetId"] as? String == "front-door" && param["timeout"] as? Int == 30)
        #expect(param["callType"] as? Int == 2 && param["callEvent"] as? String == "call")
        #expect(param["extra"] as? String == Self.content.extra)
    }

    @Test("APNs: a VoIP notification with its headers, and at most 5 KiB")
    func apns() throws {
        let message = try message("apns")
        let headers = try #require(message["headers"] as? [String: String])
        #expect(headers["apns-push-type"] == "voip" && headers["apns-topic"] == "com.example.door.voip")
        #expect(headers["apns-priority"] == "10" && headers["apns-expiration"] == "1700000030")
        #expect(headers["apns-collapse-id"]?.utf8.count ?? 0 <= 64)
        let body = try #require(message["body"] as? [String: Any])
        #expect(body["aps"] as? [String: String] == [:] && body["link"] is String)
        var long = Self.content
        long.extra = #"{"a":"\#(String(repeating: "x", count: 4000))"}"#
        let longMessage = try self.message("apns", long)
        let longBody = try #require(longMessage["body"] as? [String: Any])
        #expect(try JSONSerialization.data(withJSONObject: longBody).count <= 5 << 10)
        #expect(try param(longBody)["extra"] == nil)
    }

    @Test("FCM: a data message of high priority whose values are strings, and at most 4,096 bytes")
    func fcm() throws {
        let fcm = try message("fcm")
        let body = try #require(fcm["body"] as? [String: Any])
        let inner = try #require(body["message"] as? [String: Any])
        #expect(inner["token"] as? String == "70cafe")
        #expect(inner["android"] as? [String: String] == ["priority": "HIGH", "ttl": "30s"])
        let data = try #require(inner["data"] as? [String: String])
        #expect(data["ts"] == "1700000000" && data["voipEnable"] == "true")
        #expect(try param(data)["sessionId"] as? String == Self.content.call)
        #expect(data.reduce(0) { $0 + $1.key.utf8.count + $1.value.utf8.count } <= 4096)
    }

    @Test("A registration names a provider, a token of 1 to 1,024 bytes, and for APNs a topic (21031)")
    func registrations() {
        let long = String(repeating: "x", count: 1025)
        let cases = [
            ("sms", "t", ""), ("webhook", "", ""), ("fcm", long, ""), ("fcm", "t", long), ("apns", "a0", ""),
            ("apns", "../../x", "a.b"), ("fcm", "a b", ""), ("webhook", "a\r\nb", ""), ("apns", "a0", "a\r\nX: 1"),
        ]
        for (provider, token, topic) in cases {
            #expect(throws: ApusError(.badParameter)) {
                _ = try PushRegistration(provider: provider, token: token, topic: topic)
            }
        }
    }

    @Test("A cancel says which call is over, to the same app and in the same form")
    func cancels() throws {
        var content = Self.content
        content.event = .cancel
        for provider in ["webhook", "apns", "fcm"] {
            let (ring, cancel) = (try message(provider), try message(provider, content))
            #expect(cancel["type"] as? String == "call.cancel" && ring["type"] as? String == "call.ring")
            for member in ["call", "access", "token", "account"] {
                #expect(cancel[member] as? String == ring[member] as? String)
            }
            var body = try #require(cancel["body"] as? [String: Any])
            if let inner = body["message"] as? [String: Any] {
                body = try #require(inner["data"] as? [String: Any])
            }
            let param = try param(body)
            #expect(param["callEvent"] as? String == "cancel" && param["eventName"] as? String == "cancel")
            #expect(param["sessionId"] as? String == Self.content.call)
        }
    }
}
