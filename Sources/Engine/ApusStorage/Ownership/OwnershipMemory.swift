package import ApusCore
import Dispatch
package import Logging
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A node's memory of the ownership store across restarts: the store's identity, and the newest map that the node
/// applied.
///
/// The file is one ``RevisionFile``, in the node's own directory. With it a node detects a store that was rolled back
/// or replaced, and `apus admin ownership restore` restores it.
///
/// Writes are bounded: one at a time, the newest map only, and at least `interval` apart. A node that is killed has
/// written the maps up to its last write.
///
/// Concurrency model: any thread. A `Mutex` guards the map that waits; a queue of its own writes.
package final class OwnershipMemory: Sendable {
    /// The file's name in the node's directory.
    package static let fileName = "ownership.map"

    private struct State {
        /// The newest map that has not been written.
        var waiting: Waiting?
        var isScheduled = false
        var writtenRevision: UInt64 = 0
    }

    private struct Waiting {
        var revision: UInt64
        var encode: @Sendable () throws(ApusError) -> [UInt8]
    }

    package let path: String
    private let cluster: ClusterID
    private let interval: Duration
    private let files: any StoreFiles
    private let log: Logger
    private let queue = DispatchQueue(label: "apus.ownership.memory")
    private let state = Mutex(State())

    /// - Parameter directory: The node's own directory. It must exist.
    package init(
        directory: String, cluster: ClusterID, interval: Duration = .milliseconds(500),
        files: any StoreFiles = SystemStoreFiles(), log: Logger
    ) {
        path = "\(directory)/\(Self.fileName)"
        self.cluster = cluster
        self.interval = interval
        self.files = files
        self.log = log
    }

    /// What an earlier run wrote; nil if there was none.
    ///
    /// - Throws: 10020 if the file is damaged or another cluster's, 10021 if it cannot be read. Blocks.
    package static func load(
        directory: String, cluster: ClusterID, files: any StoreFiles = SystemStoreFiles()
    ) throws(ApusError) -> RevisionFile? {
        let path = "\(directory)/\(fileName)"
        let bytes: [UInt8]
        do {
            bytes = try files.read(path, byteCountMax: RevisionFile.byteCountMax)
        } catch {
            guard error.number != ENOENT else { return nil }
            throw ApusError(.storageFailed, error.advice)
        }
        guard let record = RevisionFile(decoding: bytes), record.cluster == cluster else {
            throw ApusError(
                .stateForeign,
                "\(path), this node's memory of the ownership store, is damaged or another cluster's; remove it if "
                    + "the other nodes are healthy")
        }
        return record
    }

    /// The node applied a map. Returns at once. Maps older than the newest one are ignored.
    ///
    /// - Parameter encode: Returns the map's bytes. Called on the queue, and only for a map that is written.
    package func note(
        _ mark: OwnershipMark, encode: @escaping @Sendable () throws(ApusError) -> [UInt8]
    ) {
        let isFirst = state.withLock { state in
            guard mark.revision > max(state.writtenRevision, state.waiting?.revision ?? 0) else { return false }
            state.waiting = Waiting(revision: mark.revision, encode: encode)
            defer { state.isScheduled = true }
            return !state.isScheduled
        }
        guard isFirst else { return }
        queue.async { self.write(store: mark.store) }
    }

    /// Returns when every map has been written, or its write has failed.
    package func flush(store: StoreID) async {
        await withCheckedContinuation { (continuation: CheckedContinuation<Void, Never>) in
            queue.async {
                self.writeWaiting(store: store)
                continuation.resume()
            }
        }
    }

    /// Writes on the queue, and checks again after the interval.
    private func write(store: StoreID) {
        writeWaiting(store: store)
        queue.asyncAfter(deadline: .now() + .nanoseconds(Int(clamping: interval.nanoseconds))) {
            let isMore = self.state.withLock { state in
                state.isScheduled = state.waiting != nil
                return state.isScheduled
            }
            if isMore { self.write(store: store) }
        }
    }

    private func writeWaiting(store: StoreID) {
        let waiting = state.withLock { state in
            defer { state.waiting = nil }
            return state.waiting
        }
        guard let waiting else { return }
        let temporary = "\(path).new"
        do {
            let record = RevisionFile(
                cluster: cluster, store: store, revision: waiting.revision, value: try waiting.encode())
            try? files.remove(temporary)
            try files.write(record.encoded(), to: temporary)
            try files.rename(temporary, to: path)
            try files.syncDirectory(LocalOwnershipStore.parent(of: path))
            state.withLock { $0.writtenRevision = waiting.revision }
        } catch {
            let reason = (error as? FileFailure)?.advice ?? "\(error)"
            log.warning(
                "This node's memory of the ownership store could not be written",
                metadata: [LogKey.path: "\(path)", LogKey.reason: "\(reason)"])
        }
    }
}
