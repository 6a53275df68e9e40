package import ApusCore
import Foundation

/// Where an app receives push notifications of calls (CALL-10), and what is sent there. Pure.
///
/// The cluster knows no push service. Its webhook receives each notification in the form of the app's provider, ready
/// to be sent on: headers and body.
package struct PushRegistration: Sendable, Hashable {
    /// The form of the notification.
    package enum Provider: String, Sendable, Hashable, CaseIterable {
        /// The payload as it is.
        case webhook
        /// Apple's push notification service: a VoIP notification
        /// (https://developer.apple.com/documentation/usernotifications/sending-notification-requests-to-apns).
        case apns
        /// Firebase cloud messaging, HTTP v1: a data message of high priority
        /// (https://firebase.google.com/docs/reference/fcm/rest/v1/projects.messages).
        case fcm
    }

    /// The most apps of an account.
    package static let countMax = 32
    /// How long a registration lasts that is not renewed, in milliseconds.
    package static let keepTime: Int64 = 90 * 86_400_000
    package static let tokenByteCountMax = 1024
    package static let topicByteCountMax = 255
    /// The longest payload, in bytes. Apple takes 5 KiB of a VoIP notification, Firebase 4,096 bytes of a message's
    /// data. If `extra` does not fit, it is left out: the app receives it when it asks for the call.
    package static let payloadByteCountMax = 4000

    package let provider: Provider
    package let token: String
    package let topic: String

    /// - Throws: 21031 if a value is out of range.
    package init(provider: String, token: String, topic: String) throws(ApusError) {
        guard let provider = Provider(rawValue: provider) else {
            throw ApusError(.badParameter, "the provider is webhook, apns or fcm")
        }
        guard (1...Self.tokenByteCountMax).contains(token.utf8.count), topic.utf8.count <= Self.topicByteCountMax else {
            throw ApusError(
                .badParameter,
                "a token has 1 to \(Self.tokenByteCountMax) bytes, a topic at most \(Self.topicByteCountMax)")
        }
        // They become headers and paths of the requests to the providers.
        let isPlain = token.utf8.allSatisfy { (0x21...0x7e).contains($0) }
        guard isPlain, topic.wholeMatch(of: /[A-Za-z0-9.-]*/) != nil else {
            throw ApusError(
                .badParameter, "a token has printable ASCII characters, a topic letters, digits, '-' and '.'")
        }
        guard provider != .apns || (!topic.isEmpty && Hexadecimal.bytes(token) != nil) else {
            throw ApusError(.badParameter, "apns needs the app's bundle id as the topic, and a token in hexadecimal")
        }
        (self.provider, self.token, self.topic) = (provider, token, topic)
    }
}

/// A call as a push notification has it (CALL-10, CALL-11).
package struct CallPushContent: Sendable, Hashable {
    /// What the notification says.
    package enum Event: String, Sendable, Hashable {
        /// The app is called.
        case ring = "call"
        /// A call of which it was notified is over.
        case cancel
    }

    package var event: Event
    package var call: String
    /// Who calls.
    package var caller: String
    /// The account of the called app.
    package var called: String
    package var type: Int
    /// The JSON object of the caller, or empty.
    package var extra: String
    /// Unix milliseconds.
    package var startedMs: Int64
    package var ringEndMs: Int64

    package init(
        _ event: Event = .ring, call: String, caller: String, called: String, type: Int, extra: String,
        startedMs: Int64, ringEndMs: Int64
    ) {
        self.event = event
        (self.call, self.caller, self.called, self.type) = (call, caller, called, type)
        (self.extra, self.startedMs, self.ringEndMs) = (extra, startedMs, ringEndMs)
    }

    /// `link`, `ts` and `voipEnable`. The link is `apus://rtcCall?param=` and a JSON object, percent-encoded.
    func payload() -> [String: Any] {
        let full = payload(extra: extra)
        guard !extra.isEmpty, (Self.json(full)?.count ?? .max) > PushRegistration.payloadByteCountMax else {
            return full
        }
        return payload(extra: "")
    }

    private func payload(extra: String) -> [String: Any] {
        var param: [String: Any] = [
            "sessionId": call, "curId": called, "targetId": caller, "callType": type, "callEvent": event.rawValue,
            "eventName": event.rawValue, "timeout": (ringEndMs - startedMs) / 1000,
        ]
        if !extra.isEmpty { param["extra"] = extra }
        let text = Self.json(param).flatMap { String(bytes: $0, encoding: .utf8) } ?? "{}"
        let encoded = text.addingPercentEncoding(withAllowedCharacters: Self.unreserved) ?? ""
        return ["link": "apus://rtcCall?param=\(encoded)", "ts": startedMs / 1000, "voipEnable": true]
    }

    /// RFC 3986 §2.3.
    private static let unreserved = CharacterSet(
        charactersIn: "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

    /// The message for the webhook: a JSON object.
    package func message(to registration: PushRegistration, access: String) -> [UInt8] {
        var message: [String: Any] = [
            "type": event == .ring ? "call.ring" : "call.cancel", "call": call, "account": called, "access": access,
            "provider": registration.provider.rawValue, "token": registration.token, "topic": registration.topic,
            "expires": ringEndMs / 1000,
        ]
        switch registration.provider {
        case .webhook: message["body"] = payload()
        case .apns:
            message["headers"] = [
                "apns-push-type": "voip", "apns-topic": "\(registration.topic).voip", "apns-priority": "10",
                "apns-expiration": "\(ringEndMs / 1000)", "apns-collapse-id": String(call.suffix(64)),
            ]
            message["body"] = payload().merging(["aps": [String: Any]()]) { $1 }
        case .fcm:
            // Values of data are strings.
            let data = payload().mapValues { $0 as? String ?? "\($0)" }
            message["body"] = [
                "message": [
                    "token": registration.token, "data": data,
                    "android": ["priority": "HIGH", "ttl": "\(max(0, ringEndMs - startedMs) / 1000)s"],
                ]
            ]
        }
        return Self.json(message) ?? []
    }

    private static func json(_ object: [String: Any]) -> [UInt8]? {
        try? Array(JSONSerialization.data(withJSONObject: object, options: [.sortedKeys, .withoutEscapingSlashes]))
    }
}
