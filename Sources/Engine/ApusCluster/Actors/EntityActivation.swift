import ApusCore
import ApusTransport
import Synchronization

/// A shard's time on this node under one epoch, for the entities of one kind. Its end is the end of all of
/// them, with one store: what they answer after that is not sent.
final class ShardTenure: Sendable {
    let shard: ShardID
    let epoch: Epoch
    private let isOver = Atomic<Bool>(false)

    init(shard: ShardID, epoch: Epoch) {
        self.shard = shard
        self.epoch = epoch
    }

    func end() { isOver.store(true, ordering: .releasing) }

    var hasEnded: Bool { isOver.load(ordering: .acquiring) }
}

/// A live entity. Counters are atomics: a message's end needs no lock.
final class EntityActivation: Sendable {
    let key: String
    let actor: any Actor
    /// The entity's own; what waits for it is the entity's queue.
    let executor: TurnExecutor
    let tenure: ShardTenure
    let runningCount = Atomic<Int>(0)
    let isLeaving = Atomic<Bool>(false)
    let lastSweep = Atomic<UInt64>(0)
    private let isReleased = Atomic<Bool>(false)

    init(key: String, actor: any Actor, executor: TurnExecutor, tenure: ShardTenure) {
        self.key = key
        self.actor = actor
        self.executor = executor
        self.tenure = tenure
    }

    func release() { isReleased.store(true, ordering: .releasing) }

    /// False from the moment that the entity was released, or its shard left; what it answers after that is
    /// not sent.
    var isActive: Bool { !isReleased.load(ordering: .acquiring) && !tenure.hasEnded }

    var isIdle: Bool { runningCount.load(ordering: .acquiring) == 0 }
}
