import ApusChannels
import ApusClientAPI
import ApusCore
import ApusMedia
import ApusMediaAccess
import ApusSessions
import ApusTestKit
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// Whatever its protocol is, an edge asks ``MediaAccess`` and nothing else.
@Suite("Media over an edge of another protocol (CALL-13, D6)", .timeLimit(.minutes(1)))
struct OtherEdgeTests {
    private static let owner = ChannelOwner.call(CallID(unchecked: TestCalls.id))

    @Test("The sides of a call have each other's frames, until the call ends")
    func call() async throws {
        try await MediaEdge.with { edge in
            let caller = OtherConnection(edge, MediaEdge.app(of: "a", access: "caller"))
            let callee = OtherConnection(edge, MediaEdge.app(of: "b", access: "callee"))
            let other = OtherConnection(edge, MediaEdge.app(of: "owner"))
            for connection in [caller, callee, other] { connection.join(Self.owner) }
            try await eventually("each side has the other's frames") {
                caller.payloads == OtherConnection.sent(by: "callee")
                    && callee.payloads == OtherConnection.sent(by: "caller")
            }
            try await eventually("the third is refused") { other.errors == [.illegalRelation, .illegalRelation] }
            #expect(other.payloads.isEmpty && caller.errors.isEmpty && callee.errors.isEmpty)
            edge.calls.end(ApusError(.callUnknown))
            try await eventually("both streams of each side end") {
                caller.ends == [.callUnknown, .callUnknown] && callee.ends == [.callUnknown, .callUnknown]
            }
            for connection in [caller, callee, other] { try await connection.close() }
        }
    }
}

/// A client's connection that takes and gives frames.
private final class OtherConnection: ClientConnection, @unchecked Sendable {  // SAFETY: `media` is for the loop.
    private struct State {
        var payloads: [ByteBuffer] = []
        var errors: [ErrorCode] = []
        var ends: [ErrorCode] = []
    }

    let eventLoop: any EventLoop
    let protocolName = "other"
    let isClosed = false
    fileprivate var media: MediaClient?
    private let edge: MediaEdge
    fileprivate let session: Session
    private let state = Mutex(State())

    init(_ edge: MediaEdge, _ session: Session) {
        (self.edge, self.session, eventLoop) = (edge, session, edge.group.next())
    }

    var payloads: [ByteBuffer] { state.withLock { $0.payloads } }
    var errors: [ErrorCode] { state.withLock { $0.errors } }
    var ends: [ErrorCode] { state.withLock { $0.ends } }

    func received(_ event: ClientEventFrame) {}
    func begin(_ topic: String, at position: TopicPosition?) {}

    static func sent(by access: String) -> [ByteBuffer] { (0..<3).map { ByteBuffer(string: "\(access) \($0)") } }

    /// Publishes its side of the call, and plays the other.
    func join(_ owner: ChannelOwner) {
        eventLoop.execute { [self] in
            let media = MediaClient(
                edge.media, session, on: self, isConfirmed: true, streamsMax: 4,
                spawn: { work in Task { await work() } }, onStreams: {})
            self.media = media
            media.play(
                PlayAsk(
                    .part(owner), after: FramePosition(epoch: 0, sequence: 0), grant: [],
                    sink: { [self] _ in OtherPlayer(self) }, fail: { [self] in failed($0) }))
            media.publish(
                PublishAsk(
                    .part(owner), epoch: 0, instance: 5, oldest: 0, resumes: false, grant: [],
                    sink: { [self] _ in OtherPublisher(self) }, fail: { [self] in failed($0) }))
        }
    }

    func close() async throws {
        try await eventLoop.submit { [self] in
            media?.closed()
            media = nil
        }.get()
    }

    func failed(_ error: ApusError) { state.withLock { $0.errors.append(error.code) } }
    func ended(_ error: ApusError) { state.withLock { $0.ends.append(error.code) } }
    func received(_ frames: [RelayFrame]) { state.withLock { $0.payloads += frames.map(\.payload) } }
}

private final class OtherPlayer: PlayerSink, FrameReceiver {
    private let connection: OtherConnection

    init(_ connection: OtherConnection) { self.connection = connection }

    var eventLoop: any EventLoop { connection.eventLoop }
    var isWritable: Bool { true }

    func opened(_ receipt: Receipt) { receipt.open() }
    func receive(_ batch: FanOutStateMachine.FrameBatch, now: MonotonicTime) { connection.received(batch.frames) }
    func streamChanged(_ stream: StreamNumber, to state: StreamPhase) {
        if case .ended(let error) = state { connection.ended(error) }
    }
}

private final class OtherPublisher: PublisherSink {
    private let connection: OtherConnection

    init(_ connection: OtherConnection) { self.connection = connection }

    var eventLoop: any EventLoop { connection.eventLoop }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next: UInt64, isProtected: Bool) {
        let frames = OtherConnection.sent(by: connection.session.access.rawValue).enumerated().map { index, payload in
            MediaFrame(
                header: MediaHeader(
                    position: FramePosition(epoch: epoch, sequence: next + UInt64(index)), ptsMicroseconds: 0,
                    flags: .key),
                payload: payload)
        }
        connection.media?.published[stream]?.handle.send(frames)
    }
    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
    func publishResume(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}
    func publishFailed(_ stream: StreamNumber, _ error: ApusError) { connection.ended(error) }
}
