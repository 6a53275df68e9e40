package import ApusCore
import ApusTraversal
import DequeModule

/// Keeps a standby's mirrors of this node's allocations as the allocations are (RFC 8016, D8).
///
/// Changes wait by allocation, the newest of each, and go out in batches, one under way at a time: while one is under
/// way the next gathers, so that a busy relay sends few and large ones and a quiet one sends at once. A batch that
/// failed, and a new standby, begin with everything anew, which the shell asks the relay for. What a standby of
/// before still holds ends with the lifetimes of the allocations.
///
/// Pure; time is passed in. Its owner is one thread.
package struct MirrorFeedStateMachine: Sendable {
    /// Bounds (D13).
    package struct Configuration: Sendable {
        /// Allocations that wait to be told at most; beyond it all is told anew.
        package var pendingMax = 16_384
        /// Changes of one batch, and about how many bytes.
        package var batchMax = 256
        package var batchByteCountMax = 128 * 1_024
        /// How long after a failure the next try is.
        package var retryDelay = Duration.milliseconds(200)

        package init() {}
    }

    package enum Action: Sendable, Equatable {
        /// Send it to the standby and report with ``answered(_:isTaken:at:)`` and its number.
        case send(UInt64, NodeID, [MirrorChange])
        /// Ask the relay for every mirror, which come as changes.
        case tellMirrors
        /// Come back with ``tick(at:)`` then.
        case wait(until: MonotonicTime)
    }

    private enum State: Sendable {
        /// Nobody stands by; nothing waits.
        case alone
        /// With the number of the batch that is under way.
        case feeding(NodeID, sending: UInt64?)
        case failed(NodeID, until: MonotonicTime)
    }

    private let configuration: Configuration
    private var state = State.alone
    private var changes: [MobilityTicket: MirrorChange] = [:]
    private var order = Deque<MobilityTicket>()
    private var lastBatch: UInt64 = 0

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    /// Who is told; nil if nobody can be.
    package var standby: NodeID? {
        switch state {
        case .alone: nil
        case .feeding(let standby, _), .failed(let standby, _): standby
        }
    }

    /// Allocations whose change waits.
    package var pendingCount: Int { changes.count }

    /// Who stands by for this node's allocations, as the cluster is now.
    package mutating func standbyChanged(to standby: NodeID?) -> [Action] {
        guard standby != self.standby else { return [] }
        clear()
        guard let standby else {
            state = .alone
            return []
        }
        state = .feeding(standby, sending: nil)
        return [.tellMirrors]
    }

    /// Allocations changed.
    package mutating func changed(_ news: [MirrorChange]) -> [Action] {
        switch state {
        // Whoever comes to stand by is told everything.
        case .alone, .failed: return []
        case .feeding(let standby, let sending):
            for change in news { note(change) }
            guard order.count <= configuration.pendingMax * 2 else {
                clear()
                return [.tellMirrors]
            }
            return sending == nil ? sendNext(to: standby) : []
        }
    }

    /// A batch has its answer, or will have none. That of one to a standby of before says nothing.
    package mutating func answered(_ batch: UInt64, isTaken: Bool, at now: MonotonicTime) -> [Action] {
        guard case .feeding(let standby, batch) = state else { return [] }
        if isTaken { return sendNext(to: standby) }
        clear()
        let next = now + configuration.retryDelay
        state = .failed(standby, until: next)
        return [.wait(until: next)]
    }

    /// Time went by.
    package mutating func tick(at now: MonotonicTime) -> [Action] {
        guard case .failed(let standby, let time) = state, time <= now else { return [] }
        state = .feeding(standby, sending: nil)
        return [.tellMirrors]
    }

    private mutating func note(_ change: MirrorChange) {
        switch change {
        case .kept(let mirror, let old):
            if changes[mirror.ticket] == nil { order.append(mirror.ticket) }
            changes[mirror.ticket] = .kept(mirror, replacing: nil)
            if let old, old != mirror.ticket { note(.ended(old)) }
        case .ended(let ticket):
            if changes[ticket] == nil { order.append(ticket) }
            changes[ticket] = change
        }
    }

    private mutating func sendNext(to standby: NodeID) -> [Action] {
        var batch: [MirrorChange] = []
        var byteCount = 0
        while batch.count < configuration.batchMax, byteCount < configuration.batchByteCountMax,
            let ticket = order.popFirst()
        {
            guard let change = changes.removeValue(forKey: ticket) else { continue }
            byteCount += Self.byteCount(of: change)
            batch.append(change)
        }
        guard !batch.isEmpty else {
            state = .feeding(standby, sending: nil)
            return []
        }
        lastBatch += 1
        state = .feeding(standby, sending: lastBatch)
        return [.send(lastBatch, standby, batch)]
    }

    private mutating func clear() {
        changes = [:]
        order = []
    }

    private static func byteCount(of change: MirrorChange) -> Int {
        switch change {
        case .kept(let mirror, _):
            64 + mirror.username.utf8.count + 20 * mirror.permissions.count + 26 * mirror.channels.count
        case .ended: 20
        }
    }
}
