package import ApusCore
import ApusTraversal
import DequeModule

/// Sends the state of this node's allocations to a standby, which stores it as mirrors (RFC 8016, D8).
///
/// Changes wait by allocation, only the newest of each, and are sent in batches. One batch is in flight at a time, and
/// the next one gathers changes in the meantime: a busy relay sends few large batches, and an idle one sends at once.
/// After a failed batch, and for a new standby, all mirrors are sent again; the shell requests them from the relay.
/// Mirrors at a former standby expire with the allocations' lifetimes.
///
/// Pure value; time is passed in. Its owner is one thread.
package struct MirrorFeedStateMachine: Sendable {
    /// Limits (D13).
    package struct Configuration: Sendable {
        /// The most allocations with waiting changes. Beyond it, all mirrors are sent again.
        package var pendingMax = 16_384
        /// The most changes of one batch, and its approximate size in bytes.
        package var batchMax = 256
        package var batchByteCountMax = 128 * 1_024
        /// The wait after a failure.
        package var retryDelay = Duration.milliseconds(200)

        package init() {}
    }

    package enum Action: Sendable, Equatable {
        /// Send it to the standby, and report with ``answered(_:isTaken:at:)`` and its number.
        case send(UInt64, NodeID, [MirrorChange])
        /// Request every mirror from the relay. They arrive as changes.
        case tellMirrors
        /// Call ``tick(at:)`` at this time.
        case wait(until: MonotonicTime)
    }

    private enum State: Sendable {
        /// There is no standby, so nothing waits.
        case alone
        /// With the number of the batch in flight.
        case feeding(NodeID, sending: UInt64?)
        case failed(NodeID, until: MonotonicTime)
    }

    private let configuration: Configuration
    private var state = State.alone
    private var changes: [MobilityTicket: MirrorChange] = [:]
    private var order = Deque<MobilityTicket>()
    private var lastBatch: UInt64 = 0

    package init(configuration: Configuration = Configuration()) { self.configuration = configuration }

    /// The standby that receives batches; nil if there is none.
    package var standby: NodeID? {
        switch state {
        case .alone: nil
        case .feeding(let standby, _), .failed(let standby, _): standby
        }
    }

    /// The number of allocations with a waiting change.
    package var pendingCount: Int { changes.count }

    /// The standby of this node's allocations changed.
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
        // A new standby is sent everything.
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

    /// A batch was answered, or will not be. An answer of a former standby is ignored.
    package mutating func answered(_ batch: UInt64, isTaken: Bool, at now: MonotonicTime) -> [Action] {
        guard case .feeding(let standby, batch) = state else { return [] }
        if isTaken { return sendNext(to: standby) }
        clear()
        let next = now + configuration.retryDelay
        state = .failed(standby, until: next)
        return [.wait(until: next)]
    }

    /// Time has passed.
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
