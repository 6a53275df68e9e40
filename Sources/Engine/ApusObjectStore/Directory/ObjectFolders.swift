import ApusCore
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The folders of a directory of objects: their paths, their durability and their sizes.
///
/// The object `a/b/c` is the file `a+/b+/c`: no part of a name has a `+`, so a name may be the beginning of another.
/// A folder is durable once its parent was synced since it was made. Another process may have made it, and been stopped
/// before that, so each process syncs the parents of a folder before it first relies on it. It remembers that by the
/// folder's inode, because a folder that is empty is removed, and may be made again.
///
/// Concurrency model: any thread that may block. A `Mutex` guards what is remembered.
final class ObjectFolders: Sendable {
    private struct Known {
        var inode: UInt64
        /// The entries; nil if they were not counted.
        var count: Int?
    }

    /// What the name of a folder ends with.
    static let suffix = "+"
    /// The most folders that are remembered; beyond it all are forgotten.
    private static let knownMax = 16_384
    /// How often a folder that others remove is made again in one put.
    private static let attemptsMax = 16

    let root: String
    private let files: any ObjectFiles
    private let countMax: Int
    private let known = Mutex<[ExactText: Known]>([:])

    init(root: String, files: any ObjectFiles, countMax: Int) {
        (self.root, self.files, self.countMax) = (root, files, countMax)
    }

    /// The folder of an object.
    func folder(of name: ObjectName) -> String { paths(of: name).last ?? root }

    /// The file of an object.
    func file(of name: ObjectName) -> String { "\(folder(of: name))/\(name.parts.last ?? "")" }

    /// The root and the folders of an object, from the outermost on.
    private func paths(of name: ObjectName) -> [String] {
        var paths = [root]
        for part in name.parts.dropLast() { paths.append("\(paths[paths.count - 1])/\(part)\(Self.suffix)") }
        return paths
    }

    /// Gives a complete file the name of an object, in a durable folder. The name itself is not durable yet.
    ///
    /// - Returns: false if the name exists.
    /// - Throws: 10007 if the folder is full; 10041, 10021.
    func link(_ file: String, to name: ObjectName) throws(ApusError) -> Bool {
        let folders = paths(of: name)
        for _ in 0..<Self.attemptsMax {
            switch Result(catching: { () throws(FileFailure) in try place(file, self.file(of: name), folders) }) {
            case .success(.linked): return true
            case .success(.full):
                throw ApusError(
                    .overloaded, "\(folder(of: name)) has \(countMax) objects, as many as a folder may have")
            case .success(.folderRemoved): continue
            case .failure(let failure) where failure.number == EEXIST: return false
            case .failure(let failure): throw failure.error
            }
        }
        throw ApusError(.storageFailed, "\(folder(of: name)) is removed again and again")
    }

    private enum Placing { case linked, full, folderRemoved }

    private func place(_ file: String, _ target: String, _ folders: [String]) throws(FileFailure) -> Placing {
        let folder = folders[folders.count - 1]
        guard try prepare(folders) else { return .folderRemoved }
        do throws(FileFailure) {
            guard try hasRoom(folder) else { return .full }
            try files.link(file, to: target)
        } catch {
            // Another process has removed the folder because it was empty.
            guard error.number == ENOENT, try files.status(file) != nil else { throw error }
            return .folderRemoved
        }
        changeCount(folder, by: 1)
        return .linked
    }

    /// Makes the folders, and what leads to them durable.
    ///
    /// - Returns: false if another process has removed one.
    private func prepare(_ paths: [String]) throws(FileFailure) -> Bool {
        for (parent, path) in zip(paths, paths.dropFirst()) {
            var status = try files.status(path)
            if status == nil {
                do throws(FileFailure) { try files.makeFolder(path) } catch {
                    if error.number == ENOENT { return false }
                    guard error.number == EEXIST else { throw error }
                }
                status = try files.status(path)
            }
            guard let status else { return false }
            guard status.isFolder else { throw FileFailure(path, ENOTDIR) }
            let key = ExactText(path)
            if known.withLock({ $0[key]?.inode }) == status.inode { continue }
            do throws(FileFailure) { try files.syncFolder(parent) } catch {
                if error.number == ENOENT { return false }
                throw error
            }
            known.withLock { known in
                if known.count >= Self.knownMax { known = [:] }
                known[key] = Known(inode: status.inode)
            }
        }
        return true
    }

    /// Makes the folders of an object that another process has put durable, and its name.
    func syncName(of name: ObjectName) throws(FileFailure) {
        _ = try prepare(paths(of: name))
        try files.syncFolder(folder(of: name))
    }

    // MARK: Sizes

    private func hasRoom(_ folder: String) throws(FileFailure) -> Bool {
        let key = ExactText(folder)
        if let count = known.withLock({ $0[key]?.count }), count < countMax { return true }
        let count = try files.list(folder).count
        known.withLock { $0[key]?.count = count }
        return count < countMax
    }

    private func changeCount(_ folder: String, by change: Int) {
        known.withLock { known in
            guard let count = known[ExactText(folder)]?.count else { return }
            known[ExactText(folder)]?.count = max(0, count + change)
        }
    }

    // MARK: Deletion

    /// Makes the removal of an object durable. If another process has removed its folder, which was empty then, the
    /// parent is synced: the file system keeps the order of the two removals.
    func syncRemoval(of name: ObjectName) throws(FileFailure) {
        for path in paths(of: name).reversed() {
            do throws(FileFailure) { return try files.syncFolder(path) } catch {
                guard error.number == ENOENT, path.utf8.count > root.utf8.count else { throw error }
            }
        }
    }

    /// An object was removed: removes its folders, as far as they are empty.
    func removed(_ name: ObjectName) {
        let paths = paths(of: name)
        changeCount(paths[paths.count - 1], by: -1)
        for path in paths.dropFirst().reversed() {
            // Fails if the folder has entries, which stay.
            guard (try? files.removeFolder(path)) != nil else { return }
            known.withLock { $0[ExactText(path)] = nil }
        }
    }
}
