import NIOCore

/// The bytes that wait for one flush of a link: any thread appends, the event loop takes all of them
/// with one write. At most one flush is scheduled at a time; that is what makes many small messages
/// cheap (D3).
///
/// A pure value: the link keeps it behind its lock.
struct OutputQueue {
    /// A buffer that grew over this is not kept for the next round, in bytes.
    private static let keptByteCountMax = 256 << 10

    private var buffer = ByteBuffer()
    private var spare = ByteBuffer()
    /// True from the moment that somebody promised to flush until the loop takes the bytes.
    private(set) var isFlushScheduled = false

    var byteCount: Int { buffer.readableBytes }

    /// Appends what the closure writes.
    mutating func append(_ write: (inout ByteBuffer) -> Void) { write(&buffer) }

    /// True where the caller has to schedule a flush now.
    mutating func promiseFlush() -> Bool {
        guard !isFlushScheduled else { return false }
        isFlushScheduled = true
        return true
    }

    /// All bytes, or nil where there are none. The promise is kept with this.
    mutating func take() -> ByteBuffer? {
        isFlushScheduled = false
        guard buffer.readableBytes > 0 else { return nil }
        let taken = buffer
        buffer = spare
        spare = ByteBuffer()
        return taken
    }

    /// Takes a written buffer back, to use its memory again.
    mutating func giveBack(_ written: consuming ByteBuffer) {
        guard written.capacity <= Self.keptByteCountMax else { return }
        written.clear()
        spare = written
    }

    /// Drops everything; for a link that ended.
    mutating func reset() { self = OutputQueue() }
}
