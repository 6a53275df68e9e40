import NIOCore

/// The bytes that wait for the next flush of a link. Any thread appends, and the event loop takes all of them with one
/// write. At most one flush is scheduled at a time, which keeps the cost of many small messages low (D3).
///
/// A pure value: the link keeps it behind its lock.
struct OutputQueue {
    /// A buffer larger than this is not kept for reuse, in bytes.
    private static let keptByteCountMax = 256 << 10

    private var buffer = ByteBuffer()
    private var spare = ByteBuffer()
    /// True from the moment a caller is made responsible for the flush until the loop takes the bytes.
    private(set) var isFlushScheduled = false

    var byteCount: Int { buffer.readableBytes }

    /// Appends what the closure writes.
    mutating func append(_ write: (inout ByteBuffer) -> Void) { write(&buffer) }

    /// Returns true if the caller must schedule a flush.
    mutating func promiseFlush() -> Bool {
        guard !isFlushScheduled else { return false }
        isFlushScheduled = true
        return true
    }

    /// Takes all bytes; nil if there are none. No flush is scheduled afterwards.
    mutating func take() -> ByteBuffer? {
        isFlushScheduled = false
        guard buffer.readableBytes > 0 else { return nil }
        let taken = buffer
        buffer = spare
        spare = ByteBuffer()
        return taken
    }

    /// Returns a written buffer, to reuse its memory.
    mutating func giveBack(_ written: consuming ByteBuffer) {
        guard written.capacity <= Self.keptByteCountMax else { return }
        written.clear()
        spare = written
    }

    /// Discards everything. For a link that ended.
    mutating func reset() { self = OutputQueue() }
}
