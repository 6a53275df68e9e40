package import ApusCore
package import NIOCore

/// Asks a camera for its stream: DESCRIBE, a SETUP for each track over TCP, and PLAY (RFC 2326), and keeps its session.
///
/// OPTIONS comes later, as a keepalive: cameras answer the other requests without it. A request that is refused with
/// 401 is repeated with an answer to the challenge, and once more if the camera then has another nonce: cameras issue
/// one for each request. Pure value: no I/O, no clock.
package struct RTSPClientStateMachine: Sendable {
    /// What the connection does.
    package enum Action {
        case send(String)
        /// The description was read.
        case choose([CameraTrack], omissions: [String])
        /// The camera sends from now on.
        case playing
        /// A packet of a track, or a packet of its reports.
        case packet(track: Int, ByteBuffer)
        case report(track: Int, ByteBuffer)
    }

    /// Why a connection ends.
    package enum Failure: Error {
        /// The camera requires a name and a password, or refuses those it was given.
        case unauthorized(ApusError)
        /// The camera names another address.
        case redirected(String)
        case failed(ApusError)
    }

    private enum State {
        case describing
        case settingUp([CameraTrack], next: Int)
        case starting([CameraTrack])
        case playing([CameraTrack])
    }

    private struct Request {
        var sequence: Int
        var method: String
        var uri: String
        var fields: String
        /// The nonces with which it was refused. It is repeated for at most two.
        var challenges = 0
    }

    private let address: CameraAddress
    private var credentials: CameraCredentials?
    private var state = State.describing
    private var sequence = 0
    private var request: Request?
    private var base: String
    private var presentation = ""
    private var session = ""
    /// The interleaved channels of each track.
    private var channels: [UInt8: (track: Int, isReport: Bool)] = [:]
    /// How long the camera keeps the session without a request.
    package private(set) var timeout = Duration.seconds(60)
    /// The camera has the method GET_PARAMETER. Some count no other request as a keepalive.
    private var hasParameters = false

    /// - Parameter clientNonce: random hexadecimal digits.
    package init(_ address: CameraAddress, clientNonce: String) {
        self.address = address
        base = address.url
        credentials = address.user.map { user in
            CameraCredentials(user: user, password: address.password ?? "", clientNonce: clientNonce)
        }
    }

    /// Keepalives are sent while it is true.
    package var isPlaying: Bool {
        if case .playing = state { return true }
        return false
    }

    /// The connection is open.
    package mutating func connected() -> Action {
        .send(make("DESCRIBE", address.url, "Accept: application/sdp\r\n"))
    }

    /// A request that shows the camera that this side is alive, and this side that the camera is.
    package mutating func keepalive() -> Action? {
        guard isPlaying else { return nil }
        return .send(make(hasParameters ? "GET_PARAMETER" : "OPTIONS", presentation, sessionField))
    }

    /// Ends the stream.
    package mutating func teardown() -> Action? {
        session.isEmpty ? nil : .send(make("TEARDOWN", presentation, sessionField))
    }

    package mutating func received(_ message: RTSPMessage) throws(Failure) -> [Action] {
        switch message {
        case .packet(let channel, let bytes):
            guard let (track, isReport) = channels[channel] else { return [] }
            return [isReport ? .report(track: track, bytes) : .packet(track: track, bytes)]
        case .request(_, let sequence):
            let number = sequence.utf8.count <= 32 ? sequence : ""
            return [.send("RTSP/1.0 501 Not Implemented\r\nCSeq: \(number)\r\n\r\n")]
        case .response(let response): return try answered(response)
        }
    }

    // MARK: - Requests

    private var sessionField: String { session.isEmpty ? "" : "Session: \(session)\r\n" }

    private mutating func make(_ method: String, _ uri: String, _ fields: String) -> String {
        sequence += 1
        request = Request(sequence: sequence, method: method, uri: uri, fields: fields)
        return text(method, uri, fields)
    }

    private mutating func text(_ method: String, _ uri: String, _ fields: String) -> String {
        let answer = credentials?.authorization(method: method, uri: uri)
        return "\(method) \(uri) RTSP/1.0\r\nCSeq: \(sequence)\r\nUser-Agent: Apus\r\n\(fields)"
            + (answer.map { "Authorization: \($0)\r\n" } ?? "") + "\r\n"
    }

    // MARK: - Responses

    private mutating func answered(_ response: RTSPMessage.Response) throws(Failure) -> [Action] {
        // The answer to an earlier request, such as a keepalive that was late.
        guard let asked = request, response.field("cseq").map({ $0 == String(asked.sequence) }) ?? true else {
            return []
        }
        if response.status == 401, let again = try challenged(asked, response) { return [again] }
        request = nil
        let isKeepalive = isPlaying
        guard (200..<300).contains(response.status) else {
            // A camera that does not know the keepalive is alive.
            if isKeepalive, response.status != 454 { return [] }
            if (300..<400).contains(response.status), let location = response.field("location") {
                throw .redirected(location)
            }
            throw .failed(Self.refusal(response.status, asked.method, address.shown))
        }
        switch state {
        case .describing: return try described(response)
        case .settingUp(let tracks, let next): return setUp(tracks, next, response)
        case .starting(let tracks):
            state = .playing(tracks)
            return [.playing]
        case .playing:
            if let methods = response.field("public") { hasParameters = methods.uppercased().contains("GET_PARAMETER") }
            return []
        }
    }

    /// The request again, with an answer to the camera's challenge; nil where it is a keepalive that the camera
    /// refuses.
    private mutating func challenged(_ asked: Request, _ response: RTSPMessage.Response) throws(Failure) -> Action? {
        let shown = address.shown
        guard credentials != nil else {
            throw .unauthorized(
                ApusError(.mediaUnreadable, "the camera at \(shown) requires a name and a password; add them"))
        }
        let challenges = response.fields("www-authenticate").flatMap(CameraCredentials.challenges)
        let before = credentials?.nonce
        guard credentials?.take(challenges) == true else {
            throw .unauthorized(
                ApusError(
                    .mediaUnreadable,
                    "the camera at \(shown) asks for the password in an unknown way; choose Digest or Basic"
                ))
        }
        let isStale = challenges.contains { $0.parameters["stale"]?.lowercased() == "true" }
        // The first refusal has no answer yet, or one to a nonce of an earlier request.
        let isFirst = asked.challenges == 0
        let isFresh = isFirst || isStale && asked.challenges == 1 && credentials?.nonce != before
        guard isFresh else {
            if isPlaying { return nil }
            throw .unauthorized(
                ApusError(
                    .mediaUnreadable,
                    "the camera at \(shown) refuses this name and password; correct them if it is not starting"))
        }
        sequence += 1
        request = asked
        request?.sequence = sequence
        request?.challenges += 1
        return .send(text(asked.method, asked.uri, asked.fields))
    }

    private mutating func described(_ response: RTSPMessage.Response) throws(Failure) -> [Action] {
        for name in ["content-base", "content-location"] {
            if let value = response.field(name), !value.isEmpty {
                base = Self.resolve(value, base)
                break
            }
        }
        let description = SessionDescription(response.body)
        presentation =
            description.control.isEmpty || description.control == "*"
            ? base : Self.resolve(description.control, base)
        do throws(ApusError) {
            let (tracks, omissions) = try CameraTrack.choose(
                from: description, name: "the camera at \(address.shown)")
            state = .settingUp(tracks, next: 0)
            return [.choose(tracks, omissions: omissions), setUp(tracks[0], 0)]
        } catch {
            throw .failed(error)
        }
    }

    private mutating func setUp(_ track: CameraTrack, _ index: Int) -> Action {
        let control = track.media.control
        let uri = control.isEmpty || control == "*" ? presentation : Self.resolve(control, base)
        let transport = "Transport: RTP/AVP/TCP;unicast;interleaved=\(index * 2)-\(index * 2 + 1)\r\n"
        return .send(make("SETUP", uri, transport + sessionField))
    }

    private mutating func setUp(_ tracks: [CameraTrack], _ index: Int, _ response: RTSPMessage.Response) -> [Action] {
        let fields = (response.field("session") ?? "").split(separator: ";")
        if let id = fields.first, id.utf8.count <= 256 { session = id.trimmed }
        for field in fields.dropFirst() {
            let parts = field.split(separator: "=")
            guard parts.count == 2, parts[0].trimmed.lowercased() == "timeout", let seconds = Int(parts[1].trimmed)
            else { continue }
            timeout = .seconds(min(max(seconds, 5), 3600))
        }
        let (media, reports) = Self.interleaved(response.field("transport"), index)
        channels[media] = (index, false)
        channels[reports] = (index, true)
        guard index + 1 < tracks.count else {
            state = .starting(tracks)
            return [.send(make("PLAY", presentation, sessionField + "Range: npt=0.000-\r\n"))]
        }
        state = .settingUp(tracks, next: index + 1)
        return [setUp(tracks[index + 1], index + 1)]
    }

    /// The channels of `interleaved=2-3`; those that were asked for if the camera does not say.
    private static func interleaved(_ transport: String?, _ index: Int) -> (UInt8, UInt8) {
        let asked = (UInt8(truncatingIfNeeded: index * 2), UInt8(truncatingIfNeeded: index * 2 + 1))
        guard let field = transport?.split(separator: ";").first(where: { $0.trimmed.hasPrefix("interleaved=") }) else {
            return asked
        }
        let numbers = field.trimmed.dropFirst("interleaved=".utf8.count).split(separator: "-")
        guard let first = numbers.first.flatMap({ UInt8($0) }) else { return asked }
        return (first, numbers.count > 1 ? UInt8(numbers[1]) ?? first &+ 1 : first &+ 1)
    }

    /// An absolute address, or one below another (RFC 2326 §C.1.1).
    private static func resolve(_ reference: String, _ base: String) -> String {
        let lower = reference.lowercased()
        if lower.hasPrefix("rtsp://") || lower.hasPrefix("rtsps://") { return reference }
        if reference.hasPrefix("/"), let address = CameraAddress(base) { return address.shown + reference }
        return base.hasSuffix("/") ? base + reference : "\(base)/\(reference)"
    }

    private static func refusal(_ status: Int, _ method: String, _ shown: String) -> ApusError {
        let advice =
            switch status {
            case 404: "; it does not have this path"
            case 403: "; it does not allow this user"
            case 453, 503: "; it has too many viewers"
            case 461: "; allow RTP over TCP (interleaved) at the camera"
            default: ""
            }
        return ApusError(.mediaUnreadable, "the camera at \(shown) refuses \(method) with \(status)\(advice)")
    }
}

extension Substring {
    fileprivate var trimmed: String {
        let start = drop { $0 == " " || $0 == "\t" }
        return String(start.reversed().drop { $0 == " " || $0 == "\t" }.reversed())
    }
}
