import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite("Thing models in a cluster (IV-D1 to IV-D10)", .serialized, .timeLimit(.minutes(3)))
struct ThingTests {
    /// The cluster of the tests that end no node. Each of them has an account and a device of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_120) }

    @Test("A device at one node and apps at others read, write and watch one model, over native, WebSocket and REST")
    func threeNodes() async throws {
        let cluster = try Self.cluster()
        let appToken = try cluster.token("--role", "app")
        let cam = DeviceID(unchecked: "cam")
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let app = try cluster.session(node: 2, token: appToken)
        defer {
            device.close()
            app.close()
        }
        try await eventually { () throws(ApusError) in
            try await device.reportProperty(path: "ProWritable._logLevel", json: #"{"setVal":3}"#)
        }
        try await device.reportProperty(path: "ProReadonly.battery", json: #"{"stVal":80}"#)
        let whole = try await eventually { () throws(ApusError) in try await app.readProperty(of: cam) }
        #expect(whole.json.contains(#""_online":{"stVal":1,"t":"#), "\(whole.json)")
        #expect(whole.json.contains(#""battery":{"stVal":80,"t":"#), "\(whole.json)")

        // A watcher over WebSocket at the third node, which hears of both sides.
        let socket = try #require(PlainWebSocket(port: cluster.httpPort(3)))
        let socketToken = try cluster.token("--role", "app")
        try #require(socket.send(#"{"hello":{"role":"ROLE_APP","token":"\#(socketToken)"}}"#))
        try #require(socket.receive()?["welcome"] != nil)
        try #require(socket.send(#"{"id":1,"request":"topics.subscribe","body":{"topic":"things/cam"}}"#))
        let subscribed = try #require(socket.receive())
        let answer = try #require(subscribed["response"] as? [String: Any], "\(subscribed)")
        #expect(answer["cursor"] as? String != nil, "a client that hears nothing goes on from here")

        let isPending = try await app.writeProperty(of: cam, path: "ProWritable._logLevel", json: #"{"setVal":0}"#)
        #expect(isPending)
        let pending = try await device.pendingProperties()
        #expect(pending.map(\.path) == ["ProWritable._logLevel.setVal"] && pending[0].json == "0")
        try await device.reportProperty(path: pending[0].path, json: "0", receivedVersion: pending[0].version)
        #expect(try await device.pendingProperties().isEmpty)
        try await app.addUserProperty("room", json: #"{"name":"hall"}"#, to: cam)

        var heard: [String] = []
        while heard.count < 3, let event = socket.receive()?["event"] as? [String: Any] {
            let message = event["message"] as? [String: Any] ?? [:]
            heard.append("\(message["path"] ?? "") \(message["pending"] as? Bool ?? false)")
        }
        #expect(heard == ["ProWritable._logLevel true", "ProWritable._logLevel false", "ProUser.room false"])

        // REST at the third node, with the forms of the contract and the numbers of its errors.
        let rest = try #require(PlainHTTP(port: cluster.httpPort(3)))
        let read = try #require(
            rest.exchange("GET", "/v1/devices/cam/properties?path=ProUser.room.val", token: appToken))
        #expect(read.status == 200 && read.body.contains(#"hall"#), "\(read.body)")
        let gone = try #require(rest.exchange("DELETE", "/v1/devices/cam/user-properties/room", token: appToken))
        #expect(gone.status == 200, "\(gone.body)")
        let none = try #require(
            rest.exchange("GET", "/v1/devices/cam/properties?path=ProUser.room", token: appToken))
        #expect(none.status == 404 && none.body.contains("21003"), "\(none.body)")
        try refusesOtherBody(cluster, appToken)
        try await hearsInOrder(cluster, cam, app)
    }

    /// An `Idempotency-Key` is for one body, at every node.
    private func refusesOtherBody(_ cluster: Cluster, _ token: String) throws {
        let path = "/v1/devices/cam/user-properties/key"
        var answers: [PlainHTTP.Answer] = []
        for (node, body) in [(1, #"{"json":"1"}"#), (2, #"{"json":"1"}"#), (3, #"{"json":"2"}"#)] {
            let rest = try #require(PlainHTTP(port: cluster.httpPort(node)))
            answers.append(try #require(rest.exchange("POST", path, token: token, id: "one-key", body: body)))
        }
        #expect(answers.map(\.status) == [200, 200, 409], "\(answers)")
        #expect(answers[0].body == answers[1].body && answers[2].body.contains("21000"), "\(answers)")
    }

    /// The events that a watcher has received.
    private final class Heard: Sendable {
        let events = Mutex<[(version: UInt64, missed: Bool)]>([])
    }

    /// Apps at all nodes write at once: events come in the order of the versions, and the newest one has the newest
    /// value.
    private func hearsInOrder(
        _ cluster: Cluster, _ cam: DeviceID, _ watcher: ClientSession
    ) async throws {
        let leaf = "ProUser._buildIn.val.nickName"
        let heard = Heard()
        let changes = watcher.propertyChanges(of: cam)
        try await withThrowingTaskGroup { group in
            group.addTask {
                for try await event in changes {
                    heard.events.withLock { $0.append((event.message.version, event.missed)) }
                }
            }
            try await eventually("the watcher hears") {
                try await watcher.writeProperty(of: cam, path: leaf, json: "\"\(UInt64.random(in: 0...(.max)))\"")
                return heard.events.withLock { !$0.isEmpty }
            }
            try await withThrowingTaskGroup { writers in
                for writer in 0..<4 {
                    let token = try cluster.token("--role", "app", "--access", "writer-\(writer)")
                    let session = try cluster.session(node: writer % 3 + 1, token: token)
                    writers.addTask {
                        defer { session.close() }
                        for number in 0..<40 {
                            let json = "\"\(writer)-\(number)\""
                            try await eventually { () throws(ApusError) in
                                try await session.writeProperty(of: cam, path: leaf, json: json)
                            }
                        }
                    }
                }
                try await writers.waitForAll()
            }
            let newest = try await watcher.readProperty(of: cam).version
            try await eventually("the newest event is the newest value") {
                heard.events.withLock { $0.last?.version == newest }
            }
            group.cancelAll()
        }
        let events = heard.events.withLock { $0 }
        for (earlier, later) in zip(events, events.dropFirst()) {
            #expect(later.version == earlier.version + 1 || (later.missed && later.version >= earlier.version))
        }
    }

    @Test("Who has no right to a model is refused by number, and a device has its own model only (IV-A6, IV-B9)")
    func rights() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "rights-cam")
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "rights-cam", "--account", "rights"),
            role: .device)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "rights"))
        let other = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", "rights-other"))
        defer { for session in [device, owner, other] { session.close() } }
        try await eventually { () throws(ApusError) in
            try await device.reportProperty(path: "ProWritable.volume", json: #"{"setVal":3}"#)
        }
        _ = try await eventually { () throws(ApusError) in try await owner.readProperty(of: cam) }
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await other.readProperty(of: cam) }
        await fails(.illegalRelation) { () throws(ApusError) in
            try await other.writeProperty(of: cam, path: "ProWritable.volume", json: #"{"setVal":9}"#)
        }
        await fails(.illegalRelation) { () throws(ApusError) in
            try await other.addUserProperty("x", json: "1", to: cam)
        }
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await owner.readProperty(of: DeviceID(unchecked: "nobody"))
        }
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await device.readProperty(of: DeviceID(unchecked: "cam-2"))
        }
        await fails(.notAllowed) { () throws(ApusError) in
            try await owner.reportProperty(path: "ProReadonly.x", json: #"{"stVal":1}"#)
        }
        await fails(.pathIllegal) { () throws(ApusError) in
            try await owner.writeProperty(of: cam, path: "Prowritable.volume", json: #"{"setVal":1}"#)
        }
        await fails(.jsonInvalid) { () throws(ApusError) in
            try await owner.writeProperty(of: cam, path: "ProWritable.volume", json: #"{"setVal":"#)
        }
        await fails(.userPropertyName) { () throws(ApusError) in
            try await owner.addUserProperty("_x", json: "1", to: cam)
        }
        let known = try await owner.readProperty(of: cam, path: "ProWritable.volume").version
        try await owner.writeProperty(of: cam, path: "ProWritable.volume", json: #"{"setVal":1}"#, ifVersion: known)
        await fails(.versionConflict) { () throws(ApusError) in
            try await owner.writeProperty(of: cam, path: "ProWritable.volume", json: #"{"setVal":2}"#, ifVersion: known)
        }
        // Each is an event, too, which the topic keeps.
        for letter in ["a", "b", "c", "d"] {
            let big = "\"\(String(repeating: letter, count: 21_800))\""
            try await owner.addUserProperty("big", json: big, to: cam)
        }
        let big = "\"\(String(repeating: "x", count: 30_000))\""
        try await owner.addUserProperty("bigger", json: big, to: cam)
        await fails(.frameTooLarge) { () throws(ApusError) in
            try await owner.addUserProperty("biggest", json: big, to: cam)
        }
        #expect(try await owner.readProperty(of: cam, path: "ProWritable.volume.setVal").json == "1")
    }

    /// The leaves that a device was asked for.
    private final class Asked: Sendable {
        let paths = Mutex<[String]>([])
    }

    /// A program of a device that gives its own values.
    private static func answerReads(_ device: ClientSession, _ asked: Asked) -> Task<Void, Never> {
        let commands = DeviceCommands(session: device, log: ClientSession.loggingDisabled)
        commands.onRead { path throws(ApusError) in
            asked.paths.withLock { $0.append(path) }
            guard path != "ProReadonly.broken" else { throw ApusError(.deviceBusy, "later") }
            return path == "ProReadonly.battery" ? #"{"percent":79}"# : "3"
        }
        return Task { _ = try? await commands.run() }
    }

    @Test("A read that wants a value of at most an age asks the device, across nodes (IV-D3)")
    func freshness() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "fresh-cam")
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "fresh-cam", "--account", "fresh"),
            role: .device)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "fresh"))
        let stranger = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", "fresh-other"))
        defer { for session in [device, app, stranger] { session.close() } }
        try await eventually { () throws(ApusError) in
            try await device.reportProperty(path: "ProReadonly.battery", json: #"{"stVal":{"percent":80}}"#)
        }
        try await device.reportProperty(path: "ProWritable.level", json: #"{"setVal":3}"#)
        try await app.addUserProperty("room", json: "1", to: cam)
        // A device that takes no commands.
        await fails(.answerTimedOut) { () throws(ApusError) in
            _ = try await app.readProperty(of: cam, path: "ProReadonly.battery", maxAge: .zero)
        }

        let asked = Asked()
        let running = Self.answerReads(device, asked)
        defer { running.cancel() }

        // What was reported a moment ago, what the account has, and what the cluster knows are not asked for.
        let recent = try await app.readProperty(
            of: cam, path: "ProReadonly.battery.stVal.percent", maxAge: .seconds(60))
        #expect(recent.json == "80" && recent.confirmedMs == nil)
        for path in ["ProUser.room", "ProReadonly._online"] {
            #expect(try await app.readProperty(of: cam, path: path, maxAge: .zero).confirmedMs == nil)
        }
        #expect(asked.paths.withLock { $0.isEmpty })

        let before = Int64(Date().timeIntervalSince1970 * 1000)
        let found = try await eventually { () throws(ApusError) in
            try await app.readProperty(of: cam, path: "ProReadonly.battery.stVal.percent", maxAge: .zero)
        }
        #expect(found.json == "79" && (found.confirmedMs ?? 0) >= before - 1_000)
        // The device has reported it as well, so everybody reads it now.
        let twin = try await app.readProperty(of: cam, path: "ProReadonly.battery.stVal")
        #expect(twin.json == #"{"percent":79}"# && twin.confirmedMs == nil && twin.version == found.version)

        // A setting that the device has not applied: the model has what it is to be, the device what it is.
        try await app.writeProperty(of: cam, path: "ProWritable.level.setVal", json: "5")
        let own = try await app.readProperty(of: cam, path: "ProWritable.level.setVal", maxAge: .seconds(60))
        #expect(own.json == "3" && own.isPending)
        #expect(try await app.readProperty(of: cam, path: "ProWritable.level.setVal").json == "5")

        try await device.reportProperty(path: "ProReadonly.broken", json: #"{"stVal":0}"#)
        let refused: [(client: ClientSession, path: String, code: ErrorCode)] = [
            (app, "", .pathIllegal), (app, "ProReadonly", .pathIllegal), (app, "Action.unlock", .propertyUnknown),
            (app, "ProReadonly.broken", .deviceBusy), (stranger, "ProReadonly.battery", .illegalRelation),
        ]
        for (client, path, code) in refused {
            await fails(code) { () throws(ApusError) in
                _ = try await client.readProperty(of: cam, path: path, maxAge: .zero)
            }
        }
        #expect(asked.paths.withLock { !$0.contains("ProUser.room") && !$0.contains("Action.unlock") })
        device.close()
        for _ in 0..<100 {
            if try await app.readProperty(of: cam, path: "ProReadonly._online.stVal").json == "0" { break }
            try await Task.sleep(for: .milliseconds(50))
        }
        await fails(.targetOffline) { () throws(ApusError) in
            _ = try await app.readProperty(of: cam, path: "ProReadonly.battery", maxAge: .zero)
        }
    }

    @Test("While nodes are killed no acknowledged write is lost, each change has its event, the device gets the last")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_980)
        defer { cluster.down() }
        let cam = DeviceID(unchecked: "cam")
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        defer {
            device.close()
            app.close()
        }
        try await eventually { () throws(ApusError) in
            try await device.reportProperty(path: "ProWritable.level", json: #"{"setVal":0}"#)
        }
        let heard = HeardChanges()
        let changes = app.propertyChanges(of: cam)
        let hearing = Task { for try await event in changes { heard.add(event.message) } }
        defer { hearing.cancel() }
        var value = 1000
        try await eventually("the app hears") {
            value += 1
            _ = try? await app.writeProperty(of: cam, path: "ProWritable.level", json: "{\"setVal\":\(value)}")
            return !heard.versions.isEmpty
        }
        let first = try #require(heard.versions.min())
        var number = 0
        for node in [1, 2, 3, 1, 2, 3] {
            let pid = try cluster.pid(node)
            for count in 0..<10 {
                number += 1
                let value = number
                try await eventually { () throws(ApusError) in
                    try await app.writeProperty(of: cam, path: "ProWritable.level", json: "{\"setVal\":\(value)}")
                }
                if count == 4 { Glibc.kill(pid, SIGKILL) }
                let read = try await eventually { () throws(ApusError) in
                    try await app.readProperty(of: cam, path: "ProWritable.level.setVal")
                }
                #expect(read.json == "\(value)")
            }
            let up = try cluster.run("cluster", "up")
            try #require(up.status == 0, "\(up.all)")
        }
        let last = number
        let pending = try await eventually { () throws(ApusError) in try await device.pendingProperties() }
        #expect(pending.map(\.json) == ["\(last)"])
        // Changes that were not acknowledged, and whose requests were repeated, have theirs too.
        let newest = try await app.readProperty(of: cam).version
        try await eventually("each change has its event") { heard.versions.isSuperset(of: first...newest) }
    }

    private final class HeardChanges: Sendable {
        private let events = Mutex<[ClientPropertyChanged]>([])

        var versions: Set<UInt64> { Set(events.withLock { $0.map(\.version) }) }

        func add(_ event: ClientPropertyChanged) { events.withLock { $0.append(event) } }
        func contains(_ text: String) -> Bool { events.withLock { $0.contains { $0.json.contains(text) } } }
    }

    @Test("A change is published though the node that has written it dies before (IV-D10)")
    func ownerDies() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_940)
        defer { cluster.down() }
        // The model and its topic are at two nodes, and the clients at the third one.
        var found: (name: String, model: Int, topic: Int)?
        for number in 0..<64 where found == nil {
            let name = "cam-\(number)"
            let model = try cluster.owner(of: "\(ShardID(key: name).rawValue)")
            let topic = try cluster.owner(of: "\(ShardID(key: "things/\(name)").rawValue)")
            if model != topic { found = (name, model, topic) }
        }
        let (name, model, topic) = try #require(found)
        let (cam, asked) = (DeviceID(unchecked: name), 6 - model - topic)
        let device = try cluster.session(
            node: asked, token: try cluster.token("--role", "device", "--device", name), role: .device)
        let token = try cluster.token("--role", "app")
        let app = try cluster.session(node: asked, token: token)
        defer { for session in [device, app] { session.close() } }
        try await eventually { () throws(ApusError) in
            try await device.reportProperty(path: "ProReadonly.battery.stVal", json: "80")
        }
        let heard = HeardChanges()
        let changes = app.propertyChanges(of: cam)
        try await withThrowingTaskGroup { group in
            group.addTask { for try await event in changes { heard.add(event.message) } }
            var count = 0
            try await eventually("the app hears") {
                count += 1
                _ = try? await app.writeProperty(of: cam, path: "ProUser._buildIn.val.nickName", json: "\"\(count)\"")
                return !heard.versions.isEmpty
            }
            let (modelPID, topicPID) = (try cluster.pid(model), try cluster.pid(topic))
            // Nothing can be published, and the write is acknowledged.
            Glibc.kill(topicPID, SIGSTOP)
            defer { Glibc.kill(topicPID, SIGCONT) }
            let answer = PlainHTTP(port: cluster.httpPort(asked))?.exchange(
                "POST", "/v1/devices/\(name)/properties", token: token,
                body: #"{"path":"ProUser._buildIn.val.nickName","json":"\"front door\""}"#)
            Glibc.kill(modelPID, SIGKILL)
            Glibc.kill(topicPID, SIGCONT)
            #expect(answer?.status == 200, "\(String(describing: answer))")
            try await eventually("the app hears of it") { heard.contains("front door") }
            group.cancelAll()
        }
    }

    /// What `apus property get` says of a path.
    private static func property(_ cluster: Cluster, _ path: String) throws -> [String: Any] {
        let got = try cluster.run("property", "get", "cam", path, "--json")
        return try JSONSerialization.jsonObject(with: Data(got.output.utf8)) as? [String: Any] ?? [:]
    }

    /// Waits until a setting has the value and is not pending.
    private static func settled(_ cluster: Cluster, _ path: String, _ json: String) async throws {
        var last: [String: Any] = [:]
        for _ in 0..<100 {
            last = (try? property(cluster, path)) ?? last
            let value = last["json"].flatMap {
                try? JSONSerialization.data(withJSONObject: $0, options: .fragmentsAllowed)
            }
            if value == Data(json.utf8), last["pending"] as? Bool == false { return }
            try await Task.sleep(for: .milliseconds(100))
        }
        Issue.record("the setting is \(last)")
    }

    @Test("A setting whose event is lost with all nodes is applied once the device is connected again (IV-D4)")
    func settingAfterConnection() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 28_040)
        defer { cluster.down() }
        let (cam, path) = (DeviceID(unchecked: "cam"), "ProWritable.volume.setVal")
        let device = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        let settings = DeviceSettings(
            session: device, device: cam, initial: [("volume", "3")], log: ClientSession.loggingDisabled
        ) { _, json in json }
        let running = Task { _ = try? await settings.run() }
        defer {
            running.cancel()
            for session in [device, app] { session.close() }
        }
        func expectSettled(_ json: String) async throws {
            try await eventually { () throws(ApusError) in
                let found = try await app.readProperty(of: cam, path: path)
                guard found.json == json, !found.isPending else { throw ApusError(.internalFailure, "\(found)") }
            }
        }
        try await expectSettled("3")
        // The frozen node passes no event on. The events end with all nodes, and the model does not.
        Glibc.kill(try cluster.pid(1), SIGSTOP)
        try await eventually { () throws(ApusError) in
            try await app.writeProperty(of: cam, path: path, json: "5")
        }
        for node in 1...3 { Glibc.kill(try cluster.pid(node), SIGKILL) }
        let up = try cluster.run("cluster", "up")
        try #require(up.status == 0, "\(up.all)")
        try await expectSettled("5")
    }

    @Test("A setting written while the device is away, or its process killed, is applied when it is back (IV-D4)")
    func settings() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_020)
        defer { cluster.down() }
        let path = "ProWritable.volume.setVal"
        let camera = ["device", "--id", "cam", "--test-pattern", "160x120@5", "--setting", "volume=3"]
        let first = try cluster.start(camera)
        try await Self.settled(cluster, path, "3")
        let set = try cluster.run("property", "set", "cam", path, "5", "--node", "2")
        #expect(set.status == 0 && set.output.contains("not applied"), "\(set.all)")
        try await Self.settled(cluster, path, "5")
        // The node that the camera is connected to is unknown: each of them is restarted.
        for node in 1...3 {
            #expect(try cluster.run("cluster", "restart", "\(node)").status == 0)
            #expect(try cluster.run("property", "set", "cam", path, "\(10 + node)").status == 0)
            try await Self.settled(cluster, path, "\(10 + node)")
        }
        Glibc.kill(first.processIdentifier, SIGKILL)
        first.waitUntilExit()
        #expect(try cluster.run("property", "set", "cam", path, "7").status == 0)
        #expect(try Self.property(cluster, path)["pending"] as? Bool == true)
        let second = try cluster.start(camera)
        try await Self.settled(cluster, path, "7")
        // A device without a memory of its own has the model's value again, and not its first one.
        Glibc.kill(second.processIdentifier, SIGKILL)
        second.waitUntilExit()
        let log = cluster.file("camera")
        try cluster.start(camera, errors: log)
        for _ in 0..<100 where !Cluster.text(log).contains("apus.value=7") {
            try await Task.sleep(for: .milliseconds(100))
        }
        #expect(Cluster.text(log).contains("apus.value=7") && !Cluster.text(log).contains("apus.value=3"))
        try await Self.settled(cluster, path, "7")
    }
}
