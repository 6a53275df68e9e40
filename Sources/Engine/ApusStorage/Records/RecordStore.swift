package import ApusCore

/// What the cluster remembers of a device over restarts (D6, D9).
package struct DeviceRecord: Sendable, Hashable {
    package var device: DeviceID
    /// The account that the device is bound to; nil where it is bound to none.
    package var account: AccountID?
    /// When it was bound, in milliseconds of Unix time; nil where it is not. For people: never decides anything.
    package var boundAtUnixMilliseconds: Int64?
    /// When it was last connected, in milliseconds of Unix time. For people: never decides anything.
    package var lastSeenUnixMilliseconds: Int64?
    /// The epoch of the device's shard under which the record was written: its fencing token.
    package var epoch: Epoch

    package init(
        device: DeviceID, account: AccountID? = nil, boundAtUnixMilliseconds: Int64? = nil,
        lastSeenUnixMilliseconds: Int64? = nil, epoch: Epoch
    ) {
        self.device = device
        self.account = account
        self.boundAtUnixMilliseconds = boundAtUnixMilliseconds
        self.lastSeenUnixMilliseconds = lastSeenUnixMilliseconds
        self.epoch = epoch
    }
}

/// Which clients of an identity are newest and which were superseded, kept for as long as a ticket of one of them may
/// be shown (IV-A5).
package struct IdentityRecord: Sendable, Hashable {
    /// The identity, as its service names it.
    package var identity: String
    /// The order of its newest client: the epoch that it was given under, then a number.
    package var epoch: Epoch
    package var sequence: UInt64
    /// The instance of that client; 0 where it named none.
    package var instance: UInt64
    /// Instances that were superseded, the newest last.
    package var superseded: [UInt64]
    /// When the record may be forgotten, in Unix seconds.
    package var expires: Int64

    package init(
        identity: String, epoch: Epoch, sequence: UInt64, instance: UInt64, superseded: [UInt64], expires: Int64
    ) {
        self.instance = instance
        self.identity = identity
        self.epoch = epoch
        self.sequence = sequence
        self.superseded = superseded
        self.expires = expires
    }

    /// An older record does not replace a newer one.
    func isOlder(than other: Self) -> Bool { (epoch, sequence) < (other.epoch, other.sequence) }
}

/// Where records stand (D9).
///
/// Writes are fenced: a row remembers the highest epoch that wrote it, a removed one too, and an older epoch is
/// refused with
/// 10013. So an owner that was paused and does not know yet that its shard went elsewhere cannot undo what the new
/// owner wrote. Reads are not fenced. Other errors: 10021 where the storage cannot be used, 10006 where the task
/// was cancelled. May be called from any task.
package protocol RecordStore: Sendable {
    /// The device's record; nil where there is none.
    func record(of device: DeviceID) async throws(ApusError) -> DeviceRecord?

    /// Writes the record whole, as one step.
    ///
    /// - Throws: 10013 where a later epoch wrote it or removed it.
    func save(_ record: DeviceRecord) async throws(ApusError)

    /// Writes the record where the device is bound to no account, as one step, and answers the record as it stands
    /// then: another one's where that was first.
    ///
    /// - Throws: 10013 where a later epoch wrote it or removed it, and the device is bound to no account.
    func bind(_ record: DeviceRecord) async throws(ApusError) -> DeviceRecord

    /// What is remembered of an identity's clients; nil where nothing is.
    func identity(_ identity: String) async throws(ApusError) -> IdentityRecord?

    /// Writes what is remembered of several identities as one step, but for those of which something newer is; forgets
    /// those that expired by `wallSeconds`.
    func save(_ identities: [IdentityRecord], wallSeconds: Int64) async throws(ApusError)

    /// Adds a revocation, and forgets those that expired by `wallSeconds`. When it returns, the revocation is durable.
    ///
    /// - Throws: 10007 where ``RecordLimits/revocationCountMax`` are kept already.
    func revoke(_ revocation: RevocationRecord, wallSeconds: Int64) async throws(ApusError)

    /// What is revoked; nil where that is still as it was under `mark`. Those that expired by `wallSeconds` are left
    /// out.
    func revocations(since mark: RevocationMark?, wallSeconds: Int64) async throws(ApusError) -> RevocationSet?

    /// Removes the record; without one, only the epoch is remembered.
    ///
    /// - Throws: 10013 where a later epoch wrote it or removed it.
    func remove(_ device: DeviceID, epoch: Epoch) async throws(ApusError)

    /// Devices bound to an account, by id, after `last`.
    ///
    /// - Parameter limit: At most ``RecordLimits/pageCountMax``; more is cut to it.
    func records(of account: AccountID, after last: DeviceID?, limit: Int) async throws(ApusError) -> [DeviceRecord]
}

/// The bounds of a record store.
package enum RecordLimits {
    /// The most records of one answer.
    package static let pageCountMax = 1000
    /// The most revocations that are kept; one of a whole account takes the place of many.
    package static let revocationCountMax = 100_000
}
