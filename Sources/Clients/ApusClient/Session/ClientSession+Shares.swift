import ApusContract
public import ApusCore
import SwiftProtobuf

/// Which accounts may use a device (IV-B10, docs/sharing.md). Each change is durable when the function returns, and
/// acts on open sessions at every node within a second.
///
/// All functions throw 8002 for a device that the cluster does not know, 8003 for one that belongs to another account,
/// 12004 for one that the token does not name, 10030 if another change of it is in progress, 10007 after too many
/// changes, and 21025 and 10008 without a connection.
extension ClientSession {
    /// Another account that may use a device.
    public struct Share: Sendable, Hashable {
        public let account: AccountID
        /// It may also change settings and send commands. Without this it may watch and read.
        public let control: Bool
        /// It has not accepted yet, and has no right.
        public var isInvited = false
    }

    /// A device of another account that this one may use once it has accepted.
    public struct Invitation: Sendable, Hashable {
        public let device: DeviceID
        /// The account to which the device is bound.
        public let account: AccountID
        /// It may also change settings and send commands. Without this it may watch and read.
        public let control: Bool
    }

    /// Invites another account to use the device, or changes what an account may do that has accepted. At most 16
    /// accounts (10007).
    ///
    /// - Returns: true if the other account has to accept first.
    @discardableResult
    public func share(
        _ device: DeviceID, with account: AccountID, control: Bool
    ) async throws(ApusError) -> Bool {
        try await ask(
            ClientShareDeviceRequest.with {
                ($0.device, $0.account, $0.control) = (device.rawValue, account.rawValue, control)
            }
        ).invited
    }

    /// Accepts the invitation to use a device of another account. ``unshare(_:with:)`` with the own account declines.
    ///
    /// - Throws: 8003 if this account is not invited.
    public func acceptShare(of device: DeviceID) async throws(ApusError) {
        _ = try await ask(ClientAcceptShareRequest.with { $0.device = device.rawValue })
    }

    /// The devices that this account is invited to use, by their ids.
    public func invitations() async throws(ApusError) -> [Invitation] {
        var found: [Invitation] = []
        var request = ClientListInvitationsRequest()
        repeat {
            let page = try await ask(request)
            found += page.invitations.compactMap { one in
                guard let device = DeviceID(rawValue: one.device), let account = AccountID(rawValue: one.account) else {
                    return nil
                }
                return Invitation(device: device, account: account, control: one.control)
            }
            request.pageToken = page.nextPageToken
        } while !request.pageToken.isEmpty
        return found
    }

    /// Ends the use of the device by another account, or its invitation. A guest may end its own.
    public func unshare(_ device: DeviceID, with account: AccountID) async throws(ApusError) {
        _ = try await ask(
            ClientUnshareDeviceRequest.with { ($0.device, $0.account) = (device.rawValue, account.rawValue) })
    }

    /// The other accounts that may use the device, and those that are invited; a guest receives its own share only.
    public func shares(of device: DeviceID) async throws(ApusError) -> [Share] {
        try await ask(ClientListSharesRequest.with { $0.device = device.rawValue }).shares.compactMap { share in
            AccountID(rawValue: share.account).map {
                Share(account: $0, control: share.control, isInvited: share.invited)
            }
        }
    }

    /// Unbinds the device from its account, and ends all shares. The device needs a new token.
    ///
    /// - Parameter keepingData: the next account has what was kept of the device. Otherwise it is wiped.
    public func unbind(_ device: DeviceID, keepingData: Bool = false) async throws(ApusError) {
        _ = try await ask(
            ClientUnbindDeviceRequest.with { ($0.device, $0.keepData) = (device.rawValue, keepingData) })
    }

    /// Gives the device to another account, and ends all shares. The device needs a new token. Throws 8022 if it is
    /// bound to that account already.
    ///
    /// - Parameter keepingData: the other account has what was kept of the device, as within a household. Otherwise it
    ///   is wiped, as for a sale.
    public func transfer(
        _ device: DeviceID, to account: AccountID, keepingData: Bool = false
    ) async throws(ApusError) {
        _ = try await ask(
            ClientTransferDeviceRequest.with {
                ($0.device, $0.account, $0.keepData) = (device.rawValue, account.rawValue, keepingData)
            })
    }
}
