package import ApusCore
import DequeModule
import OrderedCollections

/// Delivers the outbox entries of the shards that this node owns (D15).
///
/// The entities of this node report what they have stored. The records are read when shards are gained, and whenever
/// they may have an entry that was not reported: after the shard was claimed, since a former owner may have stored one
/// until then, and after an entity was loaded again whose last step was not confirmed, since that step may have been
/// made until then. Every `rereadInterval` they are read in any case.
///
/// **Order.** The entries of an entity are delivered in the order of their numbers, one at a time. What this node
/// stores waits until the records were read after that: no earlier entry is missing then. What is read waits for
/// nothing, since the records are in the same order.
///
/// **At least once.** A delivery is repeated until it succeeds, with a growing pause. The record is removed after that,
/// together with others. If the node dies before, the next owner delivers the entry again.
///
/// **Memory.** ``isFull(_:unstored:)`` says that an entity, or the node, has too many entries. Its changes are refused
/// then. What is read from the records beyond twice the bound is left for the next reading. So there is room for what
/// must be delivered first.
///
/// Pure value: confined to its owner. The shell carries out the actions and reports the results.
package struct OutboxStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// The most entries that are held, and the most bytes of their payloads.
        package var heldCountMax = 10_000
        package var heldByteCountMax = 64 << 20
        /// The most entries of an entity, with those that are not stored yet.
        package var entityCountMax = 32
        /// The most deliveries in progress.
        package var deliveringCountMax = 2_000
        /// The pause after the first failure of a delivery, and the longest. A failed read is tried again after the
        /// first.
        package var retryDelay = Duration.milliseconds(250)
        package var retryDelayMax = Duration.seconds(5)
        package var rereadInterval = Duration.seconds(5)
        /// The shortest time between two readings.
        package var readInterval = Duration.milliseconds(100)
        /// The most records that are removed at a time. One step can remove all of them.
        package var removeCountMax = 100

        package init() {}
    }

    package enum Input: Sendable {
        /// This node has gained these shards…
        case gained([ShardID])
        /// …or lost them.
        case lost([ShardID])
        /// This node has claimed the shard: no former owner stores entries from now on.
        case claimed(ShardID)
        /// A step of the entity was not confirmed. It may be made until the entity is loaded again.
        case unconfirmed(EntityAddress)
        /// The entity was loaded. A step that was not confirmed is made by now, or never.
        case loaded(EntityAddress)
        /// Entities of this node have stored these entries, in this order.
        case stored([OutboxEntry])
        /// A page of the records. Entries of other nodes' shards are ignored.
        ///
        /// - Parameter next: the page's last entry; nil if there are no more.
        case read([OutboxEntry], next: OutboxEntry.ID?)
        case readFailed
        case delivered(OutboxEntry.ID)
        case deliveryFailed(OutboxEntry.ID)
        /// The records are removed, or this node may no longer remove them.
        case removed([OutboxEntry.ID])
        case removalFailed([OutboxEntry.ID])
        /// Time has passed. Needed every 100 ms.
        case tick
    }

    package enum Action: Sendable, Equatable {
        /// Read the entries of the records after this one, in the order of their keys; nil: from the first. Answer with
        /// `read` or `readFailed`.
        case read(after: OutboxEntry.ID?)
        /// Deliver it; answer with `delivered` or `deliveryFailed`.
        case deliver(OutboxEntry)
        /// Remove the records of delivered entries; answer with `removed` and `removalFailed`.
        case remove([OutboxEntry.ID])
    }

    private struct Line: Sendable {
        /// Sorted by number.
        var entries: Deque<OutboxEntry> = []
        /// The largest number that was read from the records.
        var readTo: UInt64 = 0
        var isDelivering = false
        var failureCount = 0
        /// The time of the next delivery after a failed one.
        var retryAt: MonotonicTime?
    }

    private enum Reading: Sendable, Equatable {
        case none
        case underWay
        case failed(retryAt: MonotonicTime)
    }

    private let configuration: Configuration
    private var owned: Set<ShardID> = []
    /// Owned shards whose records must be read before their entries are delivered.
    private var unread: Set<ShardID> = []
    /// Those of them that the present reading covers.
    private var covered: Set<ShardID> = []
    /// Entities whose last step was not confirmed, until they are loaded again.
    private var unconfirmed: Set<EntityAddress> = []
    private var reading = Reading.none
    private var lastReading: MonotonicTime?
    private var lines: [EntityAddress: Line] = [:]
    /// Entities whose first entry may be delivered.
    private var ready: Deque<EntityAddress> = []
    /// Entities that wait after a failed delivery.
    private var resting: OrderedSet<EntityAddress> = []
    private var deliveringCount = 0
    /// Delivered entries whose records are to be removed.
    private var done: OrderedSet<OutboxEntry.ID> = []
    private var removing: Set<OutboxEntry.ID> = []
    /// The last removal failed: the next one waits for the tick.
    private var hasRemovalFailed = false
    /// Entries that were removed while the records were read: a page may be older.
    private var removedSince: Set<OutboxEntry.ID> = []
    /// Entries that wait or are delivered, and the bytes of their payloads.
    package private(set) var heldCount = 0
    package private(set) var heldByteCount = 0

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    /// True if there is nothing to deliver or to remove.
    package var isIdle: Bool { heldCount == 0 && done.isEmpty && removing.isEmpty && unread.isEmpty }

    /// True if the entity must not add a further entry now.
    ///
    /// - Parameter unstored: the entries that it has added and that are not stored yet.
    package func isFull(_ entity: EntityAddress, unstored: Int) -> Bool {
        heldCount + done.count + removing.count >= configuration.heldCountMax
            || heldByteCount >= configuration.heldByteCountMax
            || (lines[entity]?.entries.count ?? 0) + unstored >= configuration.entityCountMax
    }

    /// Handles one event. The actions must be carried out in order.
    package mutating func handle(_ input: Input, now: MonotonicTime) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .gained(let shards):
            owned.formUnion(shards)
            readAgain(shards, now, &actions)
        case .claimed(let shard): if owned.contains(shard) { readAgain([shard], now, &actions) }
        case .unconfirmed(let entity): if owned.contains(entity.shard) { unconfirmed.insert(entity) }
        case .loaded(let entity):
            if unconfirmed.remove(entity) != nil { readAgain([entity.shard], now, &actions) }
        case .lost(let shards): lose(Set(shards))
        // If the shard's gain is not reported yet, the read that follows it includes these.
        case .stored(let entries):
            for entry in entries where owned.contains(entry.entity.shard) && !isDone(entry.id) {
                hold(entry, isRead: false)
            }
        case .read(let page, let next): take(page, next, now, &actions)
        case .readFailed: reading = .failed(retryAt: now + configuration.retryDelay)
        case .delivered(let id): delivered(id)
        case .deliveryFailed(let id): failed(id, now)
        case .removed(let ids):
            removing.subtract(ids)
            if reading == .underWay { removedSince.formUnion(ids) }
        case .removalFailed(let ids):
            for id in ids where removing.remove(id) != nil { done.append(id) }
            hasRemovalFailed = true
        case .tick: tick(now, &actions)
        }
        deliver(&actions)
        if done.count >= configuration.removeCountMax, !hasRemovalFailed { remove(&actions) }
        return actions
    }

    // MARK: Reading

    /// Reads the records from the beginning, after the present reading and not more often than `readInterval`.
    private mutating func readAgain(_ shards: [ShardID], _ now: MonotonicTime, _ actions: inout [Action]) {
        unread.formUnion(shards)
        covered.subtract(shards)
        if isDue(after: configuration.readInterval, now) { read(now, &actions) }
    }

    private func isDue(after interval: Duration, _ now: MonotonicTime) -> Bool {
        reading == .none && lastReading.map { now - $0 >= interval } ?? true
    }

    private mutating func read(_ now: MonotonicTime, _ actions: inout [Action]) {
        reading = .underWay
        lastReading = now
        covered = unread
        removedSince.removeAll()
        actions.append(.read(after: nil))
    }

    private mutating func take(
        _ page: [OutboxEntry], _ next: OutboxEntry.ID?, _ now: MonotonicTime, _ actions: inout [Action]
    ) {
        guard reading == .underWay else { return }
        for entry in page where isWanted(entry) {
            guard heldCount < 2 * configuration.heldCountMax, heldByteCount < 2 * configuration.heldByteCountMax else {
                // The rest is read later; until then no shard counts as read.
                return reading = .failed(retryAt: now + configuration.retryDelay)
            }
            hold(entry, isRead: true)
        }
        guard next == nil else { return actions.append(.read(after: next)) }
        reading = .none
        unread.subtract(covered)
        openLines(of: covered)
        covered = []
    }

    /// An entry of a shard that became uncertain after the reading began is left for the next one: earlier pages, with
    /// earlier entries, may have been read before that.
    private func isWanted(_ entry: OutboxEntry) -> Bool {
        let shard = entry.entity.shard
        guard owned.contains(shard), !unread.contains(shard) || covered.contains(shard), !isDone(entry.id) else {
            return false
        }
        return !(lines[entry.entity]?.entries.contains { $0.number == entry.number } ?? false)
    }

    private func isDone(_ id: OutboxEntry.ID) -> Bool {
        removing.contains(id) || removedSince.contains(id) || done.contains(id)
    }

    private mutating func tick(_ now: MonotonicTime, _ actions: inout [Action]) {
        let rested = resting.filter { lines[$0]?.retryAt.map { $0 <= now } ?? true }
        resting.subtract(rested)
        for entity in rested {
            lines[entity]?.retryAt = nil
            ready.append(entity)
        }
        hasRemovalFailed = false
        remove(&actions)
        switch reading {
        case .none where !owned.isEmpty:
            let interval = unread.isEmpty ? configuration.rereadInterval : configuration.readInterval
            if isDue(after: interval, now) { read(now, &actions) }
        case .failed(let retryAt) where retryAt <= now: read(now, &actions)
        case .none, .failed, .underWay: break
        }
    }

    // MARK: What is held

    /// Has no effect on an entry that is held already.
    private mutating func hold(_ entry: OutboxEntry, isRead: Bool) {
        var line = lines[entry.entity] ?? Line()
        let index = line.entries.firstIndex { $0.number >= entry.number } ?? line.entries.endIndex
        guard index == line.entries.endIndex || line.entries[index].number != entry.number else { return }
        // The first one may be on its way.
        line.entries.insert(entry, at: line.isDelivering ? max(index, 1) : index)
        (heldCount, heldByteCount) = (heldCount + 1, heldByteCount + entry.payload.count)
        if isRead { line.readTo = entry.number }
        lines[entry.entity] = line
        if isRead || line.entries.count == 1 { ready.append(entry.entity) }
    }

    private mutating func openLines(of shards: Set<ShardID>) {
        guard !shards.isEmpty else { return }
        let opened = lines.filter { shards.contains($0.key.shard) && !$0.value.isDelivering && $0.value.retryAt == nil }
        // Sorted, so that the same events have the same actions.
        ready += opened.keys.sorted { ($0.shard, $0.kind.rawValue, $0.key) < ($1.shard, $1.kind.rawValue, $1.key) }
    }

    private mutating func lose(_ shards: Set<ShardID>) {
        owned.subtract(shards)
        unread.subtract(shards)
        covered.subtract(shards)
        for (entity, line) in lines where shards.contains(entity.shard) {
            resting.remove(entity)
            if line.isDelivering { deliveringCount -= 1 }
            heldCount -= line.entries.count
            heldByteCount -= line.entries.reduce(0) { $0 + $1.payload.count }
        }
        lines = lines.filter { !shards.contains($0.key.shard) }
        unconfirmed = unconfirmed.filter { !shards.contains($0.shard) }
        done.removeAll { shards.contains($0.entity.shard) }
        removing = removing.filter { !shards.contains($0.entity.shard) }
    }

    // MARK: Deliveries

    private mutating func deliver(_ actions: inout [Action]) {
        while deliveringCount < configuration.deliveringCountMax, let entity = ready.popFirst() {
            guard let line = lines[entity], !line.isDelivering, line.retryAt == nil, let first = line.entries.first,
                first.number <= line.readTo || !unread.contains(entity.shard)
            else { continue }
            lines[entity]?.isDelivering = true
            deliveringCount += 1
            actions.append(.deliver(first))
        }
    }

    private mutating func delivered(_ id: OutboxEntry.ID) {
        guard let entry = end(id) else { return }
        lines[id.entity]?.entries.removeFirst()
        lines[id.entity]?.failureCount = 0
        (heldCount, heldByteCount) = (heldCount - 1, heldByteCount - entry.payload.count)
        done.append(id)
        if lines[id.entity]?.entries.isEmpty ?? true { lines[id.entity] = nil } else { ready.append(id.entity) }
    }

    private mutating func failed(_ id: OutboxEntry.ID, _ now: MonotonicTime) {
        guard end(id) != nil else { return }
        let count = (lines[id.entity]?.failureCount ?? 0) + 1
        lines[id.entity]?.failureCount = count
        lines[id.entity]?.retryAt =
            now + Backoff.wait(after: count, first: configuration.retryDelay, longest: configuration.retryDelayMax)
        resting.append(id.entity)
    }

    /// Ends a delivery. Returns nil if it is not in progress: the shard was lost in between.
    private mutating func end(_ id: OutboxEntry.ID) -> OutboxEntry? {
        guard let line = lines[id.entity], line.isDelivering, let first = line.entries.first, first.number == id.number
        else { return nil }
        lines[id.entity]?.isDelivering = false
        deliveringCount -= 1
        return first
    }

    private mutating func remove(_ actions: inout [Action]) {
        guard !done.isEmpty, removing.isEmpty else { return }
        let ids = Array(done.prefix(configuration.removeCountMax))
        done.removeFirst(ids.count)
        removing.formUnion(ids)
        actions.append(.remove(ids))
    }
}
