package import ApusCore

/// One client that a node knows: a device or an app, with what its token says (IV-A6, D6).
package struct Session: Sendable, Hashable {
    package enum Role: String, Sendable, Hashable { case device, app, admin }

    /// Unique to this session; it stays when the session is resumed with its ticket.
    package var id: String
    package var role: Role
    /// Who the client is (IV-A1).
    package var access: AccessID
    /// The account that the client belongs to; it reaches only devices bound to it (8003).
    package var account: AccountID
    /// The device that this is, for ``Role/device``.
    package var device: DeviceID?
    /// The only devices that an app may reach, where its token names some (IV-A3).
    package var allowedDevices: [DeviceID]?
    /// When the client first said hello in this session; wall clock, milliseconds. A later session
    /// of the same identity takes the place of an earlier one (IV-A5).
    package var sinceMilliseconds: Int64

    package init(
        id: String, role: Role, access: AccessID, account: AccountID, device: DeviceID?,
        allowedDevices: [DeviceID]? = nil, sinceMilliseconds: Int64
    ) {
        self.id = id
        self.role = role
        self.access = access
        self.account = account
        self.device = device
        self.allowedDevices = allowedDevices
        self.sinceMilliseconds = sinceMilliseconds
    }
}

/// A device's presence (IV-D9).
package struct Presence: Sendable, Hashable {
    package enum Online: UInt32, Sendable, Hashable {
        case offline = 0
        case online = 1
        case asleep = 2
    }

    package var online: Online
    /// Unix seconds of the change.
    package var time: Int64

    package init(online: Online, time: Int64) {
        self.online = online
        self.time = time
    }
}

/// The socket of a session, as an edge holds it; the port that edges implement (D6).
///
/// Isolation: callable from anywhere; implementations hop to their event loop.
package protocol ClientLink: AnyObject, Sendable {
    /// Ends the connection with a reason that the client is told.
    func end(_ error: ApusError)
    /// Tells the client that a device's presence changed.
    func presenceChanged(_ device: DeviceID, _ presence: Presence)
}
