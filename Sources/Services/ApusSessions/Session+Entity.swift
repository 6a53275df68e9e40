package import ApusCluster
import ApusCore
import ApusCrypto
import Foundation

extension Session {
    /// The entity of the identity. A device's key is its id, which is bound to one account; an app's key is its account
    /// and access id.
    package var entityKind: EntityKind { role == .device ? .device : .app }
    package var entityKey: String { device?.rawValue ?? Self.entityKey(of: access, account, tab) }
    /// Access ids are unique only within an account. If the two names are longer than a key may be, the key is their
    /// digest, after a character that no name contains. So is the number of a tab.
    private static func entityKey(of access: AccessID, _ account: AccountID, _ tab: UInt64) -> String {
        let text = "\(account)/\(access)" + (tab == 0 ? "" : "#" + String(tab, radix: 36))
        guard text.utf8.count > EntityAddress.keyByteCountMax else { return text }
        return "#"
            + SHA256.hash(data: Array(text.utf8)).prefix(16).map { String(Int($0), radix: 36) }.joined(separator: ".")
    }

    /// Its name within its account.
    var identity: String { device?.rawValue ?? access.rawValue }
}
