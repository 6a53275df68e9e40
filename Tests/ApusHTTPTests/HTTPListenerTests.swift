import ApusClientAPI
import ApusContract
import ApusCore
import ApusHTTP
import ApusSessions
import ApusTestKit
import Foundation
import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle
import SwiftProtobuf
import Synchronization
import Testing

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

@Suite("HTTP listener", .timeLimit(.minutes(1)))
struct HTTPListenerTests {
    final class Node: Sendable {
        private let requestTimeoutMax: Duration
        private let requestsPerSecondEach: Int
        let healthy = Mutex(true)
        let drained = Mutex(0)
        /// Requests of the tokens "slow", "slow-1" and "slow-2", which wait until they are cancelled.
        let waiting = Mutex(0)
        /// Those of them that were cancelled.
        let cancelled = Mutex(0)
        /// Requests of the token "large", which are answered with 256 KiB.
        let large = Mutex(0)
        /// The ids of requests about devices, in the order in which they came.
        let ids = Mutex<[String]>([])
        let audited = LogLines()

        init(requestTimeoutMax: Duration = .seconds(60), requestsPerSecondEach: Int = 5) {
            (self.requestTimeoutMax, self.requestsPerSecondEach) = (requestTimeoutMax, requestsPerSecondEach)
        }

        var sources: HTTPSources {
            HTTPSources(
                health: { [self] in
                    healthy.withLock { $0 }
                        ? NodeHealth(healthy: true, state: "up")
                        : NodeHealth(healthy: false, state: "fenced", reason: "this node was declared dead")
                },
                status: { Self.status },
                metrics: { "# TYPE a_total counter\na_total 1\n" },
                authorizeAdmin: { token throws(ApusError) in
                    switch token {
                    case "good": return AuditActor(access: "good", account: "local", role: "admin")
                    case "old": throw ApusError(.tokenExpired)
                    case "app": throw ApusError(.notAllowed)
                    default: throw ApusError(.tokenInvalid)
                    }
                },
                drain: { [self] () throws(ApusError) in drained.withLock { $0 += 1 } },
                clients: clients)
        }

        /// One request that is there over REST alone, and refuses by the token.
        var clients: HTTPClients {
            var api = ClientAPI()
            for schemas in [clientSchemas, serviceSchemas, callSchemas] { api.addSchemas(schemas) }
            api.on(ClientRelayCredentialsRequest.self) { _, call throws(ApusError) in
                switch call.session.access.rawValue {
                case "busy": throw ApusError(.overloaded)
                case "alone": throw ApusError(.unavailable)
                default:
                    return .with {
                        $0.iceServers = [
                            .with {
                                $0.urls = ["turn:192.0.2.1:3478?transport=udp"]
                                ($0.username, $0.credential) = ("9:ann", "secret")
                            }
                        ]
                    }
                }
            }
            api.on(ClientGetDeviceRequest.self) { [self] request, call throws(ApusError) in
                note(call)
                guard request.device != "none" else { throw ApusError(.targetUnknown, "no such device") }
                return .with { $0.device = request.device }
            }
            api.on(ClientListDevicesRequest.self) { [self] request, call throws(ApusError) in
                note(call)
                switch call.session.access.rawValue {
                case "slow", "slow-1", "slow-2":
                    waiting.withLock { $0 += 1 }
                    try? await Task.sleep(for: .seconds(20))
                    if Task.isCancelled { cancelled.withLock { $0 += 1 } }
                case "later": try? await Task.sleep(for: .seconds(1))
                case "large":
                    large.withLock { $0 += 1 }
                    return .with { $0.nextPageToken = String(repeating: "a", count: 256 << 10) }
                default: break
                }
                return .with { $0.nextPageToken = "\(request.account)/\(request.pageSize)/\(request.pageToken)" }
            }
            api.on(ClientDrainNodeRequest.self) { request, _ throws(ApusError) in ClientDrainNodeResponse() }
            api.on(ClientCreateFirmwareRequest.self) { request, _ in
                .with { $0.product = request.descriptions.map(\.language).joined(separator: " ") }
            }
            api.on(ClientRevokeTokensRequest.self) { request, _ throws(ApusError) in
                guard request.tokenID == "7" || request.all else { throw ApusError(.badParameter) }
                return ClientRevokeTokensResponse()
            }
            var bounds = ClientAPIConfiguration()
            bounds.requestsPerSecondEach = requestsPerSecondEach
            bounds.requestTimeoutMax = requestTimeoutMax
            return HTTPClients(
                services: ClientServices(api, topics: nil, configuration: bounds, audit: AuditLog(audited.logger)),
                session: { token throws(ApusError) in
                    switch token {
                    case "old": throw ApusError(.tokenExpired)
                    case "good", "busy", "alone", "many", "slow", "slow-1", "slow-2", "later", "operator": break
                    default: throw ApusError(.tokenInvalid)
                    }
                    guard let access = AccessID(rawValue: token), let account = AccountID(rawValue: token) else {
                        throw ApusError(.tokenInvalid)
                    }
                    return Session(
                        id: "-", role: token == "operator" ? .admin : .app, access: access, account: account,
                        device: nil, sinceMilliseconds: 0, token: TokenMark(tag: 0, issuedAt: 0, expires: .max))
                })
        }

        private func note(_ call: ClientCall) {
            let id = call.request.map { "\($0)" } ?? "none"
            ids.withLock { $0.append(id) }
        }

        static let status = NodeStatus(
            name: "n1", incarnation: 3, state: "up",
            addresses: NodeStatus.Addresses(transport: "a:1", clients: "a:2", http: "a:3"),
            shards: NodeStatus.Shards(owned: 4096, standby: 0), sessions: NodeStatus.Sessions(devices: 1, apps: 2),
            viewers: 2, channels: [], revision: 7, members: ["n1"], uptime_s: 1.5)
    }

    /// Serves on a free port of the loopback while `body` runs.
    func withListener(
        _ node: Node = Node(), sources: HTTPSources? = nil, change: (inout HTTPConfiguration) -> Void = { _ in },
        body: @Sendable (HostPort) async throws -> Void
    ) async throws {
        var configuration = HTTPConfiguration(bind: HostPort(host: "127.0.0.1", port: 0))
        change(&configuration)
        let (addresses, found) = AsyncStream.makeStream(of: HostPort.self)
        let listener = try HTTPListener(
            configuration: configuration, sources: sources ?? node.sources,
            group: MultiThreadedEventLoopGroup.singleton,
            logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }, onListening: { found.yield($0) })
        let group = ServiceGroup(services: [listener], logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        try await withThrowingTaskGroup(of: Void.self) { tasks in
            tasks.addTask { try await group.run() }
            var iterator = addresses.makeAsyncIterator()
            let address = try #require(await iterator.next())
            try await body(address)
            await group.triggerGracefulShutdown()
            try await tasks.waitForAll()
        }
    }

    private static func fetch(
        _ address: HostPort, _ path: String, method: String = "GET", token: String? = nil,
        scheme: String = "Bearer", key: String? = nil, body: Data? = nil
    ) async throws -> (status: Int, type: String, body: String) {
        var request = URLRequest(url: try #require(URL(string: "http://\(address)\(path)")))
        request.httpMethod = method
        request.httpBody = body
        if let token { request.setValue("\(scheme) \(token)", forHTTPHeaderField: "Authorization") }
        if let key { request.setValue(key, forHTTPHeaderField: "Idempotency-Key") }
        if body != nil { request.setValue("application/json", forHTTPHeaderField: "Content-Type") }
        let (data, response) = try await URLSession(configuration: .ephemeral).data(for: request)
        let http = try #require(response as? HTTPURLResponse)
        return (
            http.statusCode, http.value(forHTTPHeaderField: "Content-Type") ?? "", String(decoding: data, as: UTF8.self)
        )
    }

    @Test(
        "The scheme of a bearer token is taken in any case, with any number of spaces (RFC 9110 §11.1)",
        arguments: ["Bearer", "bearer", "BEARER", "bEaReR", "bearer  "])
    func bearerScheme(scheme: String) async throws {
        try await withListener { address in
            let drained = try await Self.fetch(
                address, "/v1/admin/drain", method: "POST", token: "good", scheme: scheme)
            #expect(drained.status == 202, "\(drained.body)")
            let given = try await Self.fetch(address, "/v1/relay/credentials", token: "good", scheme: scheme)
            #expect(given.status == 200, "\(given.body)")
        }
    }

    @Test(
        "Another scheme, and a scheme that stands alone or runs into its token, are 401",
        arguments: [
            "Basic", "Bearergood", "Bearer:", "xBearer",
        ])
    func otherScheme(scheme: String) async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/v1/relay/credentials", token: "good", scheme: scheme)
            #expect(answer.status == 401, "\(answer.body)")
        }
    }

    @Test("/healthz says 200 while the node serves and 503 with the reason when it does not")
    func health() async throws {
        let node = Node()
        try await withListener(node) { address in
            let good = try await Self.fetch(address, "/healthz")
            #expect(good.status == 200)
            #expect(good.body == "{\"conditions\":[],\"healthy\":true,\"state\":\"up\"}\n")
            node.healthy.withLock { $0 = false }
            let bad = try await Self.fetch(address, "/healthz")
            #expect(bad.status == 503)
            #expect(bad.body.contains("this node was declared dead"))
        }
    }

    @Test("/v1/status is the node's status as JSON")
    func status() async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/v1/status")
            #expect(answer.type == "application/json")
            #expect(try JSONDecoder().decode(NodeStatus.self, from: Data(answer.body.utf8)) == Node.status)
        }
    }

    @Test("/metrics is Prometheus text 0.0.4 with the process's own numbers")
    func metrics() async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/metrics")
            #expect(answer.type == "text/plain; version=0.0.4; charset=utf-8")
            #expect(answer.body.hasPrefix("# TYPE a_total counter\na_total 1\n"))
            for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
                #expect(answer.body.contains("\n# HELP \(name) "))
                #expect(answer.body.contains("\n\(name) "))
            }
        }
    }

    @Test(
        "Administration needs a valid token of role admin",
        arguments: [(nil, 401, 12_001), ("bad", 401, 12_001), ("old", 401, 12_002), ("app", 403, 12_004)])
    func adminRefused(token: String?, status: Int, code: Int) async throws {
        let node = Node()
        try await withListener(node) { address in
            let answer = try await Self.fetch(address, "/v1/admin/drain", method: "POST", token: token)
            #expect(answer.status == status)
            #expect(answer.body.contains("\"code\":\(code)"))
        }
        #expect(node.drained.withLock { $0 } == 0)
    }

    @Test("Drain is taken with 202 and reaches the node once, and the audit log says who asked (D13)")
    func drain() async throws {
        let node = Node()
        try await withListener(node) { address in
            let answer = try await Self.fetch(address, "/v1/admin/drain", method: "POST", token: "good")
            #expect(answer.status == 202)
            #expect(answer.body == "{\"state\":\"draining\"}\n")
        }
        #expect(node.drained.withLock { $0 } == 1)
        #expect(node.audited["audit"] == ["POST /v1/admin/drain"])
        #expect(node.audited[LogKey.access] == ["good"] && node.audited[LogKey.account] == ["local"])
        #expect(node.audited[LogKey.role] == ["admin"] && node.audited[LogKey.code] == [""])
    }

    @Test(
        "A client with a valid token is given credentials of the relay as browsers take them, by GET and by POST (D8)",
        arguments: ["GET", "POST"])
    func relayCredentials(method: String) async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/v1/relay/credentials", method: method, token: "good")
            #expect(answer.status == 200 && answer.type == "application/json")
            let expected =
                #"{"iceServers":[{"urls":["turn:192.0.2.1:3478?transport=udp"],"#
                + #""username":"9:ann","credential":"secret"}]}"#
            #expect(answer.body == expected)
        }
    }

    @Test(
        "Without a valid token there are no credentials of the relay, and the number says why",
        arguments: [
            (nil, 401, 12_001), ("bad", 401, 12_001), ("old", 401, 12_002), ("busy", 429, 10_007),
            ("alone", 503, 21_025),
        ])
    func relayCredentialsRefused(token: String?, status: Int, code: Int) async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/v1/relay/credentials", token: token)
            #expect(answer.status == status)
            #expect(answer.body.contains("\"code\":\(code)"))
        }
    }

    @Test("A token that comes from another machine over plain HTTP is refused with 12004, unless the operator lets it")
    func relayCredentialsFromElsewhere() async throws {
        let outer = try #require(
            try System.enumerateDevices().compactMap { $0.address?.ipAddress }
                .first { !$0.hasPrefix("127.") && !$0.contains(":") }, "the machine has no address but its loopback")
        for (isTaken, status) in [(false, 403), (true, 200)] {
            try await withListener(
                change: {
                    $0.bind.host = outer
                    $0.isTokenTakenFromAnywhere = isTaken
                },
                body: { address in
                    let answer = try await Self.fetch(address, "/v1/relay/credentials", token: "good")
                    #expect(answer.status == status)
                    #expect(answer.body.contains("\"code\":12004") != isTaken)
                })
        }
    }

    // MARK: REST

    @Test("A field of the path, of the query and of the body reaches the request")
    func restFields() async throws {
        try await withListener { address in
            let device = try await Self.fetch(address, "/v1/devices/front%2Ddoor", token: "good")
            #expect(device.status == 200 && device.body == #"{"device":"front-door"}"#)
            let page = try await Self.fetch(
                address, "/v1/devices?account=a&pageSize=7&page_token=x%20y", token: "good")
            #expect(page.body == #"{"nextPageToken":"a/7/x y"}"#)
            let drained = try await Self.fetch(address, "/v1/nodes/n1/drain", method: "POST", token: "operator")
            #expect(drained.status == 200 && drained.body == "{}")
            let revoked = try await Self.fetch(
                address, "/v1/tokens/revoke", method: "POST", token: "operator",
                body: Data(#"{"tokenId":"7"}"#.utf8))
            #expect(revoked.status == 200, "\(revoked.body)")
            let created = try await Self.fetch(
                address, "/v1/customers/acme/firmware", method: "POST", token: "operator",
                body: Data(#"{ "descriptions" : [ {"language":"de"} , {"language":"en","text":"[{"} ] }"#.utf8))
            #expect(created.body == #"{"product":"de en"}"#)
        }
    }

    @Test("An Idempotency-Key names one request: of one client, of one kind, and for one target of the path (D15)")
    func idempotencyKeys() async throws {
        let node = Node()
        try await withListener(node) { address in
            for (token, path, key) in [
                ("good", "/v1/devices/cam", "1"), ("good", "/v1/devices/c%61m", "1"),
                ("many", "/v1/devices/cam", "1"), ("good", "/v1/devices/cam-2", "1"), ("good", "/v1/devices", "1"),
                ("good", "/v1/devices/cam", "2"),
            ] {
                let answer = try await Self.fetch(address, path, token: token, key: key)
                #expect(answer.status == 200, "\(answer.body)")
            }
            _ = try await Self.fetch(address, "/v1/devices/cam", token: "operator")
        }
        let ids = node.ids.withLock { $0 }
        #expect(ids.count == 7 && ids[0] == ids[1] && ids[6] == "none")
        #expect(Set(ids[1...]).count == 6, "\(ids)")
    }

    @Test(
        "A request that is not valid is refused with problem details that name its number (RFC 9457)",
        arguments: [
            ("GET", "/v1/devices?nothing=1", "good", "", 400, 21_031),
            ("GET", "/v1/devices?pageSize=many", "good", "", 400, 10_001),
            ("GET", "/v1/devices?pageSize=1&pageSize=2", "good", "", 400, 21_031),
            ("GET", "/v1/devices/none", "good", "", 404, 8002),
            ("DELETE", "/v1/devices/cam", "good", "", 405, 10_004),
            ("POST", "/v1/tokens/revoke", "good", "{}", 403, 12_004),
            ("POST", "/v1/tokens/revoke", "operator", "{", 400, 10_001),
            ("POST", "/v1/tokens/revoke", "operator", #"{"some":1}"#, 400, 10_001),
            ("POST", "/v1/tokens/revoke", "operator", #"{"tokenId":null}"#, 400, 10_001),
            ("POST", "/v1/tokens/revoke", "operator", #"{"tokenId":"7","keepSeconds":7}"#, 400, 10_001),
            ("POST", "/v1/tokens/revoke", "operator", #"{"all":"true","account":"a"}"#, 400, 10_001),
            ("POST", "/v1/customers/a/firmware", "operator", #"{"descriptions":[{"text":null}]}"#, 400, 10_001),
            ("POST", "/v1/customers/a/firmware", "operator", #"{"descriptions":[{"text":7}]}"#, 400, 10_001),
            ("POST", "/v1/customers/a/firmware", "operator", #"{"descriptions":[{},null]}"#, 400, 10_001),
            ("POST", "/v1/customers/a/firmware", "operator", #"{"descriptions":[{}"#, 400, 10_001),
            ("POST", "/v1/customers/a/firmware", "operator", #"{"descriptions":{}}"#, 400, 10_001),
            ("POST", "/v1/nodes/n1/drain", "operator", #"{"node":"n2"}"#, 400, 21_031),
            ("GET", "/v1/nothing", "good", "", 404, 8002),
        ])
    func restRefused(
        method: String, path: String, token: String, body: String, status: Int, code: Int
    ) async throws {
        try await withListener { address in
            let answer = try await Self.fetch(
                address, path, method: method, token: token, body: body.isEmpty ? nil : Data(body.utf8))
            #expect(answer.status == status, "\(answer.body)")
            #expect(answer.type == "application/problem+json")
            #expect(answer.body.contains("\"code\":\(code)"), "\(answer.body)")
            #expect(answer.body.contains("\"status\":\(status)"))
        }
    }

    @Test("An account that asks too often is refused with 429 and 10007, and no other account with it")
    func restQuota() async throws {
        try await withListener { address in
            var statuses: [Int] = []
            for _ in 0..<14 {
                statuses.append(try await Self.fetch(address, "/v1/devices/cam", token: "many").status)
            }
            #expect(statuses.prefix(10).allSatisfy { $0 == 200 })
            #expect(statuses.suffix(2).contains(429))
            #expect(try await Self.fetch(address, "/v1/devices/cam", token: "good").status == 200)
        }
    }

    @Test("A page of an allowed origin may read answers, and one of another may not")
    func cors() async throws {
        try await withListener(change: { $0.corsOrigins = ["https://app.example"] }) { address in
            for (origin, isAllowed) in [("https://app.example", true), ("https://evil.example", false)] {
                var request = URLRequest(url: try #require(URL(string: "http://\(address)/v1/devices/cam")))
                request.setValue(origin, forHTTPHeaderField: "Origin")
                request.setValue("Bearer good", forHTTPHeaderField: "Authorization")
                let (_, response) = try await URLSession(configuration: .ephemeral).data(for: request)
                let allowed = (response as? HTTPURLResponse)?
                    .value(forHTTPHeaderField: "Access-Control-Allow-Origin")
                #expect(allowed == (isAllowed ? origin : nil))
            }
        }
    }

    @Test("The OpenAPI document names each request with its path, and the fields of its messages with their comments")
    func openAPI() async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/v1/openapi.json")
            let document = try #require(
                try JSONSerialization.jsonObject(with: Data(answer.body.utf8)) as? [String: Any])
            #expect(document["openapi"] as? String == "3.1.0")
            let paths = try #require(document["paths"] as? [String: [String: Any]])
            #expect(paths["/v1/devices/{device}"]?["get"] != nil)
            #expect(paths["/v1/relay/credentials"]?.keys.sorted() == ["get", "post"])
            #expect(answer.body.contains("The account whose devices are listed."))
        }
    }

    @Test("A body over the bound is refused with 413 before anything else is looked at")
    func largeBody() async throws {
        try await withListener { address in
            let bound = HTTPConfiguration(bind: address).bodyByteCountMax
            #expect(bound == 128 << 10)
            let body = Data(repeating: 1, count: bound + 1)
            let answer = try await Self.fetch(
                address, "/v1/admin/drain", method: "POST", token: "good", body: body)
            #expect(answer.status == 413)
        }
    }

    @Test("An unknown path is 404")
    func unknownPath() async throws {
        try await withListener { address in
            let answer = try await Self.fetch(address, "/nothing")
            #expect(answer.status == 404)
        }
    }

    @Test("An address in use is named in the error (10019)")
    func addressInUse() async throws {
        try await withListener { address in
            let second = try HTTPListener(
                configuration: HTTPConfiguration(bind: address), sources: Node().sources,
                group: MultiThreadedEventLoopGroup.singleton,
                logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
            let error = await #expect(throws: ApusError.self) { try await second.run() }
            #expect(error?.code == .addressInUse)
            #expect(error?.message.contains("\(address)") == true)
        }
    }

    // MARK: Slow requests

    /// Connections that begin a request and do not end it.
    static func openHalf(_ count: Int, to address: HostPort) async throws -> [any Channel] {
        let bootstrap = ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
        var channels: [any Channel] = []
        for _ in 0..<count {
            let channel = try await bootstrap.connect(host: address.host, port: address.port).get()
            try await channel.writeAndFlush(ByteBuffer(string: "GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: ")).get()
            channels.append(channel)
        }
        return channels
    }

    @Test("As many half requests as there are places do not keep /healthz from anybody")
    func halfRequests() async throws {
        try await withListener(change: { $0.connectionsMax = 16 }) { address in
            let channels = try await Self.openHalf(40, to: address)
            let began = ContinuousClock.now
            #expect(try await Self.fetch(address, "/healthz").status == 200)
            #expect(ContinuousClock.now - began < .seconds(1))
            for channel in channels { try? await channel.close() }
        }
    }

    @Test("A request that comes byte by byte is closed after http.request_timeout, however often a byte comes")
    func slowRequest() async throws {
        try await withListener(change: { $0.requestTimeout = .milliseconds(500) }) { address in
            let began = ContinuousClock.now
            let channel = try await Self.openHalf(1, to: address)[0]
            let drip = channel.eventLoop.scheduleRepeatedTask(initialDelay: .zero, delay: .milliseconds(50)) { _ in
                channel.writeAndFlush(ByteBuffer(string: "a"), promise: nil)
            }
            try await channel.closeFuture.get()
            drip.cancel()
            #expect(ContinuousClock.now - began < .seconds(3))
            #expect(ContinuousClock.now - began > .milliseconds(400))
        }
    }

    @Test("A request is cancelled when its client closes the connection", arguments: ["all", "output"])
    func clientLeaves(mode: String) async throws {
        let node = Node()
        try await withListener(node) { address in
            let channel = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
                .connect(host: address.host, port: address.port).get()
            let request = "GET /v1/devices HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer slow\r\n\r\n"
            try await channel.writeAndFlush(ByteBuffer(string: request)).get()
            try await Self.until { node.waiting.withLock { $0 } == 1 }
            #expect(node.cancelled.withLock { $0 } == 0)
            try await channel.close(mode: mode == "all" ? .all : .output)
            try await Self.until { node.cancelled.withLock { $0 } == 1 }
            try? await channel.close()
        }
    }

    static func until(_ isReached: @Sendable () -> Bool) async throws {
        let deadline = ContinuousClock.now + .seconds(5)
        while !isReached() {
            try #require(ContinuousClock.now < deadline, "not reached within 5 s")
            try await Task.sleep(for: .milliseconds(5))
        }
    }

    @Test("A connection that is asked again and again stays, longer than http.request_timeout")
    func keptAlive() async throws {
        try await withListener(change: { $0.requestTimeout = .seconds(2) }) { address in
            let request = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
            let channel = try await ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
                .connect(host: address.host, port: address.port).get()
            for _ in 0..<30 {
                try await channel.writeAndFlush(ByteBuffer(string: request)).get()
                try await Task.sleep(for: .milliseconds(100))
            }
            #expect(channel.isActive)
            try await channel.close()
        }
    }
}
