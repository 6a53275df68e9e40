public import ApusContract
public import ApusCore
import SwiftProtobuf

// Devices that show a code, so that an account approves them (VA-3, docs/voice.md).

extension ClientSession {
    /// The device that shows a code.
    ///
    /// - Parameter userCode: such as `WDJB-MJHT`. Case, hyphens and spaces have no meaning.
    /// - Throws: 8002 if there is no such code, or it has expired, was used, or was decided about by another account;
    ///   10007 after too many attempts (`authorization.attempts_per_minute`), 21031 for a text that is no code,
    ///   otherwise as ``ask(_:timeout:)``.
    public func authorization(of userCode: String) async throws(ApusError) -> ClientAuthorization {
        try await ask(ClientGetAuthorizationRequest.with { $0.userCode = userCode })
    }

    /// Binds the device that shows a code to the account, and lets it have a token. Show the device's id and the code
    /// to the person first: somebody may have sent them the code of another device.
    ///
    /// - Throws: 8023 if the device is bound to another account, 8024 if it is not of the account's customer, 20011 if
    ///   it is disabled; otherwise as ``authorization(of:)``.
    @discardableResult
    public func approve(_ userCode: String) async throws(ApusError) -> ClientAuthorization {
        try await ask(ClientApproveAuthorizationRequest.with { $0.userCode = userCode })
    }

    /// Refuses a token to the device that shows a code. An approval is taken back, if the device has not fetched its
    /// token yet.
    ///
    /// - Throws: as ``authorization(of:)``.
    @discardableResult
    public func refuse(_ userCode: String) async throws(ApusError) -> ClientAuthorization {
        try await ask(ClientRefuseAuthorizationRequest.with { $0.userCode = userCode })
    }
}
