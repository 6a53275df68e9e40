package import ApusCore
package import ApusMedia
package import NIOCore

/// A frame of a channel's recording.
package struct LoggedFrame: Sendable, Hashable {
    package var position: FramePosition
    /// When it was received, in Unix microseconds of the cluster's clock.
    package var receivedMicroseconds: Int64
    /// The media header and the payload. The log does not read it.
    package var content: ByteBuffer

    package init(position: FramePosition, receivedMicroseconds: Int64, content: ByteBuffer) {
        self.position = position
        self.receivedMicroseconds = receivedMicroseconds
        self.content = content
    }
}

/// What the log has of a channel.
package struct LoggedChannel: Sendable, Hashable {
    package var name: String
    /// The oldest frame that is not released. Where only a part of a section is released, the position after it.
    package var first: FramePosition
    /// The newest durable frame.
    package var last: FramePosition
    /// The size of its sections in the files, in bytes.
    package var byteCount: Int
    /// When the oldest frame of the oldest section was received, in Unix microseconds.
    package var oldestMicroseconds: Int64

    package init(
        name: String, first: FramePosition, last: FramePosition, byteCount: Int, oldestMicroseconds: Int64
    ) {
        self.name = name
        (self.first, self.last) = (first, last)
        (self.byteCount, self.oldestMicroseconds) = (byteCount, oldestMicroseconds)
    }
}

/// The bounds of a log of recordings.
package struct RecordingLogLimits: Sendable, Hashable {
    /// The size of a file, in bytes: a multiple of 4,096.
    package var fileByteCount = 64 << 20
    /// The most files: 4 GiB, which are four minutes of 64 cameras with 2 Mb/s each. Each has a descriptor.
    package var fileCountMax = 64
    /// The files that are created when the log is opened, so that a disk that is full later does not stop it.
    package var fileCountMin = 4
    /// The most bytes of frames that wait to be written, or are being written. At the default a disk may stall for four
    /// seconds with 64 cameras of 2 Mb/s.
    package var waitingByteCountMax = 64 << 20
    /// The most bytes of one channel that wait.
    package var channelWaitingByteCountMax = 32 << 20
    /// The largest group, in bytes: what a write builds in memory.
    package var groupByteCountMax = 8 << 20
    /// The size from which on a section is not extended, in bytes: what a read decodes at once.
    package var sectionByteCountMax = 256 << 10
    /// The largest frame, in bytes.
    package var frameByteCountMax = 6 << 20
    /// The most sections that are not released: the index has 64 bytes for each, so at most 64 MiB. 64 cameras have 256
    /// sections a second: 4 MiB of index for the four minutes that the files have.
    package var sectionCountMax = 1 << 20
    /// The most channels in the log and in the queue.
    package var channelCountMax = 4096
    /// The longest name of a channel, in bytes.
    package var channelNameByteCountMax = 256

    package init() {}

    /// - Throws: 10022 if a bound does not fit the others.
    func check() throws(ApusError) {
        let room = fileByteCount - LogFormat.groupsOffset
        let part = frameByteCountMax + LogFormat.blockByteCount
        guard fileByteCount % LogFormat.blockByteCount == 0, fileByteCount <= 1 << 30, fileCountMax >= 2,
            fileCountMax <= 1 << 16, (0...fileCountMax).contains(fileCountMin), frameByteCountMax > 0,
            part <= groupByteCountMax, 2 * groupByteCountMax <= room,
            waitingByteCountMax >= frameByteCountMax, channelNameByteCountMax <= 1024
        else { throw ApusError(.configurationInvalid, "the bounds of the recording log do not fit one another") }
    }
}

/// The state of a log, for metrics and conditions.
package struct RecordingLogStatus: Sendable {
    /// Files that exist.
    package var fileCount = 0
    package var fileCountMax = 0
    /// The size of the files that exist, in bytes.
    package var byteCount = 0
    /// Files with frames that are not released.
    package var usedFileCount = 0
    /// The size of the sections that are not released, in bytes.
    package var usedByteCount = 0
    /// Files that are neither read nor written: their key is unknown, or their header is damaged. They are kept.
    package var unreadableFileCount = 0
    /// Sections that are not released.
    package var sectionCount = 0
    /// Bytes of frames that wait to be written.
    package var waitingByteCount = 0
    /// Frames that were refused since the start, because too many bytes waited or the log was full.
    package var refusedFrameCount = 0
    /// Groups and sections that were found damaged or torn since the start.
    package var damagedRecordCount = 0
    /// True while every file is in use and frames wait: nothing is written until frames are released.
    package var isFull = false
    /// The duration of the last sync that has ended.
    package var lastSync: Duration?
    /// The duration of the write in progress: of a disk that does not answer, it grows.
    package var writing: Duration?
    /// The error of the last write; nil if it succeeded.
    package var failure: ApusError?
}
