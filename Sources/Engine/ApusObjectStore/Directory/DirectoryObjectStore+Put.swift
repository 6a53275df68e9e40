package import ApusCore
import Synchronization

/// The temporary file of a put.
///
/// Concurrency model: any thread that may block; one call uses the file at a time. A `Mutex` guards the state, so that
/// ``discard()`` may be called during a call whose wait was cancelled: the file is discarded when that call returns.
private final class NewObjectFile: Sendable {
    private struct State {
        var descriptor: CInt?
        var isInUse = false
        var isDiscarded = false
    }

    let path: String
    private let files: any ObjectFiles
    private let state = Mutex(State())

    init(_ path: String, _ files: any ObjectFiles) { (self.path, self.files) = (path, files) }

    func make() throws(FileFailure) {
        try use { _ throws(FileFailure) in
            let file = try files.make(path)
            state.withLock { $0.descriptor = file }
        }
    }

    func write(_ bytes: [UInt8]) throws(FileFailure) {
        try use { file throws(FileFailure) in if let file { try files.write(bytes, to: file, of: path) } }
    }

    func sync() throws(FileFailure) {
        try use { file throws(FileFailure) in if let file { try files.sync(file, of: path) } }
    }

    private func use(_ body: (CInt?) throws(FileFailure) -> Void) throws(FileFailure) {
        let file = state.withLock { state in
            state.isInUse = true
            return state.descriptor
        }
        defer {
            let isDiscarded = state.withLock { state in
                state.isInUse = false
                return state.isDiscarded
            }
            if isDiscarded { discard() }
        }
        try body(file)
    }

    /// Removes the temporary name and ends its lock. The object's own name stays if it was given.
    func discard() {
        let file = state.withLock { state -> CInt? in
            state.isDiscarded = true
            return state.isInUse ? nil : state.descriptor.take()
        }
        guard let file else { return }
        // What cannot be removed is a leftover.
        try? files.remove(path)
        files.close(file)
    }
}

extension DirectoryObjectStore {
    package func put(_ name: ObjectName, _ content: ObjectContent) async throws(ApusError) -> ObjectPut {
        try checkSize(content)
        let outcome = try await runner.run(.put) { slot throws(ApusError) in
            if let found = try await self.existing(name, content, slot) { return found }
            return try await self.store(name, content, slot)
        }
        if case .stored = outcome { runner.metrics.put(byteCount: content.byteCount) }
        return outcome
    }

    private func store(
        _ name: ObjectName, _ content: ObjectContent, _ slot: OperationSlot
    ) async throws(ApusError) -> ObjectPut {
        let file = NewObjectFile(newPath(), files)
        do throws(ApusError) {
            try await run(slot) { _ throws(FileFailure) in try file.make() }
            for range in content.ranges(of: limits.partByteCount) {
                let bytes = try await content.read(range)
                try await run(slot) { _ throws(FileFailure) in try file.write(bytes) }
            }
            let head = try await runThrowing(slot) { store throws(ApusError) in
                try store.name(file, name)
            }
            if let head { return .stored(head) }
        } catch {
            // On the queue, also if the task was cancelled.
            try? await run(slot) { _ throws(FileFailure) in file.discard() }
            throw error
        }
        guard let found = try await existing(name, content, slot) else {
            throw ApusError(.storageFailed, "\(name) was put and deleted by others at the same time")
        }
        return found
    }

    /// Makes the file durable, and gives it the object's name. The temporary name is removed in any case.
    ///
    /// - Returns: nil if the name exists.
    private func name(_ file: NewObjectFile, _ name: ObjectName) throws(ApusError) -> ObjectHead? {
        defer { file.discard() }
        do throws(FileFailure) { try file.sync() } catch { throw error.error }
        guard try folders.link(file.path, to: name) else { return nil }
        do throws(FileFailure) {
            try files.syncFolder(folders.folder(of: name))
            if let head = try status(of: name) { return head }
        } catch {
            throw error.error
        }
        throw ApusError(.storageFailed, "\(name) was deleted by others while it was put")
    }

    /// The answer of a put if there is an object of the name: it is durable then.
    private func existing(
        _ name: ObjectName, _ content: ObjectContent, _ slot: OperationSlot
    ) async throws(ApusError) -> ObjectPut? {
        let head = try await run(slot) { store throws(FileFailure) -> ObjectHead? in
            guard let head = try store.status(of: name) else { return nil }
            do throws(FileFailure) { try store.folders.syncName(of: name) } catch {
                // Deleted, with its folder, by another process.
                guard try store.status(of: name) != nil else { return nil }
                throw error
            }
            return head
        }
        guard let head else { return nil }
        guard head.byteCount == content.byteCount else { return .exists(head, isSame: false) }
        let isSame = try await isSame(content) { range throws(ApusError) in
            try await self.run(slot) { store throws(FileFailure) in try store.read(name, range) }
        }
        guard let isSame else { return nil }
        return .exists(head, isSame: isSame)
    }
}
