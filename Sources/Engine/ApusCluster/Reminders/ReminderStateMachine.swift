package import ApusCore
import OrderedCollections

/// Delivers the reminders of the shards that this node owns (D15).
///
/// The records are authoritative; this machine holds those that are due soon. It reads them in the order of their
/// times, page by page up to a horizon. It reads again whenever half of the horizon has passed, and at once when a
/// shard was gained. The entities of this node report what they set or cancel in the meantime; no other node sets
/// reminders of its shards.
///
/// Not every change is reported: a step with an unknown outcome may have set a reminder, and a step of a shard's former
/// owner may be applied while the new owner reads. Due reminders are therefore read again every `recheckInterval`, one
/// page each time.
///
/// A delivery is repeated until the entity has accepted it, whichever node owns the shard then. A reminder is thus
/// delivered at least once, under one request id, and never before its time. After a pause of the cluster overdue
/// reminders are delivered in order, a bounded number at a time.
///
/// **Fairness.** A reminder whose delivery failed waits for `retryDelay`, and twice as long after each further failure,
/// up to `retryDelayMax`. Retries take at most half of the deliveries in progress, so that reminders that fail do not
/// keep others from their first delivery.
///
/// **Memory.** At most `loadedCountMax` reminders are held. If more are due within the horizon, the horizon ends at the
/// last one held, and the rest is read when there is room.
///
/// Pure value: confined to its owner. The shell carries out the actions and reports the results. Times are Unix
/// milliseconds of the cluster's clock, which may go back.
package struct ReminderStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// How far ahead reminders are held, in milliseconds.
        package var horizon: Int64 = 60_000
        /// The most reminders held.
        package var loadedCountMax = 10_000
        /// The most deliveries in progress.
        package var deliveringCountMax = 64
        /// The wait after the first failed delivery of a reminder, and after a failed read, in milliseconds.
        package var retryDelay: Int64 = 250
        /// The longest wait after a failed delivery, in milliseconds. After the death of a node deliveries fail until
        /// the map changes, and are late by this.
        package var retryDelayMax: Int64 = 500
        /// The interval at which a page of due reminders is read again, in milliseconds; nil if no change can be
        /// missed.
        package var recheckInterval: Int64?

        /// The most deliveries in progress of reminders that have failed before.
        package var retryingCountMax: Int { max(1, deliveringCountMax / 2) }

        package init() {}

        /// For reminders that are stored in the records.
        package static var records: Self {
            var configuration = Self()
            configuration.recheckInterval = 500
            return configuration
        }
    }

    package enum Input: Sendable {
        /// This node has gained these shards…
        case gained([ShardID])
        /// …or lost them.
        case lost([ShardID])
        /// A page of the records in the order of their times. Reminders of other nodes' shards are ignored.
        ///
        /// - Parameter isLast: true if there are no more up to the requested time.
        case read([Reminder], isLast: Bool)
        case readFailed
        /// An entity of this node has set the reminder, and the entity's state includes it.
        case set(Reminder)
        /// An entity of this node has cancelled its reminder of this name, and the record is removed.
        case cancelled(EntityAddress, name: String)
        /// The entity has carried out the reminder, and the record is removed.
        case delivered(Reminder)
        case deliveryFailed(RequestID)
        /// Time has passed. Needed every 100 ms, and at ``nextDue``.
        case tick
    }

    package enum Action: Sendable, Equatable {
        /// Read the next page of reminders with times after the cursor's, up to this time. Answer with `read` or
        /// `readFailed`. A nil cursor starts at the first reminder.
        case read(after: Cursor?, upTo: Int64)
        /// Deliver it; answer with `delivered` or `deliveryFailed`.
        case deliver(Reminder)
    }

    /// The end of a page: the last reminder's position in the order of the records.
    package struct Cursor: Sendable, Hashable, Comparable {
        package var due: Int64
        package var id: RequestID

        package init(due: Int64, id: RequestID) { (self.due, self.id) = (due, id) }
        package init(_ reminder: Reminder) { self.init(due: reminder.due, id: reminder.id) }

        package static func < (left: Self, right: Self) -> Bool {
            (left.due, left.id.high, left.id.low) < (right.due, right.id.high, right.id.low)
        }
    }

    private enum Reading: Sendable, Equatable {
        case none
        case underWay(upTo: Int64)
        /// Due reminders are read again.
        case rechecking
        /// The last read failed.
        case failed(retryAt: Int64)
    }

    private struct Failure: Sendable {
        /// The failed deliveries in a row.
        var count = 0
        var retryAt: Int64 = 0
    }

    private struct Name: Hashable, Sendable {
        var entity: EntityAddress
        var name: String

        init(_ reminder: Reminder) { (entity, name) = (reminder.entity, reminder.name) }
        init(_ entity: EntityAddress, _ name: String) { (self.entity, self.name) = (entity, name) }
    }

    private let configuration: Configuration
    private var owned: Set<ShardID> = []
    /// The held reminders, sorted by time. Those in delivery are included.
    private var held: [Cursor] = []
    /// Those whose delivery was not begun yet, sorted by time.
    private var fresh: [Cursor] = []
    /// Those whose delivery failed, sorted by the times of their next deliveries.
    private var resting: [Cursor] = []
    private var failures: [RequestID: Failure] = [:]
    private var retryingCount = 0
    private var reminders: OrderedDictionary<RequestID, Reminder> = [:]
    private var ids: [Name: RequestID] = [:]
    private var delivering: Set<RequestID> = []
    private var reading = Reading.none
    /// The next read must start at the first reminder, because shards were gained whose reminders were skipped.
    private var isStartWanted = false
    /// The start of the next page.
    private var cursor: Cursor?
    /// Names that changed since the current page was requested. The page may be older than these changes.
    private var changed: Set<Name> = []
    /// All reminders of the owned shards up to this time are held.
    private var coveredTo = Int64.min
    /// The earliest reminder that was dropped for lack of room while pages are read.
    private var droppedFrom = Int64.max
    /// The time at which the next page of due reminders is read again, and where it starts.
    private var recheckAt = Int64.min
    private var recheckCursor: Cursor?

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    package var heldCount: Int { held.count }
    package var deliveringCount: Int { delivering.count }
    /// The next time at which a reminder's first delivery is due.
    package var nextDue: Int64? { fresh.first?.due }

    /// Handles one event. The actions must be carried out in order.
    package mutating func handle(_ input: Input, now: Int64) -> [Action] {
        var actions: [Action] = []
        switch input {
        case .gained(let shards):
            owned.formUnion(shards)
            isStartWanted = true
            if reading == .none { readOn(now: now, actions: &actions) }
        case .lost(let shards):
            owned.subtract(shards)
            for cursor in held where reminders[cursor.id].map({ !owned.contains($0.entity.shard) }) ?? true {
                forget(cursor.id)
            }
        case .read(let page, let isLast): take(page, isLast: isLast, now: now, actions: &actions)
        case .readFailed where reading == .rechecking && !isStartWanted: endRecheck(now: now)
        case .readFailed: reading = .failed(retryAt: now + configuration.retryDelay)
        case .set(let reminder):
            // If the shard's gain is not reported yet, the read that follows it includes this reminder.
            guard owned.contains(reminder.entity.shard) else { break }
            let name = Name(reminder)
            noteChange(name)
            if let earlier = ids[name] { forget(earlier) }
            // A reminder that is due later is read in its turn. One that is due soon is held even if the last read
            // ended before it, because this node's clock was behind.
            if reminder.due <= max(heldTo, now + configuration.horizon) { hold(reminder) }
        case .cancelled(let entity, let name):
            noteChange(Name(entity, name))
            if let id = ids[Name(entity, name)] { forget(id) }
        case .delivered(let reminder):
            noteChange(Name(reminder))
            forget(reminder.id)
        case .deliveryFailed(let id): failed(id, now: now)
        case .tick: tick(now: now, actions: &actions)
        }
        deliver(now: now, actions: &actions)
        return actions
    }

    // MARK: Reading

    /// The time up to which a reminder that is set now must be held, because no later page includes it.
    private var heldTo: Int64 {
        if case .underWay(let upTo) = reading { max(coveredTo, upTo) } else { coveredTo }
    }

    private mutating func noteChange(_ name: Name) {
        switch reading {
        case .underWay, .rechecking: changed.insert(name)
        case .none, .failed: break
        }
    }

    /// Reads up to the horizon: from the first reminder if shards were gained, otherwise from the end of what is held.
    private mutating func readOn(now: Int64, actions: inout [Action]) {
        cursor = isStartWanted || coveredTo == .min ? nil : Cursor(due: coveredTo, id: .last)
        isStartWanted = false
        droppedFrom = .max
        readPage(upTo: now + configuration.horizon, actions: &actions)
    }

    private mutating func readPage(upTo: Int64, actions: inout [Action]) {
        reading = .underWay(upTo: upTo)
        changed.removeAll(keepingCapacity: true)
        actions.append(.read(after: cursor, upTo: upTo))
    }

    private mutating func take(_ page: [Reminder], isLast: Bool, now: Int64, actions: inout [Action]) {
        switch reading {
        case .none, .failed: return
        // A page older than the shard's gain may include reminders that its former owner has delivered since.
        case .underWay where isStartWanted, .rechecking where isStartWanted: readOn(now: now, actions: &actions)
        case .underWay(let upTo):
            hold(page)
            covered(page, isLast: isLast, upTo: upTo, actions: &actions)
        case .rechecking:
            hold(page)
            recheckCursor = isLast ? nil : page.last.map { Cursor($0) }
            endRecheck(now: now)
        }
    }

    private mutating func hold(_ page: [Reminder]) {
        for reminder in page where owned.contains(reminder.entity.shard) && reminders[reminder.id] == nil {
            let name = Name(reminder)
            // Changes made since the page was requested are newer than the page.
            guard !changed.contains(name) else { continue }
            if let earlier = ids[name] { forget(earlier) }
            hold(reminder)
        }
    }

    private mutating func covered(_ page: [Reminder], isLast: Bool, upTo: Int64, actions: inout [Action]) {
        reading = .none
        if let last = page.last { cursor = Cursor(last) }
        if isLast || held.count >= configuration.loadedCountMax {
            let readTo = isLast ? upTo : (cursor?.due ?? upTo) - 1
            coveredTo = min(readTo, droppedFrom - 1)
        } else {
            readPage(upTo: upTo, actions: &actions)
        }
    }

    private mutating func tick(now: Int64, actions: inout [Action]) {
        // The clock has gone back.
        while let last = resting.last, last.due > now + configuration.retryDelayMax { rest(last.id, until: now) }
        switch reading {
        case .failed(let retryAt) where retryAt <= now || retryAt > now + configuration.retryDelay:
            isStartWanted = true
            readOn(now: now, actions: &actions)
        case .none where !owned.isEmpty && held.count <= configuration.loadedCountMax / 2:
            if isStartWanted || coveredTo < now + configuration.horizon / 2 {
                readOn(now: now, actions: &actions)
            } else {
                recheck(now: now, actions: &actions)
            }
        case .none where !owned.isEmpty: recheck(now: now, actions: &actions)
        case .none, .failed, .underWay, .rechecking: break
        }
    }

    private mutating func recheck(now: Int64, actions: inout [Action]) {
        guard let interval = configuration.recheckInterval, now >= recheckAt || recheckAt > now + interval else {
            return
        }
        reading = .rechecking
        changed.removeAll(keepingCapacity: true)
        actions.append(.read(after: recheckCursor, upTo: now))
    }

    private mutating func endRecheck(now: Int64) {
        reading = .none
        recheckAt = now + (configuration.recheckInterval ?? 0)
    }

    // MARK: What is held

    private mutating func hold(_ reminder: Reminder) {
        let place = Cursor(reminder)
        held.insertSorted(place)
        fresh.insertSorted(place)
        reminders[reminder.id] = reminder
        ids[Name(reminder)] = reminder.id
        while held.count > configuration.loadedCountMax, let last = held.last(where: { !delivering.contains($0.id) }) {
            droppedFrom = min(droppedFrom, last.due)
            coveredTo = min(coveredTo, last.due - 1)
            forget(last.id)
        }
    }

    private mutating func forget(_ id: RequestID) {
        endDelivery(id)
        if let failure = failures.removeValue(forKey: id) {
            resting.removeSorted(Cursor(due: failure.retryAt, id: id))
        }
        guard let reminder = reminders.removeValue(forKey: id) else { return }
        if ids[Name(reminder)] == id { ids[Name(reminder)] = nil }
        held.removeSorted(Cursor(reminder))
        fresh.removeSorted(Cursor(reminder))
    }

    // MARK: Deliveries

    private mutating func deliver(now: Int64, actions: inout [Action]) {
        while retryingCount < configuration.retryingCountMax, let next = resting.first, next.due <= now {
            guard delivering.count < configuration.deliveringCountMax else { return }
            resting.removeFirst()
            retryingCount += 1
            begin(next.id, actions: &actions)
        }
        while delivering.count < configuration.deliveringCountMax, let next = fresh.first, next.due <= now {
            fresh.removeFirst()
            begin(next.id, actions: &actions)
        }
    }

    private mutating func begin(_ id: RequestID, actions: inout [Action]) {
        guard let reminder = reminders[id] else { return }
        delivering.insert(id)
        actions.append(.deliver(reminder))
    }

    /// - Returns: false if the reminder is not in delivery.
    @discardableResult
    private mutating func endDelivery(_ id: RequestID) -> Bool {
        guard delivering.remove(id) != nil else { return false }
        if failures[id] != nil { retryingCount -= 1 }
        return true
    }

    private mutating func failed(_ id: RequestID, now: Int64) {
        guard endDelivery(id) else { return }
        let count = failures[id, default: Failure()].count + 1
        let delay = Backoff.wait(after: count, first: configuration.retryDelay, longest: configuration.retryDelayMax)
        failures[id] = Failure(count: count)
        rest(id, until: now + max(delay, configuration.retryDelay))
    }

    private mutating func rest(_ id: RequestID, until retryAt: Int64) {
        resting.removeSorted(Cursor(due: failures[id]?.retryAt ?? 0, id: id))
        failures[id]?.retryAt = retryAt
        resting.insertSorted(Cursor(due: retryAt, id: id))
    }
}

extension RequestID {
    /// After all other positions in the order of the records.
    fileprivate static let last = RequestID(high: .max, low: .max)
}

extension [ReminderStateMachine.Cursor] {
    fileprivate mutating func insertSorted(_ place: Element) {
        insert(place, at: partitioningIndex(of: place))
    }

    /// Removes the position from the sorted array if it is there.
    fileprivate mutating func removeSorted(_ place: Element) {
        let index = partitioningIndex(of: place)
        if index < count, self[index] == place { remove(at: index) }
    }

    /// The index of the position in the sorted array, present or not.
    fileprivate func partitioningIndex(of place: Element) -> Int {
        var (low, high) = (0, count)
        while low < high {
            let middle = (low + high) / 2
            if self[middle] < place { low = middle + 1 } else { high = middle }
        }
        return low
    }
}
