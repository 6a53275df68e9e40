import ApusCalls
import ApusChannels
import ApusCluster
import ApusMedia
package import ApusCore
import ApusStorage
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization

/// Records one message: the frames of the caller's channel and, after the call, an MP4 of them.
///
/// The owner of the call requests the recording from its own node. If that node dies, the next owner requests it from
/// its node, which continues after the last stored frame. Another node still has the later frames in the channel.
///
/// Two nodes may record at once, until the earlier owner has seen that it no longer owns the call. Each write of one
/// recorder then makes the next write of the other fail, and the recorder that does not own the call stops.
///
/// Concurrency model: one task runs ``run(_:isFull:)``. ``end()`` may be called from any thread.
final class VoiceMessageRecorder: Sendable {
    enum Outcome: Sendable {
        case stored(AnsweringMessage)
        /// The account has no room for another message.
        case full
        /// The caller sent nothing.
        case empty
        /// Another node continues the recording.
        case left
    }

    /// The longest time for which frames may still arrive after the caller has hung up.
    private static let tail = Duration.milliseconds(400)
    private static let retryDelay = Duration.milliseconds(500)

    /// The delay between the caller's first frame and the greeting. The caller requests the greeting's channel at about
    /// the same time.
    private static let greetingDelay = Duration.milliseconds(200)
    /// A caller that sends nothing is greeted after this time.
    private static let greetingTime = Duration.seconds(2)

    let recording: CallVoiceMessage
    private let service: AnsweringService
    private let isOver = Mutex(false)

    init(_ recording: CallVoiceMessage, _ service: AnsweringService) {
        (self.recording, self.service) = (recording, service)
    }

    /// Ends the recording, because the call is over.
    func end() { isOver.withLock { $0 = true } }

    /// Records until the call is over, and stores the message. Retries after errors of the store.
    ///
    /// - Parameter isFull: called once when the message reaches its largest size.
    /// - Throws: the error of the store, if it persists until two minutes after the message's longest length, or until
    ///   the node stops.
    func run(_ greeting: FramePlayer?, isFull: @Sendable () -> Void) async throws(ApusError) -> Outcome {
        while true {
            do throws(ApusError) {
                return try await record(greeting, isFull: isFull)
            } catch {
                guard !Task.isCancelled, isMine, now < untilMs + 120_000 else {
                    guard isMine else { return .left }
                    throw error
                }
                service.noteFailure(error)
            }
            try? await Task.sleep(for: Self.retryDelay)
        }
    }

    private var records: AnsweringRecords { service.records }
    private var now: Int64 { service.view.clock.wallMilliseconds() }
    private var untilMs: Int64 { recording.startedMs + recording.answering.lengthMs }
    private var isMine: Bool {
        guard let shard = CallService.shard(of: recording.call) else { return false }
        return service.view.isLocal(shard)
    }

    private func record(_ greeting: FramePlayer?, isFull: @Sendable () -> Void) async throws(ApusError) -> Outcome {
        guard var (message, version) = try await begin() else { return .full }
        guard message.state != .stored else { return .stored(message) }
        let began = MonotonicTime.now()
        if message.frames > 0 { greeting?.start(elapsed: .milliseconds(max(0, now - recording.startedMs))) }
        let after = message.frames == 0 ? nil : FramePosition(epoch: message.epoch, sequence: message.sequence)
        // The tap remains attached when the node's role in the channel changes. The greeting starts after the caller's
        // first frame, so that a caller on a long path does not miss its beginning.
        let stream = try await service.join(
            recording.call, after: after ?? FramePosition(epoch: 0, sequence: 0),
            onFirst: { loop in
                loop.scheduleTask(in: TimeAmount(Self.greetingDelay)) { greeting?.start(elapsed: .zero) }
            })
        defer { stream.close() }
        var quietSince = MonotonicTime.now()
        while true {
            try? await Task.sleep(for: isOver.withLock { $0 } ? .milliseconds(50) : service.configuration.storeInterval)
            // The node stops, or the call has moved and its next owner continues.
            guard !Task.isCancelled, isMine else { return .left }
            if MonotonicTime.now() - began >= Self.greetingTime { greeting?.start(elapsed: .zero) }
            let frames = ReceivedFrames(stream.take())
            if frames.count > 0 || frames.lost > 0 {
                quietSince = .now()
                if !message.isCut {
                    version = try await records.add(
                        frames, to: &message, version,
                        byteCountMax: message.countedBytes > 0
                            ? Int(clamping: message.countedBytes) : service.configuration.messageByteCountMax)
                    if message.isCut { isFull() }
                }
            }
            let isDone = isOver.withLock { $0 } && MonotonicTime.now() - quietSince >= Self.tail
            if isDone || now > untilMs + 10_000 { break }
        }
        guard message.frames > 0 else {
            try await records.delete(message, version)
            return .empty
        }
        try await records.store(message, version)
        return .stored(message)
    }

    /// Returns the existing message, or a new one; nil if the account has no room for it. During the recording, the
    /// largest size is counted.
    private func begin() async throws(ApusError) -> (message: AnsweringMessage, version: UInt64)? {
        if let known = try await records.message(recording.call) { return (known.body, known.version) }
        let party = recording.answering.party
        let message = AnsweringMessage.with {
            ($0.call, $0.party) = (recording.call, party.name)
            if recording.caller.kind == .device {
                $0.callerDevice = recording.caller.id
            } else {
                $0.callerAccount = recording.caller.id
            }
            ($0.state, $0.startedMs, $0.untilMs) = (.recording, recording.startedMs, untilMs)
            $0.expiresMs = recording.startedMs + max(86_400_000, recording.answering.keepMs)
        }
        var owned = message
        owned.account = try await service.account(of: party)
        do throws(ApusError) {
            let bytes = try await service.messageByteCount(of: owned.account)
            guard bytes > 0 else { return nil }
            return try await records.put(owned, version: nil, counting: bytes, within: service.configuration.shares)
        } catch {
            // Other recordings of the account started at the same time and used its room.
            guard error.code == .overloaded else { throw error }
            return nil
        }
    }
}

extension AnsweringRecords {
    /// Creates the MP4 of a message whose frames are all stored, and then removes the frames. May be repeated, also by
    /// another node: the pieces are the same.
    ///
    /// A stream that MP4 cannot hold is stored without one.
    package func store(_ message: AnsweringMessage, _ version: UInt64) async throws(ApusError) {
        var stored = message
        (stored.state, stored.bytes, stored.pieces) = (.stored, 0, 0)
        do throws(ApusError) {
            try await writeMovie(of: &stored)
        } catch {
            guard [.mediaUnreadable, .malformed, .versionUnsupported].contains(error.code) else { throw error }
            try await erase(Self.movies, of: message.call)
            (stored.bytes, stored.pieces) = (0, 0)
        }
        _ = try await put(stored, version: version, counting: stored.bytes)
        try await erase(Self.frames, of: message.call)
    }

    private func writeMovie(of message: inout AnsweringMessage) async throws(ApusError) {
        var limits = FragmentedMP4Writer.Limits()
        limits.fragmentDuration = .seconds(1)
        // A message is one file. Its header has every format, such as those of a phone's two cameras.
        var writer = FragmentedMP4Writer(limits: limits, formats: try await formats(of: message))
        var (frames, joiner, movie) = (StoredFrames(), FrameJoiner(), ByteBuffer())
        var index: UInt32 = 0
        while index < message.framePieces {
            let pieces = try await framePieces(of: message, from: index)
            for frame in try frames.append(pieces) {
                // A frame that only ends the caller's stream contains no media.
                guard !frame.header.flags.contains(.endOfEpoch) || frame.payload.readableBytes > 0,
                    let whole = joiner.add(frame)
                else { continue }
                movie.writeImmutableBuffer(try writer.write(whole))
            }
            index += UInt32(pieces.count)
            try await writePieces(of: &movie, &message, isLast: false)
        }
        movie.writeImmutableBuffer(try writer.finish())
        try await writePieces(of: &movie, &message, isLast: true)
    }

    /// The formats of a message's tracks, in order of appearance.
    private func formats(
        of message: AnsweringMessage
    ) async throws(ApusError) -> [(track: UInt8, configuration: TrackConfiguration)] {
        var (frames, found) = (StoredFrames(), [(track: UInt8, configuration: TrackConfiguration)]())
        var index: UInt32 = 0
        while index < message.framePieces {
            let pieces = try await framePieces(of: message, from: index)
            for frame in try frames.append(pieces) {
                let (track, isFull) = (frame.header.track, found.count == FragmentedMP4Writer.formatCountMax)
                guard frame.header.flags.contains(.configuration), !isFull else { continue }
                let configuration = try TrackConfiguration(decoding: frame.payload)
                let isKnown = found.contains {
                    $0.track == track && $0.configuration.hasSameFormat(as: configuration)
                }
                if !isKnown { found.append((track, configuration)) }
            }
            index += UInt32(pieces.count)
        }
        return found
    }

    /// The next pieces of a message's frames.
    ///
    /// - Throws: 10021 if one is missing.
    private func framePieces(
        of message: AnsweringMessage, from index: UInt32
    ) async throws(ApusError) -> [AnsweringPiece] {
        let pieces = try await pieces(Self.frames, of: message.call, from: index)
        // Another node that stores the same message may already have removed some.
        let isNext = !pieces.isEmpty && zip(pieces, index...).allSatisfy { $0.index == $1 }
        guard isNext else { throw ApusError(.storageFailed, "a piece of a message is missing") }
        return pieces
    }

    private func writePieces(
        of movie: inout ByteBuffer, _ message: inout AnsweringMessage, isLast: Bool
    ) async throws(ApusError) {
        let size = AnsweringConfiguration.moviePieceByteCount
        while movie.readableBytes >= (isLast ? 1 : size),
            let data = movie.readSlice(length: min(size, movie.readableBytes))
        {
            let piece = AnsweringPiece.with {
                ($0.of, $0.index, $0.data) = (message.call, message.pieces, Data(data.readableBytesView))
            }
            try await store.commit(Self.movies.put(piece, fence: .none))
            message.pieces += 1
            message.bytes += UInt64(data.readableBytes)
        }
        movie.discardReadBytes()
    }
}
