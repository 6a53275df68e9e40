package import ApusCore
import Dispatch

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Restores a map if the local ownership store was lost, rolled back or damaged.
///
/// A new store is created beside the old one and takes its path by a rename. The old one is kept under another name.
/// The new store has the identity that the nodes know, so running nodes continue with it.
package enum OwnershipRestore {
    /// The gap between the newest revision that any node has seen and the restored one. A swap that none of the asked
    /// nodes has seen is below it too.
    package static let revisionGap: UInt64 = 1000

    /// The store at the path, and the reason if it cannot be read.
    package static func look(
        path: String, cluster: ClusterID, files: any StoreFiles = SystemStoreFiles()
    ) -> (found: OwnershipMark?, value: [UInt8], reason: String?) {
        var directory = RevisionDirectory(path: path, cluster: cluster, files: files, keptMax: 0)
        do {
            let record = try directory.newestRecord()
            return (record.mark, record.value, nil)
        } catch {
            return (nil, [], error.message)
        }
    }

    /// Creates the store with one revision. Blocks.
    ///
    /// - Parameter name: A part of the names beside the path, such as the time. It must be unused.
    /// - Returns: The new path of the earlier directory; nil if there was none.
    /// - Throws: 10021 if the directory cannot be written. The earlier store is then unchanged.
    package static func put(
        _ record: RevisionFile, at path: String, name: String, files: any StoreFiles = SystemStoreFiles()
    ) throws(ApusError) -> String? {
        let (new, old, parent) = ("\(path).new-\(name)", "\(path).old-\(name)", LocalOwnershipStore.parent(of: path))
        do throws(FileFailure) {
            try files.makeDirectory(new)
            try files.write(record.encoded(), to: "\(new)/\(RevisionDirectory.name(record.revision))")
            try files.syncDirectory(new)
            var isReplacing = true
            do throws(FileFailure) {
                try files.rename(path, to: old)
            } catch {
                guard error.number == ENOENT else { throw error }
                isReplacing = false
            }
            try files.rename(new, to: path)
            try files.syncDirectory(parent)
            return isReplacing ? old : nil
        } catch {
            throw ApusError(.storageFailed, error.advice)
        }
    }
}
