import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import Logging
import Testing

@Suite(
    "A cluster whose records have no room", .serialized, .timeLimit(.minutes(2)),
    .enabled(if: TestDisk.canBeMade, "a disk in memory cannot be made here"))
struct FullDiskTests {
    private static let bell = DeviceID(unchecked: "bell")

    /// The device carries out the commands that ``fill(_:_:)`` sends.
    private static func carryOut(_ bell: CallClient) -> Task<Void, Never> {
        let commands = DeviceCommands(session: bell.session, log: Logger(label: "test"))
        commands.onAction("add") { json throws(ApusError) in json }
        return Task { _ = try? await commands.run() }
    }

    /// Takes the room of the disk, and that which the records have already: with long properties, then with commands.
    private static func fill(_ disk: TestDisk, _ app: ClientSession) async throws {
        _ = try await eventually { () throws(ApusError) in
            try await app.performAction("Action.add.ctlVal", json: "1", on: bell)
        }
        try await takeRoom(of: disk, app)
        await refused(app, keptMax: 1000)
    }

    /// The same, without commands.
    private static func takeRoom(of disk: TestDisk, _ app: ClientSession) async throws {
        try #require(disk.fill(disk.path + "/ballast"))
        let text = String(repeating: "x", count: 7000)
        let error = await #expect(throws: ApusError.self) {
            for number in 0..<8 { try await app.addUserProperty("p\(number)", json: "\"\(text)\"", to: bell) }
            for number in 0..<1000 {
                _ = try await app.writeProperty(
                    of: bell, path: "ProUser.p\(number % 8).val", json: "\"\(number)\(text)\"")
            }
        }
        #expect(error?.code == .storageFailed, "\(String(describing: error))")
    }

    /// Expects that a command is refused with 10021, after at most this many that are kept. So is one whose last
    /// attempt is on its way when its time is over.
    private static func refused(_ app: ClientSession, keptMax: Int) async {
        var (keptCount, last) = (0, ApusError?.none)
        while keptCount <= keptMax {
            do throws(ApusError) {
                try await kept(app)
                keptCount += 1
            } catch {
                last = error
                break
            }
        }
        #expect(last?.code == .storageFailed && keptCount <= keptMax, "\(keptCount) kept, \(String(describing: last))")
    }

    /// A command that is kept for the device needs a record. The client repeats it until its time is over.
    private static func kept(_ app: ClientSession, timeout: Duration = .seconds(3)) async throws(ApusError) {
        let sum = try await app.sendCommand(
            .action(path: "Action.add.ctlVal", json: "3"), to: bell, keptFor: .seconds(60), timeout: timeout)
        #expect(sum.json == "3")
    }

    private static func records(_ app: CallClient, _ calls: [String]) async throws {
        for _ in 0..<200 {
            let found = try await app.session.ask(ClientListCallsRequest()).calls.map(\.call)
            if Set(found).isSuperset(of: calls) { return }
            try await Task.sleep(for: .milliseconds(100))
        }
        Issue.record("no record of one of \(calls)")
    }

    @Test(
        "Calls and commands go on, through the death of their owner too; what needs the records is 10021 (D9, CALL-9)")
    func calls() async throws {
        let disk = TestDisk(byteCount: 4 << 20)
        let cluster = try Cluster(configuredNodes: 3, basePort: 31_030, records: disk.path + "/records.sqlite")
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        let work = Self.carryOut(bell)
        defer { for client in [bell, app] { client.close() } }
        defer { work.cancel() }
        try await Self.fill(disk, app.session)

        // A node that cannot write says so.
        let views = (1...3).map { NodeView($0, of: cluster) }
        let isShown = views.filter { $0.status?.conditions?.contains { $0.type == "records_unwritable" } ?? false }
        #expect(!isShown.isEmpty, "no node reports that the records cannot be written")
        for view in isShown {
            let health = view.get("/healthz")
            #expect(health?.status == 200 && health?.body.contains("records_unwritable") == true)
            #expect(view.get("/metrics")?.body.contains("apus_node_condition{type=\"records_unwritable\"} 1") == true)
        }
        // What ends with its request needs no record.
        #expect(try await app.session.performAction("Action.add.ctlVal", json: "2", on: Self.bell) == "2")
        await Self.refused(app.session, keptMax: 0)
        let first = try await app.ring(bell)
        _ = try await bell.session.acceptCall(first)
        _ = try await app.next(first) { $0.stage == .accepted }
        _ = try await app.session.hangUpCall(first)
        #expect(try await bell.end(first)?.code == .peerHungUp)

        let second = try await app.ring(bell)
        _ = try await bell.session.acceptCall(second)
        Glibc.kill(try cluster.pid(try cluster.owner(of: "bell")), SIGKILL)
        for side in [bell, app] {
            try await eventually { () throws(ApusError) in _ = try await side.session.reportCallConnected(second) }
        }
        _ = try await app.session.hangUpCall(second)
        #expect(try await bell.end(second)?.code == .peerHungUp)

        // With room again, each call gets its record, and commands are kept.
        unlink(disk.path + "/ballast")
        try await Self.records(app, [first, second])
        try await Self.kept(app.session, timeout: .seconds(20))
        try await eventually { () throws(ApusError) in
            let lasting = views.filter { $0.status?.conditions?.contains { $0.type == "records_unwritable" } ?? false }
            guard lasting.isEmpty else { throw ApusError(.storageFailed, "the condition lasts") }
        }
    }

    @Test(
        "A call without room for its record has media through a kill; who is away is called (CALL-10, CALL-13)"
    )
    func mediaAndNotifications() async throws {
        let receiver = try await HTTPReceiver.start { _, _ in 200 }
        let disk = TestDisk(byteCount: 4 << 20)
        let cluster = try Cluster(
            configuredNodes: 3, basePort: 31_060, records: disk.path + "/records.sqlite",
            environment: ["APUS_PUSH_WEBHOOK_URL": "http://127.0.0.1:\(receiver.port)/push"])
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        let work = Self.carryOut(bell)
        defer { for client in [bell, app] { client.close() } }
        defer { work.cancel() }
        let tablet = try await CallClient(cluster, 3, access: "tablet").ready()
        try await tablet.session.registerPush(.webhook, token: "token-of-tablet")
        tablet.close()
        try await Self.fill(disk, app.session)

        let call = try await bell.start([], type: .oneToMany).id
        try await eventually("the tablet is notified") {
            receiver.requests.contains { $0.body.contains("token-of-tablet") && $0.body.contains(call) }
        }
        _ = try await app.next(call) { if case .ring = $0.stage { true } else { false } }
        _ = try await app.session.acceptCall(call)
        _ = try await bell.next(call) { $0.stage == .accepted }
        let sides = [
            CallSide(app.session, call: call, name: "app"), CallSide(bell.session, call: call, name: "bell"),
        ]
        async let sending: Void = sides[0].send(150, byteCount: 2000)
        async let sendingBack: Void = sides[1].send(150, byteCount: 2000)
        try await eventually("both sides play") { sides.allSatisfy { $0.newest != nil } }
        try await Task.sleep(for: .seconds(1))
        Glibc.kill(try cluster.pid(try cluster.owner(of: "bell")), SIGKILL)
        try await sending
        try await sendingBack
        // A side that is played late begins with the live picture.
        try await eventually("the last frame") { sides.allSatisfy { $0.newest == 149 } }
        #expect(sides.allSatisfy { $0.received.lostCount == 0 })
        try await eventually { () throws(ApusError) in _ = try await app.session.hangUpCall(call) }
        #expect(try await bell.end(call)?.code == .peerHungUp)
        unlink(disk.path + "/ballast")
        try await Self.records(app, [call])
        try await receiver.stop()
    }

    @Test("An account hears its alarm although the event for its integrator's hook cannot be written (D9, IV-D10)")
    func alarms() async throws {
        let disk = TestDisk(byteCount: 4 << 20)
        let cluster = try Cluster(
            configuredNodes: 3, basePort: 31_090, records: disk.path + "/records.sqlite",
            environment: ["APUS_HOOKS_HOSTS": "127.0.0.1"])
        defer { cluster.down() }
        let (api, admin) = (CustomerAPI(cluster: cluster), try cluster.token("--role", "admin"))
        try await cluster.awaitChecks()
        try api.ask("POST", "/v1/customers", admin, #"{"customer":"acme"}"#)
        let user = try api.text("user", "POST", "/v1/customers/acme/users", admin, #"{"externalId":"anna"}"#)
        try api.ask("POST", "/v1/devices/bell/customer", admin, #"{"customer":"acme"}"#)
        try api.ask("POST", "/v1/devices/bell/binding", admin, #"{"account":"\#(user)"}"#)
        // Nobody listens there, so what is written stays.
        try api.ask(
            "POST", "/v1/customers/acme/hooks/alarms", admin, #"{"url":"http://127.0.0.1:1/","events":["alarm"]}"#)
        let device = try cluster.session(
            node: 2, token: try cluster.token("--role", "device", "--device", "bell", "--account", user),
            role: .device)
        let app = try cluster.session(node: 3, token: try cluster.token("--role", "app", "--account", user))
        defer { for session in [device, app] { session.close() } }
        let heard = EventLog(app.accountEvents(of: AccountID(unchecked: user)))
        // One that is reported before the subscription is not heard.
        try await eventually { () throws(ApusError) in
            try await device.reportEvent("first")
            guard heard.names.contains(where: { $0.hasPrefix("alarm first ") }) else {
                throw ApusError(.deadlineExceeded, "no alarm: \(heard.names), \(String(describing: heard.error))")
            }
        }
        // Nodes look at their hooks every two seconds.
        try await Task.sleep(for: .seconds(2.5))

        try await Self.takeRoom(of: disk, app)
        let text = String(repeating: "x", count: 4000)
        var (number, refusal) = (0, ApusError?.none)
        while refusal == nil, number < 50 {
            number += 1
            do throws(ApusError) {
                try await device.reportEvent("ring-\(number)", json: "\"\(text)\"")
            } catch {
                refusal = error
            }
        }
        #expect(refusal?.code == .storageFailed, "\(number): \(String(describing: refusal))")
        try await eventually("the alarm that the hook does not have") {
            heard.names.contains { $0.hasPrefix("alarm ring-\(number) ") }
        }
        unlink(disk.path + "/ballast")
    }
}
