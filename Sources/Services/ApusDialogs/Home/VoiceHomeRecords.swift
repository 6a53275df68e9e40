import ApusContract
package import ApusCore
package import ApusStorage
import SwiftProtobuf

/// The durable records of homes, one for each account.
///
/// Isolation: `Sendable`; may be called from any task.
package struct VoiceHomeRecords: Sendable {
    static let homes = RecordCollection<DialogStoredHome>(
        "voice-homes", layout: 1, key: { OrderedKey(.text($0.account)) })
    package static let catalogue = RecordCatalogue([homes])
    private static let attemptsMax = 8

    private let store: any RecordStore

    package init(_ store: any RecordStore) { self.store = store }

    /// The home of an account; an empty one if none was written.
    ///
    /// - Throws: 10021 if the records cannot be read.
    package func home(of account: AccountID) async throws(ApusError) -> VoiceHome {
        guard let stored = try await store.record(Self.homes, OrderedKey(.text(account.rawValue)))?.body else {
            return VoiceHome()
        }
        return Self.home(stored)
    }

    /// Writes a home that was checked. The same home again changes nothing.
    ///
    /// - Parameter revision: that which it must have; 0: any.
    /// - Throws: 10030 if it has another revision, 10021 if the records cannot be read.
    package func put(
        _ home: VoiceHome, of account: AccountID, ifRevision revision: UInt64
    ) async throws(ApusError) -> VoiceHome {
        var content = home.content
        content.revision = 0
        guard let bytes = try? content.serializedData() else { throw ApusError(.internalFailure) }
        let key = OrderedKey(.text(account.rawValue))
        let busy = ApusError(.overloaded, "the home is changed by several at once; try again")
        let stored = try await store.change(attempts: Self.attemptsMax, otherwise: busy) {
            () async throws(ApusError) -> (DialogStoredHome, RecordStep?) in
            let known = try await store.record(Self.homes, key)
            if let known, known.body.home == bytes { return (known.body, nil) }
            let before = known?.body.revision ?? 0
            guard revision == 0 || revision == before else {
                throw ApusError(.versionConflict, "the home has revision \(before)")
            }
            let new = DialogStoredHome.with {
                ($0.account, $0.revision, $0.home) = (account.rawValue, before + 1, bytes)
            }
            let write = try Self.homes.put(new, fence: .none, if: known.map { .version($0.version) } ?? .absent)
            return (new, RecordStep(write))
        }.value
        return Self.home(stored)
    }

    private static func home(_ stored: DialogStoredHome) -> VoiceHome {
        var content = (try? ClientVoiceHome(serializedBytes: stored.home)) ?? ClientVoiceHome()
        content.revision = stored.revision
        return VoiceHome(stored: content)
    }
}
