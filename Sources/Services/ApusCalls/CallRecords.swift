package import ApusCore
import ApusSessions
package import ApusStorage
import Foundation
import SwiftProtobuf

/// The records of calls that have ended (CALL-3): the parties, the times and the reason of the end.
///
/// Isolation: `Sendable`; may be called from any task.
package struct CallRecords: Sendable {
    /// By id, with an index by party, the newest first, and one by the time of the end.
    static let calls = RecordCollection<CallState>(
        "calls", layout: 1, key: { OrderedKey(.text($0.id)) },
        indexes: [
            RecordIndex("party") { call in
                call.claims.map { OrderedKey(.text($0.party.name), .signed(-call.startedMs), .text(call.id)) }
            },
            RecordIndex("ended") { [OrderedKey(.signed($0.endedMs))] },
        ])
    package static let catalogue = RecordCatalogue([calls, pushes, pushOwners])

    /// How long a record is kept.
    static let keepTime: Int64 = 30 * 86_400_000
    /// The most expired records that a new one removes.
    private static let expiredMax = 100

    let store: any RecordStore
    let sessions: SessionRecords

    package init(_ store: any RecordStore) { (self.store, sessions) = (store, SessionRecords(store)) }

    /// Writes the record of a call that has ended. A repetition has no effect.
    func write(_ state: CallState) async throws(ApusError) {
        var body = state
        body.extra = Data()
        // Connections are no part of the history.
        for index in body.legs.indices { body.legs[index].session = 0 }
        let expired = try await store.page(
            Self.calls, by: "ended", below: OrderedKey(.signed(state.endedMs - Self.keepTime)), limit: Self.expiredMax
        ).records
        do throws(ApusError) {
            try await store.commit(Self.calls.put(body, fence: .none, if: .absent))
        } catch {
            guard error.code == .versionConflict else { throw error }
        }
        _ = await store.commit(
            expired.map { RecordStep(Self.calls.erase($0.key, fence: .none, if: .version($0.version))) })
    }

    /// Some calls of a party, the newest first, and the token of the next page; empty at the end.
    ///
    /// - Parameter oldest: calls that have begun before are left out. Unix milliseconds.
    /// - Throws: 21031 for an invalid token.
    func page(
        of party: CallParty, since oldest: Int64, after token: String, limit: Int
    ) async throws(ApusError) -> (calls: [CallState], next: String) {
        let page = try await store.page(
            Self.calls, by: "party", prefix: OrderedKey(.text(party.name)),
            after: try CallPageToken.read(token, of: party.name), limit: limit)
        let all = page.records.map(\.body)
        let calls = all.filter { $0.startedMs >= oldest }
        let next =
            page.next == nil || calls.count < all.count
            ? "" : calls.last.map { CallPageToken.text($0.startedMs, $0.id) } ?? ""
        return (calls, next)
    }
}

/// The end of a page of calls, or of messages, of a party: the newest first, with indexes of the party, the start with
/// its sign changed, and the session id.
package enum CallPageToken {
    package static func text(_ startedMs: Int64, _ call: String) -> String { "\(startedMs)-\(call)" }

    /// Nil for an empty text: the first page.
    ///
    /// - Throws: 21031 for a text that is no token.
    package static func read(_ text: String, of party: String) throws(ApusError) -> RecordToken? {
        guard !text.isEmpty else { return nil }
        let parts = text.split(separator: "-", maxSplits: 1, omittingEmptySubsequences: false)
        guard parts.count == 2, (1...16).contains(parts[0].utf8.count), let started = Int64(parts[0]),
            CallID(rawValue: String(parts[1])) != nil
        else { throw ApusError(.badParameter, "pageToken is not one of this list") }
        let id = String(parts[1])
        return RecordToken(value: OrderedKey(.text(party), .signed(-started), .text(id)), key: OrderedKey(.text(id)))
    }
}

extension CallParty {
    /// The name in records.
    package var name: String { "\(kind == .device ? "device" : "account")/\(id)" }
}
