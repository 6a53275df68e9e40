import ApusCluster
import ApusCore
import NIOCore

/// A deliberate error around the machines; the checks of ``ReplicaSimulation`` must find each.
enum ReplicaMutant: String, Sendable, CaseIterable {
    case none = "does everything right"
    /// The owner hears that a batch was taken when it leaves.
    case acknowledgesEarly = "acknowledges before the standby has it"
    /// The first part of a snapshot is taken for all of it.
    case completesEarly = "takes a copy for complete too early"
    /// Removals do not reach the copies.
    case forgetsRemovals = "forgets a removal"
    /// Of a batch with several records the last is lost.
    case dropsRecords = "drops a record of a batch"
    /// What a node with a newer term refuses counts as taken.
    case takesStaleTerms = "accepts a stale term"
    /// What a target cannot follow counts as taken.
    case ignoresRestarts = "takes a refusal for a confirmation"
    /// A batch is applied before the one that it follows.
    case appliesOutOfOrder = "applies a batch out of order"
    /// More changes wait for a standby than may.
    case ignoresBounds = "ignores the bound of changes that wait"
    /// A promotion says that nothing is missing, whatever its copy knows.
    case hidesLosses = "reports no loss"
    /// A batch that came before is applied again.
    case appliesTwice = "applies a batch that is doubled"
    /// The map names a candidate before it has caught up.
    case namesStandbyEarly = "names a standby before it has caught up"
    /// The target of a move becomes the owner before it has every change.
    case handsOverEarly = "hands over before the target has everything"
    /// The map names a standby for want of another as if a move had.
    case forgetsNamings = "does not say that a standby was named for want of another"
    /// The same of a second standby.
    case forgetsSecondNamings = "does not say that a second standby was named for want of another"
    /// The map says so of the standby, and no more when that is the owner.
    case promotesUnnamed = "does not say so any more when the standby becomes the owner"
    /// The map names the target of a move as if there were no better one.
    case mistakesMoves = "says of a move's target that it was named for want of another"

    /// Shows only where nodes pass over maps.
    var needsSkippedMaps: Bool { self == .forgetsNamings || self == .promotesUnnamed || needsSecondStandbys }
    var needsSecondStandbys: Bool { self == .forgetsSecondNamings }
    /// Loses nothing that is not reported, so it shows only where no loss may be reported.
    var needsGentleness: Bool { self == .namesStandbyEarly || self == .handsOverEarly || self == .mistakesMoves }
}

/// Shards that are replicated between four nodes, over a channel that loses, doubles, delays and reorders; nodes die,
/// pause and come back, see maps late, and move shards as planned. One seed is one run.
///
/// Each change writes a number that no change before it had, so that the newest acknowledged one of a key says what a
/// promoted copy must hold at least.
struct ReplicaSimulation {
    static let shards = [ShardID(7), ShardID(8), ShardID(4000)]
    static let keys = (0..<7).map {
        ReplicaKey(kind: EntityKind(rawValue: UInt8($0 % 2 + 1)), key: "entity-\($0)")
    }

    struct Node {
        var id: NodeID
        var owner: ReplicaOwnerStateMachine
        var standby: ReplicaStandbyStateMachine
        /// Maps up to the newest that it has seen.
        var seenCount: Int
        var isPaused = false
        var waiters: [ShardID: ReplicaWaiters<Int>] = [:]
    }

    struct Packet {
        var time: MonotonicTime
        var from: NodeID
        var to: NodeID
        var isAnswer: Bool
        var bytes: ByteBuffer
    }

    /// Where a copy expects its stream to go on, as it said last.
    struct Expectation {
        var term: ReplicaTerm
        var next: UInt64
    }

    /// A change, by its number.
    struct Change {
        var shard: ShardID
        var key: ReplicaKey
        var isRemoval: Bool
    }

    struct Way: Equatable {
        var from: Int
        var to: Int
    }

    struct Move: Equatable {
        var owner: NodeID
        var target: NodeID
        var epoch: Epoch
        /// The map that names the target standby was asked for: until the owner has seen it, nothing is given up.
        var isProposed = false
        var isHeld = false
    }

    let mutant: ReplicaMutant
    /// Nodes die one at a time, after a rest in which every copy was made: then no promotion may lack anything.
    let isGentle: Bool
    /// A node that sees a newer map may pass over those before it.
    let skipsMaps: Bool
    /// Shards have second standbys, and two nodes may die at once.
    let hasSecondStandbys: Bool
    var stepsSinceDeath = 0
    var random: SeededRandom
    var now = at(0)
    var maps: [ClusterMap] = []
    /// By slot.
    var nodes: [Node?] = []
    var packets: [Packet] = []
    var moves: [ShardID: Move] = [:]
    /// By shard: the newest move that named a standby in another's place.
    var planned: [ShardID: Move] = [:]
    /// By shard: the newest hand-over.
    var handedOver: [ShardID: ShardAssignment] = [:]
    var expectations: [NodeID: [ShardID: Expectation]] = [:]
    var changes: [Change] = []
    /// Changes that nobody was told of yet.
    var untold: Set<Int> = []
    /// By shard and key: the newest acknowledged change.
    var acknowledged: [ShardID: [ReplicaKey: Int]] = [:]
    /// The newest epoch with which a loss was reported.
    var lossEpochs: [ShardID: Epoch] = [:]
    /// Ways from a slot to another on which nothing arrives.
    var cuts: [Way] = []
    var isCalm = false
    private(set) var violations: [String] = []
    private(set) var acknowledgedCount = 0
    private(set) var completePromotionCount = 0
    private(set) var incompletePromotionCount = 0

    static var configuration: ReplicaConfiguration {
        var configuration = ReplicaConfiguration()
        configuration.messageByteCountMax = 220
        configuration.messageCountMax = 3
        configuration.laneCount = 2
        configuration.windowByteCount = 600
        configuration.waitingCountMax = 12
        configuration.resendAfter = .milliseconds(30)
        configuration.retryDelay = .milliseconds(5)
        return configuration
    }

    init(
        seed: UInt64, mutant: ReplicaMutant = .none, isGentle: Bool = false, skipsMaps: Bool = false,
        hasSecondStandbys: Bool = false
    ) {
        self.mutant = mutant
        self.isGentle = isGentle
        self.skipsMaps = skipsMaps
        self.hasSecondStandbys = hasSecondStandbys
        random = SeededRandom(seed: seed)
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        map.revision = 1
        for name in ["a", "b", "c", "d"] {
            map.members.append(Member(id: node(name), state: .up, addresses: addresses(name)))
        }
        for (index, shard) in Self.shards.enumerated() {
            map[shard] = ShardAssignment(
                owner: MemberSlot(rawValue: UInt16(index)), standby: MemberSlot(rawValue: UInt16(index + 1)), epoch: 1)
        }
        maps = [map]
        nodes = map.members.map { newNode($0.id) }
    }

    func newNode(_ id: NodeID) -> Node {
        var configuration = Self.configuration
        if mutant == .ignoresBounds { configuration.waitingCountMax = 1000 }
        return Node(
            id: id, owner: ReplicaOwnerStateMachine(local: id, map: map, configuration: configuration),
            standby: ReplicaStandbyStateMachine(local: id, map: map, configuration: configuration),
            seenCount: maps.count)
    }

    var map: ClusterMap { maps[maps.count - 1] }

    mutating func violate(_ sentence: String) { violations.append(sentence) }

    // MARK: The run

    /// Faults for a while, then calm: everything that waits must end, and every copy must be complete.
    mutating func run(stepCount: Int = 400) -> [String] {
        for _ in 0..<stepCount {
            step()
            if violations.count > 3 { return violations }
        }
        calm()
        var rounds = 0
        while rounds < 400, !isSettled {
            rounds += 1
            pass()
        }
        if !isSettled { violate("changes wait for ever: \(untold.sorted().prefix(5)), \(unsettled)") }
        for shard in Self.shards { checkCopy(of: shard) }
        return violations
    }

    private var isSettled: Bool { untold.isEmpty && unsettled.isEmpty }

    /// Shards that are not open at their owner, or whose standby has not caught up.
    private var unsettled: [String] {
        Self.shards.compactMap { shard in
            guard let owner = map.owner(of: shard)?.id else { return nil }
            guard let machine = self[owner]?.owner[shard] else { return "\(shard) is not open at \(owner)" }
            guard let standby = map.standby(of: shard)?.id, !machine.isCaughtUp(standby) else { return nil }
            return "\(standby) has not caught up with \(owner) for \(shard) of epoch \(machine.epoch)"
        }
    }

    private mutating func calm() {
        isCalm = true
        cuts = []
        for slot in nodes.indices { nodes[slot]?.isPaused = false }
    }

    private mutating func step() {
        stepsSinceDeath += 1
        if isGentle, stepsSinceDeath == 20 { rest() }
        switch random.next() % 100 {
        case 0..<40: change()
        case 40..<42: kill()
        case 42..<45: restart()
        case 45..<48: pause()
        case 48..<52: beginMove()
        case 52..<53: giveUp(Self.shards[Int(random.next() % 3)])
        case 53..<55: cut()
        case 55..<57: cuts = []
        case 57..<65: nameSecondStandbys()
        default: break
        }
        pass()
    }

    /// No faults until everything has reached everybody.
    private mutating func rest() {
        calm()
        var rounds = 0
        while rounds < 400 {
            let haveSeenAll = nodes.allSatisfy { ($0?.seenCount ?? maps.count) == maps.count }
            if isSettled, packets.isEmpty, haveSeenAll { break }
            rounds += 1
            pass()
        }
        isCalm = false
    }

    /// A few milliseconds.
    private mutating func pass() {
        now = now + .milliseconds(Int(random.next() % 8) + 1)
        for slot in nodes.indices where nodes[slot]?.isPaused == false {
            if isCalm || random.next() % 3 == 0 { seeMap(slot) }
            promote(slot)
            nodes[slot]?.owner.tick(now: now)
        }
        deliver()
        for shard in Self.shards { advance(shard) }
        for slot in nodes.indices where nodes[slot]?.isPaused == false { send(slot) }
    }

    subscript(id: NodeID) -> Node? {
        nodes.first { $0?.id == id } ?? nil
    }

    func slot(of id: NodeID) -> Int? { nodes.firstIndex { $0?.id == id } }

    // MARK: Changes

    private mutating func change() {
        let shard = Self.shards[Int(random.next() % 3)]
        let key = Self.keys[Int(random.next() % 7)]
        // Mostly the owner, sometimes one that takes itself for it.
        let anySlot = Int(random.next() % 4)
        let slot = random.next() % 4 == 0 ? anySlot : (map.owner(of: shard).flatMap { self.slot(of: $0.id) } ?? anySlot)
        guard nodes[slot]?.isPaused == false, let machine = nodes[slot]?.owner[shard], moves[shard]?.isHeld != true
        else { return }
        let isRemoval = random.next() % 4 == 0
        let number = changes.count
        var state: ByteBuffer?
        if !isRemoval {
            state = ByteBuffer(integer: UInt64(number))
            state?.writeRepeatingByte(7, count: Int(random.next() % 60))
        }
        var effects = ReplicaOwnerStateMachine.Effects()
        do throws(ApusError) {
            let position = try nodes[slot]?.owner.change(
                shard, epoch: machine.epoch, ReplicaRecord(key, state), &effects)
            changes.append(Change(shard: shard, key: key, isRemoval: isRemoval))
            let waitingCount = nodes[slot]?.owner[shard]?.waitingCount ?? 0
            if waitingCount > Self.configuration.waitingCountMax { violate("\(waitingCount) changes wait") }
            untold.insert(number)
            nodes[slot]?.waiters[shard, default: ReplicaWaiters()].add(number, for: position ?? 0, until: now)
            settle(effects, slot)
        } catch {
            if error.code != .overloaded && error.code != .staleEpoch { violate("a change was refused: \(error)") }
        }
    }

    mutating func settle(_ effects: ReplicaOwnerStateMachine.Effects, _ slot: Int) {
        guard let node = nodes[slot] else { return }
        for shard in effects.acknowledged {
            let upTo = node.owner.acknowledged(of: shard) ?? 0
            let epoch = node.owner[shard]?.epoch ?? 0
            let isAlone = node.owner[shard]?.standby == nil
            let isOwner = map.owner(of: shard)?.id == node.id && map[shard].epoch == epoch
            for number in nodes[slot]?.waiters[shard]?.take(upTo: upTo) ?? [] {
                tell(number)
                // A node that was declared dead while it had no standby is fenced by its membership, not by this.
                // What is acknowledged after a loss was reported is part of it.
                guard isOwner || !isAlone, epoch >= lossEpochs[shard] ?? 0 else { continue }
                acknowledgedCount += 1
                let key = changes[number].key
                acknowledged[shard, default: [:]][key] = max(acknowledged[shard]?[key] ?? 0, number)
            }
        }
        for (shard, _) in effects.superseded { fail(shard, slot) }
        for closed in effects.closed {
            fail(closed.shard, slot)
            nodes[slot]?.standby.keep(closed.shard, table: closed.table, ownedUnder: closed.epoch)
        }
    }

    private mutating func fail(_ shard: ShardID, _ slot: Int) {
        for number in nodes[slot]?.waiters[shard]?.takeAll() ?? [] { tell(number) }
    }

    mutating func tell(_ number: Int) {
        if untold.remove(number) == nil { violate("change \(number) was told twice") }
    }

    // MARK: Promotion

    private mutating func promote(_ slot: Int) {
        for shard in Self.shards where isCalm || random.next() % 3 == 0 {
            guard let node = nodes[slot] else { return }
            let epoch = maps[node.seenCount - 1][shard].epoch
            guard node.owner.canOpen(shard, epoch: epoch),
                var promotion = nodes[slot]?.standby.promote(shard, epoch: epoch)
            else { continue }
            if mutant == .hidesLosses { promotion.isComplete = true }
            if map[shard].epoch == epoch {
                check(promotion, of: shard, by: node.id)
            } else if !promotion.isComplete {
                // What this owner begins with may yet reach the newest one.
                acknowledged[shard] = [:]
            }
            if !promotion.isComplete { lossEpochs[shard] = max(lossEpochs[shard] ?? 0, epoch) }
            if let effects = nodes[slot]?.owner.open(shard, epoch: epoch, table: promotion.table) {
                settle(effects, slot)
            }
        }
    }

    /// What was acknowledged is there, or the loss is reported.
    mutating func check(_ promotion: ReplicaStandbyStateMachine.Promotion, of shard: ShardID, by node: NodeID) {
        var held: [ReplicaKey: Int] = [:]
        for record in promotion.table.records {
            var state = record.state ?? ByteBuffer()
            held[record.key] = state.readInteger(as: UInt64.self).map { Int($0) } ?? -1
        }
        for (key, number) in held.sorted(by: { $0.value < $1.value }) {
            guard changes.indices.contains(number), changes[number].key == key, changes[number].shard == shard else {
                return violate("\(node) holds what nobody wrote for \(key.key)")
            }
        }
        guard promotion.isComplete else {
            incompletePromotionCount += 1
            if isGentle { violate("\(node) reports a loss though one node died alone") }
            acknowledged[shard] = held
            return
        }
        completePromotionCount += 1
        for key in Self.keys {
            guard let number = acknowledged[shard]?[key] else { continue }
            if let newest = held[key] {
                guard newest < number else { continue }
                violate("\(node) holds \(newest) of \(key.key), after \(number) was acknowledged")
            } else if !changes[number].isRemoval, !wasRemoved(key, of: shard, after: number) {
                violate("\(node) lost \(key.key), of which \(number) was acknowledged")
            }
        }
    }

    private func wasRemoved(_ key: ReplicaKey, of shard: ShardID, after number: Int) -> Bool {
        changes[number...].contains { $0.shard == shard && $0.key == key && $0.isRemoval }
    }

    /// At rest, the standby's copy is all that was acknowledged, and is known to be.
    private mutating func checkCopy(of shard: ShardID) {
        guard let owner = map.owner(of: shard)?.id, let standby = map.standby(of: shard)?.id,
            let slot = slot(of: standby), self[owner]?.owner[shard] != nil
        else { return }
        var newer = map
        newer.revision += 1
        newer[shard].loseOwner()
        // Each shard's owner dies alone, so each looks at a copy of the node.
        var copy = nodes[slot]?.standby
        copy?.mapChanged(newer)
        guard let promotion = copy?.promote(shard, epoch: newer[shard].epoch) else {
            return violate("\(standby) cannot be promoted")
        }
        if !promotion.isComplete { violate("\(standby) does not know that its copy is complete") }
        check(promotion, of: shard, by: standby)
    }
}
