import ApusCore
public import NIOCore

/// The receivers of a channel's frames on one event loop, and the position of each (D7).
///
/// A receiver is a cursor into the ring, and has no queue of its own. Once per tick the shell asks, for each receiver
/// that can take bytes, for one buffer with everything from its cursor on. Receivers at the same cursor get the same
/// buffer. A viewer that falls behind, or whose next frame is missing here, continues at a key frame and is notified
/// how many frames it lost. A standby never skips, because its acknowledgement covers every frame. A recorder never
/// skips either.
///
/// A node that is not fed holds an old picture. Its channel sets the earliest start of a live join
/// (``setLiveFloor(_:)``). Receivers of the live picture then wait until the ring has a key frame at or after it.
///
/// Pure value: confined to its owner. It neither writes nor waits.
public struct FanOutStateMachine: Sendable {
    /// Identifies a receiver. Assigned by ``add(_:after:)`` and never reused.
    public typealias ReceiverID = UInt32

    public enum Kind: Sendable, Hashable {
        /// A client. It may skip, always to a key frame.
        case viewer
        /// Another node, for its clients. It may skip as a viewer does. But past frames that it asks for are sent as
        /// far as they are held: each of its clients is notified separately of what it lost, and continues at a key
        /// frame.
        case edge
        /// The standby. It never skips.
        case standby
        /// A receiver of this process that keeps what it gets. It keeps the channel fed as a viewer does. It never
        /// skips: it gets every frame that is held, and is notified of those that are not.
        case recorder

        /// It may be moved forward to a key frame.
        fileprivate var mayBeSkipped: Bool {
            switch self {
            case .viewer, .edge: true
            case .standby, .recorder: false
            }
        }
    }

    /// What one turn gives to a receiver in this process: the same frames as ``Batch``, not joined.
    public struct FrameBatch: Sendable {
        /// First the configurations, marked as repeated, if the receiver has none yet. Then the frames, in order.
        public var frames: [RelayFrame]
        /// The sum of their sizes in the form in which a node sends them.
        public var byteCount: Int
        /// As ``Batch/skippedCount``.
        public var skippedCount: UInt64
        /// As ``Batch/hasMore``.
        public var hasMore: Bool
    }

    /// The bytes of one write to a receiver.
    public struct Batch: Sendable {
        public var bytes: ByteBuffer
        /// Frames that the receiver lost before this batch, because it was too slow or came too late.
        public var skippedCount: UInt64
        /// True if more is ready than fitted into one batch.
        public var hasMore: Bool
    }

    private struct Receiver: Sendable {
        var id: ReceiverID
        var kind: Kind
        /// Nil until the ring has a frame at which to start.
        var cursor: UInt64?
        /// Frames up to this position are not sent: the receiver had them from another relay.
        var floor: FramePosition?
        /// True if the receiver has no configurations yet.
        var wantsConfigurations: Bool
        var skippedCount: UInt64
    }

    public private(set) var ring: FrameRing
    /// The most bytes of one batch; the rest follows in the next one. It bounds what a join writes at once.
    public let batchByteCountMax: Int
    /// How far a viewer may lag, in bytes, before it continues at the last key frame.
    public let lagByteCountMax: Int
    /// A live join begins at a key frame at or after this position; nil: at the newest key frame in the ring.
    public private(set) var liveFloor: FramePosition?
    private var receivers: [Receiver] = []
    private var nextID: ReceiverID = 1
    private var shared: (from: UInt64, bytes: ByteBuffer, end: UInt64)?

    public init(
        ring: FrameRing, liveFloor: FramePosition? = nil, batchByteCountMax: Int = 512 << 10,
        lagByteCountMax: Int = 4 << 20
    ) {
        self.ring = ring
        self.liveFloor = liveFloor
        self.batchByteCountMax = batchByteCountMax
        self.lagByteCountMax = lagByteCountMax
    }

    public var receiverCount: Int { receivers.count }

    /// The number of viewers, edges and recorders, without standbys.
    public var viewerCount: Int { receivers.count { $0.kind != .standby } }

    /// Adds a frame that the channel accepted.
    public mutating func append(_ frame: RelayFrame) {
        let next = ring.next(in: frame.position.epoch) ?? 0
        if let last = ring.last, frame.position > last, frame.position.sequence > next { noteLastOfEach() }
        _ = ring.append(frame, allowingGap: true)
        shared = nil
    }

    /// The upstream left frames out, and the ring forgets the frames before them. Each receiver's last position is
    /// stored, to compute how many frames it lost.
    private mutating func noteLastOfEach() {
        for index in receivers.indices {
            guard let cursor = receivers[index].cursor, cursor >= ring.firstIndex else { continue }
            let before =
                cursor > ring.firstIndex ? ring[cursor - 1].position : ring.oldest?.predecessor ?? ring.last
            if let before { receivers[index].floor = receivers[index].floor.map { max($0, before) } ?? before }
            receivers[index].cursor = ring.endIndex
        }
    }

    /// Adds a configuration that was repeated at the start of the upstream's stream.
    public mutating func adopt(repeated frame: RelayFrame) { ring.adopt(repeated: frame) }

    /// Sets the limit on the held bytes; see ``FrameRing/limit(byteCountMax:)``.
    public mutating func limitRing(byteCountMax: Int) {
        ring.limit(byteCountMax: byteCountMax)
        shared = nil
    }

    /// Sets the earliest key frame for live joins; nil: the newest in the ring.
    public mutating func setLiveFloor(_ position: FramePosition?) { liveFloor = position }

    /// The start of a live join; nil until the ring has a key frame at or after ``liveFloor``.
    private var liveStart: UInt64? {
        if let liveFloor {
            guard let live = ring.livePosition, live >= liveFloor else { return nil }
        }
        return ring.liveIndex
    }

    /// Adds a receiver: live from the last key frame, or with everything after a position (D7).
    public mutating func add(_ kind: Kind, after position: FramePosition?) -> ReceiverID {
        let id = nextID
        nextID += 1
        var receiver = Receiver(
            id: id, kind: kind, cursor: nil, floor: position, wantsConfigurations: true, skippedCount: 0)
        if let position {
            switch ring.resume(after: position) {
            case .at(let index):
                receiver.cursor = index
            case .lost(let count):
                // A viewer continues with the live picture. Its loss is counted then.
                guard kind != .viewer else { break }
                // The others get everything that is left.
                receiver.floor = nil
                receiver.cursor = ring.firstIndex
                if !kind.mayBeSkipped { receiver.skippedCount = count ?? 0 }
            }
        } else if kind == .standby {
            // A standby starts with everything that is held, so that a second failure finds as much as the first.
            receiver.cursor = ring.firstIndex
        }
        receivers.append(receiver)
        return id
    }

    /// Removes a receiver. Returns true if it existed.
    @discardableResult
    public mutating func remove(_ id: ReceiverID) -> Bool {
        guard let index = index(of: id) else { return false }
        receivers.remove(at: index)
        return true
    }

    /// The next batch for the receiver; nil if it has everything, or waits for a key frame.
    public mutating func nextBatch(for id: ReceiverID) -> Batch? {
        guard let index = index(of: id) else { return nil }
        return nextBatch(at: index)
    }

    /// Ids ascend in the list, so this is a binary search.
    private func index(of id: ReceiverID) -> Int? {
        var low = 0
        var high = receivers.count
        while low < high {
            let middle = (low + high) / 2
            if receivers[middle].id < id { low = middle + 1 } else { high = middle }
        }
        return low < receivers.count && receivers[low].id == id ? low : nil
    }

    /// The same, by the receiver's index: the number of remaining receivers that were added before it.
    public mutating func nextBatch(at index: Int) -> Batch? {
        guard let start = nextStart(at: index) else { return nil }
        let (bytes, end) = batch(from: start, withConfigurations: receivers[index].wantsConfigurations)
        return Batch(bytes: bytes, skippedCount: sent(to: end, at: index), hasMore: end < ring.endIndex)
    }

    /// The next frames for a receiver in this process, by its index; nil as ``nextBatch(at:)``.
    public mutating func nextFrames(at index: Int) -> FrameBatch? {
        guard let start = nextStart(at: index) else { return nil }
        var frames = receivers[index].wantsConfigurations ? repeatedConfigurations(before: start) : []
        var byteCount = frames.reduce(0) { $0 + $1.encoded.readableBytes }
        var end = start
        repeat {
            frames.append(ring[end])
            byteCount += ring[end].encoded.readableBytes
            end += 1
        } while end < ring.endIndex && byteCount < batchByteCountMax
        return FrameBatch(
            frames: frames, byteCount: byteCount, skippedCount: sent(to: end, at: index), hasMore: end < ring.endIndex)
    }

    /// The index from which the receiver is sent frames; nil if it has everything, or waits for a key frame.
    @inline(__always)
    private mutating func nextStart(at index: Int) -> UInt64? {
        catchUp(at: index)
        guard var cursor = receivers[index].cursor else { return nil }
        if let floor = receivers[index].floor {
            while cursor < ring.endIndex, ring[cursor].position <= floor { cursor += 1 }
            receivers[index].cursor = cursor
            guard cursor < ring.endIndex else { return nil }
            if receivers[index].kind == .viewer, !Self.continues(floor, with: ring[cursor].position) {
                // The next frame is missing here. A decoder can continue only at a key frame.
                guard let start = liveStart, start >= cursor else { return nil }
                cursor = start
                receivers[index].wantsConfigurations = true
            }
            receivers[index].floor = nil
            let first = ring[cursor].position
            if first.epoch == floor.epoch { receivers[index].skippedCount += first.sequence - floor.sequence - 1 }
        }
        return cursor < ring.endIndex ? cursor : nil
    }

    /// Notes that the receiver has everything before an index. Returns how many frames it lost before that.
    @inline(__always)
    private mutating func sent(to end: UInt64, at index: Int) -> UInt64 {
        receivers[index].cursor = end
        receivers[index].wantsConfigurations = false
        defer { receivers[index].skippedCount = 0 }
        return receivers[index].skippedCount
    }

    private func repeatedConfigurations(before start: UInt64) -> [RelayFrame] {
        ring.configurations(before: start).map { $0.repeated() }
    }

    /// True if no frame is missing between the two positions. A newer epoch continues with its first frame.
    private static func continues(_ position: FramePosition, with next: FramePosition) -> Bool {
        next.epoch == position.epoch ? next.sequence == position.sequence + 1 : next.sequence == 0
    }

    /// Assigns a start to a receiver without a cursor, and moves one that fell behind.
    private mutating func catchUp(at index: Int) {
        if let cursor = receivers[index].cursor {
            let isGone = cursor < ring.firstIndex
            if isGone, !receivers[index].kind.mayBeSkipped {
                skip(from: cursor, to: ring.firstIndex, at: index)
                receivers[index].cursor = ring.firstIndex
                return
            }
            guard isGone || (receivers[index].kind.mayBeSkipped && isLagging(cursor)) else { return }
            guard let live = ring.liveIndex, live > cursor else {
                if isGone {
                    receivers[index].cursor = nil
                    skip(from: cursor, to: ring.firstIndex, at: index)
                    receivers[index].wantsConfigurations = true
                }
                return
            }
            skip(from: cursor, to: live, at: index)
            receivers[index].cursor = live
            receivers[index].wantsConfigurations = true
        } else {
            receivers[index].cursor = liveStart.map { start in
                guard receivers[index].kind == .edge else { return start }
                return max(ring.firstIndex, min(start, ring.endIndex - min(ring.endIndex, Self.edgeLeadFrameCount)))
            }
        }
    }
    /// An edge that joins live gets at least this many frames before the end, about half a second. Its next viewers may
    /// have just lost another node, and resume at their positions.
    static let edgeLeadFrameCount: UInt64 = 32

    /// Counts the frames that a receiver loses. If its last position is stored, the exact count is computed later.
    private mutating func skip(from cursor: UInt64, to start: UInt64, at index: Int) {
        if receivers[index].floor == nil { receivers[index].skippedCount += start - cursor }
    }

    private func isLagging(_ cursor: UInt64) -> Bool {
        guard ring.byteCount > lagByteCountMax else { return false }
        var lag = 0
        for index in cursor..<ring.endIndex {
            lag += ring[index].encoded.readableBytes
            if lag > lagByteCountMax { return true }
        }
        return false
    }

    /// The bytes from an index on, shared between receivers at the same index.
    private mutating func batch(from start: UInt64, withConfigurations: Bool) -> (ByteBuffer, end: UInt64) {
        if !withConfigurations, let shared, shared.from == start { return (shared.bytes, shared.end) }
        var head = withConfigurations ? repeatedConfigurations(before: start).map(\.encoded) : []
        var byteCount = head.reduce(0) { $0 + $1.readableBytes }
        var end = start
        repeat {
            head.append(ring[end].encoded)
            byteCount += ring[end].encoded.readableBytes
            end += 1
        } while end < ring.endIndex && byteCount < batchByteCountMax
        // Even a single frame is copied. Its bytes are shared with other loops, and the reference count, which every
        // write changes, would move between the cores.
        var bytes = ByteBufferAllocator().buffer(capacity: byteCount)
        for part in head { bytes.writeImmutableBuffer(part) }
        if !withConfigurations { shared = (start, bytes, end) }
        return (bytes, end)
    }
}
