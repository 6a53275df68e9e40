package import ApusCore
package import ApusWire
import SwiftProtobuf

/// Another account that may use a device (IV-B10).
package struct DeviceShare: Sendable, Hashable {
    package var account: AccountID
    /// It may also change settings and send commands.
    package var control: Bool

    package init(account: AccountID, control: Bool) { (self.account, self.control) = (account, control) }
}

/// Who asks for a change of the accounts that may use a device.
package enum DeviceClient: Sendable, Hashable {
    case `operator`
    /// The server of an integrator. It may change the devices that are assigned to the customer.
    case customer(CustomerID)
    case account(AccountID)
}

/// A change of the accounts that may use a device, of its customer, or of whether it can be used.
package enum DeviceRelationChange: Sendable, Hashable {
    case bind(AccountID)
    /// To another account, or to none.
    ///
    /// - keepsData: the next account has what was kept of the device.
    case handOver(to: AccountID?, keepsData: Bool)
    /// At once: for operators, and for the integrator of both accounts.
    case share(DeviceShare)
    /// The other account has to accept, unless the device is shared with it already.
    case invite(DeviceShare)
    /// The account accepts its invitation.
    case accept(AccountID)
    /// Ends a share, or an invitation.
    case unshare(AccountID)
    case assign(CustomerID?)
    /// True: it can neither sign in nor be used. False: it is enabled (IV-C16).
    case disable(Bool)

    /// The device is handed over without its data.
    package static var unbind: Self { .handOver(to: nil, keepsData: false) }
    package static func transfer(_ account: AccountID) -> Self { .handOver(to: account, keepsData: false) }
}

/// Who may use a device, and who may change that. Pure.
extension DeviceRecord {
    /// Accounts with which one device is shared, or which are invited; one more is refused with 10007.
    package static let sharesMax = 16

    /// What an account may do with the device.
    package enum Right: Sendable, Hashable { case view, control, own }

    /// Nil: the account may not use it (8003).
    package func right(of account: AccountID) -> Right? {
        if self.account == account { return .own }
        return shares.first { $0.account == account }.map { $0.control ? .control : .view }
    }

    /// - Throws: 20011 if the device is disabled. For clients with a right to it: the others do not learn that.
    package func checkEnabled() throws(ApusError) {
        guard !isDisabled else { throw ApusError(.deviceDisabled) }
    }

    /// Changes who may use the device, or whether it can be used.
    ///
    /// - Parameters:
    ///   - change: ``DeviceRelationChange/share(_:)`` of an account is an invitation.
    ///   - otherCustomer: that of the account that the change names; of an assignment, that of the device's account.
    ///   - now: Unix seconds.
    /// - Returns: the accounts that lose a right.
    /// - Throws: 8003 if the device is not the client's, 8022 if it is bound to that account already, 8023 if it is
    ///   bound to another, 8024 if the device and the account are not of one customer, 10007 beyond ``sharesMax``.
    package mutating func apply(
        _ change: DeviceRelationChange, by client: DeviceClient, customer otherCustomer: CustomerID?, now: Int64
    ) throws(ApusError) -> [AccountID] {
        var change = change
        // An account shares with consent only. Consent to a share is one to its changes.
        if case .share(let share) = change, case .account = client { change = .invite(share) }
        if case .invite(let share) = change, shares.contains(where: { $0.account == share.account }) {
            change = .share(share)
        }
        try check(client, change)
        switch change {
        case .bind, .handOver(to: _?, _), .share, .invite, .accept,
            .assign where account != nil:
            var mine = customer
            if case .assign(let new) = change { mine = new }
            guard mine == otherCustomer else { throw ApusError(.otherCustomer) }
        case .handOver(to: nil, _), .unshare, .assign, .disable: break
        }
        switch change {
        case .assign(let new):
            customer = new
            return []
        case .bind(let new):
            guard account != new else { throw ApusError(.boundToThisUser) }
            guard account == nil else { throw ApusError(.boundToOtherUser) }
            (account, boundAtUnixMilliseconds) = (new, now * 1000)
            return []
        case .handOver(to: let new?, let keepsData):
            guard account != new else { throw ApusError(.boundToThisUser) }
            guard account != nil else { throw ApusError(.illegalRelation, "the device is bound to no account") }
            return release(to: new, keepsData: keepsData, now)
        case .handOver(to: nil, let keepsData): return release(to: nil, keepsData: keepsData, now)
        case .share(let share): return try add(share)
        case .invite(let share):
            try invite(share)
            return []
        case .accept(let guest):
            guard let index = invitations.firstIndex(where: { $0.account == guest }) else {
                // A repeated request succeeds. Who was not invited learns nothing of the device.
                guard shares.contains(where: { $0.account == guest }) else {
                    throw ApusError(.illegalRelation, "the account is not invited to use the device")
                }
                return []
            }
            shares.append(invitations.remove(at: index))
            return []
        case .unshare(let other):
            guard other != account else { throw ApusError(.boundToThisUser) }
            // An invitation gave no right.
            invitations.removeAll { $0.account == other }
            // If it is not shared, nothing changes: a repeated request succeeds, and one of an account without a right
            // has no effect.
            guard let index = shares.firstIndex(where: { $0.account == other }) else { return [] }
            shares.remove(at: index)
            return [other]
        case .disable(let new):
            guard isDisabled != new else { return [] }
            isDisabled = new
            // Their rights stay in the record. Nodes look at them again, and the owner refuses them meanwhile.
            return new ? [account].compactMap(\.self) + shares.map(\.account) : []
        }
    }

    /// Returns the account if it loses the right to control the device.
    private mutating func add(_ share: DeviceShare) throws(ApusError) -> [AccountID] {
        guard let account else { throw ApusError(.illegalRelation, "the device is bound to no account") }
        guard share.account != account else { throw ApusError(.boundToThisUser) }
        if let index = shares.firstIndex(where: { $0.account == share.account }) {
            // Control that is lost ends what needs it, such as the playback of a recording.
            let isLess = shares[index].control && !share.control
            shares[index] = share
            return isLess ? [share.account] : []
        }
        invitations.removeAll { $0.account == share.account }
        try checkRoom()
        shares.append(share)
        return []
    }

    private mutating func invite(_ share: DeviceShare) throws(ApusError) {
        guard let account else { throw ApusError(.illegalRelation, "the device is bound to no account") }
        guard share.account != account else { throw ApusError(.boundToThisUser) }
        if let index = invitations.firstIndex(where: { $0.account == share.account }) {
            invitations[index] = share
            return
        }
        try checkRoom()
        invitations.append(share)
    }

    /// Whether a change that has succeeded has changed this record. A repeated request succeeds, and so does the end of
    /// a share that does not exist, which any account may ask for.
    package func isChanged(by change: DeviceRelationChange) -> Bool {
        switch change {
        case .bind, .handOver: true
        case .share(let share): !shares.contains(share)
        case .invite(let share):
            shares.contains { $0.account == share.account } ? !shares.contains(share) : !invitations.contains(share)
        case .accept(let guest): invitations.contains { $0.account == guest }
        case .unshare(let other): (shares + invitations).contains { $0.account == other }
        case .assign(let new): customer != new
        case .disable(let new): isDisabled != new
        }
    }

    /// - Throws: 10007.
    private func checkRoom() throws(ApusError) {
        guard shares.count + invitations.count < Self.sharesMax else {
            throw ApusError(.overloaded, "the device is shared with \(Self.sharesMax) accounts already")
        }
    }

    /// - Throws: 8003 if the client may not make the change; 8024 if it would bind a device of another customer.
    private func check(_ client: DeviceClient, _ change: DeviceRelationChange) throws(ApusError) {
        switch client {
        case .operator: return
        case .customer(let client):
            if case .assign = change { throw ApusError(.illegalRelation, "an operator assigns devices") }
            guard client != customer else { return }
            throw change.isBinding
                ? ApusError(.otherCustomer) : ApusError(.illegalRelation, "the device is another customer's")
        case .account(let client):
            // A guest may leave, and decline or accept its invitation.
            if case .unshare(let other) = change, other == client { return }
            if case .accept(let other) = change {
                guard other == client else { throw ApusError(.illegalRelation, "an account accepts for itself only") }
                return
            }
            if case .assign = change { throw ApusError(.illegalRelation, "an operator assigns devices") }
            if case .disable = change {
                throw ApusError(.illegalRelation, "an operator or the device's customer disables it")
            }
            guard client == account else { throw ApusError(.illegalRelation, "the device belongs to another account") }
        }
    }

    private mutating func release(to new: AccountID?, keepsData: Bool, _ now: Int64) -> [AccountID] {
        // Without an account there is nobody whose data it is: a request that is repeated wipes nothing more.
        if !keepsData, account != nil {
            dataSince = max(dataSince + 1, UInt64(clamping: now) * 1000)
        }
        let former = ([account].compactMap(\.self) + shares.map(\.account)).filter { $0 != new }
        (account, shares, invitations) = (new, [], [])
        boundAtUnixMilliseconds = new == nil ? nil : now * 1000
        tokensAfter = now + 1
        return former
    }
}

extension DeviceRelationChange {
    var isBinding: Bool {
        if case .bind = self { true } else { false }
    }

    /// An account may have less rights afterwards, for good. A disabled device is enabled again with all of them.
    package var endsRights: Bool {
        switch self {
        case .handOver, .unshare: true
        case .share(let share), .invite(let share): !share.control
        case .bind, .accept, .assign, .disable: false
        }
    }

    /// The device need not have connected before.
    package var createsRecord: Bool {
        switch self {
        case .bind, .assign: true
        case .handOver, .share, .invite, .accept, .unshare, .disable: false
        }
    }

    /// The account that has to be of the device's customer: the one that receives a right, or of an assignment the one
    /// that has the device.
    func checkedAccount(_ own: AccountID?) -> AccountID? {
        switch self {
        case .bind(let other): other
        case .handOver(to: let other, _): other
        case .share(let share), .invite(let share): share.account
        case .accept(let guest): guest
        case .assign: own
        case .unshare, .disable: nil
        }
    }

    /// Throws 10001 for a message without a change, with one that this release does not know, or with a name that is
    /// none.
    package init(_ message: SessionRelate) throws(ApusError) {
        func other() throws(ApusError) -> AccountID {
            guard let account = AccountID(rawValue: message.other) else { throw ApusError(.malformed) }
            return account
        }
        switch message.change {
        case .bind: self = .bind(try other())
        case .unbind: self = .handOver(to: nil, keepsData: message.keepData)
        case .transfer: self = .handOver(to: try other(), keepsData: message.keepData)
        case .share:
            let share = DeviceShare(account: try other(), control: message.control)
            // Also from a node of an earlier release: an account shares with consent only.
            if case .account = try DeviceClient(message) { self = .invite(share) } else { self = .share(share) }
        case .accept: self = .accept(try other())
        case .unshare: self = .unshare(try other())
        case .assign:
            let customer = CustomerID(rawValue: message.other)
            guard customer != nil || message.other.isEmpty else { throw ApusError(.malformed) }
            self = .assign(customer)
        case .disable: self = .disable(true)
        case .enable: self = .disable(false)
        case .unspecified, .UNRECOGNIZED: throw ApusError(.malformed, "the change is not known here")
        }
    }

    package func message(by client: DeviceClient) -> SessionRelate {
        .with {
            $0.account = client.text
            switch self {
            case .bind(let other): ($0.change, $0.other) = (.bind, other.rawValue)
            case .handOver(to: let other, let keepsData):
                ($0.change, $0.other) = (other == nil ? .unbind : .transfer, other?.rawValue ?? "")
                $0.keepData = keepsData
            case .share(let share), .invite(let share):
                ($0.change, $0.other, $0.control) = (.share, share.account.rawValue, share.control)
            case .accept(let guest): ($0.change, $0.other) = (.accept, guest.rawValue)
            case .unshare(let other): ($0.change, $0.other) = (.unshare, other.rawValue)
            case .assign(let customer): ($0.change, $0.other) = (.assign, customer?.rawValue ?? "")
            case .disable(let isDisabled): $0.change = isDisabled ? .disable : .enable
            }
        }
    }
}

extension DeviceClient {
    /// In messages between nodes. No account has a name that begins with `@`, so that a node of an earlier release
    /// takes a customer neither for an account nor for an operator.
    fileprivate var text: String {
        switch self {
        case .operator: ""
        case .customer(let customer): "@\(customer)"
        case .account(let account): account.rawValue
        }
    }

    /// Throws 10001 for a text that is none.
    package init(_ message: SessionRelate) throws(ApusError) {
        if message.account.isEmpty {
            self = .operator
        } else if message.account.hasPrefix("@"), let id = CustomerID(rawValue: String(message.account.dropFirst())) {
            self = .customer(id)
        } else if let account = AccountID(rawValue: message.account) {
            self = .account(account)
        } else {
            throw ApusError(.malformed)
        }
    }
}
