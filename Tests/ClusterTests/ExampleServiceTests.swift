import ApusTestKit
import Foundation
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// A client of the example service: one request at a time, at any node that answers.
private final class DoorClient {
    /// Errors after which the same request is sent again: nobody answers for the shard, or nobody knows what became of
    /// the request.
    private static let passing: Set<Int> = [10_005, 10_007, 10_008, 10_009, 10_010, 10_013, 10_017]

    private let ports: [Int]
    private var turn: Int
    private var socket: CInt?
    private(set) var repeatedCount = 0

    init(ports: [Int], first: Int) { (self.ports, turn) = (ports, first) }

    deinit { leave() }

    private func leave() {
        if let socket { close(socket) }
        socket = nil
        turn += 1
    }

    /// Sends a request until it is answered.
    func ask(_ fields: String) throws -> [String: Any] {
        let id = Data((0..<16).map { _ in UInt8.random(in: 0...255) }).base64EncodedString()
        let line = "{\"id\":\"\(id)\",\(fields)}\n"
        let deadline = ContinuousClock.now + .seconds(90)
        while ContinuousClock.now < deadline {
            if let answer = try exchange(line) {
                let error = answer["error"] as? Int ?? 0
                if error == 0 { return answer }
                try #require(Self.passing.contains(error), "\(line) was answered \(answer)")
            }
            repeatedCount += 1
            leave()
            usleep(20_000)
        }
        throw TestFailure("\(line) was never answered")
    }

    /// Nil where the connection broke.
    private func exchange(_ line: String) throws -> [String: Any]? {
        if socket == nil {
            guard let new = NodeView.connect(ports[turn % ports.count]) else { return nil }
            var limit = timeval(tv_sec: 10, tv_usec: 0)
            setsockopt(new, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
            socket = new
        }
        guard let socket else { return nil }
        let bytes = Array(line.utf8)
        guard send(socket, bytes, bytes.count, CInt(MSG_NOSIGNAL)) == bytes.count else { return nil }
        var received: [UInt8] = []
        var part = [UInt8](repeating: 0, count: 4096)
        while received.last != UInt8(ascii: "\n") {
            let count = recv(socket, &part, part.count, 0)
            guard count > 0 else { return nil }
            received += part[..<count]
        }
        return try JSONSerialization.jsonObject(with: Data(received)) as? [String: Any]
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
    private let isStopped = Atomic(false)
    private let tally = Mutex(Tally(doors: DoorLoad.doorCount))
    private let failures = Mutex<[String]>([])
    private let ended = DispatchGroup()

    init(ports: [Int], clients: Int) {
        for number in 0..<clients {
            ended.enter()
            Thread { [self] in
                run(DoorClient(ports: ports, first: number))
                ended.leave()
            }.start()
        }
    }

    /// Every second door is recorded.
    static func name(_ door: Int) -> String { "\"door\":\"door-\(door)\",\"recorded\":\(door % 2 == 1)" }

    private func run(_ client: DoorClient) {
        var own = Tally(doors: Self.doorCount)
        do {
            while !isStopped.load(ordering: .relaxed) {
                let door = Int.random(in: 0..<Self.doorCount)
                if Int.random(in: 0..<10) == 0 {
                    let milliseconds = Int.random(in: 100...10_000)
                    _ = try client.ask("\(Self.name(door)),\"close\":{\"afterMs\":\(milliseconds)}")
                    own.closings[door] += 1
                } else {
                    _ = try client.ask("\(Self.name(door)),\"pass\":{}")
                    own.passes[door] += 1
                }
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
    private static let ports = (0..<3).map { 26_600 + $0 * 10 + 9 }
    /// `APUS_TEST_KILLS` gives another number.
    private static let killCount = Int(ProcessInfo.processInfo.environment["APUS_TEST_KILLS"] ?? "") ?? 10

    @Test("Random nodes are killed: nothing acknowledged is lost or done twice, and every reminder fires in time")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 26_600, binary: Self.binary)
        defer { cluster.down() }
        let load = DoorLoad(ports: Self.ports, clients: 24)
        for _ in 0..<Self.killCount {
            try await Task.sleep(for: .milliseconds(.random(in: 100...900)))
            kill(try cluster.pid(.random(in: 1...3)), SIGKILL)
            let up = try Cluster.run(["cluster", "up", "--dir", cluster.directory], binary: Self.binary)
            try #require(up.status == 0, "\(up.all)")
        }
        let (tally, failures) = await load.stop()
        #expect(failures.isEmpty, "\(failures)")
        try await check(tally)
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
    private func check(_ tally: Tally) async throws {
        let total = tally.passes.reduce(0, +)
        try #require(total > 1000 && tally.closings.reduce(0, +) > 100)
        var found = try Self.look(tally)
        let deadline = ContinuousClock.now + .seconds(20)
        while found.unfired > 0, ContinuousClock.now < deadline {
            try await Task.sleep(for: .seconds(1))
            found = try Self.look(tally)
        }
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

    private static func look(_ tally: Tally) throws -> Found {
        let client = DoorClient(ports: ports, first: 0)
        var found = Found()
        for door in 0..<DoorLoad.doorCount where tally.passes[door] + tally.closings[door] > 0 {
            let state = try client.ask("\(DoorLoad.name(door)),\"look\":{}")["state"] as? [String: Any] ?? [:]
            // protobuf's JSON writes 64-bit numbers as text.
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
