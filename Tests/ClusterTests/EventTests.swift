import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Events of devices and accounts (IV-B10, IV-D10)", .serialized, .timeLimit(.minutes(3)))
struct EventTests {
    private static let cam = DeviceID(unchecked: "cam")

    @Test("Alarms, shares and notices reach each account once, also while the nodes of an app and of the topic die")
    func accounts() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_440, environment: ["APUS_EVENTS_PER_MINUTE": "40"])
        defer { cluster.down() }
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--access", "owner"))
        let guest = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--access", "guest", "--account", "guest"))
        let heardByOwner = EventLog(owner.accountEvents(of: AccountID(unchecked: "local")))
        let heardByGuest = EventLog(guest.accountEvents(of: AccountID(unchecked: "guest")))
        let stranger = EventLog(guest.accountEvents(of: AccountID(unchecked: "local")))
        defer {
            for session in [device, owner, guest] { session.close() }
        }
        try await eventually("another account does not hear them") { stranger.error == .notAllowed }
        try await eventually { () throws(ApusError) in try await device.reportEvent("started") }
        for _ in 0..<15 where !heardByOwner.names.contains("alarm probe cam ") {
            try await device.reportEvent("probe")
            try await Task.sleep(for: .milliseconds(200))
        }
        try await owner.share(Self.cam, with: AccountID(unchecked: "guest"), control: false)
        let invited = #"share invited cam {"account":"guest","control":false}"#
        try await eventually("both accounts hear the invitation") {
            heardByOwner.names.contains(invited) && heardByGuest.names.contains(invited)
        }
        try await device.reportEvent("before", json: #"{"zone":2}"#)
        try await eventually("the owner hears it") { heardByOwner.names.contains(#"alarm before cam {"zone":2}"#) }
        #expect(!heardByGuest.names.contains(#"alarm before cam {"zone":2}"#), "it has not accepted")
        #expect(try await guest.invitations().map(\.device) == [Self.cam])
        try await guest.acceptShare(of: Self.cam)
        let shared = #"share shared cam {"account":"guest","control":false}"#
        try await eventually("both accounts hear it") {
            heardByOwner.names.contains(shared) && heardByGuest.names.contains(shared)
        }
        try await device.reportEvent("motion", json: #"{"zone":1}"#)
        try await eventually("owner and guest hear the alarm") {
            [heardByOwner, heardByGuest].allSatisfy { $0.names.contains(#"alarm motion cam {"zone":1}"#) }
        }
        #expect(try cluster.run("events", "notify", "guest", "maintenance").status == 0)
        try await eventually("the notice") { heardByGuest.names.contains("system maintenance  ") }
        #expect(!heardByOwner.names.contains("system maintenance  "))

        // The node of the owner's app dies, and then that of the topic; the device goes on.
        let why = try cluster.run("why", "events/local", "--json")
        for node in [2, (1...3).first { why.output.contains("\"owner\":\"n\($0)\"") } ?? 3] where node != 1 {
            #expect(try cluster.run("cluster", "kill", "\(node)").status == 0)
            for number in 0..<5 {
                let name = "after-\(node)-\(number)"
                try await eventually { () throws(ApusError) in try await device.reportEvent(name) }
                try await eventually("\(name) is heard") { heardByOwner.names.contains("alarm \(name) cam ") }
            }
            #expect(try cluster.run("cluster", "restart", "\(node)").status == 0)
        }
        try await owner.unshare(Self.cam, with: AccountID(unchecked: "guest"))
        try await eventually("the guest learns it") {
            heardByGuest.names.contains(#"share unshared cam {"account":"guest"}"#)
        }
        try await device.reportEvent("private")
        try await eventually("the owner hears it") { heardByOwner.names.contains("alarm private cam ") }
        #expect(!heardByGuest.names.contains("alarm private cam "))
        #expect(heardByOwner.repeated(but: "alarm probe cam ").isEmpty && heardByGuest.repeated(but: "").isEmpty)
    }

    @Test("An app that has received no event yet has the one that is reported while its node is frozen and dies, once")
    func quietAccount() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 28_000)
        defer { cluster.down() }
        // The topic's owner lives, and has the device's connection.
        let owner = try cluster.owner(of: "\(ShardID(key: "events/local").rawValue)")
        let node = try #require((1...3).first { $0 != owner })
        let device = try cluster.session(
            node: owner, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let app = try cluster.session(node: node, token: try cluster.token("--role", "app"))
        defer { for session in [device, app] { session.close() } }
        try await eventually { () throws(ApusError) in
            try await device.reportProperty(path: "ProReadonly.battery.stVal", json: "80")
        }
        let heard = EventLog(app.accountEvents(of: AccountID(unchecked: "local")))
        // Requests about a topic are carried out in order: after this one, the subscription was answered.
        try await eventually { () throws(ApusError) in
            _ = try await app.ask(
                ClientAcknowledgeRequest.with { ($0.topic, $0.cursor) = ("events/local", "1.0") })
        }
        let pid = try cluster.pid(node)
        Glibc.kill(pid, SIGSTOP)
        try await eventually { () throws(ApusError) in try await device.reportEvent("motion") }
        #expect(heard.names.isEmpty)
        Glibc.kill(pid, SIGKILL)
        try await eventually("the alarm is heard at another node") { heard.names.contains("alarm motion cam ") }
        try await eventually { () throws(ApusError) in try await device.reportEvent("later") }
        try await eventually("the next one is heard") { heard.names.contains("alarm later cam ") }
        #expect(heard.names == ["alarm motion cam ", "alarm later cam "])
    }

    @Test("An acknowledged alarm is heard once though the nodes of its device and of its topic die at once (IV-D10)")
    func alarmSurvives() async throws {
        let cluster = try Cluster(nodes: 5, basePort: 27_600)
        defer { cluster.down() }
        let (owner, asked, listening) = try Self.three("events/local", in: cluster)
        let device = try cluster.session(
            node: asked, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let app = try cluster.session(node: listening, token: try cluster.token("--role", "app"))
        defer { for session in [device, app] { session.close() } }
        let heard = EventLog(app.accountEvents(of: AccountID(unchecked: "local")))
        try await Self.begin(heard) { number throws(ApusError) in try await device.reportEvent("probe-\(number)") }
        let pids = (try cluster.pid(asked), try cluster.pid(owner), try cluster.pid(listening))
        // The app receives the alarm after the two nodes are dead, or, where its frozen node had a copy of the topic
        // and the device was answered late, at another node before.
        Glibc.kill(pids.2, SIGSTOP)
        defer { Glibc.kill(pids.2, SIGCONT) }
        try await device.reportEvent("motion")
        for pid in [pids.0, pids.1] { Glibc.kill(pid, SIGKILL) }
        Glibc.kill(pids.2, SIGCONT)
        try await eventually("the alarm is heard") { heard.names.contains("alarm motion cam ") }
        try await eventually { () throws(ApusError) in try await device.reportEvent("later") }
        try await eventually("the next one is heard") { heard.names.contains("alarm later cam ") }
        #expect(heard.repeated(but: "").isEmpty, "\(heard.names)")
    }

    @Test("An acknowledged change of rights is heard once though the nodes of client and device die at once (IV-B10)")
    func changeOfRightsSurvives() async throws {
        let cluster = try Cluster(nodes: 5, basePort: 27_700)
        defer { cluster.down() }
        // The device, its account's topic and the client are at three nodes.
        let (topic, asked, listening) = try Self.three("events/local", in: cluster)
        let name = try #require(
            (0..<256).lazy.map { "cam-\($0)" }.first {
                let found = try? Self.owner(of: $0, in: cluster)
                return found != nil && ![topic, asked, listening].contains(found ?? 0)
            })
        let (cam, owner) = (DeviceID(unchecked: name), try Self.owner(of: name, in: cluster))
        let token = try cluster.token("--role", "app")
        let device = try cluster.session(
            node: listening, token: try cluster.token("--role", "device", "--device", name), role: .device)
        let app = try cluster.session(node: listening, token: token)
        defer { for session in [device, app] { session.close() } }
        let heard = EventLog(app.accountEvents(of: AccountID(unchecked: "local")))
        try await Self.begin(heard) { number throws(ApusError) in try await device.reportEvent("probe-\(number)") }
        let pids = (try cluster.pid(asked), try cluster.pid(owner), try cluster.pid(topic))
        // Nothing can be published, and the change is acknowledged.
        Glibc.kill(pids.2, SIGSTOP)
        defer { Glibc.kill(pids.2, SIGCONT) }
        let answer = PlainHTTP(port: cluster.httpPort(asked))?.exchange(
            "POST", "/v1/devices/\(name)/shares", token: token, body: #"{"account":"guest"}"#)
        for pid in [pids.0, pids.1] { Glibc.kill(pid, SIGKILL) }
        Glibc.kill(pids.2, SIGCONT)
        #expect(answer?.status == 200, "\(String(describing: answer))")
        let invited = "share invited \(name) {\"account\":\"guest\",\"control\":false}"
        try await eventually("the account hears of it") { heard.names.contains(invited) }
        // What changes nothing has no event. The order of a device's changes is that of their events.
        try await eventually { () throws(ApusError) in
            _ = try await app.share(cam, with: AccountID(unchecked: "guest"), control: false)
        }
        try await eventually { () throws(ApusError) in
            try await app.unshare(cam, with: AccountID(unchecked: "guest"))
        }
        let unshared = "share unshared \(name) {\"account\":\"guest\"}"
        try await eventually("the account hears of the end") { heard.names.contains(unshared) }
        #expect(heard.names.filter { $0.hasPrefix("share") } == [invited, unshared])
    }

    /// The number of the node of five that owns a device or a topic.
    private static func owner(of key: String, in cluster: Cluster) throws -> Int {
        let why = try cluster.run("why", "\(ShardID(key: key).rawValue)", "--json")
        return try #require((1...5).first { why.output.contains("\"owner\":\"n\($0)\"") }, "\(why.all)")
    }

    /// The owner of a topic, and two other nodes.
    private static func three(_ topic: String, in cluster: Cluster) throws -> (owner: Int, asked: Int, listening: Int) {
        let owner = try owner(of: topic, in: cluster)
        return (owner, owner % 5 + 1, (owner + 1) % 5 + 1)
    }

    /// Reports events until one is heard.
    private static func begin(_ heard: EventLog, _ report: (Int) async throws(ApusError) -> Void) async throws {
        var number = 0
        try await eventually("an event is heard") {
            number += 1
            try? await report(number)
            return !heard.names.isEmpty
        }
    }

    @Test("Events that are none, and too many, are refused by number (21031, 10007, 12004)")
    func refusals() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_500, environment: ["APUS_EVENTS_PER_MINUTE": "5"])
        defer { cluster.down() }
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        defer {
            device.close()
            app.close()
        }
        try await eventually { () throws(ApusError) in try await device.reportEvent("started") }
        await fails(.notAllowed) { () throws(ApusError) in try await app.reportEvent("motion") }
        for (name, json) in [
            ("a b", ""), ("", ""), ("x", "{"), ("x", "\"" + String(repeating: "x", count: 4095) + "\""),
        ] {
            await fails(.badParameter) { () throws(ApusError) in try await device.reportEvent(name, json: json) }
        }
        await fails(.overloaded) { () throws(ApusError) in try await device.reportEvent("one-too-many") }
    }
}
