import ApusChannels
package import ApusCore
package import ApusMedia
import ApusStorage
import Foundation
package import NIOCore
import SwiftProtobuf

/// Frames of a caller that have come in, in the order of the channel, and are not stored yet.
///
/// Pure value.
package struct ReceivedFrames: Sendable {
    /// Header and payload of each, one after the other.
    package private(set) var bytes = ByteBuffer()
    package private(set) var last: FramePosition?
    /// Without the configurations that the channel repeats at a join.
    package private(set) var count: UInt64 = 0
    /// Frames that the channel did not have any more.
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
    /// Stores frames behind those that the message has. Beyond the largest size the message is cut off, and stays as it
    /// is from then on.
    ///
    /// - Returns: the message's new version.
    /// - Throws: 10030 if another recorder has changed the message; 10021.
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
        // One step, so that the message names exactly the frames that are stored.
        let version = try await put(new, version: version, with: writes)
        message = new
        return version
    }
}
