import ApusCore
import ApusMedia
import CApusMemory
import CoreMetrics
import NIOCore

/// A channel's receivers on one event loop: the shell of ``FanOutStateMachine``.
///
/// Concurrency model: confined to `loop.eventLoop`. Frames arrive by one hop from the channel's home
/// loop, many at a time; each receiver then gets one write and one flush (D7).
final class FanOut {
    let channel: ChannelID
    let stream: StreamNumber
    private unowned let loop: ChannelLoop
    private var machine: FanOutStateMachine
    private var sinks: [(id: FanOutStateMachine.ReceiverID, sink: any FrameSink)] = []

    init(channel: ChannelID, stream: StreamNumber, ring: FrameRing, loop: ChannelLoop) {
        self.channel = channel
        self.stream = stream
        self.loop = loop
        let configuration = loop.service.configuration
        machine = FanOutStateMachine(
            ring: ring, batchByteCountMax: configuration.batchByteCountMax,
            lagByteCountMax: configuration.lagByteCountMax)
    }

    var eventLoop: any EventLoop { loop.eventLoop }
    var receiverCount: Int { machine.receiverCount }
    var viewerCount: Int { machine.viewerCount }

    /// Adds a receiver and gives it what it can have at once.
    func add(_ sink: any FrameSink, kind: FanOutStateMachine.Kind, after: FramePosition?) -> Receipt {
        let hadViewers = machine.viewerCount > 0
        let id = machine.add(kind, after: after)
        sinks.append((id, sink))
        loop.service.metrics.receivers.increment()
        if !hadViewers, kind != .standby { loop.receiversChanged(of: channel, hasReceivers: true, after: after) }
        count(serve(id, sink, now: .now()))
        return Receipt(fanOut: self, id: id)
    }

    func remove(_ id: FanOutStateMachine.ReceiverID) {
        let hadViewers = machine.viewerCount > 0
        guard machine.remove(id) else { return }
        sinks.removeAll { $0.id == id }
        loop.service.metrics.receivers.decrement()
        if hadViewers, machine.viewerCount == 0 { loop.receiversChanged(of: channel, hasReceivers: false) }
    }

    /// Takes frames that the channel accepted and sends them on.
    func append(_ frames: [RelayFrame]) {
        for frame in frames { machine.append(frame) }
        flushAll()
    }

    func adopt(_ frame: RelayFrame) { machine.adopt(repeated: frame) }

    /// The receiver's socket takes bytes again.
    func becameWritable(_ id: FanOutStateMachine.ReceiverID) {
        guard let entry = sinks.first(where: { $0.id == id }) else { return }
        count(serve(id, entry.sink, now: .now()))
    }

    func announce(_ phase: StreamPhase) {
        for entry in sinks { entry.sink.streamChanged(stream, to: phase) }
    }

    private func flushAll() {
        let now = MonotonicTime.now()
        var byteCount = 0
        var index = 0
        while index < sinks.count {
            let entry = sinks[index]
            prefetch(after: index)
            byteCount += serve(entry.id, entry.sink, now: now)
            // A write can close the connection and so remove the receiver.
            if index < sinks.count, sinks[index].id == entry.id { index += 1 }
        }
        count(byteCount)
    }

    /// While one receiver's bytes are sent, the next one's objects come nearer: the sink, then what it sends through.
    private func prefetch(after index: Int) {
        if index + 2 < sinks.count {
            let object = Unmanaged.passUnretained(sinks[index + 2].sink as AnyObject).toOpaque()
            apus_prefetch(object, Self.sinkByteCount)
        }
        if index + 1 < sinks.count { sinks[index + 1].sink.prefetch() }
    }
    /// As much of a sink as is worth fetching: two lines of the cache.
    private static let sinkByteCount = 128

    private func count(_ byteCount: Int) {
        if byteCount > 0 { loop.service.metrics.bytesOut.increment(by: Int64(byteCount)) }
    }

    /// Gives a receiver what it can take; returns the bytes.
    private func serve(_ id: FanOutStateMachine.ReceiverID, _ sink: any FrameSink, now: MonotonicTime) -> Int {
        var byteCount = 0
        while sink.isWritable, let batch = machine.nextBatch(for: id) {
            if batch.skippedCount > 0 {
                loop.service.metrics.framesSkipped.increment(by: Int64(clamping: batch.skippedCount))
                sink.streamChanged(stream, to: .skipped(batch.skippedCount))
            }
            sink.send(batch.bytes, now: now)
            byteCount += batch.bytes.readableBytes
            guard batch.hasMore else { break }
        }
        return byteCount
    }
}

/// A receiver's place in a fan-out; confined to the sink's event loop.
package final class Receipt: Sendable {
    private nonisolated(unsafe) weak var fanOut: FanOut?  // SAFETY: used on `eventLoop`, as every method asserts.
    private let id: FanOutStateMachine.ReceiverID
    private let eventLoop: any EventLoop

    init(fanOut: FanOut, id: FanOutStateMachine.ReceiverID) {
        self.fanOut = fanOut
        self.id = id
        eventLoop = fanOut.eventLoop
    }

    /// The number that the stream's frames carry.
    package var stream: StreamNumber? {
        eventLoop.assertInEventLoop()
        return fanOut?.stream
    }

    /// The sink takes bytes again.
    package func becameWritable() {
        eventLoop.assertInEventLoop()
        fanOut?.becameWritable(id)
    }

    /// The receiver leaves; harmless when repeated.
    package func close() {
        eventLoop.assertInEventLoop()
        fanOut?.remove(id)
        fanOut = nil
    }
}
