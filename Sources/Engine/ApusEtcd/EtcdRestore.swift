package import ApusCore
package import ApusStorage
package import Logging

/// Restores a map if the ownership store in etcd was lost, rolled back or damaged.
///
/// The store keeps the identity that the nodes know, so running nodes continue with it. The map must have a higher
/// revision than any node has seen. A revision of etcd cannot be set, but each change of a key raises it by one. A key
/// of its own, which no watch covers, is therefore changed until the revision is high enough.
package enum EtcdRestore {
    /// The most changes that raise the revision. etcd that is further behind is another one, or was restored from a
    /// very old backup.
    package static let raiseCountMax: Int64 = 1_000_000
    /// The changes that are sent at once.
    private static let concurrentCount: Int64 = 64

    /// The store in etcd with its value, and the reason if it cannot be read.
    package static func look(
        _ configuration: EtcdConfiguration, cluster: ClusterID, log: Logger
    ) async -> (found: OwnershipMark?, value: [UInt8], reason: String?) {
        do throws(ApusError) {
            let found = try await using(configuration, cluster, log) {
                (calls) async throws(EtcdFailure) -> EtcdContents in
                let answer = try await calls.transact(calls.keys.read(), isRepeatable: true)
                return EtcdContents(answer, calls.keys)
            }
            guard let identity = found.identity else {
                return (nil, [], "etcd holds no ownership store of this cluster")
            }
            let mark = OwnershipMark(store: identity, revision: found.value?.revision ?? 0)
            return (mark, found.value?.bytes ?? [], nil)
        } catch {
            return (nil, [], error.message)
        }
    }

    /// Writes the map and the store's identity.
    ///
    /// - Parameter record: The map, with the least revision that it may have.
    /// - Returns: The revision that it has.
    /// - Throws: 10021 if etcd cannot be reached or refuses, or its revision is too far below; 10006.
    package static func put(
        _ record: RevisionFile, _ configuration: EtcdConfiguration, log: Logger
    ) async throws(ApusError) -> UInt64 {
        let target = Int64(clamping: record.revision)
        let reached = try await using(configuration, record.cluster, log) {
            (calls) async throws(EtcdFailure) -> Int64 in
            var revision = try await calls.transact(calls.keys.read(keysOnly: true), isRepeatable: true).header.revision
            guard target - revision <= raiseCountMax else { return revision }
            while revision + 1 < target {
                revision = try await raise(calls, by: min(concurrentCount, target - 1 - revision))
            }
            return try await calls.transact(calls.keys.restore(record), isRepeatable: true).header.revision
        }
        guard reached >= target else {
            throw ApusError(
                .storageFailed,
                "etcd is at revision \(reached), too far below \(target), which the map needs; is it another etcd?")
        }
        return UInt64(clamping: reached)
    }

    /// Raises etcd's revision by changes of a key. Returns the highest revision.
    private static func raise(_ calls: EtcdCalls, by count: Int64) async throws(EtcdFailure) -> Int64 {
        let outcomes = await withTaskGroup(of: Result<Int64, EtcdFailure>.self) { group in
            for _ in 0..<count {
                group.addTask {
                    do throws(EtcdFailure) {
                        return .success(
                            try await calls.transact(calls.keys.raise(), isRepeatable: true).header.revision)
                    } catch {
                        return .failure(error)
                    }
                }
            }
            var outcomes: [Result<Int64, EtcdFailure>] = []
            for await outcome in group { outcomes.append(outcome) }
            return outcomes
        }
        var highest: Int64 = 0
        for outcome in outcomes {
            let revision = try outcome.get()
            highest = max(highest, revision)
        }
        return highest
    }

    private static func using<Value: Sendable>(
        _ configuration: EtcdConfiguration, _ cluster: ClusterID, _ log: Logger,
        _ body: (EtcdCalls) async throws(EtcdFailure) -> Value
    ) async throws(ApusError) -> Value {
        let calls = EtcdCalls(configuration, EtcdKeys(prefix: configuration.prefix, cluster: cluster), log: log)
        let outcome: Result<Value, EtcdFailure>
        do throws(EtcdFailure) {
            outcome = .success(try await body(calls))
        } catch {
            outcome = .failure(error)
        }
        calls.close()
        switch outcome {
        case .success(let value): return value
        case .failure(let failure): throw EtcdOwnershipStore.error(failure, configuration)
        }
    }
}
