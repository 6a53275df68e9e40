import ApusCore
package import ApusSessions
import SwiftProtobuf

/// The writers of pending settings (IV-B10, docs/authority.md).
///
/// A pending setting stores the accounts and tokens that requested its value. Before the device receives the setting,
/// the owner of the device's shard checks them. If none of them may still control the device, the setting is withdrawn:
/// its value is again the one that the device reported last.
extension ThingState {
    /// The most writers of one value. If there are more, the oldest is forgotten.
    package static let writersMax = 4

    /// The writers of a pending setting. Empty if a node of an earlier release wrote the setting, which is then not
    /// checked.
    package static func writers(of leaf: ThingLeaf) -> [ThingWriter] {
        leaf.writers.filter { $0.version == leaf.version }
    }

    /// Withdraws the settings that are still pending and still have these versions.
    ///
    /// - Returns: the changes.
    package mutating func withdraw(_ settings: [ThingWithdraw.Setting], time: Int64) -> [ThingChanged] {
        var changes: [ThingChanged] = []
        for setting in settings {
            guard
                let index = leaves.firstIndex(where: {
                    $0.valuePath == setting.path && $0.version == setting.version && $0.isPending
                }), !leaves[index].reported.isEmpty
            else { continue }
            version += 1
            leaves[index].value = leaves[index].reported
            (leaves[index].time, leaves[index].version, leaves[index].writers) = (time, version, [])
            changes.append(ThingChanged(leaves[index], from: version - 1, to: version))
        }
        return changes
    }
}

extension ThingLeaf {
    /// The writers to store with the leaf.
    ///
    /// - Parameters:
    ///   - before: the leaf before the change; nil: a new leaf.
    ///   - writer: the client that changes the leaf; nil for the device or an unknown client.
    ///   - version: the leaf's version if its value changes.
    func writers(after before: ThingLeaf?, by writer: ThingWriter?, version: UInt64) -> [ThingWriter] {
        guard isPending else { return [] }
        let isNew = before.map { !value.isExactly($0.value) } ?? true
        let known = isNew ? [] : writers
        guard var writer else { return known }
        writer.version = isNew ? version : self.version
        // A client that repeats a request, or has a newer token, is one writer.
        let others = known.filter { ($0.account, $0.access) != (writer.account, writer.access) }
        return others.suffix(ThingState.writersMax - 1) + [writer]
    }
}

extension ThingWriter {
    package init(_ authority: Authority) {
        self.init()
        let token = authority.token
        (account, access) = (authority.account.rawValue, authority.identities.first ?? "")
        (tokenTag, issuedS, expiresS) = (token.tag, token.issuedAt, token.expires)
        restricted = authority.isRestricted
    }
}

extension Authority {
    init(_ writer: ThingWriter) {
        self.init(
            account: AccountID(unchecked: writer.account), identities: [writer.access],
            token: TokenMark(tag: writer.tokenTag, issuedAt: writer.issuedS, expires: writer.expiresS),
            isRestricted: writer.restricted)
    }
}
