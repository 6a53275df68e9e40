import ApusCluster
import ApusCore

/// What really happened, for the checks: every number that an entity may have in its content, and what its caller was
/// told.
struct EntityLedger {
    /// Why an entity carries something out.
    enum Cause: Equatable {
        /// A client asked; without an id it asks once.
        case request(hasID: Bool)
        /// Another entity told it, by this request.
        case telling(Int)
        /// It is reminded, as this request wanted.
        case reminder(Int)
    }

    struct Entry {
        var entity: EntityAddress
        var cause: Cause
        var operation: SimulatedCall.Operation
        /// What its caller was answered, and under which epoch.
        var answer: (bytes: [UInt8], epoch: Epoch)?
        /// Its handler threw, as the caller was told.
        var hasThrown = false
        /// Of a telling: under which epoch it left.
        var leftUnder: Epoch?
        /// Of a reminder: itself.
        var reminder: Reminder?
    }

    private(set) var entries: [Entry] = []
    /// Acknowledged numbers by entity.
    private(set) var acknowledged: [EntityAddress: [Int]] = [:]
    /// By shard, the newest epoch whose owner said that changes may be missing.
    private(set) var lossEpochs: [ShardID: Epoch] = [:]
    private(set) var acknowledgedCount = 0

    mutating func add(_ entity: EntityAddress, _ cause: Cause, _ operation: SimulatedCall.Operation) -> Int {
        entries.append(Entry(entity: entity, cause: cause, operation: operation))
        return entries.count - 1
    }

    mutating func left(_ number: Int, under epoch: Epoch) { entries[number].leftUnder = epoch }
    mutating func wasSet(_ reminder: Reminder, as number: Int) { entries[number].reminder = reminder }
    mutating func threw(_ number: Int) { entries[number].hasThrown = true }

    /// A caller was told that its change is made.
    mutating func acknowledge(_ number: Int, _ bytes: [UInt8], epoch: Epoch) {
        entries[number].answer = (bytes, epoch)
        acknowledged[entries[number].entity, default: []].append(number)
        acknowledgedCount += 1
    }

    mutating func noteLoss(of shard: ShardID, epoch: Epoch) {
        lossEpochs[shard] = max(lossEpochs[shard] ?? 0, epoch)
    }

    /// The change may be missing: a later owner of its shard said so.
    func isExcused(_ number: Int) -> Bool {
        let entry = entries[number]
        guard !entry.entity.isRecorded, let loss = lossEpochs[entry.entity.shard] else { return false }
        return (entry.answer?.epoch ?? entry.leftUnder ?? 0) < loss
    }

    /// The first acknowledged change of the entity that is not among these, though nobody reported a loss.
    func missing(from numbers: [Int], of entity: EntityAddress) -> Int? {
        guard let acknowledged = acknowledged[entity] else { return nil }
        let held = Set(numbers)
        return acknowledged.first { !held.contains($0) && !isExcused($0) }
    }

    /// The message of an entity may come from a change that is missing: a later owner of its shard said so.
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
