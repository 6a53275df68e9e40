import ApusCluster
import ApusCore
import NIOCore

private let shard = ShardID(7)
private let owner = NodeID(name: NodeName(unchecked: "a"), incarnation: 1)
private let standby = NodeID(name: NodeName(unchecked: "b"), incarnation: 1)

/// D18: a message of replication, or its answer, is refused or means the same when written again. A standby that takes
/// it keeps its bounds; an owner that is answered acknowledges nothing that it did not send.
func fuzzReplica(_ input: [UInt8]) {
    let bytes = ByteBuffer(bytes: input)
    if var message = try? ReplicaMessage(decoding: bytes) {
        precondition((try? ReplicaMessage(decoding: message.encoded())) == message, "a message is written otherwise")
        message.targetIncarnation = 1
        take(message)
    }
    if let answers = try? ReplicaAnswers(decoding: bytes) {
        precondition((try? ReplicaAnswers(decoding: answers.encoded())) == answers, "answers are written otherwise")
        take(answers)
    }
}

/// Node a owns the shard under epoch 5, and b stands by for it.
private let map = {
    let host = HostPort(host: "127.0.0.1", port: 1)
    var map = ClusterMap(cluster: ClusterID(unchecked: "fuzz"))
    map.revision = 1
    for node in [owner, standby] {
        map.members.append(
            Member(id: node, state: .up, addresses: NodeAddresses(transport: host, clients: host, http: host)))
    }
    map[shard] = ShardAssignment(owner: MemberSlot(rawValue: 0), standby: MemberSlot(rawValue: 1), epoch: 5)
    return map
}()

private func take(_ message: ReplicaMessage) {
    var configuration = ReplicaConfiguration()
    configuration.entityCountMax = 4
    configuration.byteCountMax = 1024
    var machine = ReplicaStandbyStateMachine(local: standby, map: map, configuration: configuration)
    for _ in 0..<2 {
        let answers = machine.received(message, from: owner)
        precondition(answers?.answers.count == message.batches.count, "a batch has no answer")
        // Of copies a node holds up to twice what it may own.
        precondition(machine.entityCount <= 8 && machine.byteCount <= 2048, "a bound is exceeded")
    }
    var newer = map
    newer.revision = 2
    newer.members[0].state = .dead
    newer[shard] = ShardAssignment(owner: MemberSlot(rawValue: 1), standby: .none, epoch: 6)
    machine.mapChanged(newer)
    precondition(machine.promote(shard, epoch: 6) != nil, "what came keeps a node from its shard")
    precondition(machine.entityCount >= 0 && machine.byteCount >= 0, "what is kept is counted wrongly")
}

private func take(_ answers: ReplicaAnswers) {
    var machine = ReplicaOwnerStateMachine(local: owner, map: map)
    _ = machine.open(shard, epoch: 5, table: ReplicaTable())
    let key = ReplicaKey(kind: EntityKind(rawValue: 3), key: "x")
    var now = MonotonicTime.zero
    for number in 0..<4 {
        var effects = ReplicaOwnerStateMachine.Effects()
        _ = try? machine.change(shard, epoch: 5, ReplicaRecord(key, ByteBuffer(integer: number)), &effects)
        _ = machine.nextMessages(now: now)
        _ = machine.answered(answers, by: standby, now: now)
        now = now + .milliseconds(300)
        machine.tick(now: now)
    }
    let position = machine.position(of: shard, epoch: 5) ?? 0
    precondition(machine.acknowledged(of: shard) ?? 0 <= position, "what was not changed is acknowledged")
    precondition(machine.waitingCount >= 0 && machine.waitingByteCount >= 0, "what waits is counted wrongly")
    let terms = machine.nextMessages(now: now + .seconds(60)).flatMap { $0.message.batches.map(\.term) }
    precondition(terms.allSatisfy { $0.epoch == 5 && $0.stream < 1000 }, "a stream has a number that its target said")
}
