import ApusChannels
package import ApusCore
package import ApusMedia
import ApusStorage
import Foundation
package import NIOCore
import SwiftProtobuf

/// Received frames of a caller that are not stored yet, in the order of the channel.
///
/// Pure value.
package struct ReceivedFrames: Sendable {
    /// The header and payload of each frame, one after another.
    package private(set) var bytes = ByteBuffer()
    package private(set) var last: FramePosition?
    /// The number of frames, without the configurations that the channel repeats at a join.
    package private(set) var count: UInt64 = 0
    /// The number of frames that the channel no longer held.
    package var lost: UInt64 = 0
    /// The first and the last presentation time, in microseconds.
    package private(set) var times: ClosedRange<Int64>?

    package init() {}

    init(_ tapped: TappedFrames) {
        lost = tapped.lostCount
        for frame in tapped.frames { add(frame) }
    }

    package mutating func add(_ frame: RelayFrame) {
        bytes.writeImmutableBuffer(frame.content)
        guard !frame.flags.contains(.repeated) else { return }
        last = frame.position
        count += 1
        guard !frame.flags.contains(.configuration) else { return }
        let time = frame.ptsMicroseconds
        times = times.map { min($0.lowerBound, time)...max($0.upperBound, time) } ?? time...time
    }
}

extension AnsweringRecords {
    /// Appends frames to a message. If they would exceed `byteCountMax`, they are dropped and the message is marked as
    /// cut.
    ///
    /// - Returns: the message's new version.
    /// - Throws: 10030 if another recorder changed the message; 10021.
    package func add(
        _ frames: ReceivedFrames, to message: inout AnsweringMessage, _ version: UInt64, byteCountMax: Int
    ) async throws(ApusError) -> UInt64 {
        var (new, bytes, writes) = (message, frames.bytes, [RecordWrite]())
        new.framesLost += frames.lost
        if Int(new.frameBytes) + bytes.readableBytes > byteCountMax {
            new.isCut = true
            bytes.clear()
        } else {
            new.frameBytes += UInt64(bytes.readableBytes)
            new.frames += frames.count
            if let last = frames.last { (new.epoch, new.sequence) = (last.epoch, last.sequence) }
            if let times = frames.times {
                let isFirst = (new.firstUs, new.lastUs) == (0, 0)
                new.firstUs = isFirst ? times.lowerBound : min(new.firstUs, times.lowerBound)
                new.lastUs = isFirst ? times.upperBound : max(new.lastUs, times.upperBound)
            }
        }
        while bytes.readableBytes > 0,
            let data = bytes.readSlice(length: min(bytes.readableBytes, AnsweringConfiguration.framePieceByteCount))
        {
            let piece = AnsweringPiece.with {
                ($0.of, $0.index, $0.data) = (message.call, new.framePieces, Data(data.readableBytesView))
            }
            writes.append(try Self.frames.put(piece, fence: .none))
            new.framePieces += 1
        }
        // Writes all in one step, so that the record names exactly the stored frames.
        let version = try await put(new, version: version, with: writes)
        message = new
        return version
    }
}
