import ApusCalls
package import ApusCore
package import ApusStorage
import SwiftProtobuf

/// The records of answering machines, messages and greetings.
///
/// A message consists of a record, which names the last stored frame, and of pieces. The pieces hold frames during the
/// recording and an MP4 afterwards. A step that adds frames also writes the record, under its version, so only one of
/// two recorders succeeds.
///
/// Isolation: `Sendable`; may be called from any task.
package struct AnsweringRecords: Sendable {
    static let machines = RecordCollection<AnsweringMachine>(
        "answering-machines", layout: 1, key: { OrderedKey(.text($0.party)) })
    /// The key is the call's id. The indexes order messages by party, newest first, and by expiry, and list those that
    /// are being recorded.
    static let messages = RecordCollection<AnsweringMessage>(
        "call-messages", layout: 1, key: { OrderedKey(.text($0.call)) },
        indexes: [
            RecordIndex("party") { message in
                guard message.state != .deleted else { return [] }
                return [OrderedKey(.text(message.party), .signed(-message.startedMs), .text(message.call))]
            },
            RecordIndex("expires") { [OrderedKey(.signed($0.state == .deleted ? 0 : $0.expiresMs))] },
            RecordIndex("recording") { $0.state == .recording ? [OrderedKey(.signed($0.untilMs))] : [] },
        ])
    package static let frames = RecordCollection<AnsweringPiece>("call-message-frames", layout: 1, key: pieceKey)
    package static let movies = RecordCollection<AnsweringPiece>("call-message-movies", layout: 1, key: pieceKey)
    static let greetings = RecordCollection<AnsweringPiece>("answering-greetings", layout: 1, key: pieceKey)
    package static let catalogue = RecordCatalogue([machines, messages, frames, movies, greetings, totals])

    @Sendable private static func pieceKey(_ piece: AnsweringPiece) -> OrderedKey { key(piece.of, piece.index) }

    static func key(_ name: String, _ index: UInt32) -> OrderedKey { OrderedKey(.text(name), .signed(Int64(index))) }

    /// The place of a party's greeting. There are two, so that a new greeting does not overwrite one that is being
    /// played.
    static func greetingPlace(_ number: UInt64, of party: String) -> String { "\(party)/\(number % 2)" }

    let store: any RecordStore

    package init(_ store: any RecordStore) { self.store = store }

    // MARK: - Machines

    func machine(_ party: String) async throws(ApusError) -> Record<AnsweringMachine>? {
        try await store.record(Self.machines, OrderedKey(.text(party)))
    }

    /// Changes a machine, and retries after a conflict. Settings of another account, to which the device belonged
    /// before, are discarded.
    ///
    /// - Parameter account: the account of the party.
    /// - Throws: 10030 if the conflicts persist; 10021.
    @discardableResult
    func change(
        _ party: String, of account: String, _ body: (inout AnsweringMachine) -> Void
    ) async throws(ApusError) -> (old: AnsweringMachine, new: AnsweringMachine) {
        let busy = ApusError(.versionConflict, "the answering machine is being changed by others")
        return try await store.change(attempts: 8, otherwise: busy) {
            () async throws(ApusError) -> ((old: AnsweringMachine, new: AnsweringMachine), RecordStep?) in
            let known = try await machine(party)
            let old = known?.body ?? .with { $0.party = party }
            var new = old
            if !old.isOf(account) { new = .with { ($0.party, $0.greeting) = (party, old.greeting) } }
            new.account = account
            body(&new)
            let write = try Self.machines.put(
                new, fence: .none, if: known.map { .version($0.version) } ?? .absent)
            return ((old, new), RecordStep(write))
        }.value
    }

    /// The first pieces of a greeting.
    func greetingPieces(
        _ number: UInt64, of party: String, count: UInt32
    ) async throws(ApusError) -> [AnsweringPiece] {
        try await pieces(Self.greetings, of: Self.greetingPlace(number, of: party), from: 0).filter { $0.index < count }
    }

    // MARK: - Messages

    /// A message that is not deleted.
    package func message(_ call: String) async throws(ApusError) -> Record<AnsweringMessage>? {
        let found = try await store.record(Self.messages, OrderedKey(.text(call)))
        return found?.body.state == .deleted ? nil : found
    }

    /// A page of a party's messages, newest first, and the token of the next page. The token is empty at the end.
    ///
    /// - Throws: 21031 for an invalid token.
    package func page(
        of party: String, after token: String, limit: Int
    ) async throws(ApusError) -> (messages: [AnsweringMessage], next: String) {
        let page = try await store.page(
            Self.messages, by: "party", prefix: OrderedKey(.text(party)),
            after: try CallPageToken.read(token, of: party), limit: limit)
        let messages = page.records.map(\.body)
        return (messages, page.next == nil ? "" : messages.last.map { CallPageToken.text($0.startedMs, $0.call) } ?? "")
    }

    /// Replaces a message, with further writes in the same step. Returns its new version.
    ///
    /// - Parameter version: the version that was read; nil for a new message.
    /// - Throws: 10030 if the message was changed since then.
    package func put(
        _ message: AnsweringMessage, version: UInt64?, with others: [RecordWrite] = []
    ) async throws(ApusError) -> UInt64 {
        let write = try Self.messages.put(message, fence: .none, if: version.map { .version($0) } ?? .absent)
        return try await store.commit(RecordStep([write] + others)).first ?? 0
    }

    /// The pieces of a message or a greeting from an index on, at most ``AnsweringConfiguration/stepCount``.
    package func pieces(
        _ collection: RecordCollection<AnsweringPiece>, of name: String, from index: UInt32
    ) async throws(ApusError) -> [AnsweringPiece] {
        try await store.page(
            collection, prefix: Self.key(name, index), below: Self.key(name, .max),
            limit: AnsweringConfiguration.stepCount
        ).records.map(\.body)
    }

    /// Removes all pieces. Can be repeated.
    func erase(_ collection: RecordCollection<AnsweringPiece>, of name: String) async throws(ApusError) {
        while true {
            let found = try await pieces(collection, of: name, from: 0)
            guard !found.isEmpty else { return }
            try await store.commit(
                RecordStep(found.map { collection.erase(Self.key(name, $0.index), fence: .none) }))
        }
    }

    /// Removes a message. Clients can no longer see it, even before its pieces are removed. If the node dies before
    /// that, another node removes them.
    package func delete(_ message: AnsweringMessage, _ version: UInt64) async throws(ApusError) {
        var deleted = message
        deleted.state = .deleted
        try await sweep(message.call, try await put(deleted, version: version, counting: 0).version)
    }

    /// Removes the pieces and the record of a deleted message.
    private func sweep(_ call: String, _ version: UInt64) async throws(ApusError) {
        try await erase(Self.frames, of: call)
        try await erase(Self.movies, of: call)
        try await store.commit(
            Self.messages.erase(OrderedKey(.text(call)), fence: .none, if: .version(version)))
    }

    /// Stores messages whose calls were lost during the recording, with the frames that they have.
    ///
    /// - Returns: the messages that this node stored.
    @discardableResult
    package func storeAbandoned(at now: Int64) async throws(ApusError) -> [AnsweringMessage] {
        var stored: [AnsweringMessage] = []
        let found = try await store.page(
            Self.messages, by: "recording", below: OrderedKey(.signed(now - AnsweringConfiguration.abandonedAfterMs)),
            limit: AnsweringConfiguration.stepCount
        ).records
        for message in found {
            do throws(ApusError) {
                if message.body.frames == 0 {
                    try await delete(message.body, message.version)
                } else {
                    try await store(message.body, message.version)
                    stored.append(message.body)
                }
            } catch {
                // On a conflict, another node stores the message. On any other failure, the next run continues.
                guard error.code == .versionConflict else {
                    guard !stored.isEmpty else { throw error }
                    return stored
                }
            }
        }
        return stored
    }

    /// Removes messages that were deleted or have expired.
    package func removeExpired(at now: Int64) async throws(ApusError) {
        while true {
            let found = try await store.page(
                Self.messages, by: "expires", below: OrderedKey(.signed(now)), limit: AnsweringConfiguration.stepCount
            ).records
            for message in found {
                do throws(ApusError) {
                    if message.body.state == .deleted {
                        try await sweep(message.body.call, message.version)
                    } else {
                        try await delete(message.body, message.version)
                    }
                } catch {
                    // Another node removes it.
                    guard error.code == .versionConflict else { throw error }
                }
            }
            guard found.count == AnsweringConfiguration.stepCount else { return }
        }
    }
}

extension AnsweringMachine {
    /// True if this account set up the machine. A machine of an earlier release names no account.
    func isOf(_ account: String) -> Bool { self.account.isEmpty || self.account == account }
}
