import ApusCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The ownership value as a directory of revisions, with a compare-and-swap that holds no lock (D4).
///
/// **Contents.** Each revision is a file whose name is its number, in 20 digits. The newest is the highest. Revision 0
/// is the store's creation: an identity and no value. Files that begin with `tmp-` are being written.
///
/// **A swap** writes the new revision N + 1 under a temporary name, syncs it, and names it by link(2), which fails if
/// the name exists. Of several swaps that expect N, the kernel admits one. The swap then syncs the directory, removes
/// the temporary name, and reads the directory once more before it reports. No process waits for another: a process
/// that is stopped at any point holds no lock, and leaves at most a temporary file and a revision that others can read.
///
/// **A revision is complete when it has its name**, because its content was synced before. A highest revision that
/// cannot be decoded is therefore damage. It is never a reason to use the next lower one, which was already replaced.
///
/// **A revision is durable before any process acts on it.** The name may become visible before its writer has synced
/// the directory. The temporary name shows this: it is removed after that sync, so a revision with one name is durable,
/// and a reader that sees one with two names syncs the directory itself. A process that expects N knows that N is
/// durable. A power cut therefore removes only a highest revision on which no process acted and whose swap was not
/// reported. If a sync fails, the read or the swap fails; the outcome of the swap is then uncertain.
///
/// **Old revisions are removed, and yet no number is used twice.** The danger: a writer reads N, is stopped, and
/// continues when N + 1 was made, replaced a hundred times and removed. Its link(2) succeeds on a free name.
/// - A revision r is removed only by a process that has seen a durable revision of at least r + ``keptMin``. Revisions
///   are removed from the lowest upwards.
/// - Revisions grow: a highest one is never removed. When the stale link is made, at least N + 1 + ``keptMin`` exists,
///   and every later read of the directory shows this or a higher one. Readers take the highest, so the stale revision
///   is never the newest. This holds after a power cut too, since the higher revisions are durable and the stale one is
///   not.
/// - The writer reads the directory after its link, and reports success only if all that it sees is below N + 1 +
///   ``keptMin``. Then no process had removed N + 1 before the link: the name was free because N + 1 had never existed,
///   and the swap was the newest. If it sees more, the swap may have been made long ago and replaced since, or may be
///   stale. It fails as uncertain, which the port's contract allows.
/// - Files more than ``keptMax`` behind the highest are removed in batches, the stale one included.
///
/// **One read of the directory is one moment.** A directory of at most ``nameCountMax`` names fits the buffer of one
/// getdents64(2), which the kernel fills under the directory's lock. Between this read and the read of the highest
/// file, that file can only vanish if many higher ones were made. The directory is then read again.
///
/// **Another directory at the path** (a restore, or a copy) is detected by its inode after the link, and by the
/// identity in every revision.
///
/// Not thread-safe: ``LocalOwnershipStore`` confines it to its queue.
struct RevisionDirectory: Sendable {
    /// The reason for which the store cannot answer.
    struct Failure: Error {
        enum Kind {
            /// Another store, or another cluster's.
            case foreign
            /// A file is not a valid revision.
            case damaged
            /// There is no revision.
            case empty
            /// The system refused an operation. A swap may have been made.
            case failed
        }

        var kind: Kind
        var message: String
    }

    private struct Trusted {
        var record: RevisionFile
        var mark: FileMark
    }

    /// A revision is removed only if this many are above it. Part of the format, the same in every process.
    static let keptMin: UInt64 = 16
    /// The most names in the directory: revisions, and the temporary files of as many writers.
    static let nameCountMax = 600
    private static let lookCountMax = 100
    private static let temporaryPrefix = "tmp-"
    private static let digitCount = 20
    /// The age at which temporary files of writers that ended are removed.
    private static let temporaryAgeMax: Int64 = 60_000_000_000

    let path: String
    let cluster: ClusterID
    let files: any StoreFiles
    /// Revisions to keep, at least ``keptMin``. There are up to twice as many before a batch is removed.
    let keptMax: UInt64
    /// Set by the first revision that is read.
    private(set) var identity: StoreID?
    private var newest: Trusted?

    init(path: String, cluster: ClusterID, files: any StoreFiles, keptMax: Int, identity: StoreID? = nil) {
        self.path = path
        self.cluster = cluster
        self.files = files
        self.keptMax = max(Self.keptMin, UInt64(clamping: keptMax))
        self.identity = identity
    }

    // MARK: Reading

    /// The newest revision: complete, of this store, and durable.
    mutating func newestRecord() throws(Failure) -> RevisionFile {
        for _ in 0..<Self.lookCountMax {
            guard let top = try look().top else { throw Failure(kind: .empty, message: "\(path) holds no revision") }
            guard let mark = try ifThere({ () throws(FileFailure) in try files.mark(file(top)) }) else { continue }
            if let newest, newest.mark == mark, newest.record.revision == top { return newest.record }
            let found = try ifThere { () throws(FileFailure) in
                try files.read(file(top), byteCountMax: RevisionFile.byteCountMax)
            }
            // Removed since the read: it was replaced many times, or the whole directory was.
            guard let found else { continue }
            let record = try accept(found, as: top)
            if mark.linkCount > 1 { try run { () throws(FileFailure) in try files.syncDirectory(path) } }
            newest = Trusted(record: record, mark: mark)
            return record
        }
        throw Failure(kind: .failed, message: "\(path) changes faster than it can be read")
    }

    /// The contents of the directory at this moment.
    private func look() throws(Failure) -> (inode: UInt64, revisions: [UInt64], temporaries: [String], top: UInt64?) {
        guard let directory = try ifThere({ () throws(FileFailure) in try files.list(path) }) else {
            throw Failure(kind: .empty, message: "\(path) is gone")
        }
        let revisions = directory.names.compactMap(Self.revision).sorted()
        return (
            directory.inode, revisions, directory.names.filter { $0.hasPrefix(Self.temporaryPrefix) }, revisions.last
        )
    }

    private mutating func accept(_ bytes: [UInt8], as revision: UInt64) throws(Failure) -> RevisionFile {
        guard let record = RevisionFile(decoding: bytes), record.revision == revision else {
            throw Failure(kind: .damaged, message: "\(file(revision)) is damaged")
        }
        guard record.cluster == cluster else {
            throw Failure(
                kind: .foreign, message: "\(path) belongs to the cluster \(record.cluster), not to \(cluster)")
        }
        guard identity == nil || record.store == identity else {
            throw Failure(kind: .foreign, message: "\(path) is another ownership store than the one that was here")
        }
        identity = record.store
        return record
    }

    // MARK: Creation

    /// Creates the directory if it is missing. Its name is durable afterwards, even if another process created it.
    func prepare(parent: String) throws(Failure) {
        do {
            try files.makeDirectory(path)
        } catch {
            guard error.number == EEXIST else { throw Self.failure(error) }
        }
        try run { () throws(FileFailure) in try files.syncDirectory(parent) }
    }

    /// True if the directory exists and has a revision.
    func holdsRevisions() throws(Failure) -> Bool {
        try ifThere { () throws(FileFailure) in try files.list(path) }?.names.contains { Self.revision($0) != nil }
            ?? false
    }

    /// Writes the first revision of a store, unless another process was first.
    func create(_ record: RevisionFile) throws(Failure) {
        _ = try place(record)
    }

    /// Replaces the value if its revision is `expected`. Returns nil if it is not. After a failure the outcome is
    /// uncertain.
    mutating func swap(expected: UInt64, value: [UInt8]) throws(Failure) -> UInt64? {
        let current = try newestRecord()
        guard current.revision == expected else { return nil }
        let before = try look()
        guard before.top == expected else { return nil }
        let next = RevisionFile(cluster: cluster, store: current.store, revision: expected + 1, value: value)
        guard try place(next) else { return nil }
        let after = try look()
        guard after.inode == before.inode, let top = after.top, top >= next.revision,
            top < next.revision + Self.keptMin
        else {
            throw Failure(
                kind: .failed, message: "\(file(next.revision)) was overtaken; it may never have been the newest")
        }
        if let mark = try? files.mark(file(next.revision)) { newest = Trusted(record: next, mark: mark) }
        removeOld(after.revisions, top: top, temporaries: after.temporaries)
        return next.revision
    }

    /// Writes a record and gives it its durable name. Returns false if the name is taken.
    ///
    /// The temporary name is removed last. If the sync failed it stays, so other processes do not rely on the revision.
    private func place(_ record: RevisionFile) throws(Failure) -> Bool {
        let temporary = "\(path)/\(Self.temporaryPrefix)\(StoreID.random())"
        do {
            try files.write(record.encoded(), to: temporary)
            try files.link(temporary, to: file(record.revision))
        } catch {
            try? files.remove(temporary)
            guard error.number == EEXIST else { throw Self.failure(error) }
            return false
        }
        try run { () throws(FileFailure) in try files.syncDirectory(path) }
        try? files.remove(temporary)
        return true
    }

    /// Removes revisions far below the highest, from the lowest upwards, and files of writers that ended. What cannot
    /// be removed stays until the next time.
    private func removeOld(_ revisions: [UInt64], top: UInt64, temporaries: [String]) {
        if revisions.count >= Int(keptMax) * 2 {
            for revision in revisions where revision + keptMax <= top { try? files.remove(file(revision)) }
        }
        guard let now = newest?.mark.modifiedNanoseconds else { return }
        for name in temporaries {
            guard let mark = try? files.mark("\(path)/\(name)"),
                mark.modifiedNanoseconds &+ Self.temporaryAgeMax < now
            else { continue }
            try? files.remove("\(path)/\(name)")
        }
    }

    // MARK: Names and errors

    private func file(_ revision: UInt64) -> String { "\(path)/\(Self.name(revision))" }

    /// The name of a revision's file.
    static func name(_ revision: UInt64) -> String {
        let digits = String(revision)
        return String(repeating: "0", count: digitCount - digits.count) + digits
    }

    private static func revision(_ name: String) -> UInt64? {
        name.utf8.count == digitCount && name.utf8.allSatisfy { (48...57).contains($0) } ? UInt64(name) : nil
    }

    private func run<Value>(_ body: () throws(FileFailure) -> Value) throws(Failure) -> Value {
        do {
            return try body()
        } catch {
            throw Self.failure(error)
        }
    }

    /// Nil if the file or the directory does not exist.
    private func ifThere<Value>(_ body: () throws(FileFailure) -> Value) throws(Failure) -> Value? {
        do {
            return try body()
        } catch {
            guard error.number != ENOENT else { return nil }
            throw Self.failure(error)
        }
    }

    static func failure(_ error: FileFailure) -> Failure {
        error.number == EFBIG
            ? Failure(kind: .damaged, message: "\(error.path) is damaged: it is larger than any revision")
            : Failure(kind: .failed, message: error.advice)
    }
}
