package import ApusCore
package import ApusMedia
import NIOCore
import Synchronization

/// The append log of a node's recordings: one for all channels.
///
/// Frames are queued by ``append(_:_:)`` and written by ``write()``, which the owner calls at each tick: as one group
/// for all channels, with one fdatasync(2). So the number of syncs does not grow with the number of cameras. The files
/// are allocated when they are made and overwritten when all of their frames are released: a data disk that is full
/// does not stop the log.
///
/// **What is durable.** After ``write()`` returns, all frames that were queued before are: they are read after the
//death / of the process, and after a power cut. After it throws, none of the frames of its last group counts; they wait
//for the / next call. Frames that were never durable may be found after a restart too: each is whole, and was appended.
/// / **A file that failed** at a write or sync is not written any more, because fdatasync(2) reports an error once and
//then / takes the lost pages for written. The log continues in another file. It is used again when all of its frames
//are / released. / / **When all files are in use**, nothing is overwritten. The queue fills, frames are refused and
//counted, and the / status says so. ``release(_:through:)`` makes room. / / **A restart** reads the tables of all
//files, and the frames that may not have been durable. What is damaged is / skipped and counted. Files whose key is
//unknown are kept. / / One process has the directory at a time (flock(2)). / / Concurrency model: any task or thread. A
//`Mutex` guards the state, and is never held during a call of the system. One / thread writes and one reads.
package final class RecordingLog: Sendable {
    struct OpenFile {
        var file: LogFile
        var header: LogFileHeader
        var cipher: LogCipher
    }

    struct State {
        var queue = LogQueue()
        var index = LogIndex()
        /// The files that can be written and read, by their slot.
        var open: [Int: OpenFile] = [:]
        var sealing: any LogSealing
        /// Releases that are not in the files yet.
        var releases: [ExactText: [LogRelease]] = [:]
        /// Channels that were released as a whole during a write: so are those of its frames that are in no group yet.
        var lateReleases: Set<ExactText> = []
        var writingSince: MonotonicTime?
        /// The last group of the current file that is durable.
        var durableGroup: UInt64 = 0
        /// The file that was written before the current one, and its last durable group.
        var previous: (generation: UInt64, end: UInt64) = (0, 0)
        var refusedFrameCount = 0
        var damagedRecordCount = 0
        var isFull = false
        var lastSync: Duration?
        var failure: ApusError?
        var isClosed = false
        var lock: LogFile?
    }

    package let directory: String
    package let limits: RecordingLogLimits
    let files: any LogFiles
    let state: Mutex<State>
    private let writer: LogThread
    private let reader: LogThread

    /// Opens a log, and makes its directory if it does not exist. The parent must exist. Blocks while the files are
    /// read.
    ///
    /// - Throws: 10022 if the bounds do not fit one another, 10020 if another process has the directory, or 10041 and
    ///   10021 if it cannot be used. A full disk is no error if the directory exists.
    package init(
        directory: String, limits: RecordingLogLimits = RecordingLogLimits(), sealing: any LogSealing = UnsealedLog(),
        files: any LogFiles = SystemLogFiles()
    ) throws(ApusError) {
        try limits.check()
        (self.directory, self.limits, self.files) = (directory, limits, files)
        var opening = LogOpening(directory: directory, limits: limits, sealing: sealing, files: files)
        state = Mutex(try opening.open())
        writer = try LogThread(name: "recording-write")
        reader = try LogThread(name: "recording-read")
        do throws(ApusError) { try wrapAgain() } catch { state.withLock { $0.failure = error } }
    }

    // MARK: Writing

    /// Queues frames of a channel, in their order.
    ///
    /// - Returns: how many were refused: the queue or the log is full, a name is too long or a frame too large, or the
    ///   log is closed.
    package func append(_ channel: String, _ frames: [LoggedFrame]) -> Int {
        state.withLock { state in
            let refused = state.append(ExactText(channel), frames, limits)
            state.refusedFrameCount += refused
            return refused
        }
    }

    /// Writes what is queued, and returns when it is durable. One call at a time has an effect; another one waits.
    ///
    /// - Throws: 10041 if the disk or the log is full, 10021 if it cannot be written or is closed, 10018 if a group
    ///   cannot be sealed. The frames wait for the next call.
    package func write() async throws(ApusError) {
        try await writer.run { () throws(ApusError) in try self.writeNow() }
    }

    /// Seals new files in another way, and wraps the keys of existing ones again.
    ///
    /// - Throws: 10041 or 10021 if a file cannot be written. The others are done, and the next call does the rest.
    package func use(_ sealing: any LogSealing) async throws(ApusError) {
        try await writer.run { () throws(ApusError) in
            self.state.withLock { $0.sealing = sealing }
            try self.wrapAgain()
        }
    }

    // MARK: Reading

    /// The newest durable position of a channel since the log was opened, or of what is in it.
    package func logged(_ channel: String) -> FramePosition? {
        state.withLock { $0.index.channels[ExactText(channel)]?.newest }
    }

    /// The channels with frames that are not released, in no order.
    package var channels: [LoggedChannel] { state.withLock { $0.index.logged } }

    /// Reads durable frames of a channel that are not released, in the order of their positions, each position once.
    ///
    /// - Parameters:
    ///   - after: only later ones.
    ///   - byteCountMax: of content, which at least one frame is returned beyond.
    /// - Returns: none if there are no more. What is damaged is left out and counted, so there may be gaps.
    /// - Throws: 10021 if a file cannot be read.
    package func read(
        _ channel: String, after: FramePosition?, byteCountMax: Int
    ) async throws(ApusError) -> [LoggedFrame] {
        try await reader.run { () throws(ApusError) in
            try self.readNow(ExactText(channel), after: after, byteCountMax: byteCountMax)
        }
    }

    // MARK: Releasing

    /// The frames of a channel up to a position are not needed any more. The next ``write()`` makes that durable; after
    /// a restart before it, they are there again.
    package func release(_ channel: String, through: FramePosition) {
        state.withLock { $0.release(ExactText(channel), through: through) }
    }

    /// No frame of a channel is needed any more, those that wait included.
    package func releaseAll(_ channel: String) {
        let channel = ExactText(channel)
        state.withLock { state in
            // Groups of a write that failed may have some of its frames.
            if state.queue.has(channel) { state.index.add(channel) }
            state.queue.remove(channel)
            if state.writingSince != nil { state.lateReleases.insert(channel) }
            state.release(channel, through: Self.end)
            state.index.forget(channel)
        }
    }

    /// The end of all positions.
    static let end = FramePosition(epoch: .max, sequence: .max)

    // MARK: State

    package var status: RecordingLogStatus {
        let now = MonotonicTime.now()
        return state.withLock { state in
            var status = RecordingLogStatus()
            let slots = state.index.slots.values
            status.fileCount = slots.count
            status.fileCountMax = limits.fileCountMax
            status.byteCount = slots.reduce(0) { $0 + $1.byteCount }
            status.usedFileCount = slots.count { $0.sectionCount > 0 }
            status.usedByteCount = state.index.usedByteCount
            status.unreadableFileCount = slots.count { $0.use == .unreadable }
            status.sectionCount = state.index.sectionCount
            status.waitingByteCount = state.queue.byteCount
            status.refusedFrameCount = state.refusedFrameCount
            status.damagedRecordCount = state.damagedRecordCount
            status.isFull = state.isFull
            status.lastSync = state.lastSync
            status.writing = state.writingSince.map { now - $0 }
            status.failure = state.failure
            return status
        }
    }

    /// Ends the threads, closes the files and ends the lock. What was not written is lost. Waits for a write or read in
    /// progress.
    package func close() async {
        state.withLock { $0.isClosed = true }
        writer.stop()
        reader.stop()
        await writer.ended()
        await reader.ended()
        state.withLock { state in
            state.open = [:]
            state.lock = nil
        }
    }
}

extension RecordingLog.State {
    mutating func append(_ channel: ExactText, _ frames: [LoggedFrame], _ limits: RecordingLogLimits) -> Int {
        guard !isClosed, channel.string.utf8.count <= limits.channelNameByteCountMax,
            index.sectionCount < limits.sectionCountMax
        else { return frames.count }
        if !queue.has(channel) {
            let count = queue.channelCount
            guard count < limits.channelCountMax else { return frames.count }
            if index.channels[channel] == nil, index.channels.count >= limits.channelCountMax, !index.makeRoom() {
                return frames.count
            }
        }
        return queue.append(channel, frames, limits)
    }

    mutating func release(_ channel: ExactText, through: FramePosition) {
        let release = LogRelease(through: through, number: index.lastGroup)
        guard index.apply(release, to: channel) else { return }
        releases[channel, default: []].removeAll { release.covers($0) }
        releases[channel, default: []].append(release)
        isFull = isFull && index.freeSlot == nil
    }
}
