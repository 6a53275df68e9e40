package import ApusCluster
import ApusCore
import Crypto
import Foundation

extension Session {
    /// Where the identity lives: devices by their id, which is bound to one account, apps by their account and access
    /// id.
    package var entityKind: EntityKind { role == .device ? .device : .app }
    package var entityKey: String { device?.rawValue ?? Self.entityKey(of: access, account) }
    /// Access ids are unique within an account alone. The names of two may be longer than a key; then their digest
    /// stands for them, behind a character that no name has.
    private static func entityKey(of access: AccessID, _ account: AccountID) -> String {
        let text = "\(account)/\(access)"
        guard text.utf8.count > EntityAddress.keyByteCountMax else { return text }
        return "#"
            + SHA256.hash(data: Data(text.utf8)).prefix(16).map { String(Int($0), radix: 36) }.joined(separator: ".")
    }

    /// Its name within its account.
    var identity: String { device?.rawValue ?? access.rawValue }
}
