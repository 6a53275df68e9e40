import ApusCore
import ApusMedia
import ApusRecordingLog
import NIOCore

/// Frames whose content follows from their channel and position.
enum LogFrames {
    static let mark = "a picture of the garden "

    static func frame(_ channel: String, _ position: FramePosition, sizeMax: Int = 2500) -> LoggedFrame {
        var seed = StableHash.mix(position.sequence &+ UInt64(position.epoch) << 40)
        for byte in channel.utf8 { seed = StableHash.mix(seed &+ UInt64(byte)) }
        var random = SeededRandom(seed: seed)
        var content = ByteBuffer(string: "\(mark)\(channel) \(position) ")
        content.writeRepeatingByte(
            UInt8.random(in: 0...255, using: &random), count: Int.random(in: 0...sizeMax - 100, using: &random))
        return LoggedFrame(
            position: position, receivedMicroseconds: Int64(position.sequence) * 40_000, content: content)
    }

    static func frame(_ channel: String, _ sequence: UInt64, epoch: UInt32 = 1, sizeMax: Int = 2500) -> LoggedFrame {
        frame(channel, FramePosition(epoch: epoch, sequence: sequence), sizeMax: sizeMax)
    }

    /// Small files, so that a test uses many of them.
    static var limits: RecordingLogLimits {
        var limits = RecordingLogLimits()
        limits.fileByteCount = 64 << 10
        limits.fileCountMax = 4
        limits.fileCountMin = 2
        limits.waitingByteCountMax = 1 << 20
        limits.channelWaitingByteCountMax = 1 << 20
        limits.groupByteCountMax = 16 << 10
        limits.sectionByteCountMax = 4 << 10
        limits.frameByteCountMax = 4 << 10
        return limits
    }
}

extension RecordingLog {
    /// All frames of a channel, read in parts.
    func everything(_ channel: String, byteCountMax: Int = 5000) async throws -> [LoggedFrame] {
        var frames: [LoggedFrame] = []
        while true {
            let part = try await read(channel, after: frames.last?.position, byteCountMax: byteCountMax)
            guard !part.isEmpty else { return frames }
            frames += part
        }
    }
}
