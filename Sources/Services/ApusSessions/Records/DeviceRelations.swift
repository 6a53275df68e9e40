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
    case unbind
    case transfer(AccountID)
    case share(DeviceShare)
    case unshare(AccountID)
    case assign(CustomerID?)
    /// True: it can neither sign in nor be used. False: it is enabled (IV-C16).
    case disable(Bool)
}

/// Who may use a device, and who may change that. Pure.
extension DeviceRecord {
    /// Accounts with which one device is shared; one more is refused with 10007.
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
    ///   - otherCustomer: that of the account that the change names; of an assignment, that of the device's account.
    ///   - now: Unix seconds.
    /// - Returns: the accounts that lose a right.
    /// - Throws: 8003 if the device is not the client's, 8022 if it is bound to that account already, 8023 if it is
    ///   bound to another, 8024 if the device and the account are not of one customer, 10007 beyond ``sharesMax``.
    package mutating func apply(
        _ change: DeviceRelationChange, by client: DeviceClient, customer otherCustomer: CustomerID?, now: Int64
    ) throws(ApusError) -> [AccountID] {
        try check(client, change)
        switch change {
        case .bind, .transfer, .share,
            .assign where account != nil:
            var mine = customer
            if case .assign(let new) = change { mine = new }
            guard mine == otherCustomer else { throw ApusError(.otherCustomer) }
        case .unbind, .unshare, .assign, .disable: break
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
        case .unbind: return release(to: nil, now)
        case .transfer(let new):
            guard account != new else { throw ApusError(.boundToThisUser) }
            guard account != nil else { throw ApusError(.illegalRelation, "the device is bound to no account") }
            return release(to: new, now)
        case .share(let share):
            guard let account else { throw ApusError(.illegalRelation, "the device is bound to no account") }
            guard share.account != account else { throw ApusError(.boundToThisUser) }
            if let index = shares.firstIndex(where: { $0.account == share.account }) {
                // Control that is lost ends what needs it, such as the playback of a recording.
                let isLess = shares[index].control && !share.control
                shares[index] = share
                return isLess ? [share.account] : []
            }
            guard shares.count < Self.sharesMax else {
                throw ApusError(.overloaded, "the device is shared with \(Self.sharesMax) accounts already")
            }
            shares.append(share)
            return []
        case .unshare(let other):
            guard other != account else { throw ApusError(.boundToThisUser) }
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

    /// Whether a change that has succeeded has changed this record. A repeated request succeeds, and so does the end of
    /// a share that does not exist, which any account may ask for.
    package func isChanged(by change: DeviceRelationChange) -> Bool {
        switch change {
        case .bind, .unbind, .transfer: true
        case .share(let share): !shares.contains(share)
        case .unshare(let other): shares.contains { $0.account == other }
        case .assign(let new): customer != new
        case .disable(let new): isDisabled != new
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
            // A guest may leave.
            if case .unshare(let other) = change, other == client { return }
            if case .assign = change { throw ApusError(.illegalRelation, "an operator assigns devices") }
            if case .disable = change {
                throw ApusError(.illegalRelation, "an operator or the device's customer disables it")
            }
            guard client == account else { throw ApusError(.illegalRelation, "the device belongs to another account") }
        }
    }

    private mutating func release(to new: AccountID?, _ now: Int64) -> [AccountID] {
        let former = ([account].compactMap(\.self) + shares.map(\.account)).filter { $0 != new }
        (account, shares) = (new, [])
        boundAtUnixMilliseconds = new == nil ? nil : now * 1000
        tokensAfter = now + 1
        return former
    }
}

extension DeviceRelationChange {
    var isBinding: Bool {
        if case .bind = self { true } else { false }
    }

    /// The device need not have connected before.
    package var createsRecord: Bool {
        switch self {
        case .bind, .assign: true
        case .unbind, .transfer, .share, .unshare, .disable: false
        }
    }

    /// The account that has to be of the device's customer: the one that receives a right, or of an assignment the one
    /// that has the device.
    func checkedAccount(_ own: AccountID?) -> AccountID? {
        switch self {
        case .bind(let other), .transfer(let other): other
        case .share(let share): share.account
        case .assign: own
        case .unbind, .unshare, .disable: nil
        }
    }

    /// Throws 10001 for a message without a change, with one that this release does not know, or with a name that is
    /// none.
    init(_ message: SessionRelate) throws(ApusError) {
        func other() throws(ApusError) -> AccountID {
            guard let account = AccountID(rawValue: message.other) else { throw ApusError(.malformed) }
            return account
        }
        switch message.change {
        case .bind: self = .bind(try other())
        case .unbind: self = .unbind
        case .transfer: self = .transfer(try other())
        case .share: self = .share(DeviceShare(account: try other(), control: message.control))
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
            case .unbind: $0.change = .unbind
            case .transfer(let other): ($0.change, $0.other) = (.transfer, other.rawValue)
            case .share(let share):
                ($0.change, $0.other, $0.control) = (.share, share.account.rawValue, share.control)
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
