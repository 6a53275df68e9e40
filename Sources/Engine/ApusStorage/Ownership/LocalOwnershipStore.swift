package import ApusCore
import Dispatch

/// The limits of the local ownership store (D13).
package struct LocalOwnershipLimits: Sendable, Equatable {
    /// Earlier revisions to keep, at least 16. There are up to twice as many files of about 36 KiB.
    package var revisionsKept: Int = 64

    package init() {}
}

/// The ownership store of nodes on one machine: a directory of revisions (D4, D9).
///
/// It is linearizable because link(2) fails if a name exists. It holds no lock, so a process that is stopped or dies at
/// any moment does not block the next swap. ``RevisionDirectory`` describes the algorithm, decision 8 the reasons.
/// Nodes on several machines must not share it over a network file system, which does not provide these guarantees.
///
/// The store's identity is fixed when it is opened. If another store takes its path, calls fail with 10020 until the
/// first one is back.
///
/// Concurrency model: all work runs on a serial dispatch queue of its own, never on the Swift pool; callers only wait.
package final class LocalOwnershipStore: OwnershipStore {
    /// The end of every refusal's message.
    static let remedy = "`apus admin ownership restore` puts the newest map of the nodes back"

    package let identity: StoreID
    package let path: String
    private let confined: Confined
    private let leases: LocalLeases
    private let leaseQueue = DispatchQueue(label: "apus.ownership.leases")

    /// The directory, confined to its queue.
    private final class Confined: @unchecked Sendable {  // SAFETY: `directory` is only used on `queue`.
        let queue = DispatchQueue(label: "apus.ownership")
        var directory: RevisionDirectory
        init(_ directory: RevisionDirectory) { self.directory = directory }
    }

    /// Opens the directory. Creates it if no node has been a member of this cluster before.
    ///
    /// - Parameters:
    ///   - path: The directory. Its parent must exist.
    ///   - file: The SQLite file of earlier releases. If the directory has no revision, its map is imported once.
    ///   - seen: The identity and revision that this node saw in an earlier run. With it no store is created, and the
    ///     existing store must be the same and not older.
    /// - Throws: 10020 for another cluster's store, another store than the one seen, an older copy, an empty one
    ///   although one was seen, or a damaged one; 10021 if it cannot be used. The message contains the path and what to
    ///   do.
    package init(
        path: String, cluster: ClusterID, importing file: String? = nil, seen: OwnershipMark? = nil,
        limits: LocalOwnershipLimits = LocalOwnershipLimits(), files: any StoreFiles = SystemStoreFiles()
    ) async throws(ApusError) {
        self.path = path
        leases = LocalLeases(directory: "\(path)-leases")
        confined = Confined(
            RevisionDirectory(path: path, cluster: cluster, files: files, keptMax: limits.revisionsKept))
        do throws(RevisionDirectory.Failure) {
            let isThere = try await Self.run(confined) { (directory) throws(RevisionDirectory.Failure) in
                try directory.holdsRevisions()
            }
            if !isThere {
                guard seen == nil else { throw RevisionDirectory.Failure(kind: .empty, message: "\(path) is empty") }
                try await Self.makeOrFind(confined, cluster: cluster, importing: file)
            }
            let parent = Self.parent(of: path)
            let record = try await Self.run(confined) { (directory) throws(RevisionDirectory.Failure) in
                try directory.prepare(parent: parent)
                return try directory.newestRecord()
            }
            identity = record.store
            if let seen { try Self.check(record.mark, against: seen, path: path) }
        } catch {
            throw Self.refusal(error, isMember: seen != nil)
        }
    }

    package func read() async throws(ApusError) -> OwnershipValue? {
        let record = try await access { (directory) throws(RevisionDirectory.Failure) in try directory.newestRecord() }
        return record.revision == 0 ? nil : OwnershipValue(revision: record.revision, bytes: record.value)
    }

    package func compareAndSwap(expected: UInt64, value: [UInt8]) async throws(ApusError) -> UInt64? {
        guard value.count <= OwnershipLimits.valueByteCountMax else { throw ApusError(.frameTooLarge) }
        return try await access { (directory) throws(RevisionDirectory.Failure) in
            try directory.swap(expected: expected, value: value)
        }
    }

    package func revision() async throws(ApusError) -> UInt64 {
        try await access { (directory) throws(RevisionDirectory.Failure) in try directory.newestRecord().revision }
    }

    package func renewLease(of node: NodeID, for duration: Duration) async throws(ApusError) {
        try await onLeases { (leases) throws(ApusError) in try leases.renew(node, for: duration) }
    }

    package func leaseHolders() async throws(ApusError) -> Set<NodeID> {
        try await onLeases { (leases) throws(ApusError) in try leases.holders() }
    }

    /// The leases have a queue of their own: a swap that waits for the disk must not delay a renewal.
    private func onLeases<Value: Sendable>(
        _ body: @escaping @Sendable (LocalLeases) throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        let leases = leases
        let result = await withCheckedContinuation { (done: CheckedContinuation<Result<Value, ApusError>, Never>) in
            leaseQueue.async {
                done.resume(returning: Result { () throws(ApusError) in try body(leases) })
            }
        }
        return try result.get()
    }

    // MARK: Opening

    /// As ``make(_:cluster:importing:)``, but another process may have created the store in the meantime.
    private static func makeOrFind(
        _ confined: Confined, cluster: ClusterID, importing file: String?
    ) async throws(RevisionDirectory.Failure) {
        do throws(RevisionDirectory.Failure) {
            try await make(confined, cluster: cluster, importing: file)
        } catch {
            let isThere = try await run(confined) { (directory) throws(RevisionDirectory.Failure) in
                try directory.holdsRevisions()
            }
            guard isThere else { throw error }
        }
    }

    private static func make(
        _ confined: Confined, cluster: ClusterID, importing file: String?
    ) async throws(RevisionDirectory.Failure) {
        let taken: OwnershipValue?
        do throws(ApusError) {
            taken = if let file { try await EarlierOwnership.take(from: file, cluster: cluster) } else { nil }
        } catch {
            throw RevisionDirectory.Failure(
                kind: error.code == .stateForeign ? .foreign : .failed, message: error.message)
        }
        let record = RevisionFile(
            cluster: cluster, store: .random(), revision: taken?.revision ?? 0, value: taken?.bytes ?? [])
        try await run(confined) { (directory) throws(RevisionDirectory.Failure) in
            try directory.prepare(parent: parent(of: directory.path))
            try directory.create(record)
        }
        // From now on the file has no map that could be imported again.
        if let file { await EarlierOwnership.finish(file, cluster: cluster) }
    }

    private static func check(
        _ found: OwnershipMark, against seen: OwnershipMark, path: String
    ) throws(RevisionDirectory.Failure) {
        guard found.store == seen.store else {
            throw RevisionDirectory.Failure(
                kind: .foreign,
                message: "\(path) is the ownership store \(found.store); this node was a member under \(seen.store)")
        }
        guard found.revision >= seen.revision else {
            throw RevisionDirectory.Failure(
                kind: .foreign,
                message: "\(path) is an older copy: revision \(found.revision), this node has seen \(seen.revision)")
        }
    }

    private static func refusal(_ failure: RevisionDirectory.Failure, isMember: Bool) -> ApusError {
        switch failure.kind {
        case .failed: ApusError(.storageFailed, failure.message)
        case .empty, .damaged: ApusError(.stateForeign, "\(failure.message); \(remedy)")
        case .foreign:
            ApusError(
                .stateForeign,
                isMember ? "\(failure.message); \(remedy)" : "\(failure.message); choose another directory")
        }
    }

    static func parent(of path: String) -> String {
        let parts = path.split(separator: "/", omittingEmptySubsequences: true).dropLast()
        let isAbsolute = path.hasPrefix("/")
        return (isAbsolute ? "/" : "") + (parts.isEmpty && !isAbsolute ? "." : parts.joined(separator: "/"))
    }

    // MARK: Off the pool

    private func access<Value: Sendable>(
        _ body: @escaping @Sendable (inout RevisionDirectory) throws(RevisionDirectory.Failure) -> Value
    ) async throws(ApusError) -> Value {
        do {
            return try await Self.run(confined, body)
        } catch {
            switch error.kind {
            case .foreign: throw ApusError(.stateForeign, "\(error.message); \(Self.remedy)")
            case .damaged, .empty: throw ApusError(.storageFailed, "\(error.message); \(Self.remedy)")
            case .failed: throw ApusError(.storageFailed, error.message)
            }
        }
    }

    private static func run<Value: Sendable>(
        _ confined: Confined,
        _ body: @escaping @Sendable (inout RevisionDirectory) throws(RevisionDirectory.Failure) -> Value
    ) async throws(RevisionDirectory.Failure) -> Value {
        let result = await withCheckedContinuation {
            (continuation: CheckedContinuation<Result<Value, RevisionDirectory.Failure>, Never>) in
            confined.queue.async {
                do throws(RevisionDirectory.Failure) {
                    continuation.resume(returning: .success(try body(&confined.directory)))
                } catch {
                    continuation.resume(returning: .failure(error))
                }
            }
        }
        return try result.get()
    }
}
