package import ApusCore
import CoreMetrics
import Dispatch
import Foundation
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Blobs as files of a directory that the node processes of one machine share (D9).
///
/// A blob is at `DIRECTORY/ab/abcd…`, by the first byte of its identifier. It is written to a temporary file, synced
/// and renamed, so a file with the final name is complete. Temporary files of processes that died are removed when a
/// store is opened an hour later.
///
/// **Limits.** The total size is computed when the store is opened, and every minute in which a blob is stored, since
/// other processes store too. It can be exceeded by what they store within that minute.
///
/// Concurrency model: one dispatch queue that writes and one that reads; callers only wait.
package final class DirectoryBlobStore: BlobStore {
    private struct Count {
        var byteCount = 0
        var at: MonotonicTime
    }

    private static let listCountMax = 1000
    private static let recountInterval = Duration.seconds(60)
    /// The age in seconds at which a temporary file counts as abandoned.
    private static let leftBehindSeconds: Double = 3600
    private static let unfinished = "new"

    private let path: String
    private let limits: BlobLimits
    private let writer = DispatchQueue(label: "apus.blobs.write")
    private let reader = DispatchQueue(label: "apus.blobs.read")
    private let waitingCount = Atomic<Int>(0)
    private let count: Mutex<Count>
    private let metrics = BlobMetrics()

    /// Opens the directory, or creates it.
    ///
    /// - Throws: 10021 if it cannot be used; the message contains the path.
    package init(path: String, limits: BlobLimits = BlobLimits()) async throws(ApusError) {
        (self.path, self.limits) = (path, limits)
        count = Mutex(Count(at: .now()))
        try await run(on: writer) { store throws(ApusError) in
            try BlobFile.makeFolder(store.path)
            try BlobFile.makeFolder("\(store.path)/\(Self.unfinished)")
            BlobFile.removeAll(of: "\(store.path)/\(Self.unfinished)", olderThan: Self.leftBehindSeconds)
            try store.recount()
        }
    }

    package func put(_ content: [UInt8]) async throws(ApusError) -> BlobID {
        guard content.count <= limits.byteCountMax else {
            metrics.refused.increment()
            throw ApusError(.frameTooLarge, "a blob has \(content.count) bytes, over \(limits.byteCountMax)")
        }
        return try await run(on: writer) { store throws(ApusError) in try store.write(content) }
    }

    package func get(_ id: BlobID) async throws(ApusError) -> [UInt8]? {
        try await run(on: reader) { store throws(ApusError) in
            guard let content = try BlobFile.read(store.file(id), byteCountMax: store.limits.byteCountMax) else {
                return nil
            }
            guard BlobID(of: content) == id else {
                throw ApusError(.stateForeign, "the blob \(id) is damaged: its content does not match its name")
            }
            return content
        }
    }

    package func remove(_ id: BlobID) async throws(ApusError) {
        try await run(on: writer) { store throws(ApusError) in
            let byteCount = try BlobFile.remove(store.file(id))
            if byteCount > 0 { try BlobFile.sync(store.folder(id)) }
            store.changed(by: -byteCount)
        }
    }

    package func list(after last: BlobID?, limit: Int) async throws(ApusError) -> [BlobID] {
        let countMax = max(1, min(limit, Self.listCountMax))
        return try await run(on: reader) { store throws(ApusError) in
            var found: [BlobID] = []
            for byte in (last?.bytes[0] ?? 0)...UInt8.max where found.count < countMax {
                let ids = try BlobFile.names(of: store.folder(byte)).compactMap { BlobID($0) }
                found += ids.filter { id in last.map { $0 < id } ?? true }.sorted()
            }
            return Array(found.prefix(countMax))
        }
    }

    // MARK: On the queues

    private func write(_ content: [UInt8]) throws(ApusError) -> BlobID {
        let id = BlobID(of: content)
        let (file, folder) = (file(id), folder(id))
        // A damaged file is replaced.
        if try BlobFile.read(file, byteCountMax: limits.byteCountMax) == content {
            // The process that wrote it may not have synced its name yet.
            try BlobFile.sync(folder)
            return id
        }
        if count.withLock({ $0.at }) + Self.recountInterval < .now() { try recount() }
        guard count.withLock({ $0.byteCount }) + content.count <= limits.totalByteCountMax else {
            metrics.refused.increment()
            throw ApusError(.overloaded, "the blobs in \(path) have reached \(limits.totalByteCountMax) bytes")
        }
        try BlobFile.makeFolder(folder)
        let partial = "\(path)/\(Self.unfinished)/\(getpid())-\(UInt64.random(in: .min ... .max))"
        try BlobFile.write(content, to: file, by: partial)
        try BlobFile.sync(folder)
        changed(by: content.count)
        metrics.puts.increment()
        return id
    }

    private func recount() throws(ApusError) {
        var byteCount = 0
        for byte in UInt8.min...UInt8.max { byteCount += try BlobFile.byteCount(of: folder(byte)) }
        let now = MonotonicTime.now()
        let counted = byteCount
        count.withLock { $0 = Count(byteCount: counted, at: now) }
        metrics.bytes.record(counted)
    }

    private func changed(by byteCount: Int) {
        let now = count.withLock { count in
            count.byteCount = max(0, count.byteCount + byteCount)
            return count.byteCount
        }
        metrics.bytes.record(now)
    }

    private func folder(_ byte: UInt8) -> String {
        "\(path)/" + String(byte >> 4, radix: 16) + String(byte & 15, radix: 16)
    }

    private func folder(_ id: BlobID) -> String { folder(id.bytes[0]) }

    private func file(_ id: BlobID) -> String { "\(folder(id))/\(id)" }

    private func run<Value: Sendable>(
        on queue: DispatchQueue, _ body: @escaping @Sendable (DirectoryBlobStore) throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        guard waitingCount.add(1, ordering: .relaxed).newValue <= limits.waitingCountMax else {
            waitingCount.subtract(1, ordering: .relaxed)
            metrics.refused.increment()
            throw ApusError(.overloaded, "too many calls wait for the blobs of \(path)")
        }
        defer { waitingCount.subtract(1, ordering: .relaxed) }
        let outcome = await withCheckedContinuation { (waiter: CheckedContinuation<Result<Value, ApusError>, Never>) in
            queue.async { [self] in waiter.resume(returning: Result { () throws(ApusError) in try body(self) }) }
        }
        return try outcome.get()
    }
}

/// The metrics of a blob store.
struct BlobMetrics: Sendable {
    /// Blobs that were written.
    let puts = Counter(label: "apus_blobs_puts_total")
    /// Blobs and calls that were refused at a limit (10002, 10007).
    let refused = Counter(label: "apus_blobs_refused_total")
    /// The total size of all blobs at the last count, in bytes.
    let bytes = Gauge(label: "apus_blobs_bytes")
}
