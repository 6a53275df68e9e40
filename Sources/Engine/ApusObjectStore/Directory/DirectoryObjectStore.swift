package import ApusCore
import Dispatch
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Objects as files of a directory, which the processes of one machine may share.
///
/// **A put** writes a temporary file in the folder ``newFolder``, syncs it, gives it its name with link(2), which fails
/// if the name exists, syncs the folder, and removes the temporary name. So an object is visible only when its
/// content is durable, and no put replaces one. A put that finds an object syncs its folder before it says so: the
/// process that made the object may have been stopped before it did.
///
/// **A process that is killed** leaves at most a temporary file. Its lock (flock(2)) ends with the process, so a file
/// that is locked is in use, and one that is not locked and old is a leftover. Nothing else is ever removed.
///
/// **A disk that fails** makes the put fail: the file is closed and removed, and its content is written again by the
/// next put, because fsync(2) reports an error only once.
///
/// Several machines must not share the directory over a network file system, which does not keep these promises.
///
/// Concurrency model: any task. Files are used on a concurrent queue, by at most as many threads as operations may be
/// in progress. A call that the disk does not end keeps its thread and its place.
package final class DirectoryObjectStore: ObjectStore {
    /// The folder of temporary files.
    static let newFolder = ".new"
    /// What the names of temporary files begin with.
    static let newPrefix = "put-"
    private static let newDigitCount = 32

    package let limits: ObjectStoreLimits
    package var place: String { folders.root }
    let files: any ObjectFiles
    let folders: ObjectFolders
    let runner: OperationRunner
    private let queue = DispatchQueue(label: "apus.objects", attributes: .concurrent)
    private let isClosed = Atomic<Bool>(false)

    /// Opens the directory, and makes it if it does not exist. Its parent must exist.
    ///
    /// - Throws: 10041 if the disk is full and the directory has to be made; 10021 if it cannot be used.
    package init(
        path: String, limits: ObjectStoreLimits = ObjectStoreLimits(), files: any ObjectFiles = SystemObjectFiles()
    ) async throws(ApusError) {
        (self.limits, self.files) = (limits, files)
        folders = ObjectFolders(root: path, files: files, countMax: limits.folderCountMax)
        runner = OperationRunner(limits)
        try await run(nil) { store throws(FileFailure) in
            for path in [path, "\(path)/\(Self.newFolder)"] where try store.files.status(path) == nil {
                do throws(FileFailure) { try store.files.makeFolder(path) } catch {
                    guard error.number == EEXIST else { throw error }
                }
            }
            // The name of the directory itself, also if another process has made it.
            try store.files.syncFolder("\(path)/..")
        }
    }

    package func shutdown() async { isClosed.store(true, ordering: .relaxed) }

    // MARK: The queue

    /// Runs blocking work on the queue. The task's cancellation ends the wait, not the work.
    ///
    /// - Parameter slot: is kept until the work has ended.
    func run<Value: Sendable>(
        _ slot: OperationSlot?,
        _ body: @escaping @Sendable (DirectoryObjectStore) throws(FileFailure) -> Value
    ) async throws(ApusError) -> Value {
        try await runThrowing(slot) { store throws(ApusError) in
            do throws(FileFailure) { return try body(store) } catch { throw error.error }
        }
    }

    /// As ``run(_:_:)``, for work that throws an ``ApusError``.
    func runThrowing<Value: Sendable>(
        _ slot: OperationSlot?,
        _ body: @escaping @Sendable (DirectoryObjectStore) throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        guard !isClosed.load(ordering: .relaxed) else {
            throw ApusError(.storageFailed, "the object store was closed")
        }
        let hop = BlockingHop<Value>()
        let result = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                hop.begin(continuation)
                queue.async { [self] in
                    let result = Result { () throws(ApusError) in try body(self) }
                    hop.end(result)
                    withExtendedLifetime(slot) {}
                }
            }
        } onCancel: {
            hop.end(.failure(ApusError(.cancelled)))
        }
        return try result.get()
    }

    // MARK: Reading

    package func head(_ name: ObjectName) async throws(ApusError) -> ObjectHead? {
        try await runner.run(.head) { slot throws(ApusError) in
            try await self.run(slot) { store throws(FileFailure) in try store.status(of: name) }
        }
    }

    package func get(_ name: ObjectName, range: Range<Int>?) async throws(ApusError) -> ObjectPart? {
        let range = try limited(range)
        let part = try await runner.run(.get) { slot throws(ApusError) in
            try await self.run(slot) { store throws(FileFailure) in try store.read(name, range) }
        }
        runner.metrics.read(byteCount: part?.bytes.count ?? 0)
        return part
    }

    package func list(prefix: String, after: ObjectName?, countMax: Int?) async throws(ApusError) -> ObjectPage {
        let countMax = max(1, min(countMax ?? limits.pageCountMax, limits.pageCountMax))
        return try await runner.run(.list) { slot throws(ApusError) in
            try await self.run(slot) { store throws(FileFailure) in
                var walk = ObjectWalk(files: store.files, prefix: prefix, after: after?.text, countMax: countMax)
                try walk.walk(store.folders.root)
                return ObjectPage(entries: walk.found, next: walk.isCut ? walk.found.last?.name : nil)
            }
        }
    }

    func status(of name: ObjectName) throws(FileFailure) -> ObjectHead? {
        guard let status = try files.status(folders.file(of: name)), !status.isFolder else { return nil }
        return Self.head(status)
    }

    func read(_ name: ObjectName, _ range: Range<Int>) throws(FileFailure) -> ObjectPart? {
        let path = folders.file(of: name)
        let file: CInt
        do throws(FileFailure) { file = try files.open(path) } catch {
            guard error.number == ENOENT || error.number == ENOTDIR else { throw error }
            return nil
        }
        defer { files.close(file) }
        let status = try files.status(file, of: path)
        guard !status.isFolder else { return nil }
        let range = range.clamped(to: 0..<status.byteCount)
        let bytes = try files.read(file, at: range.lowerBound, countMax: range.count, of: path)
        // An object never changes, so a file that ends early is damaged.
        guard bytes.count == range.count else { throw FileFailure(path, EIO) }
        return ObjectPart(bytes: bytes, offset: range.lowerBound, head: Self.head(status))
    }

    /// An object's file is never written again, so its inode and time stand for its content.
    private static func head(_ status: ObjectFileStatus) -> ObjectHead {
        let numbers = [UInt64(status.byteCount), UInt64(bitPattern: status.modifiedNanoseconds), status.inode]
        return ObjectHead(
            byteCount: status.byteCount, tag: numbers.map { String($0, radix: 16) }.joined(separator: "-"),
            modifiedMilliseconds: status.modifiedNanoseconds / 1_000_000)
    }

    // MARK: Removing

    package func delete(_ name: ObjectName) async throws(ApusError) {
        try await runner.run(.delete) { slot throws(ApusError) in
            try await self.run(slot) { store throws(FileFailure) in
                do throws(FileFailure) { try store.files.remove(store.folders.file(of: name)) } catch {
                    guard error.number == ENOENT || error.number == ENOTDIR || error.number == EISDIR else {
                        throw error
                    }
                    return
                }
                try store.folders.syncRemoval(of: name)
                store.folders.removed(name)
            }
        }
    }

    package func leftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await sweep(olderThan: age, removes: false)
    }

    package func removeLeftovers(olderThan age: Duration) async throws(ApusError) -> ObjectLeftovers {
        try await sweep(olderThan: age, removes: true)
    }

    private func sweep(olderThan age: Duration, removes: Bool) async throws(ApusError) -> ObjectLeftovers {
        try checkAge(age)
        let limit = WallClock.milliseconds() - age.nanoseconds / 1_000_000
        let found = try await runner.run(.leftovers) { slot throws(ApusError) in
            try await self.run(slot) { store throws(FileFailure) in
                try store.sweep(modifiedBefore: limit, removes: removes)
            }
        }
        runner.metrics.left(removes ? 0 : found.count)
        return found
    }

    private func sweep(modifiedBefore limit: Int64, removes: Bool) throws(FileFailure) -> ObjectLeftovers {
        let folder = "\(folders.root)/\(Self.newFolder)"
        var found = ObjectLeftovers()
        for entry in try files.list(folder) where !entry.isFolder && Self.isTemporary(entry.name) {
            guard found.count < limits.leftoverCountMax else { break }
            let path = "\(folder)/\(entry.name)"
            do throws(FileFailure) {
                guard let status = try files.status(path), status.modifiedNanoseconds / 1_000_000 < limit,
                    try !files.isLocked(path)
                else { continue }
                if removes { try files.remove(path) }
                found.count += 1
                found.byteCount += status.byteCount
            } catch {
                // Its put has ended.
                guard error.number == ENOENT else { throw error }
            }
        }
        return found
    }

    // MARK: Temporary files

    /// A path for a temporary file.
    func newPath() -> String {
        let digits = [UInt64.random(in: .min ... .max), .random(in: .min ... .max)].flatMap { number in
            withUnsafeBytes(of: number.bigEndian) { Array($0) }
        }
        return "\(folders.root)/\(Self.newFolder)/\(Self.newPrefix)\(Hexadecimal.text(digits))"
    }

    private static func isTemporary(_ name: String) -> Bool {
        let digits = name.dropFirst(newPrefix.count)
        return name.begins(with: newPrefix) && digits.utf8.count == newDigitCount
            && Hexadecimal.bytes(digits) != nil
    }

    // MARK: Check

    package func check() async throws(ApusError) {
        let digits = Hexadecimal.text((0..<8).map { _ in UInt8.random(in: .min ... .max) })
        try await checkPromises(try ObjectName("apus-check/\(digits)"))
    }
}

/// One wait for blocking work, which ends with the work or before.
///
/// Concurrency model: any thread. A `Mutex` guards the state.
private final class BlockingHop<Value: Sendable>: Sendable {
    private enum State {
        case new
        case waiting(CheckedContinuation<Result<Value, ApusError>, Never>)
        /// The wait was cancelled before it began.
        case cancelled
        case ended
    }

    private let state = Mutex(State.new)

    func begin(_ continuation: CheckedContinuation<Result<Value, ApusError>, Never>) {
        let isCancelled = state.withLock { state in
            if case .cancelled = state {
                state = .ended
                return true
            }
            state = .waiting(continuation)
            return false
        }
        if isCancelled { continuation.resume(returning: .failure(ApusError(.cancelled))) }
    }

    /// Ends the wait. The first end counts.
    func end(_ result: Result<Value, ApusError>) {
        let continuation: CheckedContinuation<Result<Value, ApusError>, Never>? = state.withLock { state in
            switch state {
            case .new:
                state = .cancelled
                return nil
            case .waiting(let continuation):
                state = .ended
                return continuation
            case .cancelled, .ended: return nil
            }
        }
        continuation?.resume(returning: result)
    }
}
