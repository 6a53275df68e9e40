import ApusCluster
import ApusContract
package import ApusCore
import ApusWire
import SwiftProtobuf
import Synchronization

// Where a device is connected, and whether it answers, for the diagnosis of a picture that does not come (IV-G9).

/// A device at the owner of its session.
package struct DeviceLocation: Sendable, Hashable {
    package var presence: Presence
    /// Its newest session; nil if it has none, or the owner is of an earlier release.
    package var place: SessionPlace?
}

extension SessionService {
    private static let probeSlack = Duration.milliseconds(500)

    /// Where a device is, as far as its own account may know.
    ///
    /// - Throws: as ``inspect(_:for:control:)``.
    package func locate(_ device: DeviceID, for account: AccountID) async throws(ApusError) -> DeviceLocation {
        let answer = try await ask(.device, device.rawValue, SessionInspect.with { $0.account = account.rawValue })
        return DeviceLocation(
            presence: Presence(online: Presence.Online(rawValue: answer.online) ?? .offline, time: answer.time),
            place: answer.hasPlace ? try SessionPlace(answer.place) : nil)
    }

    /// Asks the client of a session, which may be connected to any node, for an answer. A node that cannot be reached
    /// counts as ``ClientProbe/notAsked``.
    package func probe(_ place: SessionPlace) async -> ClientProbe {
        guard place.node != view.local else { return await probeHere(place.session) }
        let message = SessionProbe.with { $0.session = place.session }
        let timeout = ClientProbe.timeout + Self.probeSlack
        guard let answer = try? await transport.ask(place.node.name, message, timeout: timeout) else {
            return .notAsked
        }
        return ClientProbe(answer)
    }

    func probeHere(_ session: String) async -> ClientProbe {
        guard let link = state.withLock({ $0.edge.held(session)?.links.last }) else { return .notAsked }
        return await link.socket.probe()
    }
}

extension ClientProbe {
    init(_ answer: SessionProbed) {
        guard answer.asked else {
            self = .notAsked
            return
        }
        self = answer.answeredMs == 0 ? .silent : .answered(.milliseconds(Int64(answer.answeredMs) - 1))
    }
}

extension SessionProbed {
    init(_ probe: ClientProbe) {
        self.init()
        switch probe {
        case .notAsked: break
        case .silent: asked = true
        case .answered(let time): (asked, answeredMs) = (true, UInt32(clamping: Int(time.milliseconds) + 1))
        }
    }
}
