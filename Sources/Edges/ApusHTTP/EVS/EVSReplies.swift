package import ApusCore
import CoreMetrics
import Foundation
import HTTPTypes
import Hummingbird
import NIOCore
import Synchronization

/// The spoken replies that EVS devices fetch from this node, each at an address that cannot be guessed (docs/evs.md).
///
/// Bounded: a reply is kept for ``lifetime``. When all may have ``EVSLimits/replyByteCountMax`` bytes, or
/// ``EVSLimits/repliesMax`` is reached, the account that holds most makes room with its oldest one, so nobody loses a
/// reply to an account with many devices.
///
/// Concurrency model: any thread. A `Mutex` guards the replies.
package final class EVSReplies: Sendable {
    static let lifetime = Duration.seconds(90)
    static let path = "/v1/evs/replies/"

    private let limits: EVSLimits
    private let state = Mutex<[(id: String, account: AccountID, reply: EVSReply, until: MonotonicTime)]>([])
    private let kept = Gauge(label: "apus_evs_replies")
    private let keptBytes = Gauge(label: "apus_evs_reply_bytes")
    private let forgotten = Counter(label: "apus_evs_replies_forgotten_total")

    package init(_ limits: EVSLimits) { self.limits = limits }

    /// Keeps a reply.
    ///
    /// - Returns: the last part of its address.
    func keep(_ reply: EVSReply, of account: AccountID, at now: MonotonicTime = .now()) -> String {
        let id = Hexadecimal.text((0..<16).map { _ in UInt8.random(in: .min ... .max) })
        let (count, byteCount) = state.withLock { replies in
            replies.removeAll { $0.until <= now }
            replies.append((id, account, reply, now + Self.lifetime))
            var byteCount = replies.reduce(0) { $0 + $1.reply.byteCountMax }
            while replies.count > 1, replies.count > limits.repliesMax || byteCount > limits.replyByteCountMax {
                replies.remove(at: Self.oldestOfLargest(replies.map { ($0.account, $0.reply.byteCountMax) }))
                byteCount = replies.reduce(0) { $0 + $1.reply.byteCountMax }
                forgotten.increment()
            }
            return (replies.count, byteCount)
        }
        kept.record(count)
        keptBytes.record(byteCount)
        return id
    }

    /// The oldest item of the account whose items have the most bytes. The newest of all is left out: it was just
    /// added.
    ///
    /// - Parameter items: at least two, the oldest first.
    package static func oldestOfLargest(_ items: [(account: AccountID, byteCount: Int)]) -> Int {
        var sums: [AccountID: Int] = [:]
        for item in items { sums[item.account, default: 0] += item.byteCount }
        var found = 0
        for index in items.indices.dropLast()
        where sums[items[index].account, default: 0] > sums[items[found].account, default: 0] { found = index }
        return found
    }

    func reply(_ id: String, at now: MonotonicTime = .now()) -> EVSReply? {
        state.withLock { replies in replies.first { $0.id.isExactly(id) && $0.until > now } }?.reply
    }

    /// `GET /v1/evs/replies/{id}`: a WAV file, as its sound arrives.
    func add(to router: Router<HTTPContext>) {
        router.get("v1/evs/replies/{id}") { [self] _, context in
            guard let id = context.parameters.get("id"), let reply = reply(id) else {
                return Problem(ApusError(.targetUnknown, "there is no such reply any more")).response
            }
            guard let rate = await reply.rate() else {
                return Problem(ApusError(.unavailable, "the reply has no sound")).response
            }
            let byteCount = reply.soundByteCount(rate)
            return Response(
                status: .ok, headers: [.contentType: "audio/wav", .cacheControl: "no-store"],
                body: ResponseBody(contentLength: EVSReply.headerByteCount + byteCount) { writer in
                    try await writer.write(EVSReply.header(rate: rate, soundByteCount: byteCount))
                    var sent = 0
                    while sent < byteCount {
                        let part = await reply.next(from: sent, of: byteCount)
                        sent += part.readableBytes
                        try await writer.write(part)
                    }
                    try await writer.finish(nil)
                })
        }
    }
}

/// One spoken reply, as it arrives on the reply's channel.
///
/// Its length is known before its sound: `speech.listen` answers with it. Sound that does not come, because a node has
/// died, is silence.
///
/// Concurrency model: any thread. A `Mutex` guards the sound. Readers poll, at the interval of the frames.
final class EVSReply: Sendable {
    /// How long the sound may be late.
    private static let lateness = Duration.seconds(5)
    private static let pollInterval = Duration.milliseconds(20)
    /// The longest sound, in bytes: three minutes at 22,050 samples a second.
    private static let soundByteCountMax = 8 << 20
    /// Sound that comes before its length is known, in bytes.
    private static let earlyByteCountMax = 1 << 20
    /// Of a millisecond at 48,000 samples a second.
    private static let millisecondByteCountMax = 96
    static let headerByteCount = 44

    private struct State {
        var rate = 0
        var sound = ByteBuffer()
        var milliseconds = 0
        var isEnded = false
    }

    private let state = Mutex(State())

    /// The sound that it may hold, in bytes.
    var byteCountMax: Int { Self.byteCountMax(state.withLock(\.milliseconds)) }

    private static func byteCountMax(_ milliseconds: Int) -> Int {
        milliseconds == 0 ? earlyByteCountMax : min(soundByteCountMax, millisecondByteCountMax * milliseconds)
    }

    /// The answer says how long the reply is.
    func announce(milliseconds: Int) { state.withLock { $0.milliseconds = milliseconds } }

    /// The sound begins. What came before belongs to another reply.
    func began(rate: Int) { state.withLock { $0.rate = rate } }

    /// - Parameter samples: 16 bits, big endian.
    func add(_ samples: ByteBuffer) {
        var rest = samples
        state.withLock { state in
            guard state.rate > 0, state.sound.readableBytes < Self.byteCountMax(state.milliseconds) else { return }
            while let sample = rest.readInteger(as: Int16.self) {
                state.sound.writeInteger(sample, endianness: .little)
            }
        }
    }

    func end() { state.withLock { $0.isEnded = $0.rate > 0 } }

    /// The samples a second; nil if no sound comes.
    func rate() async -> Int? {
        let deadline = MonotonicTime.now() + Self.lateness
        while MonotonicTime.now() < deadline {
            let (rate, isEnded) = state.withLock { ($0.rate, $0.isEnded) }
            if rate > 0 { return rate }
            guard !isEnded, (try? await Task.sleep(for: Self.pollInterval)) != nil else { return nil }
        }
        return nil
    }

    /// What the whole reply has, in whole samples.
    func soundByteCount(_ rate: Int) -> Int {
        min(Self.soundByteCountMax, 2 * (rate * state.withLock(\.milliseconds) / 1000))
    }

    /// The sound from an offset on, of at least one sample.
    func next(from offset: Int, of count: Int) async -> ByteBuffer {
        let deadline = MonotonicTime.now() + Self.lateness
        while true {
            let (part, isEnded) = state.withLock { state -> (ByteBuffer?, Bool) in
                let length = min(state.sound.readableBytes, count) - offset
                guard length > 0 else { return (nil, state.isEnded) }
                return (state.sound.getSlice(at: state.sound.readerIndex + offset, length: length), state.isEnded)
            }
            if let part { return part }
            let isLate = isEnded || MonotonicTime.now() > deadline
            guard !isLate, (try? await Task.sleep(for: Self.pollInterval)) != nil else {
                return ByteBuffer(repeating: 0, count: count - offset)
            }
        }
    }

    /// The header of a WAV file with one channel of 16 bits.
    static func header(rate: Int, soundByteCount: Int) -> ByteBuffer {
        var header = ByteBuffer()
        header.writeString("RIFF")
        header.writeInteger(UInt32(headerByteCount - 8 + soundByteCount), endianness: .little)
        header.writeString("WAVEfmt ")
        let fields: [UInt32] = [16, 1 | 1 << 16, UInt32(rate), UInt32(2 * rate), 2 | 16 << 16]
        for field in fields { header.writeInteger(field, endianness: .little) }
        header.writeString("data")
        header.writeInteger(UInt32(soundByteCount), endianness: .little)
        return header
    }
}
