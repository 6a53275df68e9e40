import DequeModule
import NIOCore

/// Merges the frames of several tracks in decode order, for files in which the tracks are in long runs.
///
/// Bounded: beyond ``countMax`` frames or ``byteCountMax`` bytes the earliest frame is returned, although another track
/// may still have an earlier one.
struct Interleaver {
    static let countMax = 1024
    static let byteCountMax = 32 << 20

    private var queues: [Deque<SourceFrame>]
    private var count = 0
    private var byteCount = 0
    private var isOver = false

    init(trackCount: Int) {
        queues = Array(repeating: Deque(), count: trackCount)
    }

    mutating func push(_ frame: SourceFrame) {
        count += 1
        byteCount += frame.payload.readableBytes
        queues[Int(frame.track)].append(frame)
    }

    /// No more frames follow. The remaining ones may be returned.
    mutating func finish() { isOver = true }

    /// The next frame in decode order; nil if another must be pushed first, or all were returned.
    mutating func pop() -> SourceFrame? {
        let isFull = count > Self.countMax || byteCount > Self.byteCountMax
        guard isOver || isFull || queues.allSatisfy({ !$0.isEmpty }) else { return nil }
        var best: Int?
        for index in queues.indices {
            guard let first = queues[index].first else { continue }
            if let chosen = best, let other = queues[chosen].first, other.dts <= first.dts { continue }
            best = index
        }
        guard let best else { return nil }
        let frame = queues[best].removeFirst()
        count -= 1
        byteCount -= frame.payload.readableBytes
        return frame
    }
}
