package import ApusCore
package import ApusStorage
package import Logging
import Synchronization

/// The ownership store of nodes on several machines: keys in etcd (D4, D9).
///
/// **Compare-and-swap.** A swap is one transaction. It compares the value's modification revision and the store's
/// identity, so it is made at most once, and only in the store that was opened. The store's revision is the
/// modification revision. Revisions grow, and are not dense.
///
/// **Failures.** A read is tried at other endpoints until `timeout`. A swap is carried out at most once; if its answer
/// is lost the call throws 10021, and the caller reads. A member of etcd without a majority refuses reads and swaps, so
/// a node that reaches only such members decides nothing.
///
/// **Changes.** ``watch(_:)`` follows etcd's watch of both keys. ``EtcdWatchStateMachine`` decides when it is opened
/// again. The caller polls ``revision()`` at a low rate besides.
///
/// **Rollback.** etcd that was restored from a backup shows an earlier revision. As with every store, the readers
/// detect it by what they have seen.
///
/// Concurrency model: any task. Each connection has a thread. Call ``close()`` at the end.
package final class EtcdOwnershipStore: OwnershipStore {
    /// The end of every refusal's message.
    static let remedy = "`apus admin ownership restore` puts the newest map of the nodes back"

    package let identity: StoreID
    let calls: EtcdCalls
    let log: Logger
    /// The lease of the incarnation that renewed last.
    let lease = Mutex<EtcdLease?>(nil)

    /// Opens the store, or creates it if no node has been a member of this cluster before.
    ///
    /// - Parameters:
    ///   - seen: The identity and revision that this node saw in an earlier run. With it no store is created, and the
    ///     existing store must be the same and not older.
    /// - Throws: 10020 for another store than the one seen, an older one, none although one was seen, or a damaged one;
    ///   10021 if etcd cannot be reached, refuses, or does not answer within ten times `timeout`; 10006. The message
    ///   contains the endpoints and what to do.
    package init(
        _ configuration: EtcdConfiguration, cluster: ClusterID, seen: OwnershipMark? = nil, log: Logger
    ) async throws(ApusError) {
        precondition(!configuration.endpoints.isEmpty, "the configuration has no endpoint of etcd")
        let keys = EtcdKeys(prefix: configuration.prefix, cluster: cluster)
        let calls = EtcdCalls(configuration, keys, log: log)
        do throws(ApusError) {
            identity = try await Self.identity(calls, seen: seen)
        } catch {
            calls.close()
            throw error
        }
        self.calls = calls
        self.log = log
    }

    package func read() async throws(ApusError) -> OwnershipValue? {
        try await contents(.read).value
    }

    package func revision() async throws(ApusError) -> UInt64 {
        try await contents(.revision).value?.revision ?? 0
    }

    package func compareAndSwap(expected: UInt64, value: [UInt8]) async throws(ApusError) -> UInt64? {
        guard value.count <= OwnershipLimits.valueByteCountMax else { throw ApusError(.frameTooLarge) }
        let start = MonotonicTime.now()
        defer { calls.metrics.ended(.swap, after: MonotonicTime.now() - start) }
        let answer: EtcdTxnResponse
        do throws(EtcdFailure) {
            answer = try await calls.transact(
                calls.keys.swap(expected: expected, value: value, in: identity), isRepeatable: false)
        } catch {
            throw Self.error(error, calls.configuration)
        }
        guard !answer.succeeded else { return UInt64(clamping: answer.header.revision) }
        try check(EtcdContents(answer, calls.keys))
        return nil
    }

    package func close() async {
        calls.close()
    }

    // MARK: Reading

    /// Both keys at one revision.
    func contents(_ call: EtcdMetrics.Call) async throws(ApusError) -> EtcdContents {
        let start = MonotonicTime.now()
        defer { calls.metrics.ended(call, after: MonotonicTime.now() - start) }
        let found = try await Self.contents(calls, keysOnly: call == .revision)
        try check(found)
        return found
    }

    private static func contents(_ calls: EtcdCalls, keysOnly: Bool) async throws(ApusError) -> EtcdContents {
        do throws(EtcdFailure) {
            let answer = try await calls.transact(calls.keys.read(keysOnly: keysOnly), isRepeatable: true)
            return EtcdContents(answer, calls.keys)
        } catch {
            throw Self.error(error, calls.configuration)
        }
    }

    private func check(_ found: EtcdContents) throws(ApusError) {
        guard found.identity != identity else { return }
        // The key of the lease may be gone too.
        lease.withLock { $0 = nil }
        let other = found.identity.map { "the ownership store \($0)" } ?? "no ownership store"
        throw ApusError(
            .stateForeign,
            "etcd holds \(other) of this cluster, and not \(identity), which was opened; \(Self.remedy)")
    }

    // MARK: Opening

    private static func identity(_ calls: EtcdCalls, seen: OwnershipMark?) async throws(ApusError) -> StoreID {
        guard let seen else { return try await create(calls) }
        let found: EtcdContents
        do throws(EtcdFailure) {
            found = EtcdContents(try await calls.open(with: calls.keys.read(keysOnly: true)), calls.keys)
        } catch {
            throw Self.error(error, calls.configuration)
        }
        guard let identity = found.identity else {
            throw ApusError(
                .stateForeign,
                "etcd holds no ownership store of this cluster, but this node was a member under \(seen.store); "
                    + remedy)
        }
        guard identity == seen.store else {
            throw ApusError(
                .stateForeign,
                "etcd holds the ownership store \(identity); this node was a member under \(seen.store); \(remedy)")
        }
        let revision = found.value?.revision ?? 0
        guard revision >= seen.revision else {
            throw ApusError(
                .stateForeign,
                "etcd holds an older map: revision \(revision), this node has seen \(seen.revision); \(remedy)")
        }
        return identity
    }

    /// The identity of the store in etcd, which is created if there is none.
    private static func create(_ calls: EtcdCalls) async throws(ApusError) -> StoreID {
        let answer: EtcdTxnResponse
        do throws(EtcdFailure) {
            // A second attempt finds what the first one created.
            answer = try await calls.open(with: calls.keys.create(.random()))
        } catch {
            throw Self.error(error, calls.configuration)
        }
        guard let identity = EtcdContents(answer, calls.keys).identity else {
            throw ApusError(
                .stateForeign, "etcd holds a map of this cluster, but not the identity of its store; \(remedy)")
        }
        return identity
    }

    // MARK: Errors

    static func error(_ failure: EtcdFailure, _ configuration: EtcdConfiguration) -> ApusError {
        let endpoints = configuration.endpoints.map(\.description).joined(separator: " ")
        let advice =
            switch failure.kind {
            case .cancelled: ""
            case .timeout: "does not answer in time; check that a majority of its members is up"
            case .noLeader, .failed: "has no leader; check that a majority of its members is up"
            case .unreachable: "cannot be reached; check the endpoints and the certificates"
            case .token, .denied: "refuses the user; check ownership.etcd.user, its password and its role"
            case .full: "is full; compact and defragment it, then clear its alarm"
            case .refused: "refuses the request"
            }
        guard failure.kind != .cancelled else { return ApusError(.cancelled) }
        return ApusError(.storageFailed, "the ownership store in etcd at \(endpoints) \(advice): \(failure.message)")
    }
}
