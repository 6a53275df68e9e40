import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

// The messages of the example service (proto/apus/doors.proto), as a client of it has them.
extension DoorPassRequest: ClientRequestMessage {
    typealias Reply = DoorPassed
    static var info: ClientRequestInfo {
        ClientRequestInfo(1000, "doors.pass", roles: [.app, .admin], "Pass a door.")
    }
}

extension DoorPassEvent: ClientEventMessage {
    static var info: ClientEventInfo { ClientEventInfo(1000, "doors.passed", "Somebody passed the door.") }
}

/// Events to many sessions of three nodes: who passes a door of the example service. The topic keeps its events, so
/// each is at the standby too before it is sent.
///
/// Times are from the request of who passes to each session's event. The sessions are native ones, over TLS.
final class PushBench {
    struct Outcome {
        var line: String
        var values: [String: Double]
    }

    /// When each session received the newest event.
    private final class Received: Sendable {
        private struct State {
            var times: [Double] = []
            var sentAt = MonotonicTime.zero
            var expected: UInt64 = 0
        }

        private let state = Mutex(State())

        func begin(_ passes: UInt64) {
            state.withLock { state in
                state.times.removeAll(keepingCapacity: true)
                (state.expected, state.sentAt) = (passes, .now())
            }
        }

        func note(_ passes: UInt64) {
            state.withLock { state in
                guard state.expected == passes else { return }
                state.times.append(Double((MonotonicTime.now() - state.sentAt).nanoseconds) / 1_000_000)
            }
        }

        var all: [Double] { state.withLock { $0.times } }
        var count: Int { state.withLock { $0.times.count } }
    }

    private let stage: APIStage
    private let sessionCount: Int
    private let eventCount: Int
    private let received = Received()

    init(_ stage: APIStage, sessions: Int, events: Int) {
        (self.stage, sessionCount, eventCount) = (stage, sessions, events)
    }

    func run() async throws -> Outcome {
        var sessions: [ClientSession] = []
        defer {
            for session in sessions { session.close() }
        }
        let received = received
        for number in 0..<sessionCount {
            let token = try await stage.local.mint(
                role: .app, access: AccessID(unchecked: "hears-\(number)"),
                account: AccountID(unchecked: "hears-\(number / 100)"))
            let node = stage.local.mark.nodes[number % stage.local.mark.nodes.count].name
            let session = try await stage.session(token, .app, at: node)
            sessions.append(session)
            // On the session's event loop: a task for each of 10,000 clients would be most of what is measured.
            session.subscribe(topic: "doors/bench") { event in
                guard let message = try? DoorPassEvent(serializedBytes: event.message) else { return }
                received.note(message.passes)
            }
        }
        // The sign-ins' last work is over after this.
        try await Task.sleep(for: .seconds(10))
        return try await push(sessions[0])
    }

    private func push(_ session: ClientSession) async throws -> Outcome {
        var times: [Double] = []
        var missing = 0
        let idle = try await idleShare()
        let (start, busy) = (MonotonicTime.now(), try busySeconds())
        for number in 0..<eventCount {
            received.begin(UInt64(number + 1))
            _ = try await session.ask(DoorPassRequest.with { $0.door = "bench" })
            let deadline = MonotonicTime.now() + .seconds(5)
            while received.count < sessionCount, MonotonicTime.now() < deadline {
                try await Task.sleep(for: .milliseconds(20))
            }
            times += received.all
            missing += sessionCount - received.count
            try await Task.sleep(for: .milliseconds(300))
        }
        let lasted = Double((MonotonicTime.now() - start).nanoseconds) / 1e9
        let used = (try busySeconds() - busy - idle * lasted) * 1_000_000 / Double(max(1, times.count))
        let (p50, p99) = (FailoverResult.quantile(times, 0.5) ?? 0, FailoverResult.quantile(times, 0.99) ?? 0)
        return Outcome(
            line: String(
                format:
                    "%d events to %d sessions: p50 %.0f ms, p99 %.0f ms (goal 100), %.1f µs of CPU each, %d missing",
                eventCount, sessionCount, p50, p99, used, missing),
            values: [
                "push_p50_ms": p50, "push_p99_ms": p99, "push_cpu_us": used, "push_missing": Double(missing),
            ])
    }

    /// The CPU that the nodes use while no event is sent, in seconds per second.
    private func idleShare() async throws -> Double {
        let (start, busy) = (MonotonicTime.now(), try busySeconds())
        try await Task.sleep(for: .seconds(5))
        return (try busySeconds() - busy) / (Double((MonotonicTime.now() - start).nanoseconds) / 1e9)
    }

    /// CPU that the nodes have used, in seconds (proc(5), fields 14 and 15).
    private func busySeconds() throws -> Double {
        try stage.local.mark.nodes.reduce(0) { sum, node in
            guard let pid = NodeProcess(node.name, in: stage.local.directory).pid,
                let text = FileManager.default.contents(atPath: "/proc/\(pid)/stat").map({
                    String(decoding: $0, as: UTF8.self)
                }), let end = text.lastIndex(of: ")")
            else { throw ApusError(.internalFailure, "a node is not running") }
            let fields = text[end...].split(separator: " ")
            return sum + ((Double(fields[12]) ?? 0) + (Double(fields[13]) ?? 0)) / Double(sysconf(Int32(_SC_CLK_TCK)))
        }
    }
}
