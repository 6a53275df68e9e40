package import ApusCore
import Synchronization

/// An ownership store in memory, for tests and simulations of nodes in one process. It fulfils the contract except for
/// durability.
///
/// Concurrency model: a `Mutex` guards the value.
package final class MemoryOwnershipStore: OwnershipStore {
    private struct State {
        var value: OwnershipValue?
        var failure: ApusError?
        /// The ends of the leases.
        var leases: [NodeID: MonotonicTime] = [:]
    }

    private let state = Mutex(State())

    package let identity = StoreID.random()

    package init() {}

    /// Makes every call fail with this error, without effect, until it is set to nil.
    package func fail(with error: ApusError?) { state.withLock { $0.failure = error } }

    /// Replaces the value, with any revision: an older copy, or a restored one.
    package func replace(with value: OwnershipValue?) { state.withLock { $0.value = value } }

    package func read() async throws(ApusError) -> OwnershipValue? { try value() }

    package func compareAndSwap(expected: UInt64, value: [UInt8]) async throws(ApusError) -> UInt64? {
        guard value.count <= OwnershipLimits.valueByteCountMax else { throw ApusError(.frameTooLarge) }
        return try state.withLock { (state) throws(ApusError) -> UInt64? in
            if let failure = state.failure { throw failure }
            let revision = state.value?.revision ?? 0
            guard revision == expected else { return nil }
            state.value = OwnershipValue(revision: revision + 1, bytes: value)
            return revision + 1
        }
    }

    package func renewLease(of node: NodeID, for duration: Duration) async throws(ApusError) {
        try state.withLock { (state) throws(ApusError) in
            if let failure = state.failure { throw failure }
            for other in state.leases.keys where other.name == node.name { state.leases[other] = nil }
            state.leases[node] = .now() + duration
        }
    }

    package func leaseHolders() async throws(ApusError) -> Set<NodeID> {
        try state.withLock { (state) throws(ApusError) in
            if let failure = state.failure { throw failure }
            return Set(state.leases.filter { $0.value > .now() }.keys)
        }
    }

    package func revision() async throws(ApusError) -> UInt64 { try value()?.revision ?? 0 }

    private func value() throws(ApusError) -> OwnershipValue? {
        try state.withLock { (state) throws(ApusError) -> OwnershipValue? in
            if let failure = state.failure { throw failure }
            return state.value
        }
    }
}
