import ApusCore
import ApusMedia
import CApusMemory
import CoreMetrics
import NIOCore

/// A channel's receivers on one event loop: the shell of ``FanOutStateMachine``.
///
/// Concurrency model: confined to `loop.eventLoop`. Frames arrive by one hop from the channel's home loop, many at a
/// time. Each receiver then gets one write and one flush (D7).
final class FanOut {
    let channel: ChannelID
    let stream: StreamNumber
    private unowned let loop: ChannelLoop
    private var machine: FanOutStateMachine
    /// One row for each of the machine's receivers, in the same order.
    private var rows: [Row] = []

    private struct Row {
        let id: FanOutStateMachine.ReceiverID
        let output: FrameOutput
        let sink: any FrameSink
        /// Nothing is sent before it is open. Until then the machine keeps the receiver's position.
        var isOpen = false
    }

    init(channel: ChannelID, stream: StreamNumber, ring: FrameRing, liveFloor: FramePosition?, loop: ChannelLoop) {
        self.channel = channel
        self.stream = stream
        self.loop = loop
        let configuration = loop.service.configuration
        machine = FanOutStateMachine(
            ring: ring, liveFloor: liveFloor, batchByteCountMax: configuration.batchByteCountMax,
            lagByteCountMax: configuration.lagByteCountMax)
    }

    var eventLoop: any EventLoop { loop.eventLoop }
    var receiverCount: Int { machine.receiverCount }
    var viewerCount: Int { machine.viewerCount }

    /// Adds a receiver. Sending starts with ``Receipt/open()``.
    func add(_ sink: any FrameSink, kind: FanOutStateMachine.Kind, after: FramePosition?) -> Receipt {
        let hadViewers = machine.viewerCount > 0
        let id = machine.add(kind, after: after)
        rows.append(Row(id: id, output: sink.output, sink: sink))
        loop.service.metrics.receivers.increment()
        if kind != .standby, !hadViewers || after != nil {
            loop.receiversChanged(of: channel, hasReceivers: true, after: after)
        }
        return Receipt(fanOut: self, id: id)
    }

    func remove(_ id: FanOutStateMachine.ReceiverID) {
        let hadViewers = machine.viewerCount > 0
        guard machine.remove(id) else { return }
        rows.removeAll { $0.id == id }
        loop.service.metrics.receivers.decrement()
        if hadViewers, machine.viewerCount == 0 { loop.receiversChanged(of: channel, hasReceivers: false) }
    }

    /// Adds frames that the channel accepted, and sends them.
    func append(_ frames: [RelayFrame]) {
        for frame in frames { machine.append(frame) }
        flushAll()
    }

    func adopt(_ frame: RelayFrame) { machine.adopt(repeated: frame) }
    func limitRing(byteCountMax: Int) { machine.limitRing(byteCountMax: byteCountMax) }

    /// Sets the earliest key frame for live joins. Receivers that waited for one may start now.
    func beginLive(at position: FramePosition?) {
        machine.setLiveFloor(position)
        flushAll()
    }

    func open(_ id: FanOutStateMachine.ReceiverID) {
        guard let index = rows.firstIndex(where: { $0.id == id }) else { return }
        rows[index].isOpen = true
        count(serve(index, now: .now()))
    }

    /// The receiver's socket accepts bytes again.
    func becameWritable(_ id: FanOutStateMachine.ReceiverID) {
        guard let index = rows.firstIndex(where: { $0.id == id }) else { return }
        count(serve(index, now: .now()))
    }

    /// It is the receiver's turn on a shared port.
    func takeTurn(_ id: FanOutStateMachine.ReceiverID) -> (byteCount: Int, hasMore: Bool) {
        guard let index = rows.firstIndex(where: { $0.id == id }), rows[index].isOpen,
            let batch = sendBatch(at: index, now: .now())
        else { return (0, false) }
        count(batch.byteCount)
        return batch
    }

    func announce(_ phase: StreamPhase) {
        for row in rows where row.isOpen { row.sink.streamChanged(stream, to: phase) }
    }

    private func flushAll() {
        let now = MonotonicTime.now()
        var byteCount = 0
        var index = 0
        while index < rows.count {
            let id = rows[index].id
            prefetch(after: index)
            byteCount += serve(index, now: now)
            // A write can close the connection and so remove the receiver.
            if isThere(id, at: index) { index += 1 }
        }
        count(byteCount)
    }

    private func isThere(_ id: FanOutStateMachine.ReceiverID, at index: Int) -> Bool {
        index < rows.count && rows[index].id == id
    }

    /// Prefetches the next receiver's objects while one receiver's bytes are sent: its port, and the objects that it
    /// sends through.
    private func prefetch(after index: Int) {
        if index + 2 < rows.count, case .bytes(let port) = rows[index + 2].output {
            apus_prefetch(Unmanaged.passUnretained(port as AnyObject).toOpaque(), Self.portByteCount)
        }
        if index + 1 < rows.count, case .bytes(let port) = rows[index + 1].output { port.prefetch() }
    }
    /// The part of a port that is prefetched: two cache lines.
    private static let portByteCount = 128

    private func count(_ byteCount: Int) {
        if byteCount > 0 { loop.service.metrics.bytesOut.increment(by: Int64(byteCount)) }
    }

    /// Sends to a receiver until it has everything or its output is full. Returns the number of bytes.
    private func serve(_ index: Int, now: MonotonicTime) -> Int {
        let row = rows[index]
        guard row.isOpen else { return 0 }
        var byteCount = 0
        while row.output.isWritable {
            guard let batch = sendBatch(at: index, now: now) else { return byteCount }
            byteCount += batch.byteCount
            guard batch.hasMore, isThere(row.id, at: index) else { return byteCount }
        }
        row.sink.fellBehind()
        return byteCount
    }

    /// Sends the next batch to a receiver. Returns nil if it has everything.
    private func sendBatch(at index: Int, now: MonotonicTime) -> (byteCount: Int, hasMore: Bool)? {
        switch rows[index].output {
        case .bytes(let port):
            guard let batch = machine.nextBatch(at: index) else { return nil }
            if batch.skippedCount > 0 { skipped(batch.skippedCount, rows[index].sink) }
            port.send(batch.bytes, now: now)
            return (batch.bytes.readableBytes, batch.hasMore)
        case .frames(let receiver):
            guard let batch = machine.nextFrames(at: index) else { return nil }
            if batch.skippedCount > 0 { skipped(batch.skippedCount, rows[index].sink) }
            receiver.receive(batch, now: now)
            return (batch.byteCount, batch.hasMore)
        }
    }

    private func skipped(_ count: UInt64, _ sink: any FrameSink) {
        loop.service.metrics.framesSkipped.increment(by: Int64(clamping: count))
        sink.streamChanged(stream, to: .skipped(count))
    }
}

/// A receiver's handle in a fan-out. Confined to the sink's event loop.
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

    /// Starts to send frames to the sink, beginning with those that are available.
    package func open() {
        eventLoop.assertInEventLoop()
        fanOut?.open(id)
    }

    /// The sink accepts bytes again.
    package func becameWritable() {
        eventLoop.assertInEventLoop()
        fanOut?.becameWritable(id)
    }

    /// Sends one batch, because it is the receiver's turn. Returns its size, and whether more is ready.
    func takeTurn() -> (byteCount: Int, hasMore: Bool) {
        eventLoop.assertInEventLoop()
        return fanOut?.takeTurn(id) ?? (0, false)
    }

    /// Removes the receiver. Has no effect the second time.
    package func close() {
        eventLoop.assertInEventLoop()
        fanOut?.remove(id)
        fanOut = nil
    }
}
