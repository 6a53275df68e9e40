import ApusContract
import ApusCore
import ApusSessions
import ApusTestKit
import Foundation
import SwiftProtobuf
import Testing

/// Who may publish which channel, and what waits until a session is confirmed (IV-A5, IV-C4, CALL-13).
@Suite("Who may publish, before and after a session is confirmed (IV-A5, CALL-13)", .timeLimit(.minutes(2)))
struct PublishRightsTests {
    private static let inCall = ClientPublishRequest.with {
        ($0.call, $0.source, $0.instance) = (TestCalls.id, ClientPublishRequest.sourceOfCalls, 5)
    }

    /// Long enough for an answer that is not held back.
    private func expectHeld(_ client: NativeClient, _ call: UInt32) async throws {
        try await Task.sleep(for: .milliseconds(150))
        #expect(client.answered(call) == nil)
    }

    @Test("A device publishes its own channels, and an app none")
    func devices() async throws {
        try await MediaEdge.with { edge in
            edge.confirm()
            let camera = try await edge.connect(MediaEdge.device())
            let first = camera.publish(.with { ($0.source, $0.instance) = (3, 5) })
            let answer = try await camera.answer(first, as: ClientPublishResponse.self)
            #expect(answer.epoch > 0 && answer.grant.isEmpty)
            #expect(await edge.openChannels() == ["cam/3"])
            let app = try await edge.connect(MediaEdge.app(of: "owner"))
            let second = app.publish(.with { $0.source = 3 })
            #expect(await code { _ = try await app.answer(second, as: ClientPublishResponse.self) } == .notAllowed)
        }
    }

    @Test("A side of a call is published by its client alone, with the source of calls")
    func calls() async throws {
        try await MediaEdge.with { edge in
            edge.confirm()
            for (access, side) in [("caller", 0), ("callee", 1)] {
                let client = try await edge.connect(MediaEdge.app(of: "a", access: access))
                let answer = try await client.answer(client.publish(Self.inCall), as: ClientPublishResponse.self)
                #expect(await edge.openChannels().contains("call.\(TestCalls.id)/\(side)"))
                let name = DeviceID(unchecked: "call.\(TestCalls.id).\(side)p")
                let session = MediaEdge.app(of: "a", access: access)
                let peers = edge.sealer.peers(
                    of: Array(answer.grant), session, device: name, wallSeconds: MediaEdge.now)
                #expect(peers == (side == 0 ? [MediaEdge.camera] : []))
                let wrong = client.publish(.with { ($0.call, $0.source) = (TestCalls.id, 0) })
                #expect(
                    await code { _ = try await client.answer(wrong, as: ClientPublishResponse.self) } == .badParameter)
            }
            let other = try await edge.connect(MediaEdge.app(of: "owner"))
            for grant in ["call.\(TestCalls.id).0p", "call.\(TestCalls.id).0w"] {
                var request = Self.inCall
                // Without a run to continue, a grant permits nothing.
                request.grant = Data(
                    try edge.sealer.sealGrant(
                        MediaEdge.app(of: "owner"), device: DeviceID(unchecked: grant), peers: [],
                        expiresAt: MediaEdge.now + 60))
                let call = other.publish(request)
                #expect(
                    await code { _ = try await other.answer(call, as: ClientPublishResponse.self) } == .illegalRelation)
            }
        }
    }

    @Test("What is new waits until the session is confirmed, unless it is taken back")
    func held() async throws {
        try await MediaEdge.with(streamsMax: 2) { edge in
            let camera = try await edge.connect(MediaEdge.device())
            let calls = (0..<2).map { source in camera.publish(.with { $0.source = UInt32(source) }) }
            let third = camera.publish(.with { $0.source = 2 })
            #expect(await code { _ = try await camera.answer(third, as: ClientPublishResponse.self) } == .overloaded)
            let app = try await edge.connect(MediaEdge.app(of: "a", access: "caller"))
            let inCall = app.publish(Self.inCall)
            // A session that nobody has confirmed plays at once.
            _ = try await app.answer(app.play(.with { $0.call = TestCalls.id }), as: ClientPlayResponse.self)
            try await expectHeld(camera, calls[0])
            try await expectHeld(app, inCall)
            let taken = camera.ask(.unpublish, ClientUnpublishRequest.with { $0.source = 1 })
            _ = try await camera.answer(taken, as: ClientUnpublishResponse.self)
            #expect(await code { _ = try await camera.answer(calls[1], as: ClientPublishResponse.self) } == .cancelled)
            edge.confirm()
            _ = try await camera.answer(calls[0], as: ClientPublishResponse.self)
            _ = try await app.answer(inCall, as: ClientPublishResponse.self)
        }
    }

    @Test("A session that is not confirmed continues its own run at once, and no other's")
    func continuesItsRun() async throws {
        try await MediaEdge.with { edge in
            // The run of the client's earlier session.
            let epoch = try await edge.publish(ChannelID(device: MediaEdge.camera), instance: 5)
            let request = ClientPublishRequest.with { ($0.instance, $0.epoch, $0.resumes) = (5, epoch, true) }
            let camera = try await edge.connect(MediaEdge.device(instance: 5))
            let answer = try await camera.answer(camera.publish(request), as: ClientPublishResponse.self)
            #expect(answer.epoch == epoch)
            // Another source, of which there is no such run.
            let other = camera.publish(
                .with { ($0.source, $0.instance, $0.epoch, $0.resumes) = (1, 5, epoch, true) })
            try await expectHeld(camera, other)
            edge.confirm()
            _ = try await camera.answer(other, as: ClientPublishResponse.self)
        }
    }

    @Test("With a grant a client goes on in its call before the call has answered")
    func goesOnInCall() async throws {
        try await MediaEdge.with { edge in
            edge.confirm()
            let caller = try await edge.connect(MediaEdge.app(of: "a", access: "caller"))
            let answer = try await caller.answer(caller.publish(Self.inCall), as: ClientPublishResponse.self)
            try await caller.close()
            // The call would refuse this client, so only the grant lets it go on.
            let session = MediaEdge.app(of: "none")
            var request = Self.inCall
            (request.epoch, request.resumes) = (answer.epoch, true)
            request.grant = Data(
                try edge.sealer.sealGrant(
                    session, device: DeviceID(unchecked: "call.\(TestCalls.id).0p"), peers: [MediaEdge.camera],
                    expiresAt: MediaEdge.now + 60))
            let client = try await edge.connect(session)
            let resumed = try await client.answer(client.publish(request), as: ClientPublishResponse.self)
            #expect(resumed.epoch == answer.epoch && resumed.grant == request.grant)
            #expect(edge.calls.resumedCount == 1)
            edge.calls.end(ApusError(.callUnknown))
            try await eventually("its stream ends") { client.end(of: resumed.stream) == .callUnknown }
        }
    }
}
