import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import SwiftProtobuf
import Synchronization
import Testing

@Suite("A voice client in a cluster (VA-1 to VA-5)", .serialized, .timeLimit(.minutes(4)))
struct VoiceClientTests {
    /// What a client has reported, and its clock.
    private final class Seen: Sendable {
        private struct State {
            var states: [VoiceAuthorizationState] = []
            var codes: [String] = []
            var links: [LinkState] = []
        }

        private let state = Mutex(State())
        private let ahead = Mutex<Int64>(0)

        var handlers: VoiceHandlers {
            var handlers = VoiceHandlers()
            handlers.authorization = { [self] shown in state.withLock { $0.codes.append(shown.userCode) } }
            handlers.authorizationState = { [self] new, _ in state.withLock { $0.states.append(new) } }
            handlers.linkState = { [self] link, _ in state.withLock { $0.links.append(link) } }
            return handlers
        }

        var states: [VoiceAuthorizationState] { state.withLock { $0.states } }
        var codes: [String] { state.withLock { $0.codes } }
        var isOnline: Bool { state.withLock { $0.links.last == .online } }

        func moveClock(by seconds: Int64) { ahead.withLock { $0 += seconds } }
        var wallSeconds: Int64 { Int64(Date().timeIntervalSince1970) + ahead.withLock { $0 } }
    }

    /// A client that runs.
    private final class Device: Sendable {
        let seen = Seen()
        let client: VoiceClient
        private let task: Task<Void, any Error>

        init(_ cluster: Cluster, _ device: String, database: String, nodes: [Int] = [1, 2, 3]) throws {
            let client = VoiceClient(seen.handlers) { [seen] in seen.wallSeconds }
            try client.setLocal("en-US")
                .setAuthorizationUrl("http://127.0.0.1:\(cluster.httpPort(1))/v1/oauth")
                .setDeviceInfo(clientId: "-/speaker", deviceId: device)
                .setIVSService(nodes.map { "127.0.0.1:\(cluster.endpointPort($0))" }.joined(separator: ","))
                .setCA(cluster.file("pki/ca"), ofType: "pem")
                .setLog("voice", level: "NONE")
                .setDataBase(database)
                .initialization()
            self.client = client
            task = Task { try await client.run() }
        }

        /// Ends it, as a device that loses its power. Its database is free afterwards.
        func end() async {
            task.cancel()
            _ = await task.result
        }
    }

    private static let environment = ["APUS_AUTHORIZATION_POLL_INTERVAL": "1s"]

    private static func shared() throws -> Cluster {
        let cluster = try SharedCluster.cluster(basePort: 24_720, environment: environment)
        try cluster.putSpeaker()
        return cluster
    }

    private static func approve(_ device: Device, _ cluster: Cluster, account: String, count: Int = 1) async throws {
        try await ApusTestKit.eventually("a code is shown") { device.seen.codes.count >= count }
        let token = try cluster.token("--role", "app", "--account", account)
        try CustomerAPI(cluster: cluster).ask(
            "POST", "/v1/authorizations/\(device.seen.codes[count - 1])/approval", token, "{}", node: 2)
    }

    @Test("It is approved, connects, and after a restart it needs no approval: token, settings, alarms (VA-1 to VA-4)")
    func restart() async throws {
        let cluster = try Self.shared()
        let path = cluster.file("voice-restart.sqlite")
        let id = DeviceID(unchecked: "voice-restart")
        do {
            let device = try Device(cluster, "voice-restart", database: path)
            device.client.connect()
            try await Self.approve(device, cluster, account: "restart")
            try await ApusTestKit.eventually("it is online") { device.seen.isOnline }
            #expect(device.seen.states == [.uninitialized, .refreshed] && device.seen.codes.count == 1)
            try device.client.database?.setSetting("volume", "7")
            let session = try #require(device.client.session)
            try await eventually { () throws(ApusError) in
                _ = try await session.setTimer(.seconds(3600), label: "tea", on: id)
            }
            try await ApusTestKit.eventually("the database has the alarm") {
                try device.client.database?.alarms().map(\.label) == ["tea"]
            }
            await device.end()
        }
        // On a busy machine a task of the first client may hold the database for a moment.
        let device = try await eventually { () throws(ApusError) in
            do { return try Device(cluster, "voice-restart", database: path, nodes: [3, 1, 2]) } catch {
                throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
        }
        #expect(try device.client.database?.setting("volume") == "7")
        #expect(try device.client.database?.alarms().map(\.label) == ["tea"], "before it is connected")
        device.client.connect()
        try await ApusTestKit.eventually("it is online again") { device.seen.isOnline }
        #expect(device.seen.states == [.refreshed] && device.seen.codes.isEmpty)
        await device.end()
    }

    @Test("It disconnects, reconnects, and a reset forgets everything (VA-5)")
    func session() async throws {
        let cluster = try Self.shared()
        let path = cluster.file("voice-session.sqlite")
        let device = try Device(cluster, "voice-session", database: path)
        try await Self.approve(device, cluster, account: "session")
        try await ApusTestKit.eventually("it has a token") { device.client.authorizationState == .refreshed }
        #expect(device.client.session == nil, "nobody has asked to connect")
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "session"))
        defer { app.close() }
        func isOnline(_ expected: Bool) async throws {
            try await ApusTestKit.eventually("the device is \(expected ? "online" : "offline")") {
                try await app.ask(
                    ClientGetPresenceRequest.with { $0.device = "voice-session" }
                ).online == (expected ? 1 : 0)
            }
        }
        device.client.connect()
        try await ApusTestKit.eventually("a session") { device.client.session != nil && device.seen.isOnline }
        try await eventually { () throws(ApusError) in
            _ = try await app.ask(ClientGetPresenceRequest.with { $0.device = "voice-session" })
        }
        try await isOnline(true)
        device.client.disconnect()
        try await ApusTestKit.eventually("no session") { device.client.session == nil }
        try await isOnline(false)
        device.client.reconnect()
        try await isOnline(true)
        let first = try #require(device.client.session)
        device.client.reconnect()
        try await ApusTestKit.eventually("another session") {
            device.client.session.map { $0 !== first } ?? false
        }
        try await isOnline(true)
        try device.client.database?.setSetting("volume", "7")
        device.client.resetIVS()
        try await ApusTestKit.eventually("another code") { device.seen.codes.count == 2 }
        #expect(device.client.authorizationState == .uninitialized && device.client.session == nil)
        #expect(try device.client.database?.setting("volume") == nil)
        try await isOnline(false)
        try await Self.approve(device, cluster, account: "session", count: 2)
        try await isOnline(true)
        await device.end()
    }

    @Test("A clock that moves and a revocation: refreshed, and then unrecoverable until a reset (VA-4)")
    func states() async throws {
        let cluster = try Self.shared()
        let device = try Device(cluster, "voice-clock", database: cluster.file("voice-clock.sqlite"))
        device.client.connect()
        try await Self.approve(device, cluster, account: "clock")
        try await ApusTestKit.eventually("it is online") { device.seen.isOnline }
        // The device's clock jumps over the token's expiry, which is a day away.
        for (seconds, expected) in [
            (Int64(90_000), [VoiceAuthorizationState.expired, .refreshed]), (-1_000_000, [.refreshed]),
        ] {
            let before = device.seen.states.count
            let session = device.client.session
            device.seen.moveClock(by: seconds)
            device.client.clockChanged()
            try await ApusTestKit.eventually("another token") { device.seen.states.count == before + expected.count }
            #expect(Array(device.seen.states.suffix(expected.count)) == expected)
            try await ApusTestKit.eventually("it is online with it") {
                device.seen.isOnline && device.client.session !== session && device.client.session != nil
            }
        }
        let admin = try cluster.token("--role", "admin")
        try CustomerAPI(cluster: cluster).ask(
            "POST", "/v1/tokens/revoke", admin, #"{"identity":"voice-clock","account":"clock"}"#)
        try await ApusTestKit.eventually("it is unrecoverable") {
            device.client.authorizationState == .unrecoverableError
        }
        #expect(device.client.session == nil && device.seen.states.last == .unrecoverableError)
        let codes = device.seen.codes.count
        try await Task.sleep(for: .seconds(1.5))
        #expect(device.seen.codes.count == codes, "it asks for nothing")
        device.client.resetIVS()
        try await Self.approve(device, cluster, account: "clock", count: codes + 1)
        try await ApusTestKit.eventually("it is online once more") {
            device.client.authorizationState == .refreshed && device.seen.isOnline
        }
        await device.end()
    }

    @Test("A person who refuses makes it unrecoverable (VA-3, VA-4)")
    func refused() async throws {
        let cluster = try Self.shared()
        let device = try Device(cluster, "voice-refused", database: cluster.file("voice-refused.sqlite"))
        try await ApusTestKit.eventually("a code is shown") { !device.seen.codes.isEmpty }
        let token = try cluster.token("--role", "app", "--account", "refused")
        try CustomerAPI(cluster: cluster).ask(
            "POST", "/v1/authorizations/\(device.seen.codes[0])/refusal", token, "{}")
        try await ApusTestKit.eventually("it is unrecoverable") {
            device.seen.states == [.uninitialized, .unrecoverableError]
        }
        await device.end()
    }
}
