import ApusContract
public import ApusCore
import Foundation
import SwiftProtobuf

/// Push notifications of calls (CALL-10): an app that is not connected is called too.
extension ClientSession {
    /// The form in which an app is notified. What sends the notification on is the webhook of the cluster.
    public enum PushProvider: String, Sendable, CaseIterable {
        /// The payload as it is.
        case webhook
        /// A VoIP notification of Apple's push notification service.
        case apns
        /// A data message of Firebase cloud messaging.
        case fcm
    }

    /// Registers this app for push notifications, in place of its earlier registration. A registration lasts for 90
    /// days: register at each start of the app. Of more than 32 apps of an account the oldest registration ends.
    ///
    /// - Parameters:
    ///   - token: what the provider knows the app by, 1 to 1024 bytes.
    ///   - topic: the app's topic at the provider, such as its bundle id; `apns` needs it.
    /// - Throws: 21031 for a value that is out of range, 21025 if the cluster sends no notifications, 12004
    ///   for a client that is no app or whose token is for certain devices.
    public func registerPush(_ provider: PushProvider, token: String, topic: String = "") async throws(ApusError) {
        _ = try await ask(
            ClientRegisterPushRequest.with {
                ($0.provider, $0.token, $0.topic) = (provider.rawValue, token, topic)
            })
    }

    /// Ends the registration of this app, if there is one.
    public func unregisterPush() async throws(ApusError) { _ = try await ask(ClientUnregisterPushRequest()) }

    /// Asks for the call of a push notification. If it still rings, ``calls()`` passes the ring on, once, whether it
    /// came over the connection too or not (CALL-10).
    ///
    /// - Parameter payload: `link`, `ts` and `voipEnable` of the notification, in JSON.
    /// - Throws: if the call is not to be shown (CALL-9): −2503 for a payload that is not one of a call, otherwise how
    ///   it has ended: −2520 to −2523, −2530, or −2508 if that is long ago. The cluster decides that: the clock of
    ///   this client may be wrong.
    public func joinCall(push payload: String) async throws(ApusError) -> Call {
        let call = try await report(.joined, of: try CallPush(payload).call)
        guard !call.isEnded else { throw call.error ?? ApusError(.callUnknown, "the call is over") }
        return call
    }
}

/// What a push notification of a call says (CALL-10, CALL-11).
struct CallPush {
    /// The session id.
    let call: String

    /// - Throws: −2503.
    init(_ payload: String) throws(ApusError) {
        struct Payload: Decodable {
            var link: String
        }
        struct Param: Decodable {
            var sessionId: String
        }
        let decoder = JSONDecoder()
        guard let payload = try? decoder.decode(Payload.self, from: Data(payload.utf8)),
            let link = URLComponents(string: payload.link), link.host?.lowercased() == "rtccall",
            let text = link.queryItems?.first(where: { $0.name == "param" })?.value,
            let param = try? decoder.decode(Param.self, from: Data(text.utf8)), !param.sessionId.isEmpty
        else { throw ApusError(.callDataInvalid, "the notification is not one of a call") }
        call = param.sessionId
    }
}
