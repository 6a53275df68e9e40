package import ApusCore
import ApusStorage
import SwiftProtobuf

/// The limits on the bytes of messages and greetings in the record store, so that one account cannot fill the store.
package struct AnsweringShares: Sendable, Hashable {
    /// The most bytes of one account.
    package var accountMax: Int
    /// The most bytes of all accounts. One account may have at most eight ninths of what other accounts leave (decision
    /// 14).
    package var allMax: Int

    package init(accountMax: Int, allMax: Int) { (self.accountMax, self.allMax) = (accountMax, allMax) }

    /// The number of bytes that an account may add.
    package func room(own: UInt64, all: UInt64) -> UInt64 {
        let others = all - min(all, own)
        let left = UInt64(max(0, allMax)) - min(others, UInt64(max(0, allMax)))
        let limit = min(UInt64(max(0, accountMax)), left / 9 * 8)
        return limit - min(limit, own)
    }
}

/// Totals change in the same step as the data that they count. They are therefore correct after the death of any node,
/// and a repeated step changes them once.
extension AnsweringRecords {
    static let totals = RecordCollection<AnsweringTotals>(
        "answering-totals", layout: 1, key: { OrderedKey(.text($0.account)) })
    /// The key of the total of all accounts. It is not an account's name.
    private static let all = "*"
    private static let attemptsMax = 32
    private static let busyGreeting = ApusError(.versionConflict, "the greeting is being changed by others")

    /// The bytes of one account, and of all accounts.
    package func bytes(of account: String) async throws(ApusError) -> (own: UInt64, all: UInt64) {
        let found = try await store.records(
            Self.totals, [OrderedKey(.text(account)), OrderedKey(.text(Self.all))])
        return (found[0]?.body.bytes ?? 0, found[1]?.body.bytes ?? 0)
    }

    /// Writes a message, and the bytes that are counted for it.
    ///
    /// - Parameters:
    ///   - version: the version that was read; nil for a new message.
    ///   - bytes: the bytes that are counted from now on.
    ///   - shares: nil if the count does not grow, or if the bytes are already stored.
    /// - Returns: the message as written, with its version.
    /// - Throws: 10030 if the message was changed since then; 10007 if the account would exceed its share.
    package func put(
        _ message: AnsweringMessage, version: UInt64?, counting bytes: UInt64, within shares: AnsweringShares? = nil
    ) async throws(ApusError) -> (message: AnsweringMessage, version: UInt64) {
        var new = message
        new.countedBytes = bytes
        let write = try Self.messages.put(new, fence: .none, if: version.map { .version($0) } ?? .absent)
        let charge = [message.account: Int64(clamping: bytes) - Int64(clamping: message.countedBytes)]
        let busy = ApusError(.versionConflict, "the messages of the account are being changed by others")
        let versions = try await store.change(attempts: Self.attemptsMax, otherwise: busy) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            let known = try await store.record(Self.messages, OrderedKey(.text(message.call)))?.version
            guard known == version else { throw ApusError(.versionConflict, "the message was changed by others") }
            return ((), try await step([write], charging: charge, within: shares))
        }.versions
        return (new, versions.first ?? 0)
    }

    /// Writes a piece of a greeting. Replaces an existing piece with the same place and index.
    ///
    /// - Throws: 10007 if the account would exceed its share.
    func putGreeting(
        _ piece: AnsweringPiece, of account: String, within shares: AnsweringShares
    ) async throws(ApusError) {
        var piece = piece
        piece.account = account
        let key = Self.key(piece.of, piece.index)
        try await store.change(attempts: Self.attemptsMax, otherwise: Self.busyGreeting) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            let old = try await store.record(Self.greetings, key)
            var charges = [account: Int64(piece.data.count)]
            if let old = old?.body, !old.account.isEmpty { charges[old.account, default: 0] -= Int64(old.data.count) }
            let write = try Self.greetings.put(piece, fence: .none, if: old.map { .version($0.version) } ?? .absent)
            return ((), try await step([write], charging: charges, within: shares))
        }
    }

    /// Removes all pieces of a greeting. May be repeated.
    ///
    /// - Throws: 10030 if conflicts persist.
    func eraseGreeting(_ place: String) async throws(ApusError) {
        while try await erasePieces(of: place) {}
    }

    /// Removes the first pieces of a greeting. Returns false if no piece is left.
    private func erasePieces(of place: String) async throws(ApusError) -> Bool {
        try await store.change(attempts: Self.attemptsMax, otherwise: Self.busyGreeting) {
            () async throws(ApusError) -> (Bool, RecordStep?) in
            let found = try await store.page(
                Self.greetings, prefix: Self.key(place, 0), below: Self.key(place, .max),
                limit: AnsweringConfiguration.stepCount
            ).records
            guard !found.isEmpty else { return (false, nil) }
            var charges: [String: Int64] = [:]
            for piece in found where !piece.body.account.isEmpty {
                charges[piece.body.account, default: 0] -= Int64(piece.body.data.count)
            }
            let writes = found.map { Self.greetings.erase($0.key, fence: .none, if: .version($0.version)) }
            return (true, try await step(writes, charging: charges, within: nil))
        }.value
    }

    /// Adds the resulting changes of the totals to the writes, as one step.
    ///
    /// - Throws: 10007 if an account that grows would exceed its share.
    private func step(
        _ writes: [RecordWrite], charging charges: [String: Int64], within shares: AnsweringShares?
    ) async throws(ApusError) -> RecordStep {
        var step = RecordStep(writes)
        let accounts = charges.filter { $0.value != 0 }.keys.sorted()
        guard !accounts.isEmpty else { return step }
        let keys = (accounts + [Self.all]).map { OrderedKey(.text($0)) }
        let found = try await store.records(Self.totals, keys)
        let all = found.last??.body.bytes ?? 0
        for (account, record) in zip(accounts, found) {
            let (own, delta) = (record?.body.bytes ?? 0, charges[account] ?? 0)
            if let shares, delta > 0, UInt64(delta) > shares.room(own: own, all: all) {
                throw ApusError(.overloaded, "the messages and greetings of the account have no more room")
            }
            step.writes.append(try Self.totalWrite(account, own, delta, record?.version))
        }
        let sum = charges.values.reduce(0, +)
        step.writes.append(try Self.totalWrite(Self.all, all, sum, found.last??.version))
        return step
    }

    private static func totalWrite(
        _ account: String, _ bytes: UInt64, _ delta: Int64, _ version: UInt64?
    ) throws(ApusError) -> RecordWrite {
        let sum = delta < 0 ? bytes - min(bytes, delta.magnitude) : bytes + delta.magnitude
        return try totals.put(
            .with { ($0.account, $0.bytes) = (account, sum) }, fence: .none, if: version.map { .version($0) } ?? .absent
        )
    }
}
