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
    }

    /// Lets another account use the device, or changes what it may do. At most 16 accounts (10007).
    public func share(_ device: DeviceID, with account: AccountID, control: Bool) async throws(ApusError) {
        _ = try await ask(
            ClientShareDeviceRequest.with {
                ($0.device, $0.account, $0.control) = (device.rawValue, account.rawValue, control)
            })
    }

    /// Ends the use of the device by another account. A guest may end its own.
    public func unshare(_ device: DeviceID, with account: AccountID) async throws(ApusError) {
        _ = try await ask(
            ClientUnshareDeviceRequest.with { ($0.device, $0.account) = (device.rawValue, account.rawValue) })
    }

    /// The other accounts that may use the device; a guest receives its own share only.
    public func shares(of device: DeviceID) async throws(ApusError) -> [Share] {
        try await ask(ClientListSharesRequest.with { $0.device = device.rawValue }).shares.compactMap { share in
            AccountID(rawValue: share.account).map { Share(account: $0, control: share.control) }
        }
    }

    /// Unbinds the device from its account, and ends all shares. The device needs a new token.
    public func unbind(_ device: DeviceID) async throws(ApusError) {
        _ = try await ask(ClientUnbindDeviceRequest.with { $0.device = device.rawValue })
    }

    /// Gives the device to another account, and ends all shares. The device needs a new token. Throws 8022 if it is
    /// bound to that account already.
    public func transfer(_ device: DeviceID, to account: AccountID) async throws(ApusError) {
        _ = try await ask(
            ClientTransferDeviceRequest.with { ($0.device, $0.account) = (device.rawValue, account.rawValue) })
    }
}
