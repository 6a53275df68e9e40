import ApusContract
import ApusCore
import ApusSessions
import ApusTestKit
import Foundation
import SwiftProtobuf
import Testing

/// A grant that a client presents.
private enum Shown: Sendable {
    case nothing
    case rubbish
    /// For a device's live picture, or for the channel of this name, to whoever has this account.
    case grant(String, of: String, peers: [DeviceID]? = nil, seconds: Int64 = 60)

    func bytes(_ edge: MediaEdge, _ session: Session) throws -> Data {
        switch self {
        case .nothing: return Data()
        case .rubbish: return Data(repeating: 5, count: 120)
        case .grant(let name, let account, let peers, let seconds):
            var holder = session
            holder.account = AccountID(unchecked: account)
            return Data(
                try edge.sealer.sealGrant(
                    holder, device: DeviceID(unchecked: name), peers: peers, expiresAt: MediaEdge.now + seconds))
        }
    }
}

/// A client that asks, and the error that it is answered with; nil: the stream opens.
private struct Ask: Sendable, CustomTestStringConvertible {
    let testDescription: String
    let session: Session
    let device: String
    let source: UInt32
    let shown: Shown
    let error: ErrorCode?

    init(
        _ name: String, _ session: Session, device: String = "cam", source: UInt32 = 0, shows: Shown = .nothing,
        _ error: ErrorCode?
    ) {
        (testDescription, self.session, self.device, self.source) = (name, session, device, source)
        (shown, self.error) = (shows, error)
    }
}

/// Who may publish and play which channel, with the clients' own requests (IV-C4, IV-C5, CALL-13, D6).
@Suite("Who may publish and play what (D6, CALL-13)", .timeLimit(.minutes(3)))
struct MediaRightsTests {
    private static let other = DeviceID(unchecked: "other")
    private static let recording = UInt32(ClientPlayRequest.playbackSourceMin) + 4
    private static let recordingGrant = "cam.\(recording)w"

    private static let plays: [Ask] = [
        Ask("the owner", MediaEdge.app(of: "owner"), nil),
        Ask("the owner, a recording", MediaEdge.app(of: "owner"), source: recording, nil),
        Ask("a guest that may watch", MediaEdge.app(of: "viewer"), nil),
        Ask("a guest that may watch, a recording", MediaEdge.app(of: "viewer"), source: recording, .notAllowed),
        Ask("a guest that may control, a recording", MediaEdge.app(of: "helper"), source: recording, nil),
        Ask("an account without a right", MediaEdge.app(of: "none"), .illegalRelation),
        Ask("an account that has lost its right", MediaEdge.app(of: "former"), .illegalRelation),
        Ask("a device that is not known", MediaEdge.app(of: "owner"), device: "unknown", .targetUnknown),
        Ask("an id that is none", MediaEdge.app(of: "owner"), device: "c m", .badParameter),
        Ask("a device plays itself", MediaEdge.device(), .notAllowed),
        Ask("a token for this device", MediaEdge.app(of: "owner", only: [MediaEdge.camera]), nil),
        Ask("a token for another device", MediaEdge.app(of: "owner", only: [other]), .notAllowed),
        Ask("a token for no device", MediaEdge.app(of: "owner", only: []), .notAllowed),
        // A grant counts as the owner's answer: these accounts have no right by the records.
        Ask("a grant", MediaEdge.app(of: "none"), shows: .grant("cam", of: "none"), nil),
        Ask("bytes that are no grant", MediaEdge.app(of: "none"), shows: .rubbish, .illegalRelation),
        Ask("bytes that are no grant, and a right", MediaEdge.app(of: "owner"), shows: .rubbish, nil),
        Ask(
            "the grant of another account", MediaEdge.app(of: "none"), shows: .grant("cam", of: "owner"),
            .illegalRelation),
        Ask(
            "a grant that has expired", MediaEdge.app(of: "none"), shows: .grant("cam", of: "none", seconds: -1),
            .illegalRelation),
        Ask(
            "a grant for another device", MediaEdge.app(of: "none"), shows: .grant("other", of: "none"),
            .illegalRelation),
        Ask(
            "a grant of before the right was lost", MediaEdge.app(of: "former"), shows: .grant("cam", of: "former"),
            .illegalRelation),
        Ask(
            "a grant, and a token for another device", MediaEdge.app(of: "none", only: [other]),
            shows: .grant("cam", of: "none"), .notAllowed),
        Ask(
            "a grant for the live picture, a recording", MediaEdge.app(of: "none"), source: recording,
            shows: .grant("cam", of: "none"), .illegalRelation),
        Ask(
            "a grant for the recording", MediaEdge.app(of: "none"), source: recording,
            shows: .grant(recordingGrant, of: "none", peers: [MediaEdge.camera]), nil),
        Ask(
            "a grant for the recording, another one", MediaEdge.app(of: "none"), source: recording + 1,
            shows: .grant(recordingGrant, of: "none", peers: [MediaEdge.camera]), .illegalRelation),
        Ask(
            "a grant for the recording, the live picture", MediaEdge.app(of: "none"),
            shows: .grant(recordingGrant, of: "none", peers: [MediaEdge.camera]), .illegalRelation),
        Ask(
            "a grant to publish, not to play", MediaEdge.app(of: "none"), source: recording,
            shows: .grant("cam.\(recording)p", of: "none", peers: [MediaEdge.camera]), .illegalRelation),
        Ask(
            "a grant for the recording of before the right was lost", MediaEdge.app(of: "former"), source: recording,
            shows: .grant(recordingGrant, of: "former", peers: [MediaEdge.camera]), .illegalRelation),
        Ask(
            "a grant for the recording, and a token for another device", MediaEdge.app(of: "none", only: [other]),
            source: recording, shows: .grant(recordingGrant, of: "none", peers: [MediaEdge.camera]), .notAllowed),
    ]

    @Test(
        "A device's channel is played by whoever may watch it, and a recording by whoever may control it",
        arguments: plays)
    fileprivate func play(_ ask: Ask) async throws {
        try await MediaEdge.with { edge in
            let client = try await edge.connect(ask.session)
            let request = try ClientPlayRequest.with {
                ($0.device, $0.source) = (ask.device, ask.source)
                $0.grant = try ask.shown.bytes(edge, ask.session)
            }
            let call = client.play(request)
            if let error = ask.error {
                #expect(await code { _ = try await client.answer(call, as: ClientPlayResponse.self) } == error)
                #expect(await edge.openChannels().isEmpty)
                return
            }
            let answer = try await client.answer(call, as: ClientPlayResponse.self)
            #expect(await edge.openChannels() == ["cam/\(ask.source)"])
            let (grant, now) = (Array(answer.grant), MediaEdge.now)
            if ask.source < UInt32(ClientPlayRequest.playbackSourceMin) {
                #expect(edge.sealer.allows(grant, ask.session, device: MediaEdge.camera, wallSeconds: now))
            } else {
                let name = DeviceID(unchecked: "cam.\(ask.source)w")
                let peers = edge.sealer.peers(of: grant, ask.session, device: name, wallSeconds: now)
                #expect(peers == [MediaEdge.camera])
                #expect(!edge.sealer.allows(grant, ask.session, device: MediaEdge.camera, wallSeconds: now))
            }
        }
    }

    // MARK: - Calls

    private static let caller = "call.\(TestCalls.id).0"
    private static let winner = "call.\(TestCalls.id).1"

    private static let callPlays: [Ask] = [
        Ask("the caller", MediaEdge.app(of: "a", access: "caller"), device: "", nil),
        Ask("who has accepted", MediaEdge.app(of: "b", access: "callee"), device: "", nil),
        Ask("another client", MediaEdge.app(of: "owner"), device: "", .illegalRelation),
        Ask("a device and a call at once", MediaEdge.app(of: "a", access: "caller"), device: "cam", .badParameter),
        Ask("a source", MediaEdge.app(of: "a", access: "caller"), device: "", source: 1, .badParameter),
        Ask("a grant", MediaEdge.app(of: "none"), device: "", shows: .grant(caller + "w", of: "none", peers: []), nil),
        Ask(
            "a grant for a call with a device", MediaEdge.app(of: "none"), device: "",
            shows: .grant(winner + "w", of: "none", peers: [MediaEdge.camera]), nil),
        Ask(
            "a grant to publish", MediaEdge.app(of: "none"), device: "",
            shows: .grant(caller + "p", of: "none", peers: []),
            .illegalRelation),
        Ask(
            "a grant of another account", MediaEdge.app(of: "none"), device: "",
            shows: .grant(caller + "w", of: "owner", peers: []), .illegalRelation),
        Ask(
            "a grant that has expired", MediaEdge.app(of: "none"), device: "",
            shows: .grant(caller + "w", of: "none", peers: [], seconds: -1), .illegalRelation),
        Ask(
            "a grant of another call", MediaEdge.app(of: "none"), device: "",
            shows: .grant("call.0ac-0123456789abcdef0123456789abcdef.0w", of: "none", peers: []), .illegalRelation),
        Ask(
            "a grant for a device's picture", MediaEdge.app(of: "none"), device: "", shows: .grant("cam", of: "none"),
            .illegalRelation),
        Ask(
            "a grant of before the right to the other side was lost", MediaEdge.app(of: "former"), device: "",
            shows: .grant(caller + "w", of: "former", peers: [MediaEdge.camera]), .illegalRelation),
        Ask(
            "a grant that needs no right to a device", MediaEdge.app(of: "former"), device: "",
            shows: .grant(caller + "w", of: "former", peers: []), nil),
    ]

    @Test(
        "A side of a call is played by the other side alone, or with a grant until the call answers",
        arguments: callPlays)
    fileprivate func playInCall(_ ask: Ask) async throws {
        try await MediaEdge.with { edge in
            let client = try await edge.connect(ask.session)
            let request = try ClientPlayRequest.with {
                ($0.call, $0.device, $0.source) = (TestCalls.id, ask.device, ask.source)
                $0.grant = try ask.shown.bytes(edge, ask.session)
            }
            let call = client.play(request)
            if let error = ask.error {
                #expect(await code { _ = try await client.answer(call, as: ClientPlayResponse.self) } == error)
                #expect(edge.calls.resumedCount == 0)
                #expect(await edge.openChannels().isEmpty)
                return
            }
            let answer = try await client.answer(call, as: ClientPlayResponse.self)
            let opened = await edge.openChannels()
            switch ask.shown {
            case .grant(let name, _, _, _):
                #expect(opened == ["\(name.dropLast(3))/\(name.dropLast().suffix(1))"])
                #expect(edge.calls.resumedCount == 1)
                // The call has not answered yet, so the client keeps the grant that it has.
                #expect(answer.grant == request.grant)
            case .nothing, .rubbish:
                let side = ask.session.access.rawValue == "caller" ? 1 : 0
                #expect(opened == ["call.\(TestCalls.id)/\(side)"])
                let name = DeviceID(unchecked: "call.\(TestCalls.id).\(side)w")
                let peers = edge.sealer.peers(
                    of: Array(answer.grant), ask.session, device: name, wallSeconds: MediaEdge.now)
                #expect(peers == (side == 1 ? [MediaEdge.camera] : []))
            }
        }
    }

    @Test("A node without calls has none to play or to publish in")
    func withoutCalls() async throws {
        try await MediaEdge.with(hasCalls: false) { edge in
            edge.confirm()
            let client = try await edge.connect(MediaEdge.app(of: "a", access: "caller"))
            let play = client.play(.with { $0.call = TestCalls.id })
            #expect(await code { _ = try await client.answer(play, as: ClientPlayResponse.self) } == .notAllowed)
            let publish = client.publish(
                .with { ($0.call, $0.source) = (TestCalls.id, ClientPublishRequest.sourceOfCalls) })
            #expect(await code { _ = try await client.answer(publish, as: ClientPublishResponse.self) } == .notAllowed)
        }
    }

    @Test("The end of a call ends the streams of its clients with its reason")
    func callEnds() async throws {
        try await MediaEdge.with { edge in
            edge.confirm()
            let client = try await edge.connect(MediaEdge.app(of: "a", access: "caller"))
            let publish = client.publish(
                .with { ($0.call, $0.source) = (TestCalls.id, ClientPublishRequest.sourceOfCalls) })
            let published = try await client.answer(publish, as: ClientPublishResponse.self)
            let play = client.play(.with { $0.call = TestCalls.id })
            let played = try await client.answer(play, as: ClientPlayResponse.self)
            edge.calls.end(ApusError(.illegalRelation))
            try await eventually("both streams end") {
                [published.stream, played.stream].allSatisfy { client.end(of: $0) == .illegalRelation }
            }
        }
    }
}
