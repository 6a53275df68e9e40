import ApusCore
public import NIOCore

/// Who receives a channel's frames from one event loop, and up to where each has them (D7).
///
/// A receiver is a cursor into the ring, never a queue of its own. Once per tick the shell asks, for
/// each receiver that can take bytes, for one buffer with everything from its cursor; receivers at the
/// same cursor get the same buffer. A viewer that falls behind, or whose next frame is missing here, goes
/// on at a key frame and is told how many frames it lost; a standby never skips, since what it acknowledges
/// is a promise.
///
/// A node that is not fed holds an old picture. Its channel says where a live join may begin
/// (``setLiveFloor(_:)``), and receivers that want the live picture wait until a key frame from there on is held.
///
/// Pure: it is confined to whatever owns it, and neither writes nor waits.
public struct FanOutStateMachine: Sendable {
    /// Names a receiver; given out by ``add(_:after:)`` and never used twice.
    public typealias ReceiverID = UInt32

    public enum Kind: Sendable, Hashable {
        /// A client: may skip, always to a key frame.
        case viewer
        /// Another node for its clients: may skip as they may, but what it asks for from the past goes out as far as
        /// it is held, since its clients are told each for itself what they lost, and each goes on at a key frame.
        case edge
        /// The standby: everything or nothing.
        case standby
    }

    /// What is written to a receiver in one go.
    public struct Batch: Sendable {
        public var bytes: ByteBuffer
        /// Frames that the receiver lost before this batch because it was too slow, or came too late.
        public var skippedCount: UInt64
        /// More is ready for it than fitted into one batch.
        public var hasMore: Bool
    }

    private struct Receiver: Sendable {
        var id: ReceiverID
        var kind: Kind
        /// Nil until the ring holds a place to start.
        var cursor: UInt64?
        /// Frames up to here are not sent: the receiver had them from another relay.
        var floor: FramePosition?
        /// The receiver has no configurations yet.
        var wantsConfigurations: Bool
        var skippedCount: UInt64
    }

    public private(set) var ring: FrameRing
    /// The most bytes of one batch; more goes with the next. Bounds what a join writes at once.
    public let batchByteCountMax: Int
    /// How far a viewer may lag, in bytes, before it goes on at the last key frame.
    public let lagByteCountMax: Int
    /// A live join begins at a key frame no earlier than this; nil: at the newest that is held.
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

    /// The number of viewers and edges, without standbys.
    public var viewerCount: Int { receivers.count { $0.kind != .standby } }

    /// Takes a frame that the channel accepted.
    public mutating func append(_ frame: RelayFrame) {
        let next = ring.next(in: frame.position.epoch) ?? 0
        if let last = ring.last, frame.position > last, frame.position.sequence > next { noteLastOfEach() }
        _ = ring.append(frame, allowingGap: true)
        shared = nil
    }

    /// The upstream left frames out, and the ring forgets what came before them: each receiver's last
    /// frame is noted, so that it is told how many it lost.
    private mutating func noteLastOfEach() {
        for index in receivers.indices {
            guard let cursor = receivers[index].cursor, cursor >= ring.firstIndex else { continue }
            let before =
                cursor > ring.firstIndex ? ring[cursor - 1].position : ring.oldest.map(Self.predecessor) ?? ring.last
            if let before { receivers[index].floor = receivers[index].floor.map { max($0, before) } ?? before }
            receivers[index].cursor = ring.endIndex
        }
    }

    private static func predecessor(of position: FramePosition) -> FramePosition {
        guard position.sequence == 0 else {
            return FramePosition(epoch: position.epoch, sequence: position.sequence - 1)
        }
        return FramePosition(epoch: position.epoch - min(position.epoch, 1), sequence: MediaHeader.sequenceMax)
    }

    /// Takes a configuration that was repeated at the head of the upstream's stream.
    public mutating func adopt(repeated frame: RelayFrame) { ring.adopt(repeated: frame) }

    /// Another bound on the bytes that are held; see ``FrameRing/limit(byteCountMax:)``.
    public mutating func limitRing(byteCountMax: Int) {
        ring.limit(byteCountMax: byteCountMax)
        shared = nil
    }

    /// Live joins begin at a key frame no earlier than a position; nil: at the newest that is held.
    public mutating func setLiveFloor(_ position: FramePosition?) { liveFloor = position }

    /// Where a live join begins; nil until a key frame from ``liveFloor`` on is held.
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
                // A viewer goes on with the live picture, and what it lost is counted then.
                guard kind != .viewer else { break }
                // A copy and an edge take all that is left.
                receiver.floor = nil
                receiver.cursor = ring.firstIndex
                if kind == .standby { receiver.skippedCount = count ?? 0 }
            }
        } else if kind == .standby {
            // A copy starts with all that is held, so that a second failure finds as much as the first.
            receiver.cursor = ring.firstIndex
        }
        receivers.append(receiver)
        return id
    }

    /// Removes a receiver; true if it was there.
    @discardableResult
    public mutating func remove(_ id: ReceiverID) -> Bool {
        guard let index = index(of: id) else { return false }
        receivers.remove(at: index)
        return true
    }

    /// What the receiver gets now; nil if it has everything, or waits for a key frame.
    public mutating func nextBatch(for id: ReceiverID) -> Batch? {
        guard let index = index(of: id) else { return nil }
        return nextBatch(at: index)
    }

    /// Ids ascend in the list, so a receiver is found by halving.
    private func index(of id: ReceiverID) -> Int? {
        var low = 0
        var high = receivers.count
        while low < high {
            let middle = (low + high) / 2
            if receivers[middle].id < id { low = middle + 1 } else { high = middle }
        }
        return low < receivers.count && receivers[low].id == id ? low : nil
    }

    /// The same by the receiver's place: how many are left of those that were added before it.
    public mutating func nextBatch(at index: Int) -> Batch? {
        catchUp(at: index)
        guard var cursor = receivers[index].cursor else { return nil }
        if let floor = receivers[index].floor {
            while cursor < ring.endIndex, ring[cursor].position <= floor { cursor += 1 }
            receivers[index].cursor = cursor
            guard cursor < ring.endIndex else { return nil }
            if receivers[index].kind == .viewer, !Self.continues(floor, with: ring[cursor].position) {
                // What comes next is missing here: a decoder can go on only at a key frame.
                guard let start = liveStart, start >= cursor else { return nil }
                cursor = start
                receivers[index].wantsConfigurations = true
            }
            receivers[index].floor = nil
            let first = ring[cursor].position
            if first.epoch == floor.epoch { receivers[index].skippedCount += first.sequence - floor.sequence - 1 }
        }
        let wantsConfigurations = receivers[index].wantsConfigurations
        guard cursor < ring.endIndex else { return nil }
        let (bytes, end) = batch(from: cursor, withConfigurations: wantsConfigurations)
        receivers[index].cursor = end
        receivers[index].wantsConfigurations = false
        let skippedCount = receivers[index].skippedCount
        receivers[index].skippedCount = 0
        return Batch(bytes: bytes, skippedCount: skippedCount, hasMore: end < ring.endIndex)
    }

    /// Nothing is missing between two positions; a newer epoch follows with its first frame.
    private static func continues(_ position: FramePosition, with next: FramePosition) -> Bool {
        next.epoch == position.epoch ? next.sequence == position.sequence + 1 : next.sequence == 0
    }

    /// Gives a receiver without a cursor its place to start, and moves one that fell behind.
    private mutating func catchUp(at index: Int) {
        if let cursor = receivers[index].cursor {
            let isGone = cursor < ring.firstIndex
            if isGone, receivers[index].kind == .standby {
                skip(from: cursor, to: ring.firstIndex, at: index)
                receivers[index].cursor = ring.firstIndex
                return
            }
            guard isGone || (receivers[index].kind != .standby && isLagging(cursor)) else { return }
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
    /// An edge that asks for the live picture gets at least so many frames before the end, about half a second: its
    /// next viewers may be such as lost another node just now, and go on where they were.
    static let edgeLeadFrameCount: UInt64 = 32

    /// Counts what a receiver loses; where its last position is still noted, that tells it exactly later.
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

    /// The bytes from an index, shared between receivers that stand at the same index.
    private mutating func batch(from start: UInt64, withConfigurations: Bool) -> (ByteBuffer, end: UInt64) {
        if !withConfigurations, let shared, shared.from == start { return (shared.bytes, shared.end) }
        var head = withConfigurations ? ring.configurations(before: start).map { $0.repeated().encoded } : []
        var byteCount = head.reduce(0) { $0 + $1.readableBytes }
        var end = start
        repeat {
            head.append(ring[end].encoded)
            byteCount += ring[end].encoded.readableBytes
            end += 1
        } while end < ring.endIndex && byteCount < batchByteCountMax
        // A copy even of one frame: its bytes are shared with other loops, and the count of their users, which every
        // receiver's write moves up and down, would travel between the cores.
        var bytes = ByteBufferAllocator().buffer(capacity: byteCount)
        for part in head { bytes.writeImmutableBuffer(part) }
        if !withConfigurations { shared = (start, bytes, end) }
        return (bytes, end)
    }
}
