package import ApusCore
import ApusStorage
import Synchronization

/// A lease that etcd granted to an incarnation.
struct EtcdLease: Sendable {
    var node: NodeID
    var id: Int64
}

/// The leases of the nodes are leases of etcd, each with one key.
///
/// etcd counts them in whole seconds, and looks for ended ones twice a second. A lease is granted for the whole seconds
/// of the wanted duration, at least one. It thus ends up to a second before that duration, or up to half a second after
/// it, and later where etcd's election time-out exceeds a second. A renewal writes nothing to etcd's disk and makes no
/// revision.
extension EtcdOwnershipStore {
    package func renewLease(of node: NodeID, for duration: Duration) async throws(ApusError) {
        let start = MonotonicTime.now()
        defer { calls.metrics.ended(.lease, after: MonotonicTime.now() - start) }
        do throws(EtcdFailure) {
            if let held = lease.withLock({ $0 }), held.node == node {
                let remaining = try await calls.call(isRepeatable: true) {
                    (connection, end) async throws(EtcdFailure) -> Int64 in
                    try await connection.renew(lease: held.id, until: end)
                }
                if remaining > 0 { return }
            }
            try await grant(node, duration)
        } catch {
            throw Self.error(error, calls.configuration)
        }
    }

    package func leaseHolders() async throws(ApusError) -> Set<NodeID> {
        let start = MonotonicTime.now()
        defer { calls.metrics.ended(.leases, after: MonotonicTime.now() - start) }
        do throws(EtcdFailure) {
            return calls.keys.holders(try await calls.transact(calls.keys.readLeases(), isRepeatable: true))
        } catch {
            throw Self.error(error, calls.configuration)
        }
    }

    /// Takes a new lease. One whose answer was lost ends by itself.
    private func grant(_ node: NodeID, _ duration: Duration) async throws(EtcdFailure) {
        var request = EtcdLeaseGrantRequest()
        request.ttl = max(duration.components.seconds, 1)
        let sent = request
        let granted = try await calls.call(isRepeatable: true) {
            (connection, end) async throws(EtcdFailure) -> EtcdLeaseGrantResponse in
            try await connection.unary(EtcdMethods.grantLease, sent, as: EtcdLeaseGrantResponse.self, until: end)
        }
        _ = try await calls.transact(calls.keys.hold(granted.id, by: node), isRepeatable: true)
        lease.withLock { $0 = EtcdLease(node: node, id: granted.id) }
    }
}
