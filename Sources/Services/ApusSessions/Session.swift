package import ApusCore

/// One client that a node admitted: a device or an app, with the claims of its token (IV-A6, D6).
package struct Session: Sendable, Hashable {
    package enum Role: String, Sendable, Hashable {
        case device, app, admin
        /// The server of an integrator (IV-A1). It uses REST, and has no session.
        case customer
    }

    /// Unique to this session. It stays the same when the session is resumed with its ticket.
    package var id: String
    package var role: Role
    /// The client's access id (IV-A1).
    package var access: AccessID
    /// The account to which the client belongs. The client can access only devices that are bound to it (8003).
    package var account: AccountID
    /// The client's device id, for ``Role/device``.
    package var device: DeviceID?
    /// The only devices that an app may access, if its token restricts them (IV-A3).
    package var allowedDevices: [DeviceID]?
    /// The time of the client's first hello in this session, in milliseconds of the admitting node's wall clock. It
    /// orders only sessions without an ``order``.
    package var sinceMilliseconds: Int64
    /// A random number of the client. Sessions with the same instance are one client. 0 if the client named none.
    package var instance: UInt64
    /// Orders the clients of an identity (IV-A5); ``SessionOrder/none`` until an owner assigned it.
    package var order: SessionOrder
    /// The mark of the token that opened it. Nothing that the session receives is valid for longer than the token
    /// (IV-A6).
    package var token: TokenMark
    /// The tag of the sign-in of a browser from which it comes; 0 if it comes from none. Signing out revokes it.
    package var signIn: UInt64 = 0
    /// The tab of a browser. Tabs of one sign-in are clients of their own: they do not end each other. 0: not of a tab.
    package var tab: UInt64 = 0

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

/// Orders the clients of an identity (IV-A5, docs/decisions/7).
/// The owner of the identity assigns it at the client's first registration. It consists of the shard's epoch, which
/// grows with every change of owner, and of a number that grows at that owner. Clocks of different machines are never
/// compared.
package struct SessionOrder: Sendable, Hashable, Comparable {
    package var epoch: Epoch
    package var sequence: UInt64

    /// No owner has assigned an order yet.
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
    /// The time of the change, in Unix seconds.
    package var time: Int64

    package init(online: Online, time: Int64) {
        self.online = online
        self.time = time
    }
}

/// What the owner of a device has answered to an account that may use it.
package struct DeviceAccess: Sendable, Hashable {
    package var presence: Presence
    /// As ``DeviceRecord/dataSince``; 0 also if the owner is of an earlier release.
    package var dataSince: UInt64

    package init(presence: Presence, dataSince: UInt64) { (self.presence, self.dataSince) = (presence, dataSince) }
}

/// The socket of a session at an edge; the port that edges implement (D6).
///
/// Isolation: callable from anywhere; implementations hop to their event loop.
package protocol ClientLink: AnyObject, Sendable {
    /// Closes the connection after sending the client the error.
    func end(_ error: ApusError)
    /// Notes that the owner of the session's identity has confirmed it as the newest.
    func confirmed()
    /// Tells the client that a device's presence changed.
    func presenceChanged(_ device: DeviceID, _ presence: Presence)
    /// Asks the client for an answer, and waits for it at most ``ClientProbe/timeout``.
    func probe() async -> ClientProbe
}

extension ClientLink {
    package func probe() async -> ClientProbe { .notAsked }
}

/// Whether a client answers at this moment (IV-G9).
package enum ClientProbe: Sendable, Hashable {
    /// Its protocol has no such question, or it is not connected.
    case notAsked
    /// In this time.
    case answered(Duration)
    case silent

    /// How long an answer is waited for.
    package static let timeout = Duration.seconds(1)
}
