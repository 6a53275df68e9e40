import ApusClient
import ApusContract
import ApusCore
import Foundation
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing

// The messages of the example service (proto/apus/doors.proto), as a client of it knows them.
extension DoorPassRequest: ClientRequestMessage {
    typealias Reply = DoorPassed
    static var info: ClientRequestInfo {
        ClientRequestInfo(1000, "doors.pass", .post("/v1/doors/{door}/pass"), roles: [.app, .admin], "Pass a door.")
    }
}

extension DoorPassEvent: ClientEventMessage {
    static var info: ClientEventInfo { ClientEventInfo(1000, "doors.passed", "Somebody passed the door.") }
}

@Suite("One API over the native protocol, WebSocket and REST (D17)", .serialized, .timeLimit(.minutes(3)))
struct ClientAPITests {
    private static let binary = URL(fileURLWithPath: Cluster.apus).deletingLastPathComponent().path + "/apus-doors"

    private static func token(_ cluster: Cluster, _ role: String = "app") throws -> String {
        let minted = try cluster.run("admin", "token", "--role", role, "--ttl", "2h")
        try #require(minted.status == 0, "\(minted.all)")
        return minted.output.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    /// Collects what a native client hears.
    private actor Heard {
        private(set) var passes: [UInt64] = []
        func add(_ event: ClientSession.TopicEvent<DoorPassEvent>) { passes.append(event.message.passes) }
    }

    private static func open(_ cluster: Cluster, node: Int, token: String) async throws -> ClientSession {
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: [HostPort(host: "127.0.0.1", port: cluster.endpointPort(node))],
                authorityFile: cluster.file("pki/ca.pem"), token: token, role: .app),
            eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        session.start()
        return session
    }

    /// A WebSocket that is signed in and hears the door.
    private static func webSocket(_ cluster: Cluster, node: Int, token: String, door: String) throws -> PlainWebSocket {
        let socket = try #require(PlainWebSocket(port: cluster.httpPort(node)))
        try #require(socket.send(#"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#))
        try #require(socket.receive()?["welcome"] != nil)
        try #require(socket.send(#"{"id":1,"request":"topics.subscribe","body":{"topic":"doors/\#(door)"}}"#))
        // A node that has just started may not know yet who owns the topic.
        let answer = try #require(socket.receive())
        try #require(answer["response"] != nil, "the subscription was answered \(answer)")
        return socket
    }

    private static func passes(_ event: [String: Any]?) -> String? {
        ((event?["event"] as? [String: Any])?["message"] as? [String: Any])?["passes"] as? String
    }

    @Test("A service's requests and events are there over all three, a client on each of three nodes")
    func threeProtocols() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_700, binary: Self.binary)
        defer { cluster.down() }
        let token = try Self.token(cluster)
        let session = try await Self.open(cluster, node: 1, token: token)
        defer { session.close() }
        let heard = Heard()
        let listening = Task {
            for try await event in session.events(of: "doors/front", as: DoorPassEvent.self) { await heard.add(event) }
        }
        defer { listening.cancel() }
        // An identity has one session (IV-A5), so the second client is another.
        let socket = try Self.webSocket(cluster, node: 2, token: try Self.token(cluster), door: "front")
        let rest = try #require(PlainHTTP(port: cluster.httpPort(3)))

        // Each protocol asks once, and each of the two that hear events hears all three.
        var native: UInt64?
        for _ in 0..<100 where native == nil {
            native = try? await session.ask(DoorPassRequest.with { $0.door = "front" }).passes
            if native == nil { try await Task.sleep(for: .milliseconds(50)) }
        }
        #expect(native == 1)
        #expect(Self.passes(socket.receive()) == "1")
        try #require(socket.send(#"{"id":2,"request":"doors.pass","body":{"door":"front"}}"#))
        let second = [socket.receive(), socket.receive()]
        #expect(second.contains { Self.passes($0) == "2" })
        #expect(second.contains { ($0?["response"] as? [String: Any])?["passes"] as? String == "2" })
        let third = try #require(rest.exchange("POST", "/v1/doors/front/pass", token: token))
        #expect(third.status == 200 && third.body == #"{"passes":"3"}"#)
        #expect(Self.passes(socket.receive()) == "3")
        for _ in 0..<100 {
            if await heard.passes.last == 3 { break }
            try await Task.sleep(for: .milliseconds(20))
        }
        #expect(await heard.passes.suffix(2) == [2, 3])
    }

    private final class OverFlag: Sendable { let isOver = Atomic(false) }

    @Test("A client of a drained node moves to another one, and every request on the way is answered (decision 31)")
    func requestsDuringDrain() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_900, binary: Self.binary)
        defer { cluster.down() }
        let session = try await Self.open(cluster, node: 2, token: try Self.token(cluster))
        defer { session.close() }
        for _ in 0..<100 {
            if (try? await session.ask(DoorPassRequest.with { $0.door = "front" })) != nil { break }
            try await Task.sleep(for: .milliseconds(50))
        }
        let flag = OverFlag()
        let outcomes = await withTaskGroup(of: (answered: Int, errors: [ApusError]).self) { group in
            for number in 0..<32 {
                group.addTask {
                    var (answered, errors) = (0, [ApusError]())
                    while !flag.isOver.load(ordering: .relaxed) {
                        // Each takes as long as its record, so several are in progress at any time.
                        let request = DoorPassRequest.with {
                            ($0.door, $0.quiet, $0.recorded) = ("door-\(number)", true, true)
                        }
                        do throws(ApusError) {
                            _ = try await session.ask(request)
                            answered += 1
                        } catch {
                            errors.append(error)
                        }
                        // Within the account's 1,000 requests a second.
                        try? await Task.sleep(for: .milliseconds(40))
                    }
                    return (answered, errors)
                }
            }
            #expect((try? cluster.run("cluster", "drain", "n2").status) == 0)
            try? await Task.sleep(for: .seconds(2))
            // Nothing of the client is left at the node.
            _ = (try? cluster.pid(2)).map { Glibc.kill($0, SIGKILL) }
            try? await Task.sleep(for: .seconds(1))
            flag.isOver.store(true, ordering: .relaxed)
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(outcomes.allSatisfy { $0.answered > 50 })
        #expect(outcomes.flatMap(\.errors).map { "\($0)" } == [])
    }

    @Test("Kept events survive the deaths of their owners: every one is heard once, in order, by a client that stays")
    func eventsThroughKills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_730, binary: Self.binary)
        defer { cluster.down() }
        let token = try Self.token(cluster)
        // The WebSocket's node lives; the others die in turn while passages are acknowledged.
        let socket = try Self.webSocket(cluster, node: 1, token: token, door: "front")
        var rest = try #require(PlainHTTP(port: cluster.httpPort(1)))
        var acknowledged = 0
        var refusals: [String] = []
        var killed = ContinuousClock.now
        for kill in 0..<4 {
            for number in 0..<4 {
                // Sent until it is answered, with one id: it counts once.
                let id = "pass-\(kill)-\(number)"
                for _ in 0..<200 {
                    let asked = ContinuousClock.now
                    let answer = rest.exchange("POST", "/v1/doors/front/pass", token: token, id: id)
                    if answer?.status == 200 {
                        acknowledged += 1
                        break
                    }
                    refusals.append(answer.map { "\($0.status) \($0.body)" } ?? "no answer")
                    usleep(50_000)
                    // Whoever waits for an answer until the time is over uses another connection. None is closed.
                    guard answer == nil else { continue }
                    #expect(
                        ContinuousClock.now - asked > .seconds(14),
                        """
                        the node has closed the connection: \(rest.failure); since the kill \(asked - killed);
                        the answer before: \(rest.lastHead); \(refusals.suffix(5))
                        """)
                    if let other = PlainHTTP(port: cluster.httpPort(1)) { rest = other }
                }
            }
            Glibc.kill(try cluster.pid(2 + kill % 2), SIGKILL)
            killed = ContinuousClock.now
            let up = try Cluster.run(["cluster", "up", "--dir", cluster.directory], binary: Self.binary)
            try #require(up.status == 0, "\(up.all)")
            // A node closes a connection that is idle for 10 s (`http.request_timeout`), as it is on a busy machine.
            if ContinuousClock.now - killed > .seconds(9) {
                rest = try #require(PlainHTTP(port: cluster.httpPort(1)))
            }
        }
        #expect(acknowledged == 16, "\(refusals.suffix(5))")
        var heard: [String] = []
        var other: [String] = []
        while heard.count < acknowledged, let event = socket.receive() {
            if let passes = Self.passes(event) { heard.append(passes) } else { other.append("\(event)") }
        }
        #expect(heard == (1...16).map { "\($0)" }, "beside them: \(other)")
    }

    @Test("An operator sees and ends sessions of all nodes over REST, and no app may")
    func operatorRequests() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 26_780)
        defer { cluster.down() }
        let (token, admin) = (try Self.token(cluster), try Self.token(cluster, "admin"))
        let socket = try #require(PlainWebSocket(port: cluster.httpPort(2)))
        try #require(socket.send(#"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#))
        let welcome = try #require(socket.receive()?["welcome"] as? [String: Any])
        let id = try #require(welcome["session"] as? String)
        let rest = try #require(PlainHTTP(port: cluster.httpPort(1)))
        let listed = try #require(rest.exchange("GET", "/v1/sessions", token: admin))
        #expect(listed.status == 200 && listed.body.contains(id), "\(listed.body)")
        #expect(rest.exchange("GET", "/v1/sessions", token: token)?.status == 403)
        #expect(rest.exchange("DELETE", "/v1/sessions/\(id)", token: token)?.status == 403)
        #expect(rest.exchange("DELETE", "/v1/sessions/\(id)", token: admin)?.status == 200)
        #expect((socket.receive()?["goodbye"] as? [String: Any])?["code"] as? Int == 12_003)
        #expect(rest.exchange("DELETE", "/v1/sessions/\(id)", token: admin)?.status == 404)
        let nodes = try #require(rest.exchange("GET", "/v1/nodes", token: admin))
        #expect(nodes.body.contains(#""name":"n2""#))
        #expect(rest.exchange("POST", "/v1/nodes/n2/drain", token: admin)?.status == 200)
        let log = try (1...2).map { Cluster.text(try #require(Optional(cluster.file("n\($0)/log")))) }.joined()
        #expect(log.contains("nodes.drain"), "the audit log does not have the hand-over")
    }
}
