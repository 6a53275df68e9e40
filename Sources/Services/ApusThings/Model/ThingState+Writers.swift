import ApusCore
package import ApusSessions
import SwiftProtobuf

/// Who has written the settings that the device has not applied yet (IV-B10, docs/authority.md).
///
/// A pending setting has the accounts and tokens of those who asked for its value. Before the device receives it, the
/// node of the device checks them, and withdraws the settings for which none may control the device any more: each is
/// then again what the device has reported last.
extension ThingState {
    /// Those who asked for the same value of one setting. Of more, the oldest is forgotten.
    package static let writersMax = 4

    /// Those who have written a pending setting; empty: a node of an earlier release wrote it, and it is not checked.
    package static func writers(of leaf: ThingLeaf) -> [ThingWriter] {
        leaf.writers.filter { $0.version == leaf.version }
    }

    /// Withdraws settings that have still these versions, and are pending.
    ///
    /// - Returns: what has changed.
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
    /// The writers of the leaf once it is stored.
    ///
    /// - Parameters:
    ///   - before: the leaf as it was.
    ///   - writer: who changes it; nil if the device does, or it is not known.
    ///   - version: that of the leaf if its value changes.
    func writers(after before: ThingLeaf?, by writer: ThingWriter?, version: UInt64) -> [ThingWriter] {
        guard isPending else { return [] }
        let isNew = before.map { !value.isExactly($0.value) } ?? true
        let known = isNew ? [] : writers
        guard var writer else { return known }
        writer.version = isNew ? version : self.version
        // Who repeats a request, or has a newer token, is one writer.
        let others = known.filter { ($0.account, $0.access) != (writer.account, writer.access) }
        return others.suffix(ThingState.writersMax - 1) + [writer]
    }
}

extension ThingWriter {
    package init(_ session: Session) {
        self.init()
        (account, access) = (session.account.rawValue, session.access.rawValue)
        (tokenTag, issuedS, expiresS) = (session.token.tag, session.token.issuedAt, session.token.expires)
        restricted = session.allowedDevices != nil
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
