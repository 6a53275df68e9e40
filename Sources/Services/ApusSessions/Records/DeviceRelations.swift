package import ApusCore
import ApusWire
import SwiftProtobuf

/// Another account that may use a device (IV-B10).
package struct DeviceShare: Sendable, Hashable {
    package var account: AccountID
    /// It may also change settings and send commands.
    package var control: Bool

    package init(account: AccountID, control: Bool) { (self.account, self.control) = (account, control) }
}

/// A change of the accounts that may use a device.
package enum DeviceRelationChange: Sendable, Hashable {
    case bind(AccountID)
    case unbind
    case transfer(AccountID)
    case share(DeviceShare)
    case unshare(AccountID)
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

    /// Changes who may use the device.
    ///
    /// - Parameters:
    ///   - client: the account of the client that asks; nil for an operator.
    ///   - now: Unix seconds.
    /// - Returns: the accounts that lose a right.
    /// - Throws: 8003 if the device is not the client's, 8022 if it is bound to that account already, 8023 if it is
    ///   bound to another, 10007 beyond ``sharesMax``.
    package mutating func apply(
        _ change: DeviceRelationChange, by client: AccountID?, now: Int64
    ) throws(ApusError) -> [AccountID] {
        if case .unshare(let other) = change, other == client {
            // A guest may leave.
        } else if let client, client != account {
            throw ApusError(.illegalRelation, "the device belongs to another account")
        }
        switch change {
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
                shares[index] = share
                return []
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

    /// Throws 10002 for a message without a change, or with a name that is none.
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
        case .unspecified, .UNRECOGNIZED: throw ApusError(.malformed, "the change is not known here")
        }
    }

    /// - Parameter client: the account of the client that asks; nil for an operator.
    func message(by client: AccountID?) -> SessionRelate {
        .with {
            $0.account = client?.rawValue ?? ""
            switch self {
            case .bind(let other): ($0.change, $0.other) = (.bind, other.rawValue)
            case .unbind: $0.change = .unbind
            case .transfer(let other): ($0.change, $0.other) = (.transfer, other.rawValue)
            case .share(let share):
                ($0.change, $0.other, $0.control) = (.share, share.account.rawValue, share.control)
            case .unshare(let other): ($0.change, $0.other) = (.unshare, other.rawValue)
            }
        }
    }
}
