public import ApusClient
public import ApusCore
import ApusMedia
public import Logging
import NIOCore
import Synchronization

/// A camera: reads media from a source and publishes it as one device's channel (IV-C1, IV-C9), or as a side of a call
/// (CALL-13).
///
/// Concurrency model: the source's thread delivers events, in order; the publisher handles them on the session's event
/// loop. ``run()`` waits for the end.
public final class DeviceAgent: Sendable {
    private let session: ClientSession
    private let source: any MediaSource
    private let frameLog: FrameLog?
    private let log: Logger
    private let publisher: Publisher
    private let ending: AsyncStream<ApusError?>
    private let endingFeed: AsyncStream<ApusError?>.Continuation

    /// - Parameters:
    ///   - channel: the source's number on a device with several cameras (IV-C4).
    ///   - call: the session id of an accepted call, whose side is published instead. Apps do that too.
    ///   - frameLog: receives one line for every frame, once its epoch is known.
    public init(
        session: ClientSession, source: any MediaSource, channel: UInt16 = 0, call: String? = nil,
        frameLog: FrameLog? = nil, log: Logger
    ) {
        self.session = session
        self.source = source
        self.frameLog = frameLog
        self.log = log
        let (ending, endingFeed) = AsyncStream<ApusError?>.makeStream()
        (self.ending, self.endingFeed) = (ending, endingFeed)
        let onNumbered: @Sendable (MediaFrame) -> Void = { frame in frameLog?.append(frame) }
        let onEvent: @Sendable (Publisher.Event) -> Void = { event in
            switch event {
            case .open(let isProtected):
                log.info("The cluster accepts the stream", metadata: ["apus.protected": "\(isProtected)"])
            case .ended(let error):
                endingFeed.yield(error)
            }
        }
        publisher =
            if let call {
                Publisher(session: session, call: call, onNumbered: onNumbered, onEvent: onEvent)
            } else {
                Publisher(session: session, source: channel, onNumbered: onNumbered, onEvent: onEvent)
            }
    }

    /// Publishes until the source ends, the stream is refused permanently, or the task is cancelled.
    ///
    /// - Throws: the error of the source or the cluster: 10026, 10024, 12004; −2508, −2522 and 8003 for a call.
    public func run() async throws(ApusError) {
        publisher.start()
        source.start { [publisher, endingFeed] event in
            switch event {
            case .configuration(let track, let configuration):
                var payload = ByteBuffer()
                configuration.encode(into: &payload)
                publisher.send(
                    track: track, ptsMicroseconds: 0, dtsDeltaMicroseconds: 0, flags: .configuration, payload: payload)
            case .frame(let track, let pts, let dtsDelta, let flags, let payload):
                publisher.send(
                    track: track, ptsMicroseconds: pts, dtsDeltaMicroseconds: dtsDelta, flags: flags, payload: payload)
            case .ended: endingFeed.yield(nil)
            case .failed(let error): endingFeed.yield(error)
            }
        }
        var result: ApusError?
        for await error in ending {
            result = error
            break
        }
        source.stop()
        publisher.stop()
        if let result { throw result }
    }
}
