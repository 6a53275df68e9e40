import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("Settings over the local network (IV-D14)", .serialized, .timeLimit(.minutes(3)))
struct LocalAccessTests {
    private static let lamp = DeviceID(unchecked: "lamp")

    /// The cluster of the tests that end no node. Each of them has an account and a lamp of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_360) }

    /// A lamp whose brightness is between 0 and 9, at node 1.
    private final class Lamp: Sendable {
        let session: ClientSession
        let applied = Mutex<[String]>([])
        private let running = Mutex<Task<Void, Never>?>(nil)

        init(
            _ cluster: Cluster, _ lamp: DeviceID = LocalAccessTests.lamp, account: String = "local",
            lifetime: Duration = .seconds(3600), port: Int = 0
        ) throws {
            session = try cluster.session(
                node: 1,
                token: try cluster.token("--role", "device", "--device", lamp.rawValue, "--account", account),
                role: .device)
            let log = ClientSession.loggingDisabled
            let settings = DeviceSettings(
                session: session, device: lamp, initial: [("brightness", "3")], log: log
            ) { [weak self] _, json in
                let value = "\(min(9, Int(json) ?? 0))"
                self?.applied.withLock { $0.append(value) }
                return value
            }
            let commands = DeviceCommands(session: session, log: log)
            var configuration = LocalControl.Configuration()
            configuration.bind = HostPort(host: "127.0.0.1", port: port)
            configuration.lifetime = lifetime
            configuration.secretFile = cluster.file("\(lamp).secret")
            configuration.checkTimeout = .milliseconds(500)
            let control = try LocalControl(
                session: session, device: lamp, commands: commands, settings: settings, configuration: configuration,
                log: log)
            running.withLock {
                $0 = Task {
                    await withDiscardingTaskGroup { group in
                        group.addTask { _ = try? await settings.run() }
                        group.addTask { _ = try? await commands.run() }
                        group.addTask { _ = try? await control.run() }
                    }
                }
            }
        }

        func close() {
            running.withLock { $0?.cancel() }
            session.close()
        }
    }

    /// As an app of others, or of somebody who has found the file.
    private static func changed(
        _ access: LocalAccess, _ change: (inout [String: Any]) -> Void
    ) throws -> LocalAccess {
        let read = try JSONSerialization.jsonObject(with: try JSONEncoder().encode(access))
        var fields = try #require(read as? [String: Any])
        change(&fields)
        return try JSONDecoder().decode(LocalAccess.self, from: try JSONSerialization.data(withJSONObject: fields))
    }

    @Test("An app changes settings of a device in its network, also while no node runs; built-in ones are 20105")
    func changes() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_740)
        defer { cluster.down() }
        let lamp = try Lamp(cluster, port: 30_769)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        defer { app.close() }
        let access = try await eventually { () throws(ApusError) in try await app.localAccess(to: Self.lamp) }
        #expect(access.addresses.count == 1 && access.expires > Date())
        #expect(try await access.writeProperty(path: "ProWritable.brightness", json: #"{"setVal":5}"#) == "5")
        #expect(try await access.writeProperty(path: "ProWritable.brightness.setVal", json: "12") == "9")
        try await eventually("the model has what the device has applied") {
            let found = try await app.readProperty(of: Self.lamp, path: "ProWritable.brightness.setVal")
            return found.json == "9" && !found.isPending
        }
        for (path, code) in [
            ("ProWritable._logLevel.setVal", ErrorCode.builtInSetting), ("ProWritable.volume.setVal", .pathIllegal),
            ("ProReadonly.battery.stVal", .pathIllegal),
        ] {
            await fails(code) { () throws(ApusError) in _ = try await access.writeProperty(path: path, json: "1") }
        }
        await fails(.jsonInvalid) { () throws(ApusError) in
            _ = try await access.writeProperty(path: "ProWritable.brightness", json: "1")
        }
        #expect(lamp.applied.withLock { $0 } == ["5", "9"])

        for node in 1...3 { #expect(try cluster.run("cluster", "kill", "\(node)").status == 0) }
        #expect(try await access.writeProperty(path: "ProWritable.brightness.setVal", json: "7") == "7")
        // The device starts again, without a node from which it could have the values of its model.
        lamp.close()
        try await Task.sleep(for: .milliseconds(300))
        let second = try Lamp(cluster, port: 30_769)
        defer { second.close() }
        try await eventually("the device listens") {
            (try? await access.writeProperty(path: "ProWritable.brightness.setVal", json: "8")) == "8"
        }
        for node in 1...3 {
            #expect(
                try Cluster.run(["cluster", "restart", "\(node)", "--dir", cluster.directory]).status == 0)
        }
        try await eventually("the model has what was changed meanwhile") {
            (try? await app.readProperty(of: Self.lamp, path: "ProWritable.brightness.setVal"))?.json == "8"
        }
        try await Task.sleep(for: .seconds(1))
        #expect(second.applied.withLock { $0 } == ["8"], "the model's older value is not applied")
    }

    /// At the address of the device is somebody who says nothing (20005), or nobody (21022).
    private static func expectNobody(_ access: LocalAccess, _ group: MultiThreadedEventLoopGroup) async throws {
        let path = "ProWritable.brightness.setVal"
        let silent = try await ServerBootstrap(group: group).bind(host: "127.0.0.1", port: 0).get()
        let port = try #require(silent.localAddress?.port)
        let elsewhere = try changed(access) { fields in
            var grant = fields["grant"] as? [String: Any] ?? [:]
            grant["addresses"] = ["127.0.0.1:\(port)"]
            fields["grant"] = grant
        }
        await fails(.peerHandshakeTimedOut) { () throws(ApusError) in
            _ = try await elsewhere.writeProperty(path: path, json: "6", timeout: .seconds(1))
        }
        try await silent.close()
        await fails(.connectFailed) { () throws(ApusError) in
            _ = try await elsewhere.writeProperty(path: path, json: "6", timeout: .seconds(1))
        }
    }

    @Test("Whoever loses the right, the token or the time cannot change a setting any more (8003, 12001, 12004, 20006)")
    func rights() async throws {
        let cluster = try Self.cluster()
        let lamp = try Lamp(cluster)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--access", "owner"))
        let guest = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--access", "guest", "--account", "guest"))
        let courier = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--access", "courier", "--device", "lamp"))
        defer {
            lamp.close()
            for session in [owner, guest, courier] { session.close() }
        }
        let access = try await eventually { () throws(ApusError) in try await owner.localAccess(to: Self.lamp) }
        await fails(.notAllowed) { () throws(ApusError) in _ = try await courier.localAccess(to: Self.lamp) }
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await guest.localAccess(to: Self.lamp) }
        try await owner.share(
            Self.lamp, with: AccountID(unchecked: "guest"), control: false, acceptedBy: guest)
        await fails(.notAllowed) { () throws(ApusError) in _ = try await guest.localAccess(to: Self.lamp) }
        try await owner.share(Self.lamp, with: AccountID(unchecked: "guest"), control: true)
        let guests = try await eventually { () throws(ApusError) in try await guest.localAccess(to: Self.lamp) }
        let path = "ProWritable.brightness.setVal"
        #expect(try await guests.writeProperty(path: path, json: "4") == "4")
        try await owner.unshare(Self.lamp, with: AccountID(unchecked: "guest"))
        await fails(.illegalRelation) { () throws(ApusError) in
            _ = try await guests.writeProperty(path: path, json: "5")
        }

        // With the owner's name, and with a key or an identity that the device has not granted.
        let owners = try JSONSerialization.jsonObject(with: try JSONEncoder().encode(access)) as? [String: Any]
        let user = try #require((owners?["grant"] as? [String: Any])?["user"] as? String)
        let renamed = try Self.changed(guests) { fields in
            var grant = fields["grant"] as? [String: Any] ?? [:]
            grant["user"] = user
            fields["grant"] = grant
        }
        await fails(.deviceTokenRefused) { () throws(ApusError) in
            _ = try await renamed.writeProperty(path: path, json: "5")
        }
        for (field, value) in [("key", Data(repeating: 1, count: 32).base64EncodedString()), ("identity", "AAAA")] {
            let forged = try Self.changed(access) { fields in
                if field == "key" { return fields["key"] = value }
                var grant = fields["grant"] as? [String: Any] ?? [:]
                grant[field] = value
                fields["grant"] = grant
            }
            await fails(.deviceTokenRefused) { () throws(ApusError) in
                _ = try await forged.writeProperty(path: path, json: "5")
            }
        }
        // Others in the network hold connections: those that do nothing make room.
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let address = try #require(access.addresses.first)
        var idle: [any Channel] = []
        for _ in 0..<40 {
            idle.append(try await ClientBootstrap(group: group).connect(host: address.host, port: address.port).get())
        }
        #expect(try await access.writeProperty(path: path, json: "6") == "6")
        try await Self.expectNobody(access, group)
        for channel in idle { try? await channel.close() }
        try await group.shutdownGracefully()

        #expect(try cluster.run("admin", "revoke", "--identity", "owner", "--account", "local").status == 0)
        try await Task.sleep(for: .seconds(1.2))
        await fails(.tokenInvalid) { () throws(ApusError) in
            _ = try await access.writeProperty(path: path, json: "7")
        }
        #expect(lamp.applied.withLock { $0 } == ["4", "6"])
    }

    @Test("Access ends with its lifetime, and a device that restarts with its secret knows it still (20006)")
    func lifetime() async throws {
        let cluster = try Self.cluster()
        let id = DeviceID(unchecked: "life-lamp")
        let (first, app) = (
            try Lamp(cluster, id, account: "life", lifetime: .seconds(12)),
            try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "life"))
        )
        defer { app.close() }
        let access = try await eventually { () throws(ApusError) in try await app.localAccess(to: id) }
        let path = "ProWritable.brightness.setVal"
        #expect(try await access.writeProperty(path: path, json: "4") == "4")
        first.close()
        let second = try Lamp(cluster, id, account: "life")
        defer { second.close() }
        // It listens at another port.
        let new = try await eventually { () throws(ApusError) in try await app.localAccess(to: id) }
        let moved = try Self.changed(access) { fields in
            var grant = fields["grant"] as? [String: Any] ?? [:]
            grant["addresses"] = new.addresses.map(\.description)
            fields["grant"] = grant
        }
        if access.expires > Date() + 1 { #expect(try await moved.writeProperty(path: path, json: "5") == "5") }
        try await Task.sleep(for: .seconds(max(0, access.expires.timeIntervalSinceNow + 1)))
        await fails(.deviceTokenRefused) { () throws(ApusError) in
            _ = try await moved.writeProperty(path: path, json: "6")
        }
        #expect(try await new.writeProperty(path: path, json: "7") == "7")
    }

    @Test("The verbs keep an access in a file, and write with it while no node runs")
    func verbs() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_860)
        defer { cluster.down() }
        try cluster.start(
            "device", "--id", "lamp", "--test-pattern", "160x120@5", "--setting", "volume=3", "--local-port", "0",
            "--local-host", "127.0.0.1")
        let file = cluster.file("lamp.access")
        try await eventually("access") {
            try cluster.run("property", "local-access", "lamp", "--save", file).status == 0
        }
        let mode = try FileManager.default.attributesOfItem(atPath: file)[.posixPermissions] as? Int
        #expect(mode == 0o600)
        for node in 1...3 { #expect(try cluster.run("cluster", "kill", "\(node)").status == 0) }
        let set = ["property", "set", "lamp", "--local", file]
        let written = try Cluster.run(set + ["ProWritable.volume.setVal", "5", "--json"])
        #expect(written.status == 0 && written.output.contains(#""json":5"#), "\(written.all)")
        let builtIn = try Cluster.run(set + ["ProWritable._logLevel.setVal", "5"])
        #expect(builtIn.status != 0 && builtIn.errors.contains("20105"), "\(builtIn.all)")
        let other = try Cluster.run(["property", "set", "door", "ProWritable.volume.setVal", "5", "--local", file])
        #expect(other.errors.contains("10022"), "\(other.all)")
    }
}
