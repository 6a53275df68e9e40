import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Testing

@Suite("Devices that accounts share (IV-B8, IV-B10)", .serialized, .timeLimit(.minutes(3)))
struct ShareTests {
    private static let cam = DeviceID(unchecked: "cam")
    private static let guestAccount = AccountID(unchecked: "guests")

    /// The cluster of the tests that end no node and read no log. Each of them has accounts and a device of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_160) }

    @Test("A guest may do what it was allowed, and loses a live stream and all requests at other nodes within a second")
    func shares() async throws {
        let cluster = try Self.cluster()
        let camera = try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--node", "1")
        defer { camera.end() }
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        let guest = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", Self.guestAccount.rawValue))
        defer { for session in [owner, guest] { session.close() } }
        try await eventually { () throws(ApusError) in
            try await owner.addUserProperty("room", json: "1", to: Self.cam)
        }
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await guest.readProperty(of: Self.cam) }
        await fails(.illegalRelation) { () throws(ApusError) in
            try await guest.share(Self.cam, with: Self.guestAccount, control: true)
        }

        #expect(try await owner.share(Self.cam, with: Self.guestAccount, control: false), "it has to accept")
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await guest.readProperty(of: Self.cam) }
        #expect(try await guest.ask(ClientListDevicesRequest()).devices.isEmpty)
        #expect(try await guest.invitations().map(\.account.rawValue) == ["local"])
        #expect(try await owner.shares(of: Self.cam).map(\.isInvited) == [true])
        await fails(.illegalRelation) { () throws(ApusError) in try await owner.acceptShare(of: Self.cam) }
        try await guest.acceptShare(of: Self.cam)
        #expect(try await guest.invitations().isEmpty)
        _ = try await guest.readProperty(of: Self.cam)
        #expect(try await guest.ask(ClientListDevicesRequest()).devices.map(\.device) == ["cam"])
        await fails(.notAllowed) { () throws(ApusError) in
            try await guest.addUserProperty("room", json: "2", to: Self.cam)
        }
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await guest.sendData([1], to: Self.cam, timeout: .seconds(1))
        }
        await fails(.illegalRelation) { () throws(ApusError) in try await guest.unbind(Self.cam) }
        try await owner.share(Self.cam, with: Self.guestAccount, control: true)
        try await guest.addUserProperty("room", json: "2", to: Self.cam)

        // Two streams of the guest at two nodes, and one of the owner.
        let watchers = try [2, 3].map { node in
            try cluster.start(
                [
                    "watch", "cam", "--node", "\(node)", "--seconds", "20", "--log", cluster.file("guest\(node)"),
                    "--token", try cluster.token("--role", "app", "--account", Self.guestAccount.rawValue),
                ], errors: cluster.file("guest\(node).err"))
        }
        let own = try cluster.start("watch", "cam", "--node", "3", "--seconds", "6", "--log", cluster.file("own"))
        try await Task.sleep(for: .seconds(2))
        try await owner.unshare(Self.cam, with: Self.guestAccount)
        let start = DispatchTime.now().uptimeNanoseconds
        await fails(.illegalRelation) { () throws(ApusError) in
            try await guest.repeating(until: .now() + .seconds(5)) { _ throws(ApusError) in
                _ = try await guest.readProperty(of: Self.cam)
            }
        }
        for watcher in watchers { watcher.waitUntilExit() }
        own.waitUntilExit()
        for node in [2, 3] {
            let log = Frames(cluster.file("guest\(node)"))
            #expect(log.lines.count > 20, "the guest at node \(node) watched nothing")
            let last = log.lines.last?.at_ns ?? 0
            #expect(last < start + 1_000_000_000, "node \(node) sent frames for \(Int64(last) - Int64(start)) ns")
            let errors = Cluster.text(cluster.file("guest\(node).err"))
            #expect(errors.contains("8003"), "\(errors)")
        }
        let seen = Frames(cluster.file("own"))
        #expect(seen.lines.count > 100 && seen.lostCount == 0)
        #expect(try await owner.shares(of: Self.cam).isEmpty)
    }

    @Test("Who shares its device with another account again and again disturbs no stream, and no events, of the other")
    func unaskedShares() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_280)
        defer { cluster.down() }
        let attacker = try cluster.session(node: 3, token: try cluster.token("--role", "app", "--account", "attacker"))
        let token = try cluster.token("--role", "device", "--device", "bait", "--account", "attacker")
        let bait = try cluster.session(node: 1, token: token, role: .device)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--access", "owner"))
        defer { for session in [attacker, bait, owner] { session.close() } }
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--node", "1")
        try await Task.sleep(for: .seconds(1))
        let watcher = try cluster.start("watch", "cam", "--node", "2", "--seconds", "6", "--log", cluster.file("w"))
        let (device, victim) = (DeviceID(unchecked: "bait"), AccountID(unchecked: "local"))
        let heard = EventLog(owner.accountEvents(of: victim))
        for _ in 0..<10 {
            try await eventually { () throws(ApusError) in
                try await attacker.share(device, with: victim, control: true)
            }
            try await attacker.unshare(device, with: victim)
            // It is not a guest any more, and has nothing to end.
            try await attacker.unshare(Self.cam, with: AccountID(unchecked: "attacker"))
            try await Task.sleep(for: .milliseconds(200))
        }
        watcher.waitUntilExit()
        let seen = Frames(cluster.file("w"))
        #expect(seen.lines.count > 100 && seen.lostCount == 0)
        try await eventually("the invitations are heard") {
            heard.names.count { $0.hasPrefix("share invited bait") } >= 3
        }
        #expect(!heard.names.contains { $0.hasPrefix("share unshared") }, "\(heard.names)")
        // A device of an account that only invites reaches nobody with its events.
        try await attacker.share(device, with: victim, control: true)
        for _ in 0..<14 { try await bait.reportEvent("spam") }
        let last = try cluster.session(
            node: 3, token: try cluster.token("--role", "device", "--device", "own"), role: .device)
        defer { last.close() }
        try await eventually { () throws(ApusError) in try await last.reportEvent("own") }
        try await eventually("the own device is heard") { heard.names.contains("alarm own own ") }
        #expect(!heard.names.contains { $0.hasPrefix("alarm spam") }, "\(heard.names)")
        for node in 1...3 {
            let log = Cluster.text(cluster.file("n\(node)/log"))
            #expect(!log.contains("to check their rights again"), "n\(node) ended a session of the other account")
        }
    }

    @Test("An unbound device refuses its former account with 8003 and its old token; a new token binds it (8022, 8023)")
    func unbind() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_240)
        defer { cluster.down() }
        let old = try cluster.token("--role", "device", "--device", "cam")
        let ends = SessionEnds()
        let device = try cluster.session(node: 1, token: old, role: .device, ends: ends)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        let other = try cluster.session(node: 3, token: try cluster.token("--role", "app", "--account", "other"))
        defer { for session in [device, owner, other] { session.close() } }
        _ = try await eventually { () throws(ApusError) in try await owner.readProperty(of: Self.cam) }
        let admin = try cluster.token("--role", "admin")
        let rest = try #require(PlainHTTP(port: cluster.httpPort(3)))
        for (account, status) in [("local", "8022"), ("other", "8023")] {
            let bound = try #require(
                rest.exchange(
                    "POST", "/v1/devices/cam/binding", token: admin, body: #"{"account":"\#(account)"}"#))
            #expect(bound.status == 409 && bound.body.contains(status), "\(bound.status) \(bound.body)")
        }
        try await owner.addUserProperty("secret", json: #""of the owner""#, to: Self.cam)
        try await device.reportProperty(path: "ProWritable.level.setVal", json: "3")
        try await device.reportProperty(path: "ProReadonly._firmware.stVal", json: #""1.4.0""#)
        try await owner.writeProperty(of: Self.cam, path: "ProWritable.level.setVal", json: "9")
        try await owner.transfer(Self.cam, to: AccountID(unchecked: "other"))
        #expect(try await ends.isEnded(by: .tokenInvalid))
        // The model has what is the device's own, and nothing of its former account, at every node.
        let model = try await other.readProperty(of: Self.cam).json
        #expect(model.contains("1.4.0") && !model.contains("secret") && !model.contains("level"), "\(model)")
        await fails(.illegalRelation) { () throws(ApusError) in
            try await owner.repeating(until: .now() + .seconds(5)) { _ throws(ApusError) in
                _ = try await owner.readProperty(of: Self.cam)
            }
        }
        _ = try await other.readProperty(of: Self.cam)
        await fails(.boundToThisUser) { () throws(ApusError) in
            try await other.transfer(Self.cam, to: AccountID(unchecked: "other"))
        }
        try await other.unbind(Self.cam)
        await fails(.illegalRelation) { () throws(ApusError) in
            try await other.repeating(until: .now() + .seconds(5)) { _ throws(ApusError) in
                _ = try await other.readProperty(of: Self.cam)
            }
        }

        // The old token is refused, also after the deaths of the nodes that have seen the change; a new one binds.
        for node in 1...3 { #expect(try cluster.run("cluster", "restart", "\(node)").status == 0) }
        let staleEnds = SessionEnds()
        let stale = try cluster.session(node: 2, token: old, role: .device, ends: staleEnds)
        defer { stale.close() }
        #expect(try await staleEnds.isEnded(by: .tokenInvalid))
        try await Task.sleep(for: .seconds(1.1))
        let new = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        defer { new.close() }
        _ = try await eventually { () throws(ApusError) in try await owner.readProperty(of: Self.cam) }
        #expect(try await new.pendingProperties().isEmpty)
        #expect(try await new.dataSince() != nil, "the device is notified that it was handed over")
        // Within a household the data goes along.
        try await new.reportProperty(path: "ProWritable.level.setVal", json: "3")
        try await owner.addUserProperty("room", json: #""hall""#, to: Self.cam)
        try await owner.transfer(Self.cam, to: AccountID(unchecked: "other"), keepingData: true)
        let kept = try await other.repeating(until: .now() + .seconds(5)) { _ throws(ApusError) in
            try await other.readProperty(of: Self.cam).json
        }
        #expect(kept.contains("hall") && kept.contains("level"), "\(kept)")
    }

    @Test("A device's token from before it was unbound is refused over REST too, at every node (12001, IV-B10)")
    func staleToken() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "stale-cam")
        let api = CustomerAPI(cluster: cluster)
        let token = try cluster.token("--role", "device", "--device", "stale-cam", "--account", "stale")
        let camera = try cluster.session(node: 1, token: token, role: .device)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "stale"))
        defer { for session in [camera, owner] { session.close() } }
        try await eventually { () throws(ApusError) in _ = try await owner.readProperty(of: cam) }
        for node in 1...3 { try api.ask("GET", "/v1/answering-machine", token, node: node) }
        try await owner.unbind(cam)
        for node in 1...3 { try api.fails(.tokenInvalid, "GET", "/v1/answering-machine", token, node: node) }
        let other = try cluster.token("--role", "app", "--account", "stale-other")
        try await Task.sleep(for: .seconds(2))
        let later = try cluster.token("--role", "device", "--device", "stale-cam", "--account", "stale-other")
        let again = try cluster.session(node: 3, token: later, role: .device)
        defer { again.close() }
        try await eventually("it is bound to the other account") {
            try api.ask("GET", "/v1/devices/stale-cam/presence", other, status: nil)["online"] as? Int == 1
        }
        try api.ask("GET", "/v1/answering-machine", later)
        // A token of the first account does not make it the device of that account again.
        let first = try cluster.token("--role", "device", "--device", "stale-cam", "--account", "stale")
        try api.fails(.boundToOtherUser, "GET", "/v1/answering-machine", first)
    }
}
