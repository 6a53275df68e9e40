package import ApusCore
import Dispatch

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Puts a map back where the local ownership store was lost, went back or is damaged.
///
/// The store is made anew beside the old one and takes its path by a rename; what stood there is kept under another
/// name. The identity is the one that the nodes know, so that running nodes go on by themselves.
package enum OwnershipRestore {
    /// Revisions between the newest that any node has seen and the one that is put back: a swap of which no node that
    /// was asked knows is below it too.
    package static let revisionGap: UInt64 = 1000

    /// What stands at the path, and what is wrong with it; nil for a reason where it can be read.
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

    /// Makes the store anew with one revision. Blocks.
    ///
    /// - Parameter name: Part of the names beside the path, such as the time; not taken yet.
    /// - Returns: Where the earlier directory is now; nil if there was none.
    /// - Throws: 10021 if the directory cannot be written; the earlier store is then as it was.
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
