import ApusCore
import ApusHTTPClient
import ApusTestKit
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("Requests to other servers", .timeLimit(.minutes(1)))
struct HTTPClientTests {
    private func makeClient(_ change: (inout HTTPClient.Settings) -> Void = { _ in }) throws -> HTTPClient {
        var settings = HTTPClient.Settings()
        change(&settings)
        return try HTTPClient(settings)
    }

    private func request(
        _ url: String, _ method: String = "GET", body: String = "", timeout: Duration = .seconds(20)
    ) -> HTTPClient.Request {
        var request = HTTPClient.Request(method, url)
        request.body = Array(body.utf8)
        request.timeout = timeout
        return request
    }

    private func text(_ bytes: [UInt8]) -> String { String(decoding: bytes, as: UTF8.self) }

    @Test("A request arrives as it is, and its answer has a status, headers and a body")
    func simple() async throws {
        let first = "HTTP/1.1 100 Continue\r\n\r\n"
        let server = try await ScriptedServer.start { _, _ in
            .bytes(first + httpAnswer("hello", status: "201 Created", headers: "X-Two:  b c \r\n"))
        }
        var post = request(server.url + "a/../b?x=1", "POST", body: "body")
        post.headers = [.init("X-One", "1"), .init("X-Empty", "")]
        let client = try makeClient()
        let answer = try await client.send(post)
        #expect(answer.head.status == 201 && text(answer.body) == "hello" && answer.trailers.isEmpty)
        #expect(answer.head.headers["x-two"] == "b c" && answer.head.headers["x-three"] == nil)
        let sent = try #require(server.requests.first)
        #expect(sent.hasPrefix("POST /a/../b?x=1 HTTP/1.1\r\nHost: 127.0.0.1:\(server.port)\r\n"))
        #expect(sent.contains("\r\nX-One: 1\r\n") && sent.contains("\r\nX-Empty:") && sent.hasSuffix("\r\n\r\nbody"))
        #expect(sent.contains("\r\nContent-Length: 4\r\n") && !sent.contains("Expect"))
        #expect(!sent.lowercased().contains("content-type"))
        try await server.stop()
    }

    @Test("Methods and bodies of any size are sent over one connection", arguments: ["GET", "POST", "PUT", "DELETE"])
    func methods(method: String) async throws {
        let server = try await ScriptedServer.start { request, _ in .bytes(httpAnswer("\(request.utf8.count)")) }
        let client = try makeClient()
        for size in [0, 1, 100_000, 3_000_000] {
            let answer = try await client.send(
                request(server.url, method, body: String(repeating: "x", count: size)))
            #expect(answer.head.status == 200 && Int(text(answer.body)) ?? 0 > size)
        }
        #expect(server.requests.allSatisfy { $0.hasPrefix("\(method) /") } && server.connectionCount == 1)
        try await server.stop()
    }

    @Test("If connections are not kept, each request has one of its own, which is closed after the answer")
    func ownConnections() async throws {
        let server = try await ScriptedServer.start { _, _ in .bytes(httpAnswer("a")) }
        let client = try makeClient { $0.keepsConnections = false }
        for _ in 0..<3 {
            #expect(try await text(client.send(request(server.url, "POST", body: "b")).body) == "a")
            try await eventually("the connection is closed") { server.openCount == 0 }
        }
        #expect(server.requests.count == 3 && server.connectionCount == 3)
        try await server.stop()
    }

    @Test("Redirects are not followed, and an answer without a body has none")
    func redirect() async throws {
        let server = try await ScriptedServer.start { request, _ in
            request.hasPrefix("HEAD")
                ? .bytes("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
                : .bytes(httpAnswer("", status: "302 Found", headers: "Location: /next\r\n"))
        }
        let client = try makeClient()
        #expect(try await client.send(request(server.url)).head.status == 302)
        let head = try await client.send(request(server.url, "HEAD"))
        #expect(head.head.status == 200 && head.body.isEmpty)
        #expect(server.requests.count == 2)
        try await server.stop()
    }

    @Test("The bounds of the body and of the head are kept")
    func tooLong() async throws {
        let server = try await ScriptedServer.start { request, _ in
            request.contains("/head")
                ? .bytes(httpAnswer("", headers: String(repeating: "X-A: 123456789\r\n", count: 100)))
                : .bytes(httpAnswer(String(repeating: "x", count: 100_000)))
        }
        let client = try makeClient { $0.headByteCountMax = 1_500 }
        var get = request(server.url)
        get.answerByteCountMax = 100_000
        #expect(try await client.send(get).body.count == 100_000)
        get.answerByteCountMax = 99_999
        let long = get
        #expect(await code { _ = try await client.send(long) } == .frameTooLarge)
        #expect(await code { _ = try await client.send(request(server.url + "head")) } == .frameTooLarge)
        try await server.stop()
    }

    // MARK: Failures

    @Test("A server that closes the connection before the end of its answer, or answers nonsense, is noticed")
    func broken() async throws {
        let replies = ["", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"]
        let server = try await ScriptedServer.start { request, number in
            number <= replies.count ? .last(replies[number - 1]) : .bytes("220 mail.example ESMTP\r\n")
        }
        let client = try makeClient()
        for _ in replies {
            #expect(await code { _ = try await client.send(request(server.url)) } == .linkLost)
        }
        #expect(await code { _ = try await client.send(request(server.url)) } == .malformed)
        try await server.stop()
    }

    @Test("A request whose connection of the pool is closed before its answer is not sent again")
    func once() async throws {
        let server = try await ScriptedServer.start { _, number in
            number % 2 == 1 ? .bytes(httpAnswer("")) : .last("")
        }
        let client = try makeClient()
        for _ in 0..<10 {
            _ = try await client.send(request(server.url, "POST", body: "a"))
            #expect(await code { _ = try await client.send(request(server.url, "POST", body: "a")) } == .linkLost)
        }
        #expect(server.requests.count == 20)
        try await server.stop()
    }

    @Test("A host that leads to an address that is not allowed is not connected to, whatever its name")
    func guarded() async throws {
        let server = try await ScriptedServer.start { _, _ in .bytes(httpAnswer("")) }
        let asked = Mutex<[[UInt8]]>([])
        let client = try makeClient { settings in
            settings.mayConnect = { address in
                asked.withLock { $0.append(address) }
                return address != [127, 0, 0, 1] && address.count == 4
            }
        }
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]"] {
            let url = "http://\(host):\(server.port)/"
            #expect(await code { _ = try await client.send(request(url)) } == .notAllowed, "\(host)")
        }
        #expect(server.requests.isEmpty)
        #expect(asked.withLock { $0.contains([127, 0, 0, 1]) })
        // Another address of this machine is allowed; the server does not listen there.
        let code = await code { _ = try await client.send(request("http://127.0.0.2:\(server.port)/")) }
        #expect(code == .connectFailed)
        try await server.stop()
    }

    @Test("A connection that does not come about ends before the request's time does")
    func connectTime() async throws {
        let silent = try await ScriptedServer.start { _, _ in .nothing }
        let client = try makeClient { _ in }
        var slow = request("https://127.0.0.1:\(silent.port)/")
        (slow.timeout, slow.connectTimeout) = (.seconds(20), .milliseconds(200))
        let (probe, begin) = (slow, MonotonicTime.now())
        #expect(await code { _ = try await client.send(probe) } == .connectFailed)
        #expect(MonotonicTime.now() - begin < .seconds(5))
        try await silent.stop()
    }

    @Test("Without a server, or without TLS where it is wanted, there is no connection")
    func unreachable() async throws {
        let client = try makeClient { $0.connectTimeout = .milliseconds(200) }
        let port = try FreePort.next()
        let refused = await #expect(throws: ApusError(.connectFailed)) {
            _ = try await client.send(request("http://127.0.0.1:\(port)/"))
        }
        #expect(refused?.message == "connection refused")
        #expect(await code { _ = try await client.send(request("http://name.invalid/")) } == .connectFailed)
        let silent = try await ScriptedServer.start { _, _ in .nothing }
        let begin = MonotonicTime.now()
        let url = "https://127.0.0.1:\(silent.port)/"
        #expect(await code { _ = try await client.send(request(url)) } == .connectFailed)
        #expect(MonotonicTime.now() - begin < .seconds(5))
        try await silent.stop()
    }

    @Test("A server without TLS gives a reason in words, without the numbers of the library")
    func plainServer() async throws {
        let server = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(PlainAnswer())
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        let (client, port) = (try makeClient(), try #require(server.localAddress?.port))
        var message = ""
        do throws(ApusError) {
            _ = try await client.send(request("https://127.0.0.1:\(port)/"))
        } catch {
            message = error.message
        }
        #expect(!message.isEmpty && !message.contains("error:") && !message.contains("OpenSSL/"), "\(message)")
        try await server.close()
    }

    @Test(
        "Of OpenSSL's errors the words stay",
        arguments: [
            ("OpenSSL/3.0.19: error:0A00010B:SSL routines::wrong version number", "wrong version number"),
            (
                "TLS connect error: error:0A000126:SSL routines::unexpected eof while reading",
                "TLS connect error: unexpected eof while reading"
            ),
            ("error:80000002:system library::No such file or directory", "No such file or directory"),
            ("error:0A00010B:no group", "no group"),
            ("SSL certificate problem: self-signed certificate", "SSL certificate problem: self-signed certificate"),
            (
                "Failed to connect to 10.0.0.5 port 443: Connection refused",
                "Failed to connect to 10.0.0.5 port 443: Connection refused"
            ),
            ("error: no number", "error: no number"), ("", ""),
        ])
    func reasons(sentence: String, words: String) {
        #expect(TransferReason.words(of: sentence) == words)
    }

    @Test("A request that stalls fails with 10005 after its time, before and within the answer")
    func timeout() async throws {
        let server = try await ScriptedServer.start { request, _ in
            request.contains("/half") ? .bytes("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf") : .nothing
        }
        let client = try makeClient()
        for path in ["", "half"] {
            // Not a whole number of milliseconds, which libcurl counts.
            for timeout in [Duration.milliseconds(200), .microseconds(100_900)] {
                let begin = MonotonicTime.now()
                let stalled = request(server.url + path, timeout: timeout)
                #expect(await code { _ = try await client.send(stalled) } == .deadlineExceeded)
                #expect((timeout...(.seconds(5))).contains(MonotonicTime.now() - begin))
            }
        }
        try await eventually("the connections are closed") { server.openCount == 0 }
        try await server.stop()
    }

    @Test("Requests that wait for a connection fail after their time too")
    func waiting() async throws {
        let server = try await ScriptedServer.start { _, _ in .nothing }
        let client = try makeClient { $0.connectionsPerHostMax = 1 }
        let begin = MonotonicTime.now()
        await withTaskGroup(of: ErrorCode?.self) { group in
            for _ in 0..<5 {
                group.addTask {
                    await code { _ = try await client.send(request(server.url, timeout: .milliseconds(300))) }
                }
            }
            for await code in group { #expect(code == .deadlineExceeded) }
        }
        #expect(MonotonicTime.now() - begin < .seconds(5))
        try await server.stop()
    }

    @Test("A request that cannot be sent is refused")
    func invalid() async throws {
        let client = try makeClient()
        for url in [
            "", "127.0.0.1", "ftp://127.0.0.1/", "file:///etc/passwd", "http://127.0.0.1/\r\nX: 1", "http://a b/",
            "http://127.0.0.1\\@example.com/", "http://user:x@127.0.0.1/", "http://",
        ] {
            #expect(await code { _ = try await client.send(request(url)) } == .badParameter, "\(url)")
        }
        for field in [HTTPHead.Field("A", "1\r\nB: 2"), .init("A\n", ""), .init("A: 1", "")] {
            var get = request("http://127.0.0.1/")
            get.headers = [field]
            let wrong = get
            #expect(await code { _ = try await client.send(wrong) } == .badParameter)
        }
    }

    // MARK: Many requests, and their ends

    @Test("Many requests at once share few connections, and each has its own answer")
    func many() async throws {
        let server = try await ScriptedServer.start { request, _ in
            .bytes(httpAnswer(String(request.split(separator: " ")[1])))
        }
        let client = try makeClient { $0.connectionsPerHostMax = 4 }
        try await withThrowingTaskGroup(of: Bool.self) { group in
            for number in 0..<500 {
                group.addTask {
                    try await text(client.send(request(server.url + "\(number)")).body) == "/\(number)"
                }
            }
            for try await isOwn in group { #expect(isOwn) }
        }
        #expect(server.requests.count == 500 && server.connectionCount <= 4)
        try await server.stop()
    }

    @Test("More requests than the bound are refused, and a cancelled one ends at once")
    func cancellation() async throws {
        let server = try await ScriptedServer.start { _, _ in .nothing }
        let client = try makeClient { $0.transfersMax = 2 }
        let codes = await withTaskGroup(of: ErrorCode?.self) { group in
            for _ in 0..<2 { group.addTask { await code { _ = try await client.send(request(server.url)) } } }
            try? await eventually("both requests arrived") { server.requests.count == 2 }
            #expect(await code { _ = try await client.send(request(server.url)) } == .overloaded)
            group.cancelAll()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(codes == [.cancelled, .cancelled])
        try await eventually("the connections are closed") { server.openCount == 0 }
        let late = request(server.url, timeout: .milliseconds(50))
        #expect(await code { _ = try await client.send(late) } == .deadlineExceeded)
        try await server.stop()
    }

    @Test("After the client is closed its requests fail, those in progress too, and its connections are closed")
    func closing() async throws {
        let server = try await ScriptedServer.start { request, _ in
            request.contains("/slow") ? .nothing : .bytes(httpAnswer(""))
        }
        let client = try makeClient()
        _ = try await client.send(request(server.url))
        async let slow = code { _ = try await client.send(request(server.url + "slow")) }
        try await eventually("the request arrived") { server.requests.count == 2 }
        await client.shutdown()
        #expect(await slow == .linkLost)
        #expect(await code { _ = try await client.send(request(server.url)) } == .linkLost)
        try await eventually("the connections are closed") { server.openCount == 0 }
        await client.shutdown()
        try await server.stop()
    }

    // MARK: Streams

    @Test("The parts of an answer are read as they come, and then the trailers")
    func parts() async throws {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n"
        let server = try await ScriptedServer.start { _, _ in
            .steps([head, "1\r\na\r\n", "2\r\nbc\r\n", "0\r\nX-End: yes\r\n\r\n"])
        }
        let client = try makeClient()
        let (parts, trailers) = try await client.withAnswer(to: request(server.url)) {
            (answer) async throws(ApusError) -> ([[UInt8]], [HTTPHead.Field]) in
            #expect(answer.head.status == 200 && answer.trailers.isEmpty)
            var parts: [[UInt8]] = []
            server.goOn()
            while let part = try await answer.next() {
                parts.append(part)
                server.goOn()
            }
            return (parts, answer.trailers)
        }
        #expect(parts.map(text) == ["a", "bc"] && trailers["x-end"] == "yes")
        try await server.stop()
    }

    @Test("A slow reader slows the server down, and receives every byte")
    func slowReader() async throws {
        let text = (0..<400_000).map { "line \($0)\n" }.joined()
        let server = try await ScriptedServer.start { _, _ in .bytes(httpAnswer(text)) }
        let client = try makeClient { $0.bufferByteCountMax = 20_000 }
        let (body, longest) = try await client.withAnswer(to: request(server.url)) {
            (answer) async throws(ApusError) -> ([UInt8], Int) in
            var (body, longest): ([UInt8], Int) = ([], 0)
            while let part = try await answer.next() {
                body += part
                longest = max(longest, part.count)
                if body.count < 1_000_000 { try? await Task.sleep(for: .milliseconds(1)) }
            }
            return (body, longest)
        }
        #expect(body == Array(text.utf8) && longest <= 20_000 + 16 << 10)
        try await server.stop()
    }

    @Test("A stream that is not read to its end is ended, and one that stalls fails after its time")
    func early() async throws {
        let endless = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nfirst"
        let server = try await ScriptedServer.start { _, _ in .bytes(endless) }
        let client = try makeClient()
        let status = try await client.withAnswer(to: request(server.url)) { answer in answer.head.status }
        #expect(status == 200)
        try await eventually("the connection is closed") { server.openCount == 0 }
        let stalled = request(server.url, timeout: .milliseconds(200))
        let failure = await code {
            try await client.withAnswer(to: stalled) { (answer) async throws(ApusError) in
                while try await answer.next() != nil {}
            }
        }
        #expect(failure == .deadlineExceeded)
        try await server.stop()
    }
}

/// Sends an HTTP answer as soon as there is a connection, whatever the client sends. Confined to the event loop.
private final class PlainAnswer: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    func channelActive(context: ChannelHandlerContext) {
        context.channel.writeAndFlush(ByteBuffer(string: "HTTP/1.1 400 Bad Request\r\n\r\n"), promise: nil)
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
}
