package import ApusCore
package import ApusWire
package import NIOCore

/// Receives the events of the media lanes. Every method is called on the connection's event loop.
package protocol MediaLaneDelegate: Sendable {
    func opened(_ connection: MediaConnection)
    /// A frame arrived: media, a tell or a request. Its payload is a slice of the read buffer.
    func received(_ frame: LinkFrame, on connection: MediaConnection)
    /// The read that delivered the last frames is complete. Flush the output that they caused here.
    func readCompleted(_ connection: MediaConnection)
    func writabilityChanged(_ connection: MediaConnection)
    /// The last call for this connection. Its open requests have failed with 10008 before.
    func closed(_ connection: MediaConnection)
}

/// The delegate of a node that uses no media lanes. It ignores every event.
package struct IdleMediaLanes: MediaLaneDelegate {
    package init() {}

    package func opened(_ connection: MediaConnection) {}
    package func received(_ frame: LinkFrame, on connection: MediaConnection) {}
    package func readCompleted(_ connection: MediaConnection) {}
    package func writabilityChanged(_ connection: MediaConnection) {}
    package func closed(_ connection: MediaConnection) {}
}

/// One media lane between two nodes. It carries media frames, and the requests that open and close streams (D7).
///
/// Concurrency model: confined to ``eventLoop``. Every member except the constants must be used there. The type is
/// `Sendable` so that a reference can be passed to the loop.
package final class MediaConnection: LaneSession, @unchecked Sendable {  // SAFETY: entry points assert `eventLoop`.
    package typealias Completion = (Result<ByteBuffer, CallFailure>) -> Void

    private struct OpenRequest {
        var completion: Completion
        var deadline: Scheduled<Void>
    }

    struct Limits: Sendable {
        var frameByteCountMax: Int
        var outboundByteCountMax: Int
        /// The most requests that wait for an answer.
        var openRequestCountMax = 4096
    }

    package let eventLoop: any EventLoop
    /// The other node, authenticated by the handshake.
    package let peer: NodeID
    /// True if this node dialled.
    package let isInitiator: Bool

    private let channel: any Channel
    private let limits: Limits
    private let delegate: any MediaLaneDelegate
    private var unflushedByteCount = 0
    private var requests: [UInt32: OpenRequest] = [:]
    private var lastCorrelation: UInt32 = 0
    private var isOpen = true

    init(
        channel: any Channel, peer: NodeID, isInitiator: Bool, limits: Limits, delegate: any MediaLaneDelegate
    ) {
        self.channel = channel
        eventLoop = channel.eventLoop
        self.peer = peer
        self.isInitiator = isInitiator
        self.limits = limits
        self.delegate = delegate
    }

    // MARK: Writing

    /// False while the socket's buffers are full.
    package var isWritable: Bool { channel.isWritable }

    /// Bytes that were written and have not reached the socket.
    package var pendingByteCount: Int {
        eventLoop.preconditionInEventLoop()
        let buffered = try? channel.syncOptions?.getOption(.bufferedWritableBytes)
        return unflushedByteCount + (buffered ?? 0)
    }

    /// Writes encoded link frames. The next ``flush()`` sends them.
    ///
    /// - Returns: false, with nothing written, if the connection has ended or the output would exceed
    ///   ``TransportConfiguration/mediaOutboundByteCountMax``.
    @discardableResult
    package func write(_ frames: ByteBuffer) -> Bool {
        guard isOpen, pendingByteCount + frames.readableBytes <= limits.outboundByteCountMax else { return false }
        unflushedByteCount += frames.readableBytes
        channel.write(frames, promise: nil)
        return true
    }

    /// Sends what was written.
    package func flush() {
        eventLoop.preconditionInEventLoop()
        guard unflushedByteCount > 0 else { return }
        unflushedByteCount = 0
        channel.flush()
    }

    /// Ends the connection. ``MediaLaneDelegate/closed(_:)`` follows.
    package func close() {
        eventLoop.preconditionInEventLoop()
        channel.close(promise: nil)
    }

    // MARK: Requests

    /// Sends a request without a flush. The completion is called once, on the loop, with the answer or the peer's
    /// refusal. Errors: 10005 after the deadline, 10007 if a limit is reached, 10008 without a link.
    package func request(
        method: UInt16, payload: ByteBuffer, deadline: Duration, completion: @escaping Completion
    ) {
        eventLoop.preconditionInEventLoop()
        guard isOpen else { return completion(.failure(CallFailure(ApusError(.linkLost)))) }
        guard requests.count < limits.openRequestCountMax else {
            return completion(.failure(CallFailure(ApusError(.overloaded))))
        }
        lastCorrelation &+= 1
        let correlation = lastCorrelation
        guard send(.request, method: method, correlation: correlation, payload: payload) else {
            return completion(.failure(CallFailure(ApusError(.overloaded))))
        }
        let expiry = eventLoop.scheduleTask(in: TimeAmount(deadline)) {
            self.finish(correlation, .failure(CallFailure(ApusError(.deadlineExceeded))))
        }
        requests[correlation] = OpenRequest(completion: completion, deadline: expiry)
    }

    /// Sends a message without an answer and without a flush. Returns false as ``write(_:)``.
    @discardableResult
    package func tell(method: UInt16, payload: ByteBuffer) -> Bool {
        send(.tell, method: method, correlation: 0, payload: payload)
    }

    /// Answers a request, without a flush. Returns false as ``write(_:)``.
    @discardableResult
    package func respond(to request: LinkFrame, payload: ByteBuffer) -> Bool {
        send(.response, method: 0, correlation: request.correlation, payload: payload)
    }

    /// Refuses a request, without a flush. Returns false as ``write(_:)``.
    @discardableResult
    package func fail(_ request: LinkFrame, _ error: ApusError, epoch: Epoch? = nil, owner: NodeName? = nil) -> Bool {
        let payload = ClusterFailure.payload(of: error, epoch: epoch, owner: owner)
        return send(.response, flags: .failure, method: 0, correlation: request.correlation, payload: payload)
    }

    private func send(
        _ kind: FrameKind, flags: FrameFlags = [], method: UInt16, correlation: UInt32, payload: ByteBuffer
    ) -> Bool {
        var buffer = channel.allocator.buffer(capacity: LinkFrame.headerByteCount + payload.readableBytes)
        LinkFrame(kind: kind, flags: flags, method: method, correlation: correlation, payload: payload)
            .encode(into: &buffer)
        return write(buffer)
    }

    private func finish(_ correlation: UInt32, _ result: Result<ByteBuffer, CallFailure>) {
        guard let request = requests.removeValue(forKey: correlation) else { return }
        request.deadline.cancel()
        request.completion(result)
    }

    // MARK: LaneSession

    func readBegan() {}

    func batchHandled() {}

    func received(_ frame: LinkFrame) throws(ApusError) {
        switch frame.kind {
        case .response:
            let isFailure = frame.flags.contains(.failure)
            finish(
                frame.correlation, isFailure ? .failure(ClusterFailure.read(frame.payload)) : .success(frame.payload))
        case .media, .tell, .request, .cancel:
            delegate.received(frame, on: self)
        default:
            throw ApusError(.malformed, "a \(frame.kind) frame on a media lane")
        }
    }

    func readCompleted() { delegate.readCompleted(self) }

    func writabilityChanged() { delegate.writabilityChanged(self) }

    func opened() { delegate.opened(self) }

    func closed() {
        guard isOpen else { return }
        isOpen = false
        for correlation in requests.keys.sorted() {
            finish(correlation, .failure(CallFailure(ApusError(.linkLost))))
        }
        delegate.closed(self)
    }
}
