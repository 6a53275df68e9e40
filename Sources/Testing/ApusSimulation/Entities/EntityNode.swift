import ApusCluster
import ApusCore
import ApusStorage
import DequeModule

/// The entities of one process. It drives the machines as ``EntityHost``, ``EntityCell`` and other shells do.
///
/// Every event ends with ``settle()``, which calls waiting completions and sends what is to be sent.
final class EntityNode {
    typealias Machine = SimulatedCell.Machine

    unowned let world: EntityWorkload
    let process: SimulatedProcess
    /// Completions to call at the end of the event.
    var completions: Deque<() -> Void> = []
    private var isSettling = false

    // Entities.
    private(set) var cells: [ShardID: [EntityAddress: SimulatedCell]] = [:]
    private var held: Set<ShardID> = []

    // Replicas.
    var owner: ReplicaOwnerStateMachine
    var standby: ReplicaStandbyStateMachine
    var waiters: [ShardID: ReplicaWaiters<Int>] = [:]
    /// Who waits, by the number that the waiters have.
    var waiting: [Int: (ApusError?) -> Void] = [:]
    var lastWaiter = 0
    var nextExpiry = MonotonicTime.zero
    var unopened: [ShardID] = []
    /// Reads of reminders that wait until all shards are open.
    var whenOpen: [() -> Void] = []

    // Records.
    var claimed: [ShardID: Epoch] = [:]
    var commits = GroupCommitStateMachine<RecordWork>(limits: RecordStoreLimits())

    // Reminders.
    var owned = OwnedShards()
    /// When the owned shards were gained.
    var gainedAt: [ShardID: MonotonicTime] = [:]
    var replicatedReminders = ReplicatedReminders()
    var reminders: [Bool: ReminderStateMachine]
    var nextReminderTick = MonotonicTime.zero

    // Outboxes.
    var outbox: OutboxStateMachine
    var nextOutboxTick = MonotonicTime.zero
    /// The entries that this node has delivered, with the epochs of their shards then.
    var deliveredEntries: [OutboxEntry.ID: Epoch] = [:]

    init(world: EntityWorkload, process: SimulatedProcess) {
        self.world = world
        self.process = process
        owner = ReplicaOwnerStateMachine(
            local: process.id, map: process.view, configuration: world.settings.replication)
        standby = ReplicaStandbyStateMachine(
            local: process.id, map: process.view, configuration: world.settings.replication)
        outbox = OutboxStateMachine(configuration: world.settings.outbox)
        // By whether they are of recorded entities.
        reminders = [
            true: ReminderStateMachine(configuration: world.settings.recordedReminders),
            false: ReminderStateMachine(configuration: world.settings.replicatedReminders),
        ]
    }

    var id: NodeID { process.id }
    var now: MonotonicTime { world.simulation.now }
    var wallMilliseconds: Int64 { world.wallMilliseconds }

    /// Ends an event: calls completions, and sends what is to be sent.
    func settle() {
        guard !isSettling else { return }
        isSettling = true
        while let completion = completions.popFirst() { completion() }
        pump()
        isSettling = false
    }

    /// Runs something at this process later.
    func later(_ kind: UInt64, after delay: Duration, _ body: @escaping () -> Void) {
        let work = SimulationWork(kind: kind) {
            body()
            self.settle()
        }
        world.simulation.later(.work(work), process: process.index, after: delay)
    }

    /// Runs something at another process when a message has arrived there.
    func send(to node: EntityNode, _ kind: UInt64, _ body: @escaping () -> Void) {
        let work = SimulationWork(kind: kind) {
            body()
            node.settle()
        }
        world.simulation.sendOverLink(.work(work), from: process, to: node.process)
    }

    /// Another node knows a newer map.
    func refresh() {
        later(3, after: .zero) { self.world.simulation.ownership(.refresh, at: self.process) }
    }

    // MARK: The map

    func isLocal(_ shard: ShardID, epoch: Epoch) -> Bool {
        process.view.owner(of: shard)?.id == id && process.view[shard].epoch == epoch && process.view.isAlive(id)
    }

    /// The map as if it named all second standbys for the first time.
    private static func withNewSecondStandbys(_ map: ClusterMap) -> ClusterMap {
        var map = map
        for index in map.shards.indices where map.shards[index].secondStandby != .none {
            map.shards[index].secondStandbyNamedIn = map.revision
        }
        return map
    }

    /// A newer map: first the replicas, then the entities, then the reminders.
    func adopted(_ map: ClusterMap) {
        standby.mapChanged(map)
        settle(owner.mapChanged(world.mutant == .forgetsSecondStandby ? Self.withNewSecondStandbys(map) : map))
        for shard in cells.keys.sorted() {
            guard let epoch = cells[shard]?.values.first?.epoch, !isLocal(shard, epoch: epoch) else { continue }
            let ended = (cells.removeValue(forKey: shard) ?? [:]).values.sorted { $0.address.key < $1.address.key }
            // Elsewhere and later, as a node does.
            later(4, after: world.simulation.span(0...3)) {
                for cell in ended { self.perform(cell, cell.machine.leave()) }
            }
        }
        held = held.filter { map.owner(of: $0)?.id == id }
        noteOwned(map)
        settle()
    }

    // MARK: Calls

    /// Admits a call if its shard is at this node under the epoch.
    func admit(_ call: SimulatedCall, epoch: Epoch) -> Bool {
        let shard = call.entity.shard
        guard isLocal(shard, epoch: epoch), !held.contains(shard), process.isMember else { return false }
        let cell = cells[shard]?[call.entity] ?? SimulatedCell(call.entity, epoch: epoch)
        cells[shard, default: [:]][call.entity] = cell
        cell.runningCount += 1
        perform(cell, cell.machine.came(Machine.Request(call: call, id: call.id)))
        return true
    }

    func hold(_ shard: ShardID) { held.insert(shard) }
    func release(_ shard: ShardID) { held.remove(shard) }
    func isQuiet(_ shard: ShardID) -> Bool { (cells[shard] ?? [:]).values.allSatisfy { $0.runningCount == 0 } }
    /// True if nothing is in flight to where states are stored.
    var isIdle: Bool {
        cells.values.allSatisfy { $0.values.allSatisfy(\.machine.isIdle) } && commits.waitingStepCount == 0
    }

    func perform(_ cell: SimulatedCell, _ actions: [Machine.Action]) {
        var rest = Deque(actions)
        while let action = rest.popFirst() {
            switch action {
            case .load: load(cell)
            case .run(let request, let content): rest += cell.machine.ended(carryOut(request.call, content, cell))
            case .commit(let state, let earlier): keep(state, earlier, cell)
            case .finish(let ending):
                stored(ending.entries)
                finish(ending, cell)
            case .repeatAnswer(let call, let answer):
                guard case .reply(let bytes) = answer else { continue }
                end(call, .answered(bytes, cell.epoch), cell)
            case .refuse(let call, let error): end(call, .refused(error, knownEpoch: nil), cell)
            case .fail(let ending, let error): end(ending.call, .refused(error, knownEpoch: nil), cell)
            case .leaveOpen(let ending, let error):
                note(ending.reminders, of: cell.address)
                stored(ending.entries)
                end(ending.call, .refused(error, knownEpoch: nil), cell)
            case .leave: abandon(cell)
            }
        }
    }

    private func abandon(_ cell: SimulatedCell) {
        guard cells[cell.address.shard]?[cell.address] === cell else { return }
        cells[cell.address.shard]?[cell.address] = nil
        if cells[cell.address.shard]?.isEmpty == true { cells[cell.address.shard] = nil }
    }

    private func carryOut(_ call: SimulatedCall, _ content: SimulatedContent, _ cell: SimulatedCell) -> Machine.Result {
        guard let service = world.service else { return count(call, content, cell) }
        let result = service.carryOut(call, content, cell, at: self)
        if world.mutant == .tellsEarly { tell(result.ending, cell) }
        return result
    }

    /// The handler of every message of the entities that count.
    private func count(_ call: SimulatedCall, _ content: SimulatedContent, _ cell: SimulatedCell) -> Machine.Result {
        var ending = SimulatedEnding(call: call)
        if case .reminded(let reminder) = call.operation,
            !cell.machine.state.reminders.contains(where: { $0.id == reminder.id })
        {
            // Cancelled or replaced in transit, as ``EntityDefinition/onReminder(_:)`` detects.
            ending.answer = SimulatedContent.bytes(of: content.count)
            return Machine.Result(
                content: content, answer: ending.answer.map { .reply($0) }, reminders: [], ending: ending)
        }
        world.checkRun(call, content, at: self)
        if outbox.isFull(call.entity, unstored: cell.machine.unstoredCount) {
            ending.error = ApusError(.overloaded)
            return Machine.Result(content: nil, ending: ending)
        }
        if call.operation == .fail { return Machine.Result(content: nil, ending: ending) }
        var content = content
        content.append(call.number)
        switch call.operation {
        case .remind(let name, let delay):
            let number = world.ledger.add(call.entity, .reminder(call.number), .change)
            let reminder = Reminder(
                entity: call.entity, name: name, id: RequestID(using: &world.simulation.random),
                due: wallMilliseconds + delay, payload: SimulatedContent.bytes(of: number))
            world.ledger.wasSet(reminder, as: number)
            ending.reminders = [.set(reminder)]
        case .cancelReminder(let name):
            if cell.machine.state.reminders.contains(where: { $0.name == name }) {
                ending.reminders = [.cancel(call.entity, name: name)]
            }
        case .reminded(let reminder): ending.reminders = [.delivered(reminder)]
        case .tell(let target):
            ending.telling = (target, world.ledger.add(target, .telling(call.number), .tellReceived))
        case .change, .fail, .tellReceived, .message: break
        }
        let answer = SimulatedContent.bytes(of: content.count)
        (ending.answer, ending.entries) = (answer, entries(of: call, content))
        if world.mutant == .tellsEarly { tell(ending, cell) }
        return Machine.Result(
            content: content, answer: call.id == nil ? nil : .reply(answer), reminders: ending.reminders,
            entries: ending.entries, ending: ending)
    }

    /// The change is confirmed. An entity of a service waits until the node may answer, as ``EntityCell`` does.
    private func finish(_ ending: SimulatedEnding, _ cell: SimulatedCell) {
        guard world.service != nil, !cell.held.isEmpty || !mayAnswer else { return send(ending, of: cell) }
        cell.held.append(ending)
        if cell.held.count == 1 { awaitPermission(cell) }
    }

    private var mayAnswer: Bool { process.membership.promises.permissionEnd > now }

    private func awaitPermission(_ cell: SimulatedCell) {
        later(22, after: world.simulation.span(2...8)) {
            if cell.machine.isOver {
                while let ending = cell.held.popFirst() {
                    self.end(ending.call, .refused(ApusError(.linkLost), knownEpoch: nil), cell)
                }
            }
            while self.mayAnswer, let ending = cell.held.popFirst() { self.send(ending, of: cell) }
            if !cell.held.isEmpty { self.awaitPermission(cell) }
        }
    }

    /// Sends the answer, and the messages to others.
    private func send(_ ending: SimulatedEnding, of cell: SimulatedCell) {
        note(ending.reminders, of: cell.address)
        end(ending.call, ending.answer.map { .answered($0, cell.epoch) } ?? .threw(ending.error), cell)
        world.service?.finished(ending, of: cell, at: self)
        if world.mutant != .tellsEarly { tell(ending, cell) }
        if ending.isDone { releaseIfIdle(cell) }
    }

    /// The entity leaves memory if nothing waits for it.
    func releaseIfIdle(_ cell: SimulatedCell) {
        completions.append {
            guard cell.runningCount == 0, cell.machine.isIdle else { return }
            self.perform(cell, cell.machine.leave())
        }
    }

    private func tell(_ ending: SimulatedEnding, _ cell: SimulatedCell) {
        let shard = cell.address.shard
        guard isLocal(shard, epoch: cell.epoch) else { return }
        let sender = EntityHeader(
            kind: cell.address.kind, shard: shard, epoch: cell.epoch, key: cell.address.key)
        for (index, message) in ending.tellings.enumerated() {
            send(message, sender, id: ending.call.id?.derived(.max - UInt64(index)))
        }
        guard let (target, number) = ending.telling else { return }
        var call = SimulatedCall(
            entity: target, number: number, id: ending.call.id?.derived(.max), operation: .tellReceived, origin: .tell)
        if world.mutant != .dropsEpochs { call.sender = sender }
        world.ledger.left(number, under: cell.epoch)
        tell(call, sender)
    }

    /// Sends a message of a service, to an entity or to a node.
    private func send(_ message: SentMessage, _ sender: EntityHeader, id request: RequestID?) {
        switch message.target {
        case .entity(let target):
            var call = SimulatedCall(
                entity: target, number: 0, id: request, operation: .message(message.method, message.message),
                origin: .tell)
            if world.mutant != .dropsEpochs { call.sender = sender }
            tell(call, sender)
        case .node(let name) where name == id.name:
            later(18, after: world.simulation.span(0...1)) { self.world.service?.received(message, at: self) }
        case .node(let name):
            guard let node = world.node(named: name), process.linked.contains(node.id) else { return }
            send(to: node, 19) { node.world.service?.received(message, at: node) }
        }
    }

    /// Sends an entity a message that nobody answers.
    ///
    /// - Parameter sender: the entity that sends it; nil for this node.
    func tell(_ call: SimulatedCall, _ sender: EntityHeader? = nil) {
        let (view, shard) = (process.view, call.entity.shard)
        guard let owner = view.owner(of: shard)?.id, let node = world.node(of: owner) else { return }
        let epoch = view[shard].epoch
        // A message without an answer may be lost.
        if world.service != nil, !world.simulation.isHealed, world.simulation.chance(0.05) { return }
        // On another path than the answers: it may be much later.
        let lateRate = world.service == nil ? 0.1 : world.simulation.isHealed ? 0 : 0.02
        let isLate = world.simulation.chance(lateRate)
        let delay = isLate ? world.simulation.span(50...1500) : world.simulation.span(0...5)
        node.later(6, after: delay) { node.receiveTell(call, epoch: epoch, sender) }
    }

    private func receiveTell(_ call: SimulatedCall, epoch: Epoch, _ sender: EntityHeader?) {
        if let sender = call.sender, sender.isStale(knowing: { process.view[$0].epoch }) { return }
        guard admit(call, epoch: epoch) else { return }
        world.tellCount += 1
        if let sender, sender.epoch < process.view[sender.shard].epoch {
            world.fail(
                "\(id) accepts a message of shard \(sender.shard) under epoch \(sender.epoch), and knows a later")
        }
    }

    /// An admitted call has its outcome.
    private func end(_ call: SimulatedCall, _ outcome: SimulatedOutcome, _ cell: SimulatedCell) {
        cell.runningCount -= 1
        switch call.origin {
        case .ask(let number): world.asks.answer(number, outcome, from: self)
        case .reminder(let reminder): delivered(reminder, outcome)
        case .tell: break
        }
    }
}
