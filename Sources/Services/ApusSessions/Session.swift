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
    /// When the client first said hello in this session; wall clock of the node that admitted it, milliseconds. It
    /// orders only sessions that no owner gave an ``order``.
    package var sinceMilliseconds: Int64
    /// The client's own random number; sessions of one instance are one client. 0 of clients that name none.
    package var instance: UInt64
    /// Which of an identity's clients is the newer one (IV-A5); ``SessionOrder/none`` until an owner gave it.
    package var order: SessionOrder
    /// The token that opened it. Nothing that the session was given is valid for longer (IV-A6).
    package var token: TokenMark

    package init(
        id: String, role: Role, access: AccessID, account: AccountID, device: DeviceID?,
        allowedDevices: [DeviceID]? = nil, sinceMilliseconds: Int64, instance: UInt64 = 0, order: SessionOrder = .none,
        token: TokenMark
    ) {
        self.token = token
        self.instance = instance
        self.order = order
        self.id = id
        self.role = role
        self.access = access
        self.account = account
        self.device = device
        self.allowedDevices = allowedDevices
        self.sinceMilliseconds = sinceMilliseconds
    }
}

/// Which of an identity's clients is the newer one (IV-A5, docs/decisions/7).
///
/// The owner of the identity gives it out at the client's first registration: the shard's epoch, which grows with every
/// change of owner, then a number that grows at that owner. No machine's clock is compared with another's.
package struct SessionOrder: Sendable, Hashable, Comparable {
    package var epoch: Epoch
    package var sequence: UInt64

    /// No owner gave one yet.
    package static let none = SessionOrder(epoch: 0, sequence: 0)

    package init(epoch: Epoch, sequence: UInt64) {
        self.epoch = epoch
        self.sequence = sequence
    }

    package static func < (left: Self, right: Self) -> Bool {
        (left.epoch, left.sequence) < (right.epoch, right.sequence)
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
    /// The owner of the session's identity knows it as the newest.
    func confirmed()
    /// Tells the client that a device's presence changed.
    func presenceChanged(_ device: DeviceID, _ presence: Presence)
}
