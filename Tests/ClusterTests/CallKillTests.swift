import ApusClient
import ApusContract
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("Calls in all states while nodes are killed (CALL-3 to CALL-9, CALL-13)", .serialized, .timeLimit(.minutes(3)))
struct CallKillTests {
    /// A small run of the benchmark. Its bound of the pauses of media is not checked: other tests may run beside it.
    @Test("30 calls in all states end as they should while each node is killed, and all parties can call afterwards")
    func allStates() throws {
        let outcome = try Cluster.run(
            [
                "calls-kills", "--calls", "30", "--media-calls", "2", "--window-seconds", "2", "--kills", "3",
                "--alone",
                "--base-port", "30700", "--json",
            ], binary: Cluster.bench)
        let line = try #require(outcome.output.split(separator: "\n").last, "\(outcome.all)")
        let values = try JSONDecoder().decode([String: Double].self, from: Data(line.utf8))
        #expect(values["kills"] == 3 && values["calls"] ?? 0 >= 86, "\(outcome.all)")
        let never = [
            "dropped", "stuck", "wrong_winner", "wrong_time", "ghost_rings", "busy_afterwards", "frames_lost",
            "frames_doubled", "frames_wrong",
        ]
        for name in never { #expect(values[name] == 0, "\(name): \(outcome.all)") }
        #expect(values["frames"] ?? 0 > 1000)
    }

    @Test("A start that is sent again places one call, also if the called device is away by then")
    func startedAgain() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_620)
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let start = ClientStartCallRequest.with {
            ($0.type, $0.id) = (1, String(repeating: "0123456789abcdef", count: 2))
            $0.targets = [.with { $0.device = "bell" }]
        }
        let call = try await app.session.ask(start).call
        #expect(call.hasSuffix(start.id))
        _ = try await bell.next(call) { if case .ring = $0.stage { true } else { false } }
        var again = start
        again.again = true
        #expect(try await app.session.ask(again).call == call)
        #expect(try await app.session.ask(start).call == call)
        bell.close()
        try await eventually { () throws(ApusError) in
            do throws(ApusError) {
                _ = try await app.session.ask(
                    ClientStartCallRequest.with { ($0.type, $0.targets) = (1, start.targets) })
            } catch {
                guard error.code == .targetOffline else { throw error }
                return
            }
            throw ApusError(.versionConflict, "the device is still there")
        }
        let view = try await app.session.ask(again)
        #expect(view.call == call && view.outgoing && !view.ended)
        try await app.session.hangUpCall(call)
        #expect(try await app.session.ask(again).ended)
        await fails(.badParameter) { () throws(ApusError) in
            _ = try await app.session.ask(
                ClientStartCallRequest.with { ($0.type, $0.targets, $0.id) = (1, start.targets, "+") })
        }
    }

    @Test("A client that was away when its call ended learns that as soon as it is back")
    func endWhileAway() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_660)
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        defer { app.close() }
        let call = try await app.ring(bell)
        bell.close()
        try await app.session.hangUpCall(call)
        // The notice of the end has been sent in vain, and is repeated 7 seconds after the end.
        try await Task.sleep(for: .milliseconds(3300))
        let back = try CallClient(cluster, 3, device: "bell")
        defer { back.close() }
        let start = ContinuousClock.now
        #expect(try await back.end(call)?.code == .callCancelled)
        #expect(ContinuousClock.now - start < .seconds(2))
    }

    @Test("A call that was in progress when all nodes died ends for both sides when they return (CALL-13)")
    func allDied() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_690)
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let call = try await app.ring(bell)
        _ = try await bell.session.acceptCall(call)
        _ = try await app.next(call) { $0.stage == .accepted }
        for client in [bell, app] { _ = try await client.session.reportCallConnected(call) }
        for node in 1...3 { Glibc.kill(try cluster.pid(node), SIGKILL) }
        let up = try cluster.run("cluster", "up")
        #expect(up.status == 0, "\(up.all)")
        for client in [bell, app] {
            let isEnded = try await eventually { () throws(ApusError) in
                for case .ended(let error, let reason) in client.notices(of: call).map(\.stage) {
                    return error?.code == .mediaDisconnected && reason == "lost"
                }
                throw ApusError(.deadlineExceeded, "the call goes on")
            }
            #expect(isEnded)
        }
        // A call that goes on while a node dies is not ended by the question.
        let next = try await app.ring(bell)
        _ = try await bell.session.acceptCall(next)
        _ = try await app.next(next) { $0.stage == .accepted }
        Glibc.kill(try cluster.pid(try cluster.owner(of: "bell")), SIGKILL)
        for client in [bell, app] {
            try await eventually { () throws(ApusError) in _ = try await client.session.reportCallConnected(next) }
        }
        try await Task.sleep(for: .seconds(3))
        for client in [bell, app] {
            let stages = client.notices(of: next).map(\.stage)
            #expect(!stages.contains { if case .ended = $0 { true } else { false } }, "\(stages)")
        }
        _ = try await app.session.hangUpCall(next)
    }
}
