import ApusCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The ownership value as a directory of revisions, with a compare-and-swap that holds no lock (D4).
///
/// **What is in it.** Each revision is a file whose name is its number, in 20 digits; the newest is the highest.
/// Revision 0 is the store's creation: an identity and no value. Files that begin with `tmp-` are being written.
///
/// **A swap** writes the new revision N + 1 under a temporary name, syncs it, and gives it its name by link(2),
/// which fails where the name exists: of several that expect N, the kernel lets one through. Then it syncs the
/// directory, removes the temporary name, and looks once more before it reports. Nothing waits for another process:
/// one that is stopped anywhere in between holds no lock, and leaves at most a temporary file and a revision that
/// others can read.
///
/// **A revision is whole when it has its name**, since its content was synced before. So a highest revision that
/// cannot be decoded is damage, and never a reason to go back to the one below, which was already replaced.
///
/// **A revision is durable before anybody acts on it.** The name may be seen before its writer has synced the
/// directory. The temporary name tells: it is removed after that sync, so a revision with one name is durable, and who
/// sees one with two syncs the directory itself. Who expects N knows that N is durable, so a power cut takes away
/// only a highest revision on which nobody acted and whose swap was not reported. A sync that fails fails the read,
/// or the swap, whose outcome is then uncertain.
///
/// **Old revisions are removed, and yet no number is used twice.** The danger: a writer reads N, is stopped, and wakes
/// when N + 1 was made, replaced a hundred times and removed; its link(2) succeeds on a free name.
/// - A revision r is removed only by a process that has seen a revision of at least r + ``keptMin``, durable.
///   Revisions are removed from the lowest upwards.
/// - Revisions grow: a highest one is never removed. So when the stale link is made, at least N + 1 + ``keptMin`` is
///   there, and every later look at the directory shows this or a higher one. Readers take the highest: the stale
///   revision is never the newest, also after a power cut, since what stands above it is durable and it is not.
/// - The writer looks at the directory after its link and reports success only where all that it sees is below
///   N + 1 + ``keptMin``. Then no process had removed N + 1 before the link, so the name was free because nobody
///   had ever made N + 1: the swap was on top. Where it sees more, the swap may have been made long ago and
///   replaced since, or may be stale: it fails as uncertain, which the port's contract allows.
/// - Files that are older than ``keptMax`` behind the highest go in batches, the stale one with them.
///
/// **One look at the directory is one moment.** A directory of at most ``nameCountMax`` names fits the buffer of
/// one getdents64(2), which the kernel fills under the directory's lock. Between the look and the reading of the
/// highest file, that file can only vanish if many higher ones came: then it is looked at again.
///
/// **Another directory at the path** (a restore, a copy put back) is seen by its inode after the link, and by the
/// identity in every revision.
///
/// Not thread-safe: ``LocalOwnershipStore`` confines it to its queue.
struct RevisionDirectory: Sendable {
    /// What keeps the store from answering.
    struct Failure: Error {
        enum Kind {
            /// Another store, or another cluster's.
            case foreign
            /// A file that is no revision.
            case damaged
            /// No revision at all.
            case empty
            /// The system refused an operation; a swap may have been made.
            case failed
        }

        var kind: Kind
        var message: String
    }

    private struct Trusted {
        var record: RevisionFile
        var mark: FileMark
    }

    /// Revisions above one that is removed; part of the format, the same in every process.
    static let keptMin: UInt64 = 16
    /// More names than this are never there: revisions, and the temporary files of that many writers.
    static let nameCountMax = 600
    private static let lookCountMax = 100
    private static let temporaryPrefix = "tmp-"
    private static let digitCount = 20
    /// Temporary files of writers that ended are removed at this age.
    private static let temporaryAgeMax: Int64 = 60_000_000_000

    let path: String
    let cluster: ClusterID
    let files: any StoreFiles
    /// Revisions that are kept, at least ``keptMin``; up to twice as many are there before a batch is removed.
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

    /// The newest revision: whole, of this store, and durable.
    mutating func newestRecord() throws(Failure) -> RevisionFile {
        for _ in 0..<Self.lookCountMax {
            guard let top = try look().top else { throw Failure(kind: .empty, message: "\(path) holds no revision") }
            guard let mark = try ifThere({ () throws(FileFailure) in try files.mark(file(top)) }) else { continue }
            if let newest, newest.mark == mark, newest.record.revision == top { return newest.record }
            let found = try ifThere { () throws(FileFailure) in
                try files.read(file(top), byteCountMax: RevisionFile.byteCountMax)
            }
            // Gone since the look: replaced many times, or with the whole directory.
            guard let found else { continue }
            let record = try accept(found, as: top)
            if mark.linkCount > 1 { try run { () throws(FileFailure) in try files.syncDirectory(path) } }
            newest = Trusted(record: record, mark: mark)
            return record
        }
        throw Failure(kind: .failed, message: "\(path) changes faster than it can be read")
    }

    /// The directory at this moment.
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

    // MARK: Making

    /// Makes the directory where it is missing. Its name is durable afterwards, whoever made it.
    func prepare(parent: String) throws(Failure) {
        do {
            try files.makeDirectory(path)
        } catch {
            guard error.number == EEXIST else { throw Self.failure(error) }
        }
        try run { () throws(FileFailure) in try files.syncDirectory(parent) }
    }

    /// True if the directory is there and holds a revision.
    func holdsRevisions() throws(Failure) -> Bool {
        try ifThere { () throws(FileFailure) in try files.list(path) }?.names.contains { Self.revision($0) != nil }
            ?? false
    }

    /// Writes the first revision of a store, unless another process was first.
    func create(_ record: RevisionFile) throws(Failure) {
        _ = try place(record)
    }

    /// Replaces the value if its revision is `expected`; nil if it is not. A failure leaves the outcome open.
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
                kind: .failed, message: "\(file(next.revision)) was overtaken; whether it ever was the newest is open")
        }
        if let mark = try? files.mark(file(next.revision)) { newest = Trusted(record: next, mark: mark) }
        removeOld(after.revisions, top: top, temporaries: after.temporaries)
        return next.revision
    }

    /// Writes a record and gives it its name, durable; false if the name is taken.
    ///
    /// The temporary name goes last: where the sync failed it stays, and keeps others from trusting the revision.
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

    /// Removes what is far below the highest revision, from the lowest upwards, and files of writers that ended. What
    /// cannot be removed stays until the next time.
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
