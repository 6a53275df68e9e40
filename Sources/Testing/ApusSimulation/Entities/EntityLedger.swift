import ApusCluster
import ApusCore

/// What actually happened, for the checks: every number that an entity's content may have, and the answer of its
/// caller.
struct EntityLedger {
    /// Why an entity carried something out.
    enum Cause: Equatable {
        /// A client's request. Without an id it is sent once.
        case request(hasID: Bool)
        /// Another entity's message, caused by this request.
        case telling(Int)
        /// A reminder that this request set.
        case reminder(Int)
    }

    struct Entry {
        var entity: EntityAddress
        var cause: Cause
        var operation: SimulatedCall.Operation
        /// The answer to its caller, and its epoch.
        var answer: (bytes: [UInt8], epoch: Epoch)?
        /// Its handler threw, and its caller received the error.
        var hasThrown = false
        /// Of a message to another entity: the epoch under which it was sent.
        var leftUnder: Epoch?
        /// Of a reminder: itself.
        var reminder: Reminder?
    }

    private(set) var entries: [Entry] = []
    /// Acknowledged numbers by entity.
    private(set) var acknowledged: [EntityAddress: [Int]] = [:]
    /// By shard, the newest epoch whose owner reported that changes may be missing.
    private(set) var lossEpochs: [ShardID: Epoch] = [:]
    private(set) var acknowledgedCount = 0

    mutating func add(_ entity: EntityAddress, _ cause: Cause, _ operation: SimulatedCall.Operation) -> Int {
        entries.append(Entry(entity: entity, cause: cause, operation: operation))
        return entries.count - 1
    }

    mutating func left(_ number: Int, under epoch: Epoch) { entries[number].leftUnder = epoch }
    mutating func wasSet(_ reminder: Reminder, as number: Int) { entries[number].reminder = reminder }
    mutating func threw(_ number: Int) { entries[number].hasThrown = true }

    /// A caller received the acknowledgement of its change.
    mutating func acknowledge(_ number: Int, _ bytes: [UInt8], epoch: Epoch) {
        entries[number].answer = (bytes, epoch)
        acknowledged[entries[number].entity, default: []].append(number)
        acknowledgedCount += 1
    }

    mutating func noteLoss(of shard: ShardID, epoch: Epoch) {
        lossEpochs[shard] = max(lossEpochs[shard] ?? 0, epoch)
    }

    /// True if the change may be missing: a later owner of its shard reported a loss.
    func isExcused(_ number: Int) -> Bool {
        let entry = entries[number]
        guard !entry.entity.isRecorded, let loss = lossEpochs[entry.entity.shard] else { return false }
        return (entry.answer?.epoch ?? entry.leftUnder ?? 0) < loss
    }

    /// The first acknowledged change of the entity that is not among these, although no loss was reported.
    func missing(from numbers: [Int], of entity: EntityAddress) -> Int? {
        guard let acknowledged = acknowledged[entity] else { return nil }
        let held = Set(numbers)
        return acknowledged.first { !held.contains($0) && !isExcused($0) }
    }

    /// True if the message of an entity may come from a missing change: a later owner of its shard reported a loss.
    func isExcused(telling number: Int) -> Bool {
        guard case .telling(let request) = entries[number].cause, !entries[request].entity.isRecorded,
            let loss = lossEpochs[entries[request].entity.shard]
        else { return false }
        return (entries[number].leftUnder ?? 0) < loss
    }

    /// The request that set a reminder, by the reminder's number.
    func request(ofReminder number: Int) -> Int? {
        guard case .reminder(let request) = entries[number].cause else { return nil }
        return request
    }
}
