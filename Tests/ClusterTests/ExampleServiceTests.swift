import ApusTestKit
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// A client of the example service over REST: one request at a time, at any node that answers.
private final class DoorClient {
    /// Errors after which the same request is sent again: nobody answers for the shard, nobody knows what became of the
    /// request, or the account asks too often.
    private static let passing: Set<Int> = [10_005, 10_007, 10_008, 10_009, 10_010, 10_013, 10_017]

    private let ports: [Int]
    private let token: String
    private var turn: Int
    private var connection: PlainHTTP?
    private(set) var repeatedCount = 0

    init(ports: [Int], first: Int, token: String) { (self.ports, turn, self.token) = (ports, first, token) }

    private func leave() {
        connection = nil
        turn += 1
    }

    /// Sends a request until it is answered. One with a body has an id, so that it is carried out once.
    func ask(_ method: String, _ path: String, _ body: [String: Any]? = nil) throws -> [String: Any] {
        let id = body == nil ? nil : UUID().uuidString
        let text = try body.map { String(decoding: try JSONSerialization.data(withJSONObject: $0), as: UTF8.self) }
        let deadline = ContinuousClock.now + .seconds(90)
        var last = "nothing"
        while ContinuousClock.now < deadline {
            connection = connection ?? PlainHTTP(port: ports[turn % ports.count])
            if let answer = connection?.exchange(method, path, token: token, id: id, body: text) {
                let fields = try JSONSerialization.jsonObject(with: Data(answer.body.utf8)) as? [String: Any] ?? [:]
                if answer.status == 200 { return fields }
                last = answer.body
                try #require(Self.passing.contains(fields["code"] as? Int ?? 0), "\(path) was answered \(answer)")
            }
            repeatedCount += 1
            leave()
            usleep(20_000)
        }
        throw TestFailure("\(path) was never answered: \(last)")
    }
}

/// What was acknowledged, by door.
private struct Tally {
    var passes: [Int]
    var closings: [Int]
    var repeatedCount = 0

    init(doors: Int) {
        passes = Array(repeating: 0, count: doors)
        closings = passes
    }

    mutating func add(_ other: Tally) {
        for door in passes.indices {
            passes[door] += other.passes[door]
            closings[door] += other.closings[door]
        }
        repeatedCount += other.repeatedCount
    }
}

/// Clients that ask doors at random, each on a thread of its own.
private final class DoorLoad: Sendable {
    static let doorCount = 10_000
    /// The pause after each request, in microseconds.
    private let pause: UInt32
    private let isStopped = Atomic(false)
    private let tally = Mutex(Tally(doors: DoorLoad.doorCount))
    private let failures = Mutex<[String]>([])
    private let ended = DispatchGroup()

    /// - Parameter tokens: of different accounts, which the clients share.
    init(ports: [Int], clients: Int, tokens: [String], pause: UInt32) {
        self.pause = pause
        for number in 0..<clients {
            ended.enter()
            Thread { [self] in
                run(DoorClient(ports: ports, first: number, token: tokens[number % tokens.count]))
                ended.leave()
            }.start()
        }
    }

    static func path(_ door: Int) -> String { "/v1/doors/door-\(door)" }
    /// Every second door is recorded.
    static func isRecorded(_ door: Int) -> Bool { door % 2 == 1 }

    private func run(_ client: DoorClient) {
        var own = Tally(doors: Self.doorCount)
        do {
            while !isStopped.load(ordering: .relaxed) {
                let door = Int.random(in: 0..<Self.doorCount)
                if Int.random(in: 0..<10) == 0 {
                    let milliseconds = Int.random(in: 100...10_000)
                    _ = try client.ask(
                        "POST", Self.path(door) + "/close",
                        ["recorded": Self.isRecorded(door), "afterMs": "\(milliseconds)"])
                    own.closings[door] += 1
                } else {
                    _ = try client.ask("POST", Self.path(door) + "/pass", ["recorded": Self.isRecorded(door)])
                    own.passes[door] += 1
                }
                if pause > 0 { usleep(pause) }
            }
        } catch {
            failures.withLock { $0.append("\(error)") }
        }
        own.repeatedCount = client.repeatedCount
        tally.withLock { $0.add(own) }
    }

    var acknowledgedCount: Int { tally.withLock { $0.passes.reduce(0, +) + $0.closings.reduce(0, +) } }

    /// Ends the clients; what they were acknowledged.
    func stop() async -> (tally: Tally, failures: [String]) {
        isStopped.store(true, ordering: .relaxed)
        await withCheckedContinuation { continuation in ended.notify(queue: .global()) { continuation.resume() } }
        return (tally.withLock { $0 }, failures.withLock { $0 })
    }
}

@Suite("The example service through deaths of its nodes (D15, D16, D18)", .serialized, .timeLimit(.minutes(15)))
struct ExampleServiceTests {
    /// Beside the other binary.
    private static let binary = URL(fileURLWithPath: Cluster.apus).deletingLastPathComponent().path + "/apus-doors"
    private static let ports = (0..<3).map { 26_600 + $0 * 10 + 2 }
    /// `APUS_TEST_KILLS` gives another number, for a run at full load.
    private static let wantedKillCount = ProcessInfo.processInfo.environment["APUS_TEST_KILLS"].flatMap { Int($0) }
    private static let killCount = wantedKillCount ?? 10

    @Test("Random nodes are killed: nothing acknowledged is lost or done twice, and every reminder fires in time")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_600, binary: Self.binary)
        defer { cluster.down() }
        let tokens = try (0..<24).map { number in
            try cluster.run("admin", "token", "--role", "app", "--account", "load-\(number)", "--ttl", "2h")
                .output.trimmingCharacters(in: .whitespacesAndNewlines)
        }
        // With a pause, 24 clients ask for some two hundred changes a second, and leave processors to other tests.
        let pause: UInt32 = Self.wantedKillCount == nil ? 100_000 : 0
        let load = DoorLoad(ports: Self.ports, clients: 24, tokens: tokens, pause: pause)
        for _ in 0..<Self.killCount {
            try await Task.sleep(for: .milliseconds(.random(in: 100...900)))
            kill(try cluster.pid(.random(in: 1...3)), SIGKILL)
            let up = try Cluster.run(["cluster", "up", "--dir", cluster.directory], binary: Self.binary)
            try #require(up.status == 0, "\(up.all)")
        }
        let (tally, failures) = await load.stop()
        #expect(failures.isEmpty, "\(failures)")
        try await check(tally, tokens[0])
    }

    private struct Found {
        var lost = 0
        var doubled = 0
        var unfired = 0
        var firedTwice = 0
        var early = 0
        var latestMilliseconds = 0
    }

    /// Compares what the doors know with what was acknowledged, once all reminders had their time.
    private func check(_ tally: Tally, _ token: String) async throws {
        let total = tally.passes.reduce(0, +)
        try #require(total > 5000 && tally.closings.reduce(0, +) > 100)
        let client = DoorClient(ports: Self.ports, first: 0, token: token)
        var waiting = tally.closings.indices.filter { tally.closings[$0] > 0 }
        let deadline = ContinuousClock.now + .seconds(20)
        while !waiting.isEmpty, ContinuousClock.now < deadline {
            waiting = try waiting.filter { try Self.number("closings", of: $0, client) < tally.closings[$0] }
            try await Task.sleep(for: .milliseconds(500))
        }
        let found = try Self.look(tally, client)
        let set = tally.closings.reduce(0, +)
        print(
            "\(Self.killCount) kills, \(total) passes, \(set) reminders, \(tally.repeatedCount) requests repeated; "
                + "the latest reminder came \(found.latestMilliseconds) ms after its time")
        #expect(found.lost == 0, "changes that were acknowledged are lost")
        #expect(found.doubled == 0, "requests were carried out twice")
        #expect(found.unfired == 0, "reminders did not fire")
        #expect(found.firedTwice == 0, "reminders were carried out twice")
        #expect(found.early == 0, "reminders fired before their time")
    }

    /// The state of a door. protobuf's JSON writes 64-bit numbers as text.
    private static func state(of door: Int, _ client: DoorClient) throws -> [String: Any] {
        try client.ask("GET", DoorLoad.path(door) + "?recorded=\(DoorLoad.isRecorded(door))")
    }

    private static func number(_ field: String, of door: Int, _ client: DoorClient) throws -> Int {
        Int(try state(of: door, client)[field] as? String ?? "0") ?? 0
    }

    private static func look(_ tally: Tally, _ client: DoorClient) throws -> Found {
        var found = Found()
        for door in 0..<DoorLoad.doorCount where tally.passes[door] + tally.closings[door] > 0 {
            let state = try state(of: door, client)
            func number(_ field: String) -> Int { Int(state[field] as? String ?? "0") ?? 0 }
            found.lost += max(0, tally.passes[door] - number("passes"))
            found.doubled += max(0, number("passes") - tally.passes[door])
            found.unfired += max(0, tally.closings[door] - number("closings"))
            found.firedTwice += max(0, number("closings") - tally.closings[door])
            found.early += number("earlyClosings")
            found.latestMilliseconds = max(found.latestMilliseconds, number("latestMs"))
        }
        return found
    }
}
