package import ApusCore
import NIOCore

/// Packets that wait for their time, in the order in which they came. The order is kept when the delay becomes shorter:
/// a packet is never due before the one that came before it.
package struct DelayQueue {
    /// The default of the limit: 5 s at 100 Mb/s.
    package static let byteCountDefault = 64 << 20

    private let byteCountMax: Int
    private var packets = CircularBuffer<(due: MonotonicTime, bytes: [UInt8])>()
    private var byteCount = 0

    /// - Parameter byteCountMax: the limit of all waiting packets together. Beyond it the newest packet is dropped, as
    ///   by a full router.
    package init(byteCountMax: Int = byteCountDefault) { self.byteCountMax = byteCountMax }

    /// Adds a packet.
    /// - Returns: false if it was dropped, because the queue is full.
    package mutating func add(_ packet: [UInt8], at now: MonotonicTime, delay: Duration) -> Bool {
        guard byteCount + packet.count <= byteCountMax else { return false }
        byteCount += packet.count
        packets.append((max(now + delay, packets.last?.due ?? .zero), packet))
        return true
    }

    /// Removes the oldest packet if it is due; nil otherwise.
    package mutating func next(at now: MonotonicTime) -> [UInt8]? {
        guard let first = packets.first, first.due <= now else { return nil }
        _ = packets.popFirst()
        byteCount -= first.bytes.count
        return first.bytes
    }

    /// When the oldest packet is due; nil if none waits.
    package var due: MonotonicTime? { packets.first?.due }
}
