import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Commands in a cluster (IV-D5, IV-D11, IV-D13, IV-D15)", .serialized, .timeLimit(.minutes(4)))
struct CommandTests {
    private static let silent = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
    private static let cam = DeviceID(unchecked: "cam")

    /// A device with a few actions that counts what it carries out.
    private final class Device: Sendable {
        let session: ClientSession
        private let task: Task<Void, Never>

        init(_ session: ClientSession, journal: String? = nil) throws {
            self.session = session
            let commands = DeviceCommands(
                session: session, journal: try journal.map { try CommandJournal(path: $0) }, log: CommandTests.silent)
            let calls = Calls()
            commands.onAction("add") { json throws(ApusError) in
                calls.note(json)
                return "{\"sum\":\(json)}"
            }
            commands.onAction("fail") { _ throws(ApusError) in throw ApusError(.internalFailure, "the motor is stuck") }
            commands.onAction("text") { _ throws(ApusError) in "not JSON" }
            commands.onAction("busy") { _ throws(ApusError) in throw ApusError(.deviceBusy) }
            commands.onAction("pause") { json throws(ApusError) in
                calls.note(json)
                try? await Task.sleep(for: .seconds(2))
                return "{\"sum\":\(json)}"
            }
            commands.onAction("slow") { json throws(ApusError) in
                calls.note(json)
                try? await Task.sleep(for: .seconds(30))
                return "0"
            }
            commands.onData { data throws(ApusError) in
                guard data.first != 0xff else { throw ApusError(.malformed, "not this") }
                calls.note("data")
                return data.reversed()
            }
            noted = calls
            task = Task { _ = try? await commands.run() }
        }

        private let noted: Calls
        var counts: [String: Int] { noted.counts }

        /// As if the process had ended.
        func end() {
            task.cancel()
            session.close()
        }
    }

    private final class Calls: Sendable {
        private let state = Mutex<[String: Int]>([:])
        func note(_ text: String) { state.withLock { $0[text, default: 0] += 1 } }
        var counts: [String: Int] { state.withLock { $0 } }
    }

    /// The cluster of the tests that end no node. Each of them has an account and a device of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_040) }

    private static func session(
        _ cluster: Cluster, node: Int, device: String? = nil, account: String = "local"
    ) throws -> ClientSession {
        guard let device else {
            return try cluster.session(node: node, token: try cluster.token("--role", "app", "--account", account))
        }
        let token = try cluster.token("--role", "device", "--device", device, "--account", account)
        return try cluster.session(node: node, token: token, role: .device)
    }

    @Test(
        "Actions and data across nodes, with each number of a device's failures, over native, REST and the command line"
    )
    func threeNodes() async throws {
        let cluster = try Self.cluster()
        let app = try Self.session(cluster, node: 2)
        await fails(.targetUnknown) { () throws(ApusError) in
            try await app.sendData([1], to: Self.cam)
        }
        let device = try Device(try Self.session(cluster, node: 1, device: "cam"))
        defer {
            device.end()
            app.close()
        }
        let cam = Self.cam
        _ = try await eventually { () throws(ApusError) in
            try await app.performAction("Action.add", json: #"{"ctlVal":0}"#, on: cam)
        }
        let sum = try await app.performAction("Action.add.ctlVal", json: "41", on: cam)
        #expect(sum == #"{"sum":41}"#)
        #expect(try await app.exchangeData([1, 2, 3], with: cam) == [3, 2, 1])
        let big = [UInt8](repeating: 7, count: 30_000)
        #expect(try await app.exchangeData(big, with: cam) == big)
        try await Self.severalLargest(app)
        try await app.sendData([9], to: cam)
        await fails(.messageTooLarge) { () throws(ApusError) in try await app.sendData(big + [1], to: cam) }
        await fails(.actionFailed) { () throws(ApusError) in
            _ = try await app.performAction("Action.fail.ctlVal", json: "1", on: cam)
        }
        await fails(.actionFailed) { () throws(ApusError) in
            _ = try await app.performAction("Action.text.ctlVal", json: "1", on: cam, timeout: .seconds(3))
        }
        await fails(.deviceBusy) { () throws(ApusError) in
            _ = try await app.performAction("Action.busy.ctlVal", json: "1", on: cam)
        }
        await fails(.actionUnknown) { () throws(ApusError) in
            _ = try await app.performAction("Action.none.ctlVal", json: "1", on: cam)
        }
        await fails(.passToDeviceFailed) { () throws(ApusError) in _ = try await app.exchangeData([0xff], with: cam) }
        await fails(.pathIllegal) { () throws(ApusError) in
            _ = try await app.performAction("ProWritable.x", json: "1", on: cam)
        }
        await fails(.jsonInvalid) { () throws(ApusError) in
            _ = try await app.performAction("Action.add.ctlVal", json: "{", on: cam)
        }
        // REST at the third node: the number is the same, and an id is carried out once.
        let token = try cluster.token("--role", "app")
        let rest = try #require(PlainHTTP(port: cluster.httpPort(3)))
        let id = String(repeating: "ab", count: 16)
        let body = #"{"id":"\#(id)","path":"Action.add.ctlVal","json":"5"}"#
        for _ in 0..<3 {
            let sent = try #require(rest.exchange("POST", "/v1/devices/cam/commands", token: token, body: body))
            #expect(sent.status == 200 && sent.body.contains("ANSWERED"), "\(sent.body)")
        }
        let failed = try #require(
            rest.exchange(
                "POST", "/v1/devices/cam/commands", token: token, body: #"{"path":"Action.fail.ctlVal","json":"1"}"#))
        #expect(failed.body.contains("20103") && failed.body.contains("the motor is stuck"), "\(failed.body)")
        let known = try #require(rest.exchange("GET", "/v1/devices/cam/commands/\(id)", token: token))
        #expect(known.status == 200 && known.body.contains(#"{\"sum\":5}"#), "\(known.body)")
        #expect(device.counts["5"] == 1 && device.counts["41"] == 1 && device.counts["data"] == 7)
        let line = try cluster.run("action", "cam", "Action.add", #"{"ctlVal":7}"#, "--node", "3")
        #expect(line.output == "{\"sum\":7}\n", "\(line.all)")

        await progress(app)
        try await rights(cluster, app: app, device: device)
    }

    /// Several commands of the largest size at once, which are more than a replicated state holds.
    private static func severalLargest(_ app: ClientSession) async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for number in UInt8(10)..<14 {
                group.addTask {
                    let sent = [number] + [UInt8](repeating: 7, count: 29_999)
                    let answer = try await app.exchangeData(sent, with: cam)
                    #expect(answer == sent.reversed())
                }
            }
            try await group.waitForAll()
        }
    }

    /// Who may send, and answer, a command (IV-A6).
    private func rights(_ cluster: Cluster, app: ClientSession, device: Device) async throws {
        let cam = Self.cam
        let stranger = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", "other"), role: .app)
        let thief = try cluster.session(
            node: 3, token: try cluster.token("--role", "device", "--device", "thief"), role: .device)
        defer {
            stranger.close()
            thief.close()
        }
        _ = try await eventually { () throws(ApusError) in
            try await thief.reportProperty(path: "ProReadonly.x.stVal", json: "1")
        }
        await fails(.illegalRelation) { () throws(ApusError) in try await stranger.sendData([1], to: cam) }
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await stranger.commands(of: cam) }
        await fails(.illegalRelation) { () throws(ApusError) in
            try await stranger.setCommandOrder(.afterAnswer, of: cam)
        }
        await fails(.notAllowed) { () throws(ApusError) in try await thief.sendData([1], to: cam) }
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await app.ask(ClientAnswerCommandRequest.with { $0.id = ClientSession.randomCommandID() })
        }
        for id in ["", "x", String(repeating: "g", count: 32), "'; DROP TABLE commands; --"] {
            await fails(.badParameter) { () throws(ApusError) in _ = try await app.command(id, of: cam) }
        }
        // Another device's answer has no effect.
        let id = ClientSession.randomCommandID()
        async let answer = app.sendCommand(
            .action(path: "Action.slow.ctlVal", json: "3"), to: cam, id: id, timeout: .seconds(3))
        try await Task.sleep(for: .milliseconds(500))
        _ = try await thief.ask(ClientAnswerCommandRequest.with { ($0.id, $0.json) = (id, "1") })
        #expect(try await app.command(id, of: cam).status < .answered)
        _ = try? await answer
        device.end()
    }

    private func progress(_ app: ClientSession) async {
        let cam = Self.cam
        // The same action in progress is 21000, and a silent device 21002 at the time that was set (IV-D11, IV-D13).
        let start = ContinuousClock.now
        async let slow: Void = fails(.answerTimedOut) { () throws(ApusError) in
            _ = try await app.performAction("Action.slow.ctlVal", json: "1", on: cam, timeout: .seconds(2))
        }
        try? await Task.sleep(for: .milliseconds(500))
        await fails(.duplicateMessage) { () throws(ApusError) in
            _ = try await app.performAction("Action.slow.ctlVal", json: "2", on: cam)
        }
        await slow
        #expect((.milliseconds(1800) ... .milliseconds(2200)).contains(ContinuousClock.now - start))
        let slowest = try? await app.commands(of: cam).commands.first
        #expect(slowest?.status == .acknowledged)
    }

    @Test("A device that is offline is 8000; with a time to live a command is kept until it is back, in its order")
    func away() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "away-cam")
        let app = try Self.session(cluster, node: 2, account: "away")
        defer { app.close() }
        let first = try Device(try Self.session(cluster, node: 1, device: "away-cam", account: "away"))
        _ = try await eventually { () throws(ApusError) in
            try await app.performAction("Action.add.ctlVal", json: "0", on: cam)
        }
        try await app.setCommandOrder(.afterAnswer, of: cam)
        let id = String(repeating: "0123456789abcdef", count: 2)
        let done = try await app.sendCommand(.action(path: "Action.add.ctlVal", json: "9"), to: cam, id: id)
        // Both are whole seconds: when it was bound, and below when it was seen last.
        try await Task.sleep(for: .seconds(1.1))
        first.end()
        try await Self.isAway(app, cam)
        await #expect(throws: ApusError(.targetOffline)) { try await app.sendData([1], to: cam) }
        // What was carried out before is answered again; another command with its id is refused.
        let again = try await app.sendCommand(.action(path: "Action.add.ctlVal", json: "9"), to: cam, id: id)
        #expect(again.json == done.json && again.status == .answered)
        await #expect(throws: ApusError(.targetOffline)) {
            try await app.sendCommand(.action(path: "Action.add.ctlVal", json: "8"), to: cam, id: id)
        }
        #expect(first.counts["9"] == 1)
        var ids: [String] = []
        for (action, json) in [("pause", "1"), ("add", "2"), ("add", "3")] {
            let queued = try await app.sendCommand(
                .action(path: "Action.\(action).ctlVal", json: json), to: cam, keptFor: .seconds(60), until: .queued)
            #expect(queued.status == .queued)
            ids.append(queued.id)
        }
        let short = try await app.sendCommand(
            .action(path: "Action.add.ctlVal", json: "99"), to: cam, keptFor: .seconds(1), until: .queued)
        let open = try await app.commands(of: cam).commands.prefix { $0.status == .queued }
        #expect(open.map(\.id) == ids + [short.id], "in the order of their delivery")
        try await app.cancelCommand(ids[1], of: cam)
        try await Task.sleep(for: .milliseconds(1500))
        #expect(try await app.command(short.id, of: cam).status == .expired)

        // It was seen when its connection ended, and is when it is back.
        let left = try await app.ask(ClientGetDeviceRequest.with { $0.device = "away-cam" })
        #expect(left.lastSeen >= left.boundAt + 1)
        let began = ContinuousClock.now
        let second = try Device(try Self.session(cluster, node: 3, device: "away-cam", account: "away"))
        defer { second.end() }
        let returned = Int64(Date().timeIntervalSince1970)
        try await eventually { () throws(ApusError) in
            let found = try await app.ask(ClientGetDeviceRequest.with { $0.device = "away-cam" })
            guard found.lastSeen >= returned, found.boundAt == left.boundAt else {
                throw ApusError(.internalFailure, "\(found), \(returned)")
            }
        }
        // The first takes two seconds, and the device receives the next one after its answer.
        try await eventually("the first is carried out") { second.counts["1"] == 1 }
        try await Task.sleep(for: .milliseconds(500))
        let (last, counts) = (try await app.command(ids[2], of: cam).status, second.counts)
        // A machine that stops for so long says nothing of the order.
        if ContinuousClock.now - began < .milliseconds(1800) { #expect(last == .queued && counts == ["1": 1]) }
        for index in [0, 2] {
            try await eventually { () throws(ApusError) in
                let command = try await app.command(ids[index], of: cam)
                guard command.status == .answered else { throw ApusError(.internalFailure, "\(command)") }
            }
        }
        #expect(second.counts == ["1": 1, "3": 1])
        let listed = try await app.commands(of: cam)
        #expect(listed.order == .afterAnswer)
        #expect(listed.commands.first { $0.id == ids[1] }?.error?.code == .cancelled)
        try await Self.sleep(second, app, cam)
    }

    /// Asleep, a device is not offline: commands wait until it wakes (IV-D9).
    private static func sleep(_ second: Device, _ app: ClientSession, _ cam: DeviceID) async throws {
        try await second.session.setAsleep(true)
        await fails(.answerTimedOut) { () throws(ApusError) in
            _ = try await app.performAction("Action.add.ctlVal", json: "50", on: cam, timeout: .seconds(1))
        }
        async let sum = app.performAction("Action.add.ctlVal", json: "51", on: cam)
        try await Task.sleep(for: .milliseconds(500))
        #expect(second.counts["51"] == nil)
        try await second.session.setAsleep(false)
        #expect(try await sum == #"{"sum":51}"# && second.counts["50"] == nil)
        // So does one that stays subscribed while it sleeps.
        _ = try await second.session.ask(ClientSleepRequest.with { $0.asleep = true })
        await fails(.answerTimedOut) { () throws(ApusError) in
            _ = try await app.performAction("Action.add.ctlVal", json: "52", on: cam, timeout: .seconds(1))
        }
        let kept = try await app.sendCommand(
            .action(path: "Action.add.ctlVal", json: "53"), to: cam, keptFor: .seconds(60), until: .queued)
        try await Task.sleep(for: .milliseconds(500))
        #expect(second.counts["52"] == nil && second.counts["53"] == nil, "a device that sleeps received a command")
        #expect(try await app.command(kept.id, of: cam).status == .queued)
        _ = try await second.session.ask(ClientSleepRequest.with { $0.asleep = false })
        try await eventually { () throws(ApusError) in
            let command = try await app.command(kept.id, of: cam)
            guard command.status == .answered else { throw ApusError(.internalFailure, "\(command)") }
        }
        #expect(second.counts["53"] == 1 && second.counts["52"] == nil)
    }

    /// Waits until the device is offline.
    private static func isAway(_ app: ClientSession, _ cam: DeviceID) async throws {
        try await eventually { () throws(ApusError) in
            let online = try await app.readProperty(of: cam, path: "ProReadonly._online.stVal").json
            guard online == "0" else { throw ApusError(.versionConflict, "the device is not offline yet") }
        }
    }

    @Test(
        "What a guest or a revoked client asked for ends with its right, and the device never gets it (IV-A6, IV-B10)"
    )
    func lostRight() async throws {
        let cluster = try Self.cluster()
        let (cam, guests) = (DeviceID(unchecked: "right-cam"), AccountID(unchecked: "right-guests"))
        let owner = try Self.session(cluster, node: 2, account: "right")
        let guest = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--access", "right-guest", "--account", "right-guests"))
        let stolen = try cluster.session(
            node: 1, token: try cluster.token("--role", "app", "--access", "right-stolen", "--account", "right"))
        let first = try Device(try Self.session(cluster, node: 1, device: "right-cam", account: "right"))
        defer { for session in [owner, guest, stolen] { session.close() } }
        _ = try await eventually { () throws(ApusError) in
            try await owner.performAction("Action.add.ctlVal", json: "0", on: cam)
        }
        for setting in ["level", "light"] {
            try await first.session.reportProperty(path: "ProWritable.\(setting).setVal", json: "1")
        }
        try await owner.share(cam, with: guests, control: true, acceptedBy: guest)
        first.end()
        try await Self.isAway(owner, cam)
        var ids: [String] = []
        for (session, json) in [(guest, "7"), (owner, "8")] {
            let queued = try await session.sendCommand(
                .action(path: "Action.add.ctlVal", json: json), to: cam, keptFor: .seconds(600), until: .queued)
            ids.append(queued.id)
        }
        for (session, setting, value) in [(guest, "level", "7"), (stolen, "light", "5")] {
            try await session.writeProperty(of: cam, path: "ProWritable.\(setting).setVal", json: value)
        }
        _ = try await stolen.sendCommand(
            .action(path: "Action.add.ctlVal", json: "5"), to: cam, keptFor: .seconds(600), until: .queued)
        // A request that waits for the end receives it.
        async let waiting: Void = fails(.illegalRelation) { () throws(ApusError) in
            _ = try await guest.sendCommand(
                .action(path: "Action.add.ctlVal", json: "9"), to: cam, keptFor: .seconds(600), timeout: .seconds(20))
        }
        try await eventually { () throws(ApusError) in
            let count = try await owner.commands(of: cam).commands.count { $0.status == .queued }
            guard count == 4 else { throw ApusError(.internalFailure, "\(count) commands wait") }
        }
        try await owner.unshare(cam, with: guests)
        await waiting
        #expect(try cluster.run("admin", "revoke", "--identity", "right-stolen", "--account", "right").status == 0)
        try await Task.sleep(for: .seconds(1))
        let listed = try await owner.commands(of: cam).commands
        #expect(listed.contains { $0.id == ids[1] && $0.status == .queued } && !listed.contains { $0.id == ids[0] })

        let second = try Device(try Self.session(cluster, node: 3, device: "right-cam", account: "right"))
        try await eventually("the owner's command is carried out") { second.counts["8"] == 1 }
        try await Task.sleep(for: .seconds(1))
        #expect(second.counts == ["8": 1])
        #expect(try await second.session.pendingProperties().isEmpty)
        for setting in ["level", "light"] {
            let path = "ProWritable.\(setting).setVal"
            #expect(try await owner.readProperty(of: cam, path: path).json == "1", "it is as the device has reported")
        }
        // Another share does not bring it back.
        try await owner.share(cam, with: guests, control: true, acceptedBy: guest)
        let ended = try await owner.command(ids[0], of: cam)
        #expect(ended.status == .failed && ended.error?.code == .illegalRelation)
        #expect(second.counts == ["8": 1])
        second.end()

        // The next account sees nothing of what the former one sent.
        let next = try cluster.session(node: 1, token: try cluster.token("--role", "app", "--account", "right-next"))
        defer { next.close() }
        try await owner.transfer(cam, to: AccountID(unchecked: "right-next"))
        let seen = try await eventually { () throws(ApusError) in try await next.commands(of: cam).commands }
        #expect(seen.isEmpty)
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await next.command(ids[1], of: cam) }
    }

    @Test(
        "The owner dies while its device carries a command out, alone or with the device's connection: it is answered",
        arguments: [3, 1])
    func ownerDies(owner: Int) async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_170)
        defer { cluster.down() }
        let name = try #require(try (0..<40).map { "cam-\($0)" }.first { try cluster.owner(of: $0) == owner })
        let app = try Self.session(cluster, node: 2)
        let device = try Device(try Self.session(cluster, node: 1, device: name))
        defer { app.close() }
        defer { device.end() }
        let cam = DeviceID(unchecked: name)
        _ = try await eventually { () throws(ApusError) in
            try await app.performAction("Action.add.ctlVal", json: "0", on: cam)
        }
        // Its presence is lost with its node; that it was sent is not.
        async let sum = app.performAction("Action.pause.ctlVal", json: "1", on: cam, timeout: .seconds(20))
        try await eventually("the device has it") { device.counts["1"] == 1 }
        Glibc.kill(try cluster.pid(owner), SIGKILL)
        #expect(try await sum == #"{"sum":1}"#)
        #expect(device.counts == ["0": 1, "1": 1])
    }

    @Test("Nothing accepted is lost and nothing is carried out twice while nodes are killed, and the device with them")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_140)
        defer { cluster.down() }
        let (app, cam, journal) = (try Self.session(cluster, node: 2), Self.cam, cluster.file("journal"))
        defer { app.close() }
        let token = try cluster.token("--role", "device", "--device", "cam")
        var device = try Device(try cluster.session(node: 1, token: token, role: .device), journal: journal)
        defer { device.end() }
        _ = try await eventually { () throws(ApusError) in
            try await app.performAction("Action.add.ctlVal", json: "0", on: cam)
        }
        var (number, counts) = (0, [String: Int]())
        for node in [1, 2, 3] {
            let pid = try cluster.pid(node)
            for count in 0..<20 {
                number += 1
                if count == 10 { Glibc.kill(pid, SIGKILL) }
                if count == 15 {
                    // Its journal has what it did, and what its successor must not do again.
                    device.end()
                    counts.merge(device.counts, uniquingKeysWith: +)
                    device = try await eventually { () throws(ApusError) in
                        do {
                            return try Device(
                                try cluster.session(node: node, token: token, role: .device), journal: journal)
                        } catch {
                            throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
                        }
                    }
                }
                let sent = number
                let sum = try await app.sendCommand(
                    .action(path: "Action.add.ctlVal", json: "\(sent)"), to: cam, keptFor: .seconds(60),
                    timeout: .seconds(20))
                #expect(sum.json == "{\"sum\":\(sent)}")
            }
            let up = try cluster.run("cluster", "up")
            try #require(up.status == 0, "\(up.all)")
        }
        counts.merge(device.counts, uniquingKeysWith: +)
        #expect(counts.count == number + 1 && counts.values.allSatisfy { $0 == 1 }, "\(counts)")
    }
}
