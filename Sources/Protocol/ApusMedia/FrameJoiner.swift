public import NIOCore

/// Joins the frames of a picture that is larger than one frame may be (``MediaFrame/payloadByteCountMax``).
///
/// The publisher sends the parts of such a picture in consecutive frames with the same times: all but the last with
/// ``MediaFlags/continued``, all but the first with ``MediaFlags/continuation``. Only the first may have
/// ``MediaFlags/key``. Relays forward them like any others. The parts of a picture of which one is missing are dropped.
///
/// Pure value. It holds at most ``MediaFrame/joinedByteCountMax`` bytes.
public struct FrameJoiner: Sendable {
    /// The parts that came so far, as one frame, and the position of the last one.
    private var started: (frame: MediaFrame, last: FramePosition)?
    /// Frames that were dropped because other parts of their picture are missing.
    public private(set) var framesDropped: UInt64 = 0

    public init() {}

    /// Cuts a payload into the payloads of frames.
    ///
    /// - Returns: one for a payload that fits into one frame; nil if it is larger than
    ///   ``MediaFrame/joinedByteCountMax``.
    public static func split(_ payload: ByteBuffer) -> [ByteBuffer]? {
        guard payload.readableBytes > MediaFrame.payloadByteCountMax else { return [payload] }
        guard payload.readableBytes <= MediaFrame.joinedByteCountMax else { return nil }
        var (rest, parts) = (payload, [ByteBuffer]())
        while rest.readableBytes > 0,
            let part = rest.readSlice(length: min(rest.readableBytes, MediaFrame.payloadByteCountMax))
        { parts.append(part) }
        return parts
    }

    /// The flags of a part.
    ///
    /// - Parameters:
    ///   - flags: the flags of the whole.
    ///   - index: of the part, of `count` ones.
    public static func flags(_ flags: MediaFlags, ofPart index: Int, of count: Int) -> MediaFlags {
        guard count > 1 else { return flags }
        // A relay may drop a discardable frame alone.
        var part = flags.subtracting(index == 0 ? [.discardable] : [.discardable, .key])
        if index > 0 { part.insert(.continuation) }
        if index < count - 1 { part.insert(.continued) }
        return part
    }

    /// Takes the next frame of a stream. A frame that is not a part is returned unchanged.
    ///
    /// - Returns: a frame with the whole payload and the position of its last part; nil while parts are missing.
    public mutating func add(_ frame: MediaFrame) -> MediaFrame? {
        let (flags, position) = (frame.header.flags, frame.header.position)
        guard flags.isDisjoint(with: [.configuration, .repeated, .endOfEpoch]) else { return frame }
        let before = started
        started = nil
        guard flags.contains(.continuation) else {
            if before != nil { framesDropped += 1 }
            guard flags.contains(.continued) else { return frame }
            started = (frame, position)
            return nil
        }
        guard var (joined, last) = before, joined.header.track == frame.header.track, last.epoch == position.epoch,
            last.sequence + 1 == position.sequence,
            joined.payload.readableBytes + frame.payload.readableBytes <= MediaFrame.joinedByteCountMax
        else {
            framesDropped += 1
            return nil
        }
        joined.payload.writeImmutableBuffer(frame.payload)
        last = position
        guard !flags.contains(.continued) else {
            started = (joined, last)
            return nil
        }
        joined.header.flags.remove(.continued)
        joined.header.position = position
        return joined
    }
}
