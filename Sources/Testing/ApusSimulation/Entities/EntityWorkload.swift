import ApusCluster
import ApusCore
import ApusStorage
import NIOCore

/// Entities on the simulated cluster: clients that send them requests, the nodes' machines for durability, and a record
/// store that all nodes share (D15, D16, D18).
final class EntityWorkload: SimulationWorkload {
    /// An entity's stored state.
    struct Stored {
        var content: SimulatedContent
        var memory: RequestMemory
        var reminders: [Reminder]

        init(content: SimulatedContent, memory: RequestMemory, reminders: [Reminder]) {
            (self.content, self.memory, self.reminders) = (content, memory, reminders)
        }

        init(_ stored: EntityCollection<SimulatedContent>.Stored) {
            self.init(content: stored.content, memory: stored.memory, reminders: stored.reminders)
        }
    }

    unowned let simulation: ClusterSimulation
    let settings: EntitySettings
    let mutant: EntityMutant
    let isLarge: Bool
    /// True if recorded entities send each change through their outbox.
    let hasOutbox: Bool
    /// The collection of the nodes' records, possibly with a deliberate error.
    let collection: EntityCollection<SimulatedContent>
    let records: SimulatedRecordStore
    let entities: [EntityAddress]
    let shards: [ShardID]
    var ledger = EntityLedger()
    private(set) lazy var clients = EntityClients(world: self)
    private(set) lazy var asks = EntityAsks(world: self)
    /// The service whose entities there are; nil for entities that count.
    private(set) var service: (any SimulatedService)?
    /// By the process's index.
    private(set) var nodes: [EntityNode?] = []
    /// By shard, the newest epoch under which it is claimed in the records.
    var claims: [UInt64: Epoch] = [:]
    var refusalCount = 0
    var tellCount = 0
    var firedCount = 0
    var lossCount = 0
    var lostCount = 0
    var promotionCount = 0
    /// The changes of each entity that the receiver of the outboxes has, and those that it has received again.
    var receivedCounts: [EntityAddress: Int] = [:]
    var repeatedCount = 0

    /// - Parameter makeService: of a run with the entities of a service: makes it.
    init(
        _ simulation: ClusterSimulation, mutant: EntityMutant, isLarge: Bool, hasOutbox: Bool = false,
        makeService: ((EntityWorkload) -> any SimulatedService)? = nil
    ) {
        self.simulation = simulation
        self.mutant = mutant
        (self.isLarge, self.hasOutbox) = (isLarge, hasOutbox)
        var settings = EntitySettings(profile: simulation.profile, random: &simulation.random)
        if isLarge { settings.enlarge() }
        if makeService != nil { (settings.entityCount, settings.clientCount) = (0, 0) }
        self.settings = settings
        collection = Self.makeCollection(mutant)
        records = SimulatedRecordStore(simulation: simulation, failureRate: settings.recordFailureRate)
        let distance = SimulationSettings.shardCount / settings.shardCount
        shards = (0..<settings.shardCount).map { ShardID(UInt16($0 * distance)) }
        entities = Self.makeEntities(settings, shards)
        service = makeService?(self)
    }

    private static func makeEntities(_ settings: EntitySettings, _ shards: [ShardID]) -> [EntityAddress] {
        (0..<settings.entityCount).flatMap { index in
            [EntityKind.recordedProbe, .replicatedProbe].map { kind in
                EntityAddress(kind: kind, key: "entity-\(index)", shard: shards[index % shards.count])
            }
        }
    }

    /// The records of entities, indexed by their last change and by their number of changes.
    static func makeCollection(_ mutant: EntityMutant) -> EntityCollection<SimulatedContent> {
        @Sendable func last(_ content: SimulatedContent) -> [OrderedKey] {
            content.last.map { [OrderedKey(.unsigned(UInt64($0)))] } ?? []
        }
        return EntityCollection(
            "counters", kind: .recordedProbe, layout: 1,
            indexes: [
                RecordIndex("last") { content in
                    guard mutant == .keepsIndexEntries, content.count > 1 else { return last(content) }
                    return last(content) + last(content.withoutLast)
                },
                RecordIndex("count") { content in
                    guard mutant != .dropsIndexEntries || content.count % 2 == 1 else { return [] }
                    return [OrderedKey(.unsigned(UInt64(content.count)))]
                },
            ])
    }

    /// The cluster's clock, Unix milliseconds.
    var wallMilliseconds: Int64 { Int64(simulation.now.nanoseconds / 1_000_000) }

    func anyEntity() -> EntityAddress { entities[simulation.below(entities.count)] }

    func anyNode() -> EntityNode? {
        let running = nodes.compactMap { $0 }.filter { $0.process.isRunning && $0.process.isMember }
        return running.isEmpty ? nil : running[simulation.below(running.count)]
    }

    func node(of id: NodeID) -> EntityNode? { simulation.runningProcess(of: id).flatMap { node($0) } }

    func node(named name: NodeName) -> EntityNode? {
        simulation.nameIndex(of: name).flatMap { simulation.runningProcess(named: $0) }.flatMap { node($0) }
    }

    private func node(_ process: SimulatedProcess) -> EntityNode? {
        process.index < nodes.count ? nodes[process.index] : nil
    }

    func fail(_ sentence: @autoclosure () -> String) { simulation.fail(sentence()) }

    // MARK: Records

    /// The steps that a node commits for a step of its machine.
    func altered(_ step: RecordStep) -> RecordStep {
        var step = step
        switch mutant {
        case .skipsClaimCheck: step.writes[0].fence = RecordFence(epoch: .max, writer: "")
        case .ignoresVersions: for index in step.writes.indices { step.writes[index].condition = .any }
        default: break
        }
        return step
    }

    /// Makes a step in the shared store.
    func make(_ step: RecordStep, _ tables: inout MemoryRecordTables) -> Result<[UInt64], ApusError> {
        let outcome = tables.commit(step)
        if case .success = outcome { checkStep(step) }
        return outcome
    }

    // MARK: Processes

    func opened(_ process: SimulatedProcess) {
        while nodes.count <= process.index { nodes.append(nil) }
        nodes[process.index] = EntityNode(world: self, process: process)
    }

    func adopted(_ map: ClusterMap, by process: SimulatedProcess) {
        guard let node = node(process) else { return }
        node.adopted(map)
        service?.adopted(node)
    }

    func made(_ map: ClusterMap, after old: ClusterMap) {
        for shard in shards where map[shard] != old[shard] {
            let names = [map.owner(of: shard)?.id, map.standby(of: shard)?.id].map { $0.map { "\($0)" } ?? "nobody" }
            let (to, named) = (map[shard], "\(map[shard].ownerNamedIn), \(map[shard].standbyNamedIn)")
            simulation.tell("    shard \(shard): \(names[0]), \(names[1]), epoch \(to.epoch), named in \(named)")
        }
    }

    func stopped(_ process: SimulatedProcess) {
        guard let node = node(process) else { return }
        nodes[process.index] = nil
        service?.stopped(node)
    }

    func linkUp(_ peer: NodeID, at process: SimulatedProcess) {
        guard let node = node(process) else { return }
        node.owner.linkChanged(to: peer)
        node.settle()
    }

    func tick(_ process: SimulatedProcess) {
        guard let node = node(process) else { return }
        node.tickReplicas()
        node.tickReminders()
        node.tickOutbox()
        node.settle()
    }

    // MARK: Planned moves

    func setCandidate(_ candidate: NodeID?, of shard: ShardID, at process: SimulatedProcess) {
        guard let node = node(process) else { return }
        node.settle(node.owner.setCandidate(shard, candidate))
        node.settle()
    }

    func isCaughtUp(_ target: NodeID, with shard: ShardID, at process: SimulatedProcess) -> Bool {
        node(process)?.owner.isCaughtUp(shard, target) ?? false
    }

    func hold(_ shard: ShardID, at process: SimulatedProcess) { node(process)?.hold(shard) }
    func isQuiet(_ shard: ShardID, at process: SimulatedProcess) -> Bool { node(process)?.isQuiet(shard) ?? true }
    func release(_ shard: ShardID, at process: SimulatedProcess) { node(process)?.release(shard) }

    // MARK: Faults

    func begin() {
        clients.begin()
        service?.begin()
    }

    func makeFault() {
        let now = simulation.now
        switch simulation.below(4) {
        case 0:
            records.slowUntil = now + simulation.span(200...1500)
            simulation.tell("the record store is slow")
        case 1:
            records.downUntil = now + simulation.span(50...1200)
            simulation.tell("the record store is down")
        case 2:
            records.stoppedUntil = now + simulation.span(50...1500)
            simulation.tell("the record store is stopped")
        default:
            let name = simulation.below(ClusterSimulation.names.count)
            records.cutUntil[name] = now + simulation.span(100...2000)
            simulation.tell("\(ClusterSimulation.names[name]) does not reach the record store")
        }
    }

    func heal() { records.heal() }

    // MARK: States

    static func stored(_ bytes: ByteBuffer, of address: EntityAddress) -> Stored? {
        guard let entity = try? StoredEntity(reading: Array(bytes.readableBytesView), of: address),
            let content = try? SimulatedContent(reading: entity.content)
        else { return nil }
        return Stored(content: content, memory: entity.memory, reminders: entity.reminders)
    }

    /// The owner in the newest map, if it runs and has opened the shard.
    func owner(of shard: ShardID) -> EntityNode? {
        let map = simulation.store.map
        guard let id = map.owner(of: shard)?.id, let node = node(of: id),
            node.owner.position(of: shard, epoch: map[shard].epoch) != nil
        else { return nil }
        return node
    }

    /// The state for the entity's next message; nil if it has none.
    func truth(of entity: EntityAddress) -> Stored? {
        if entity.isRecorded {
            let id = RecordID(collection.name, EntityCollection<SimulatedContent>.key(of: entity))
            guard let record = records.tables.record(id) else { return nil }
            return (try? collection.stored(record)).map(Stored.init)
        }
        let key = ReplicaKey(kind: entity.kind, key: entity.key)
        return owner(of: entity.shard)?.owner.state(of: key, in: entity.shard).flatMap { Self.stored($0, of: entity) }
    }

    /// True if every node has the newest map, and every shard's standby has everything of it.
    var isSafe: Bool {
        let map = simulation.store.map
        let haveSeen = simulation.processes.allSatisfy {
            !$0.isRunning || ($0.isMember && $0.view.revision == map.revision)
        }
        return haveSeen && unsafeShard == nil
    }

    /// A shard that is not open, or whose standby has not caught up; in a run of pairs also its second standby.
    var unsafeShard: ShardID? {
        let map = simulation.store.map
        return shards.first { shard in
            guard let node = owner(of: shard) else { return true }
            guard let standby = map.standby(of: shard)?.id else { return map.members.count { $0.state.isAlive } > 1 }
            guard node.owner.isCaughtUp(shard, standby) else { return true }
            guard simulation.profile == .pairs else { return false }
            guard let second = map.secondStandby(of: shard)?.id else { return true }
            return !node.owner.isCaughtUp(shard, second)
        }
    }

    /// A node whose entities have something in flight to where it is stored.
    var busyNode: EntityNode? { nodes.lazy.compactMap { $0 }.first { !$0.isIdle } }
}
