import ApusCore
import ApusDevice
import ApusMedia
import NIOCore
import Testing

@Suite("The dialogue with a camera (RFC 2326)")
struct RTSPClientTests {
    private static let description = """
        v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=cam\r\nt=0 0\r\na=control:*\r\nm=video 0 RTP/AVP 96\r\n\
        a=rtpmap:96 H264/90000\r\na=control:trackID=0\r\nm=audio 0 RTP/AVP 8\r\na=control:trackID=1\r\n\
        m=application 0 RTP/AVP 107\r\na=rtpmap:107 vnd.onvif.metadata/90000\r\n
        """
    private static let digest = "Digest realm=\"cam\", nonce="

    private func machine(_ url: String = "rtsp://admin:secret@cam/x") throws -> RTSPClientStateMachine {
        RTSPClientStateMachine(try #require(CameraAddress(url)), clientNonce: "c")
    }

    /// The request that the machine sends after a response to the one before.
    private func answer(
        _ machine: inout RTSPClientStateMachine, _ request: String, _ status: Int = 200,
        _ fields: [(String, String)] = [], body: String = ""
    ) throws -> String {
        let sequence = try #require(request.split(separator: "\r\n").first { $0.hasPrefix("CSeq: ") }?.dropFirst(6))
        var all: [(name: String, value: String)] = [("cseq", String(sequence))]
        for (name, value) in fields { all.append((name, value)) }
        let response = RTSPMessage.Response(status: status, fields: all, body: body)
        return text(try machine.received(.response(response)))
    }

    private func text(_ actions: [RTSPClientStateMachine.Action?]) -> String {
        for case .send(let text)? in actions { return text }
        return ""
    }

    /// Runs the machine up to PLAY.
    private func play(_ machine: inout RTSPClientStateMachine) throws -> String {
        var request = text([machine.connected()])
        #expect(request.hasPrefix("DESCRIBE rtsp://cam:554/x RTSP/1.0\r\n") && !request.contains("secret"))
        request = try answer(&machine, request, 401, [("www-authenticate", Self.digest + "\"a\"")])
        #expect(request.hasPrefix("DESCRIBE ") && request.contains("nonce=\"a\""))
        request = try answer(
            &machine, request, 200, [("content-base", "rtsp://cam:554/x/")], body: Self.description)
        #expect(request.hasPrefix("SETUP rtsp://cam:554/x/trackID=0 ") && request.contains("interleaved=0-1"))
        // Another nonce for this request, as many cameras issue one, without saying that the old one is stale.
        request = try answer(&machine, request, 401, [("www-authenticate", Self.digest + "\"b\", stale=\"FALSE\"")])
        #expect(request.hasPrefix("SETUP ") && request.contains("nonce=\"b\""))
        request = try answer(
            &machine, request, 200,
            [("session", "12; timeout=30"), ("transport", "RTP/AVP/TCP;unicast;interleaved=4-5")])
        #expect(request.hasPrefix("SETUP rtsp://cam:554/x/trackID=1 ") && request.contains("Session: 12\r\n"))
        return try answer(&machine, request, 200, [("session", "12")])
    }

    @Test(
        "DESCRIBE, a SETUP for each track and PLAY, with a fresh nonce in between; channels are the camera's"
    )
    func dialogue() throws {
        var machine = try machine()
        let request = try play(&machine)
        #expect(request.hasPrefix("PLAY rtsp://cam:554/x/ ") && request.contains("Session: 12\r\n"))
        let playing = try answer(&machine, request)
        #expect(playing.isEmpty && machine.isPlaying && machine.timeout == .seconds(30))
        for (channel, track, isReport) in [(4, 0, false), (5, 0, true), (2, 1, false), (3, 1, true)]
            as [(UInt8, Int, Bool)]
        {
            let actions = try machine.received(.packet(channel: channel, ByteBuffer(bytes: [1])))
            switch actions.first {
            case .packet(let found, _): #expect(found == track && !isReport)
            case .report(let found, _): #expect(found == track && isReport)
            default: Issue.record("channel \(channel) is lost")
            }
        }
        let unknown = try machine.received(.packet(channel: 9, ByteBuffer()))
        #expect(unknown.isEmpty)
        // The keepalive that the camera has, also where it refuses one of them.
        let first = text([machine.keepalive()])
        #expect(first.hasPrefix("OPTIONS "))
        _ = try answer(&machine, first, 200, [("public", "OPTIONS, GET_PARAMETER")])
        let second = text([machine.keepalive()])
        #expect(second.hasPrefix("GET_PARAMETER "))
        let ignored = try answer(&machine, second, 405)
        #expect(ignored.isEmpty && machine.isPlaying)
        let third = text([machine.keepalive()])
        #expect(throws: RTSPClientStateMachine.Failure.self) { _ = try answer(&machine, third, 454) }
        let last = text([machine.teardown()])
        #expect(last.hasPrefix("TEARDOWN "))
    }

    private func failure(_ body: () throws -> Void) -> RTSPClientStateMachine.Failure? {
        do { try body() } catch { return error as? RTSPClientStateMachine.Failure }
        return nil
    }

    @Test("A password that is refused is tried once; a stale nonce is none of that")
    func refused() throws {
        var machine = try machine()
        let first = text([machine.connected()])
        let second = try answer(&machine, first, 401, [("www-authenticate", Self.digest + "\"a\"")])
        var stale = machine
        let third = try answer(&stale, second, 401, [("www-authenticate", Self.digest + "\"b\", stale=true")])
        #expect(third.contains("nonce=\"b\""))
        guard
            case .unauthorized = failure({
                _ = try answer(&stale, third, 401, [("www-authenticate", Self.digest + "\"c\", stale=true")])
            })
        else { return #expect(Bool(false), "a nonce is stale once") }
        guard
            case .unauthorized(let error) = failure({
                _ = try answer(&machine, second, 401, [("www-authenticate", Self.digest + "\"b\"")])
            })
        else { return #expect(Bool(false), "it is refused") }
        #expect(error.code == .mediaUnreadable && !error.message.contains("secret"))
        var open = try self.machine("rtsp://cam/x")
        let request = text([open.connected()])
        guard
            case .unauthorized(let needed) = failure({
                _ = try answer(&open, request, 401, [("www-authenticate", Self.digest + "\"b\"")])
            })
        else { return #expect(Bool(false), "it needs a password") }
        #expect(needed.message.contains("requires a name and a password"))
    }

    @Test("A refusal names the request, the number, and what to do at the camera", arguments: [404, 453, 461, 500])
    func refusals(status: Int) throws {
        var machine = try machine()
        let request = text([machine.connected()])
        guard case .failed(let error) = failure({ _ = try answer(&machine, request, status) }) else {
            return #expect(Bool(false), "\(status) ends the connection")
        }
        #expect(error.message.contains("DESCRIBE") && error.message.contains("\(status)"))
        #expect(!error.message.contains("secret") && (status != 461 || error.message.contains("TCP")))
    }

    @Test("A camera without H.264 or H.265 is refused with the encodings that it has")
    func codecs() throws {
        let other = "m=video 0 RTP/AVP 26\r\na=control:t\r\nm=audio 0 RTP/AVP 97\r\na=rtpmap:97 G726-32/8000\r\n"
        var machine = try machine()
        let request = text([machine.connected()])
        guard case .failed(let error) = failure({ _ = try answer(&machine, request, body: other) })
        else { return #expect(Bool(false), "it is refused") }
        #expect(error.code == .mediaUnreadable && error.message.contains("JPEG"))
    }

    @Test("A redirection is passed on, and a request of the camera is answered")
    func others() throws {
        var machine = try machine()
        let request = text([machine.connected()])
        let answered = text(try machine.received(.request(method: "OPTIONS", sequence: "7")))
        #expect(answered == "RTSP/1.0 501 Not Implemented\r\nCSeq: 7\r\n\r\n")
        guard
            case .redirected("rtsp://cam:555/y") = failure({
                _ = try answer(&machine, request, 302, [("location", "rtsp://cam:555/y")])
            })
        else { return #expect(Bool(false), "it is redirected") }
    }
}

@Suite("The messages of a camera")
struct RTSPMessageDecoderTests {
    private static let stream: [UInt8] =
        Array("\r\nRTSP/1.0 200 OK\r\nCSeq: 1\r\nContent-Length: 3 \r\nX:  a b \r\n\r\nabc".utf8)
        + [0x24, 1, 0, 2, 9, 8] + Array("OPTIONS * RTSP/1.0\nCSeq: 5\n\n".utf8) + [0x24, 0, 0, 0]
        + Array("RTSP/1.0 404 Not Found\r\nCSeq: 2\r\n\r\n".utf8)

    private func describe(_ messages: [RTSPMessage]) -> [String] {
        messages.map { message in
            switch message {
            case .response(let response):
                "\(response.status) \(response.field("cseq") ?? "") \(response.field("x") ?? "") \(response.body)"
            case .request(let method, let sequence): "\(method) \(sequence)"
            case .packet(let channel, let bytes): "\(channel): \(Array(bytes.readableBytesView))"
            }
        }
    }
    private static let expected = ["200 1 a b abc", "1: [9, 8]", "OPTIONS 5", "0: []", "404 2  "]

    @Test("They are the same whole, byte by byte, and cut anywhere", arguments: [1, 2, 3, 7, 50, 1000])
    func cuts(size: Int) throws {
        var (decoder, messages) = (RTSPMessageDecoder(), [RTSPMessage]())
        for start in stride(from: 0, to: Self.stream.count, by: size) {
            decoder.append(ByteBuffer(bytes: Self.stream[start..<min(start + size, Self.stream.count)]))
            while let message = try decoder.next() { messages.append(message) }
        }
        #expect(describe(messages) == Self.expected)
    }

    @Test(
        "What is not RTSP, or too long, is refused",
        arguments: [
            Array("HTTP/1.0 200 OK\r\n\r\n".utf8), [0x80], Array("RTSP/1.0 xx\r\n\r\n".utf8),
            Array("RTSP/1.0 200 OK\r\nContent-Length: 99999999\r\n\r\n".utf8),
            Array("RTSP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n".utf8),
            Array(("RTSP/1.0 200 OK\r\nX: " + String(repeating: "a", count: 20_000)).utf8),
        ] as [[UInt8]])
    func refused(bytes: [UInt8]) {
        var decoder = RTSPMessageDecoder()
        decoder.append(ByteBuffer(bytes: bytes))
        let error = #expect(throws: ApusError.self) { while try decoder.next() != nil {} }
        #expect(error?.code == .malformed)
    }

    @Test("Random bytes are refused or read, never a crash", arguments: 0..<UInt64(50))
    func garbage(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var decoder = RTSPMessageDecoder()
        var bytes = Self.stream
        for _ in 0..<20 {
            bytes[Int.random(in: 0..<bytes.count, using: &random)] = UInt8.random(in: 0...(.max), using: &random)
            decoder.append(ByteBuffer(bytes: bytes))
            do { while try decoder.next() != nil {} } catch { decoder = RTSPMessageDecoder() }
        }
    }
}
