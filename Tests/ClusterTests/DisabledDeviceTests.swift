import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite("Devices that are disabled (20011, IV-B10, IV-C16)", .serialized, .timeLimit(.minutes(3)))
struct DisabledDeviceTests {
    private static let cam = DeviceID(unchecked: "cam")
    private static let path = "/v1/devices/cam/disabled"
    private static let (disable, enable) = (#"{"disabled":true}"#, #"{"disabled":false}"#)

    /// The cluster of the tests that end no node. One has a customer's device `cam`, and one a device `bell` of none.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_240) }

    @Test("A customer disables a device: it, its streams and all requests end with 20011 within a second (IV-C16)")
    func ends() async throws {
        let cluster = try Self.cluster()
        let home = try Home(cluster)
        let camera = try home.startCamera()
        defer { camera.end() }
        let owner = try cluster.session(node: 2, token: try home.token(home.anna))
        let guest = try cluster.session(node: 3, token: try home.token(home.ben))
        let other = try cluster.session(node: 2, token: try home.token(home.carl))
        defer { for session in [owner, guest, other] { session.close() } }
        for session in [owner, guest] {
            _ = try await eventually { () throws(ApusError) in try await session.readProperty(of: Self.cam) }
        }
        let watchers = [
            try home.startWatcher(node: 2, try home.token(home.anna, client: "tv")),
            try home.startWatcher(node: 3, try home.token(home.ben, client: "tv")),
        ]
        defer { for watcher in watchers { watcher.end() } }
        try await eventually("frames at both nodes") { [2, 3].allSatisfy { home.frames($0).lines.count > 20 } }

        let phone = try home.token(home.anna, client: "phone")
        try home.api.fails(.illegalRelation, "POST", Self.path, home.evil, Self.disable)
        try home.api.fails(.notAllowed, "POST", Self.path, phone, Self.disable)
        try home.api.fails(.badParameter, "POST", Self.path, home.key, "{}")
        try home.api.fails(.targetUnknown, "POST", "/v1/devices/none/disabled", home.admin, Self.disable)
        let allRun = watchers.allSatisfy(\.isRunning)
        #expect(allRun, "a request that was refused has disabled the device")

        try home.api.ask("POST", Self.path, home.key, Self.disable, node: 3)
        let start = DispatchTime.now().uptimeNanoseconds
        for session in [owner, guest] { try await Self.expectRefusals(session) }
        for node in 1...3 {
            try home.api.fails(.deviceDisabled, "GET", "/v1/devices/cam/presence", phone, node: node)
            // What needs no session of the device either.
            try home.api.fails(.deviceDisabled, "POST", "/v1/relay/credentials", home.deviceToken, "{}", node: node)
        }
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await other.readProperty(of: Self.cam) }
        for watcher in watchers { watcher.waitUntilExit() }
        for node in [2, 3] {
            let last = home.frames(node).lines.last?.at_ns ?? 0
            #expect(last < start + 1_000_000_000, "node \(node) sent frames for \(Int64(last) - Int64(start)) ns")
            let errors = Cluster.text(cluster.file("watch\(node).err"))
            #expect(errors.contains("20011"), "\(errors)")
        }
        // The device goes on trying.
        try await eventually("the camera is refused") { Cluster.text(cluster.file("cam.err")).contains("20011") }
        #expect(camera.isRunning)
        #expect(try home.deviceSessions().isEmpty)
        try home.expectShown(isDisabled: true, phone)
    }

    @Test("A disabled device stays so when its owner is killed, and returns with its token when enabled (IV-C16)")
    func staysDisabled() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_860)
        defer { cluster.down() }
        let home = try Home(cluster)
        let camera = try home.startCamera()
        let owner = try cluster.session(node: 2, token: try home.token(home.anna))
        let late = try cluster.session(node: 1, token: try home.token(home.carl))
        defer { for session in [owner, late] { session.close() } }
        _ = try await eventually { () throws(ApusError) in try await owner.readProperty(of: Self.cam) }
        let disabled = try cluster.run("devices", "disable", "cam")
        #expect(disabled.status == 0 && disabled.output.contains("cam is disabled"), "\(disabled.all)")
        // Again is no other change.
        try home.api.ask("POST", Self.path, home.key, Self.disable, node: 2)

        // Its accounts change nevertheless, and that does not enable it.
        try home.api.ask("POST", "/v1/devices/cam/shares", home.key, #"{"account":"\#(home.carl)"}"#)
        for session in [owner, late] {
            await refused { () throws(ApusError) in _ = try await session.readProperty(of: Self.cam) }
        }
        let shard = try home.api.ask("GET", "/v1/devices/cam/shard", home.admin)["shard"] as? [String: Any]
        let node = try #require((shard?["owner"] as? String).flatMap { Int($0.dropFirst()) })
        #expect(try cluster.run("cluster", "kill", "\(node)").status == 0)
        for session in [owner, late] {
            await refused { () throws(ApusError) in _ = try await session.readProperty(of: Self.cam) }
        }
        #expect(try cluster.run("cluster", "restart", "\(node)").status == 0)
        for session in [owner, late] {
            await refused { () throws(ApusError) in _ = try await session.readProperty(of: Self.cam) }
        }
        let phone = try home.token(home.anna, client: "phone")
        try home.expectShown(isDisabled: true, phone)
        #expect(try home.deviceSessions().isEmpty)
        let listed = try cluster.run("devices", "--account", home.anna)
        #expect(listed.output.contains("disabled"), "\(listed.all)")

        try home.api.ask("POST", Self.path, home.key, Self.enable, node: 3)
        try await eventually("the camera is online again") {
            try home.api.ask("GET", "/v1/devices/cam/presence", phone, status: nil)["online"] as? Int == 1
        }
        for session in [owner, late] {
            _ = try await eventually { () throws(ApusError) in try await session.readProperty(of: Self.cam) }
        }
        let watcher = try home.startWatcher(node: 3, try home.token(home.anna, client: "tv"), seconds: 4)
        watcher.waitUntilExit()
        #expect(watcher.terminationStatus == 0 && home.frames(3).lines.count > 20)
        #expect(camera.isRunning)
        try home.expectShown(isDisabled: false, phone)
    }

    @Test("The calls of a disabled device end, and are refused with 20011, until it is enabled (CALL-13, IV-C16)")
    func calls() async throws {
        let cluster = try Self.cluster()
        let (api, admin) = (CustomerAPI(cluster: cluster), try cluster.token("--role", "admin"))
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let device = DeviceID(unchecked: "bell")
        let call = try await app.ring(bell)
        try await bell.session.acceptCall(call)
        _ = try await app.next(call) { $0.stage == .accepted }
        let side = CallSide(app.session, call: call, name: "app")
        let other = CallSide(bell.session, call: call, name: "bell")
        async let sending: Void = other.send(100)
        try await eventually { () throws(ApusError) in
            guard side.received.count > 20 else { throw ApusError(.noRoute) }
        }
        try api.ask("POST", "/v1/devices/bell/disabled", admin, Self.disable)
        let ends = try await side.ends(within: .seconds(10))
        #expect(ends.publisher?.code == .deviceDisabled && ends.player?.code == .deviceDisabled, "\(ends)")
        try await sending
        await refused { () throws(ApusError) in _ = try await app.session.startCall(to: [.device(device)]) }
        try api.fails(.deviceDisabled, "GET", "/v1/calls?device=bell", try cluster.token("--role", "app"))
        try api.ask("GET", "/v1/calls?device=bell", admin)

        try api.ask("POST", "/v1/devices/bell/disabled", admin, Self.enable)
        try await app.session.hangUpCall(try await app.ring(bell))
    }

    /// Each request that needs a right to the device.
    private static func expectRefusals(_ session: ClientSession) async throws {
        await refused { () throws(ApusError) in _ = try await session.readProperty(of: cam) }
        await refused { () throws(ApusError) in try await session.addUserProperty("room", json: "1", to: cam) }
        await refused { () throws(ApusError) in try await session.sendData([1], to: cam, timeout: .seconds(2)) }
        await refused { () throws(ApusError) in _ = try await session.commands(of: cam) }
        await refused { () throws(ApusError) in
            do {
                for try await _ in session.events(of: "presence/cam", as: ClientPresence.self) { return }
            } catch {
                throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
        }
        let ends = SessionEnds()
        let player = Player(
            session: session, device: cam, onFrame: { _ in },
            onEvent: { event in if case .ended(let error) = event { ends.error.withLock { $0 = error } } })
        player.start()
        #expect(try await ends.isEnded(by: .deviceDisabled))
    }
}

/// A camera that is assigned to a customer, bound to one of its users, and shared with another one for viewing.
private struct Home {
    let cluster: Cluster
    let api: CustomerAPI
    let admin: String
    /// The key of the device's customer, and that of another one.
    let key: String
    let evil: String
    let anna: String
    let ben: String
    /// Has no right to the device.
    let carl: String
    let deviceToken: String

    init(_ cluster: Cluster) throws {
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        for customer in ["acme", "evil"] {
            try api.ask("POST", "/v1/customers", admin, #"{"customer":"\#(customer)"}"#)
        }
        let key = try api.key("acme", admin).key
        let users = try ["anna", "ben", "carl"].map { name in
            try api.text("user", "POST", "/v1/customers/acme/users", key, #"{"externalId":"\#(name)"}"#)
        }
        try api.ask("POST", "/v1/devices/cam/customer", admin, #"{"customer":"acme"}"#)
        try api.ask("POST", "/v1/devices/cam/binding", key, #"{"account":"\#(users[0])"}"#)
        try api.ask("POST", "/v1/devices/cam/shares", key, #"{"account":"\#(users[1])"}"#)
        deviceToken = try api.text("token", "POST", "/v1/devices/cam/tokens", key, "{}")
        evil = try api.key("evil", admin).key
        (self.cluster, self.api, self.admin, self.key) = (cluster, api, admin, key)
        (anna, ben, carl) = (users[0], users[1], users[2])
    }

    /// - Parameter client: sessions of different clients of a user do not end each other.
    func token(_ user: String, client: String = "app") throws -> String {
        try api.text("token", "POST", "/v1/users/\(user)/tokens", key, #"{"client":"\#(client)"}"#)
    }

    func startCamera() throws -> Process {
        try cluster.start(
            ["device", "--id", "cam", "--test-pattern", "160x120@25", "--node", "1", "--token", deviceToken],
            errors: cluster.file("cam.err"))
    }

    func startWatcher(node: Int, _ token: String, seconds: Int = 40) throws -> Process {
        try cluster.start(
            [
                "watch", "cam", "--node", "\(node)", "--seconds", "\(seconds)", "--log", cluster.file("watch\(node)"),
                "--token", token,
            ], errors: cluster.file("watch\(node).err"))
    }

    /// What the watcher at a node has received.
    func frames(_ node: Int) -> Frames { Frames(cluster.file("watch\(node)")) }

    /// The sessions of the device, at all nodes.
    func deviceSessions() throws -> [[String: Any]] {
        let sessions = try api.ask("GET", "/v1/sessions?account=\(anna)", admin)["sessions"] as? [[String: Any]]
        return (sessions ?? []).filter { $0["role"] as? String == "device" }
    }

    /// Operators, the customer and the account see whether the device is disabled, and the other customer does not.
    func expectShown(isDisabled: Bool, _ phone: String) throws {
        for token in [admin, key, phone] {
            let device = try api.ask("GET", "/v1/devices/cam", token)
            #expect((device["disabled"] as? Bool ?? false) == isDisabled, "\(device)")
        }
        for token in [admin, key] {
            let devices = try api.ask("GET", "/v1/devices?account=\(anna)", token)["devices"] as? [[String: Any]]
            #expect((devices?.first?["disabled"] as? Bool ?? false) == isDisabled, "\(devices ?? [])")
        }
        try api.fails(.targetUnknown, "GET", "/v1/devices/cam", evil)
    }
}

/// Expects that the request is refused with 20011, within fifteen seconds. Until then it may fail otherwise, such as
/// while the session connects again, and must not succeed.
private func refused(
    sourceLocation: SourceLocation = #_sourceLocation, _ body: () async throws(ApusError) -> Void
) async {
    let deadline = ContinuousClock.now + .seconds(15)
    var last = ApusError(.internalFailure)
    repeat {
        do throws(ApusError) {
            try await body()
            Issue.record("the device is not disabled", sourceLocation: sourceLocation)
            return
        } catch {
            if error.code == .deviceDisabled { return }
            last = error
        }
        try? await Task.sleep(for: .milliseconds(50))
    } while ContinuousClock.now < deadline
    Issue.record("no 20011, but \(last)", sourceLocation: sourceLocation)
}
