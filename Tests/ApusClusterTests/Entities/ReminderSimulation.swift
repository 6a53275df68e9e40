import ApusCluster
import ApusCore

/// Two nodes with a machine each over one table of records: shards move between them, pages come late or not at all,
/// reminders are set, replaced and cancelled, deliveries fail, and some that were set are not told.
struct ReminderSimulation {
    private static let shards = (0..<6).map { ShardID(UInt16($0)) }
    private static let configuration: ReminderStateMachine.Configuration = {
        var configuration = ReminderStateMachine.Configuration()
        (configuration.horizon, configuration.loadedCountMax, configuration.deliveringCountMax) = (2_000, 12, 3)
        configuration.recheckInterval = 300
        return configuration
    }()

    private var random: SeededRandom
    private var now: Int64 = 1_000
    private var machines: [ReminderStateMachine]
    private var owners: [ShardID: Int] = [:]
    /// The records, by name.
    private var records: [String: Reminder] = [:]
    /// Pages on their way to a node, as they were read.
    private var pages: [(node: Int, at: Int64, input: ReminderStateMachine.Input)] = []
    private var deliveries: [(node: Int, at: Int64, reminder: Reminder)] = []
    private var nextID: UInt64 = 1
    private(set) var problems: [String] = []

    init(seed: UInt64) {
        random = SeededRandom(seed: seed)
        machines = (0..<2).map { _ in ReminderStateMachine(configuration: Self.configuration) }
    }

    mutating func run() {
        for shard in Self.shards { move(shard, to: Int.random(in: 0..<2, using: &random)) }
        for _ in 0..<400 { step(isCalm: false) }
        // Nothing fails any more: whatever is due is delivered within a second.
        for _ in 0..<200 { step(isCalm: true) }
        for reminder in records.values where reminder.due < now - 1_000 {
            problems.append("\(reminder.name), due at \(reminder.due), was not delivered by \(now)")
        }
    }

    private mutating func step(isCalm: Bool) {
        now += Int64.random(in: 1...60, using: &random)
        if !isCalm {
            switch Int.random(in: 0..<12, using: &random) {
            case 0..<5: set()
            case 5: cancel()
            case 6:
                if let shard = Self.shards.randomElement(using: &random) { move(shard, to: 1 - (owners[shard] ?? 0)) }
            default: break
            }
        }
        let arrived = pages.filter { $0.at <= now }
        pages.removeAll { $0.at <= now }
        for page in arrived { give(page.node, page.input, isCalm: isCalm) }
        let ended = deliveries.filter { $0.at <= now }
        deliveries.removeAll { $0.at <= now }
        for delivery in ended { end(delivery, isCalm: isCalm) }
        for node in machines.indices { give(node, .tick, isCalm: isCalm) }
    }

    private mutating func set() {
        guard let shard = Self.shards.randomElement(using: &random), let owner = owners[shard] else { return }
        let key = "\(shard.rawValue)-\(Int.random(in: 0..<8, using: &random))"
        let entity = EntityAddress(kind: EntityKind(rawValue: 9), key: key, shard: shard)
        let reminder = Reminder(
            entity: entity, name: "r", id: RequestID(high: 0, low: nextID),
            due: now + Int64.random(in: 0...6_000, using: &random))
        nextID += 1
        let isNew = records[key] == nil
        records[key] = reminder
        // Now and then nobody learns what became of the step.
        if isNew, Int.random(in: 0..<8, using: &random) == 0 { return }
        give(owner, .set(reminder), isCalm: false)
    }

    private mutating func cancel() {
        guard let key = records.keys.sorted().randomElement(using: &random),
            let reminder = records.removeValue(forKey: key), let owner = owners[reminder.entity.shard]
        else { return }
        give(owner, .cancelled(reminder.entity, name: "r"), isCalm: false)
    }

    private mutating func move(_ shard: ShardID, to node: Int) {
        if let owner = owners[shard] { give(owner, .lost([shard]), isCalm: false) }
        owners[shard] = node
        give(node, .gained([shard]), isCalm: false)
    }

    private mutating func end(_ delivery: (node: Int, at: Int64, reminder: Reminder), isCalm: Bool) {
        let reminder = delivery.reminder
        // The shard moved, or the entity does not answer.
        guard owners[reminder.entity.shard] == delivery.node, isCalm || Int.random(in: 0..<4, using: &random) > 0 else {
            return give(delivery.node, .deliveryFailed(reminder.id), isCalm: isCalm)
        }
        if records[reminder.entity.key]?.id == reminder.id { records[reminder.entity.key] = nil }
        give(delivery.node, .delivered(reminder), isCalm: isCalm)
    }

    private func page(after cursor: ReminderStateMachine.Cursor?, upTo: Int64) -> [Reminder] {
        typealias Cursor = ReminderStateMachine.Cursor
        return records.values.filter { reminder in
            guard let cursor else { return reminder.due <= upTo }
            return reminder.due <= upTo && Cursor(reminder) > cursor
        }.sorted { Cursor($0) < Cursor($1) }
    }

    private mutating func give(_ node: Int, _ input: ReminderStateMachine.Input, isCalm: Bool) {
        for action in machines[node].handle(input, now: now) {
            switch action {
            case .deliver(let reminder):
                if reminder.due > now { problems.append("\(reminder.entity) was delivered before its time") }
                if records[reminder.entity.key]?.id != reminder.id, owners[reminder.entity.shard] == node {
                    problems.append("\(reminder.entity) at \(now): what was replaced, cancelled or done was delivered")
                }
                deliveries.append((node, now + Int64.random(in: 0...80, using: &random), reminder))
            case .read(let cursor, let upTo):
                let delay = Int64.random(in: 0...150, using: &random)
                guard isCalm || Int.random(in: 0..<6, using: &random) > 0 else {
                    pages.append((node, now + delay, .readFailed))
                    continue
                }
                let page = page(after: cursor, upTo: upTo)
                pages.append((node, now + delay, .read(Array(page.prefix(4)), isLast: page.count <= 4)))
            }
        }
        if machines[node].heldCount > Self.configuration.loadedCountMax { problems.append("too many are held") }
        if machines[node].deliveringCount > Self.configuration.deliveringCountMax {
            problems.append("too many are under way")
        }
    }
}
