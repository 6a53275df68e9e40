import ApusCore
import ApusTransport
import Synchronization

/// The period in which this node owns a shard under one epoch, for the entities of one kind. One store ends all its
/// entities; answers that they give afterwards are not sent.
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

/// An active entity. The counters are atomics, so the end of a message needs no lock.
final class EntityActivation: Sendable {
    let key: String
    let actor: any Actor
    /// The entity's own executor. Its queue is the entity's queue.
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

    /// False once the entity was released or its shard left this node. Answers after that are not sent.
    var isActive: Bool { !isReleased.load(ordering: .acquiring) && !tenure.hasEnded }

    var isIdle: Bool { runningCount.load(ordering: .acquiring) == 0 }
}
