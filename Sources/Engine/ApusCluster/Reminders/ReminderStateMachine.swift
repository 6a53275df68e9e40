package import ApusCore
import OrderedCollections

/// Delivers the reminders of the shards that this node owns (D15).
///
/// The records are the truth; this holds those that are due soon. It reads them in the order of their times, a page
/// after the other up to a horizon, again whenever half of the horizon has passed, and at once when a shard came. What
/// an entity of this node sets or cancels meanwhile is told here, since nobody else sets reminders of its shard.
///
/// Not everything is told: a step whose outcome is not known may have set a reminder, and one of a shard's former owner
/// may be made while the new one reads. So what is due is looked at again every `recheckInterval`, a page each time.
///
/// A delivery is repeated until the entity has taken it, whatever node owns the shard by then: a reminder is delivered
/// at least once, under one request id. None is delivered before its time. After a pause of the cluster those that are
/// overdue come first to last, a bounded number at a time.
///
/// **Memory.** At most `loadedCountMax` reminders are held. Where more are due within the horizon, the horizon ends at
/// the last one held, and the rest is read when room was made.
///
/// Pure: confined to whoever owns it; the shell carries out the actions and reports back. Times are Unix milliseconds
/// of the cluster's clock, which may go back.
package struct ReminderStateMachine: Sendable {
    package struct Configuration: Sendable, Equatable {
        /// How far ahead reminders are held, in milliseconds.
        package var horizon: Int64 = 60_000
        /// Reminders held.
        package var loadedCountMax = 10_000
        /// Deliveries under way.
        package var deliveringCountMax = 64
        /// How long a delivery, or a read of the records, that failed rests, in milliseconds.
        package var retryDelay: Int64 = 250
        /// How often a page of what is due is read again, in milliseconds; nil if nothing can be missed.
        package var recheckInterval: Int64?

        package init() {}

        /// For reminders that stand in the records.
        package static var records: Self {
            var configuration = Self()
            configuration.recheckInterval = 500
            return configuration
        }
    }

    package enum Input: Sendable {
        /// These shards are this node's since now…
        case gained([ShardID])
        /// …or no longer.
        case lost([ShardID])
        /// A page of the records in the order of their times; reminders of other nodes' shards are ignored.
        ///
        /// - Parameter isLast: whether there are no more up to the time that was asked for.
        case read([Reminder], isLast: Bool)
        case readFailed
        /// An entity of this node has set the reminder, and it is part of the entity's state.
        case set(Reminder)
        /// An entity of this node has cancelled its reminder of this name, and the record is gone.
        case cancelled(EntityAddress, name: String)
        /// The entity has carried out what it was reminded of, and the record is gone.
        case delivered(Reminder)
        case deliveryFailed(RequestID)
        /// Time has passed; wanted every 100 ms, and at ``nextDue``.
        case tick
    }

    package enum Action: Sendable, Equatable {
        /// Read the next page of reminders with times after the cursor's, up to this time; answer with `read` or
        /// `readFailed`. A nil cursor begins anew.
        case read(after: Cursor?, upTo: Int64)
        /// Deliver it; answer with `delivered` or `deliveryFailed`.
        case deliver(Reminder)
    }

    /// Where a page ended: the last reminder's place in the order of the records.
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
        /// What is due is looked at again.
        case rechecking
        /// The last one failed.
        case failed(retryAt: Int64)
    }

    private struct Name: Hashable, Sendable {
        var entity: EntityAddress
        var name: String

        init(_ reminder: Reminder) { (entity, name) = (reminder.entity, reminder.name) }
        init(_ entity: EntityAddress, _ name: String) { (self.entity, self.name) = (entity, name) }
    }

    private let configuration: Configuration
    private var owned: Set<ShardID> = []
    /// What is held, sorted by time; those under way are in it as well.
    private var held: [Cursor] = []
    private var reminders: OrderedDictionary<RequestID, Reminder> = [:]
    private var ids: [Name: RequestID] = [:]
    private var delivering: Set<RequestID> = []
    private var resting: OrderedDictionary<RequestID, Int64> = [:]
    private var reading = Reading.none
    /// Reading has to begin with the first reminder: shards came whose reminders were passed over.
    private var isStartWanted = false
    /// Where the next page begins.
    private var cursor: Cursor?
    /// Names that changed since the page that is being read was asked for: it may be older than they are.
    private var changed: Set<Name> = []
    /// All reminders of the owned shards up to this time are held.
    private var coveredTo = Int64.min
    /// The earliest reminder that was dropped for want of room while pages are read.
    private var droppedFrom = Int64.max
    /// When the next page of what is due is read again, and where it begins.
    private var recheckAt = Int64.min
    private var recheckCursor: Cursor?

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    package var heldCount: Int { held.count }
    package var deliveringCount: Int { delivering.count }
    /// The next time at which something is to be delivered.
    package var nextDue: Int64? { held.first { !delivering.contains($0.id) && resting[$0.id] == nil }?.due }

    /// Takes one event; the actions are to be carried out in their order.
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
            // What is set before the shard's coming is told here is read then.
            guard owned.contains(reminder.entity.shard) else { break }
            let name = Name(reminder)
            noteChange(name)
            if let earlier = ids[name] { forget(earlier) }
            // What is due later is read in its turn.
            if reminder.due <= heldTo { hold(reminder) }
        case .cancelled(let entity, let name):
            noteChange(Name(entity, name))
            if let id = ids[Name(entity, name)] { forget(id) }
        case .delivered(let reminder):
            noteChange(Name(reminder))
            forget(reminder.id)
        case .deliveryFailed(let id):
            if delivering.remove(id) != nil { resting[id] = now + configuration.retryDelay }
        case .tick: tick(now: now, actions: &actions)
        }
        deliver(now: now, actions: &actions)
        return actions
    }

    // MARK: Reading

    /// Up to when a reminder that is set now has to be held, since no page to come has it.
    private var heldTo: Int64 {
        if case .underWay(let upTo) = reading { max(coveredTo, upTo) } else { coveredTo }
    }

    private mutating func noteChange(_ name: Name) {
        switch reading {
        case .underWay, .rechecking: changed.insert(name)
        case .none, .failed: break
        }
    }

    /// Reads up to the horizon: from the first reminder where shards came, from what is held otherwise.
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
        // A page that is older than a shard's coming may have what its former owner has delivered since.
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
            // What was set, cancelled or delivered since the page was asked for is known better here.
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
        resting.removeAll { $0.value <= now || $0.value > now + configuration.retryDelay }
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
        held.insert(place, at: held.partitioningIndex(of: place))
        reminders[reminder.id] = reminder
        ids[Name(reminder)] = reminder.id
        while held.count > configuration.loadedCountMax, let last = held.last(where: { !delivering.contains($0.id) }) {
            droppedFrom = min(droppedFrom, last.due)
            coveredTo = min(coveredTo, last.due - 1)
            forget(last.id)
        }
    }

    private mutating func forget(_ id: RequestID) {
        delivering.remove(id)
        resting[id] = nil
        guard let reminder = reminders.removeValue(forKey: id) else { return }
        if ids[Name(reminder)] == id { ids[Name(reminder)] = nil }
        let place = Cursor(reminder)
        let index = held.partitioningIndex(of: place)
        if index < held.count, held[index] == place { held.remove(at: index) }
    }

    private mutating func deliver(now: Int64, actions: inout [Action]) {
        guard delivering.count < configuration.deliveringCountMax else { return }
        for place in held {
            guard place.due <= now, delivering.count < configuration.deliveringCountMax else { break }
            guard !delivering.contains(place.id), resting[place.id] == nil, let reminder = reminders[place.id] else {
                continue
            }
            delivering.insert(place.id)
            actions.append(.deliver(reminder))
        }
    }
}

extension RequestID {
    /// After all others in the order of the records.
    fileprivate static let last = RequestID(high: .max, low: .max)
}

extension [ReminderStateMachine.Cursor] {
    /// Where the place stands, or would stand, in the sorted array.
    fileprivate func partitioningIndex(of place: Element) -> Int {
        var (low, high) = (0, count)
        while low < high {
            let middle = (low + high) / 2
            if self[middle] < place { low = middle + 1 } else { high = middle }
        }
        return low
    }
}
