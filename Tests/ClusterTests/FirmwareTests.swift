import ApusClient
import ApusContract
import ApusCore
import ApusCrypto
import ApusDevice
import Foundation
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Firmware in a cluster (IV-E1)", .serialized, .timeLimit(.minutes(4)))
struct FirmwareTests {
    private static let key = Curve25519.Signing.PrivateKey()
    private static let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

    private static func version(_ text: String) throws -> FirmwareVersion { try #require(FirmwareVersion(text)) }

    /// The cluster of the tests that end no node and name their customers, which are each test's own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_480) }

    /// A customer with a user and devices, and the requests of its server.
    private struct Customer {
        let cluster: Cluster
        let name: String
        let key: String
        let user: String
        let admin: String

        init(_ cluster: Cluster, _ name: String, devices: [String]) throws {
            (self.cluster, self.name) = (cluster, name)
            admin = try cluster.token("--role", "admin")
            try Self.ask(cluster, "POST", "/v1/customers", admin, #"{"customer":"\#(name)"}"#)
            key = try #require(
                try Self.ask(cluster, "POST", "/v1/customers/\(name)/keys", admin, "{}")["key"] as? String)
            user = try #require(
                try Self.ask(cluster, "POST", "/v1/customers/\(name)/users", key, #"{"externalId":"anna"}"#)["user"]
                    as? String)
            for device in devices {
                try Self.ask(cluster, "POST", "/v1/devices/\(device)/customer", admin, #"{"customer":"\#(name)"}"#)
                try Self.ask(cluster, "POST", "/v1/devices/\(device)/binding", key, #"{"account":"\#(user)"}"#)
            }
        }

        @discardableResult
        static func ask(
            _ cluster: Cluster, _ method: String, _ path: String, _ token: String, _ body: String? = nil,
            node: Int = 1, code: ErrorCode? = nil
        ) throws -> [String: Any] {
            let api = CustomerAPI(cluster: cluster)
            guard let code else { return try api.ask(method, path, token, body, node: node) }
            try api.fails(code, method, path, token, body, node: node)
            return [:]
        }

        @discardableResult
        func ask(
            _ method: String, _ path: String, _ body: String? = nil, node: Int = 1, code: ErrorCode? = nil
        ) throws -> [String: Any] {
            try Self.ask(cluster, method, path, key, body, node: node, code: code)
        }

        func path(_ version: String) -> String { "/v1/customers/\(name)/products/bell/firmware/\(version)" }

        /// A version with its image, sealed.
        func add(
            _ version: String, from: String? = nil, _ image: [UInt8] = Array("image".utf8),
            descriptions: [String: String] = ["en": "new"], key: Curve25519.Signing.PrivateKey = FirmwareTests.key
        ) throws {
            let digest = SHA256.hash(data: image).map { String($0 >> 4, radix: 16) + String($0 & 15, radix: 16) }
            let manifest = try FirmwareManifest(
                product: "bell", version: FirmwareTests.version(version), size: UInt64(image.count),
                sha256: digest.joined(), from: from.map { try FirmwareTests.version($0) })
            let create = try ClientCreateFirmwareRequest.with {
                ($0.manifest, $0.signature) = (
                    manifest.text, try key.signature(for: Data(manifest.text.utf8))
                )
                $0.descriptions = descriptions.sorted { $0.key < $1.key }.map { language, text in
                    .with { ($0.language, $0.text) = (language, text) }
                }
            }
            try ask("POST", "/v1/customers/\(name)/firmware", try create.jsonString())
            for (index, start) in stride(from: 0, to: image.count, by: FirmwareLeaf.chunkByteCount).enumerated() {
                let data = Data(image[start..<min(image.count, start + FirmwareLeaf.chunkByteCount)])
                let body = #"{"index":\#(index),"data":"\#(data.base64EncodedString())"}"#
                try ask("POST", "\(path(version))/chunks", body)
            }
            #expect(try ask("POST", "\(path(version))/seal", "{}", node: 3)["sealed"] as? Bool == true)
        }

        func rollOut(_ version: String, _ rule: String = #""percentage":100"#) throws {
            try ask("POST", "\(path(version))/roll-out", #"{"state":"ROLL_OUT_STATE_ACTIVE",\#(rule)}"#, node: 2)
        }

        func token(of device: String) throws -> String {
            try #require(try ask("POST", "/v1/devices/\(device)/tokens", "{}")["token"] as? String)
        }

        func userToken() throws -> String {
            try #require(try ask("POST", "/v1/users/\(user)/tokens", "{}")["token"] as? String)
        }

        /// A connected device that has reported its product and its version.
        func device(_ id: String, node: Int, version: String = "1.0.0") async throws -> ClientSession {
            let session = try cluster.session(node: node, token: try token(of: id), role: .device)
            for (leaf, value) in [("_product", "bell"), ("_firmware", version)] {
                try await eventually { () throws(ApusError) in
                    try await session.reportProperty(path: "ProReadonly.\(leaf)", json: #"{"stVal":"\#(value)"}"#)
                }
            }
            return session
        }
    }

    private static func updater(
        _ session: ClientSession, directory: String, key: Curve25519.Signing.PrivateKey = key, rateMax: Int? = nil,
        install: @escaping FirmwareUpdater.Install
    ) throws -> FirmwareUpdater {
        try FirmwareUpdater(
            session: session, publicKey: Array(key.publicKey.rawRepresentation), product: "bell",
            current: version("1.0.0"), directory: directory, rateMax: rateMax, log: log, install: install)
    }

    private static func directory() -> String { NSTemporaryDirectory() + "/apus-firmware-\(UUID().uuidString)" }

    private static func size(_ path: String) -> Int {
        (try? FileManager.default.attributesOfItem(atPath: path)[.size] as? Int) ?? 0
    }

    /// The bytes of images that nodes have sent.
    private static func readBytes(_ cluster: Cluster, nodes: [Int]) throws -> Int {
        var sum = 0
        for node in nodes {
            let connection = try #require(PlainHTTP(port: cluster.httpPort(node)))
            let text = try #require(connection.exchange("GET", "/metrics", token: "")).body
            for line in text.split(separator: "\n") where line.hasPrefix("apus_firmware_read_bytes_total") {
                sum += Int(Double(line.split(separator: " ").last ?? "") ?? 0)
            }
        }
        return sum
    }

    private func fileUntil(_ path: String, has byteCount: Int) async throws {
        for _ in 0..<1000 where Self.size(path) < byteCount { try await Task.sleep(for: .milliseconds(5)) }
        try #require(Self.size(path) >= byteCount)
    }

    @Test(
        "A device goes on loading where it was when its node dies and when it restarts, and reports it (IV-E1)")
    func resume() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_420)
        defer { cluster.down() }
        let acme = try Customer(cluster, "acme", devices: ["cam"])
        let image = (0..<(1 << 20)).map { _ in UInt8.random(in: 0...255) }
        try acme.add("1.5.0", image)
        try acme.rollOut("1.5.0")
        let directory = Self.directory()
        defer { try? FileManager.default.removeItem(atPath: directory) }
        let part = "\(directory)/firmware.part"
        let installed = Mutex<[UInt8]>([])
        let device = try await acme.device("cam", node: 2)
        defer { device.close() }
        @Sendable func install(_ path: String, _ version: FirmwareVersion) {
            installed.withLock { $0 = FileManager.default.contents(atPath: path).map { Array($0) } ?? [] }
        }

        // A restart of the device: the task ends, and a new updater begins.
        let first = try Self.updater(device, directory: directory, rateMax: 512 << 10) { path, version in
            install(path, version)
        }
        let interrupted = Task { try await first.update() }
        try await fileUntil(part, has: 128 << 10)
        interrupted.cancel()
        await #expect(throws: ApusError(.cancelled)) { try await interrupted.value }
        let kept = Self.size(part)
        #expect(kept < image.count && installed.withLock { $0.isEmpty })

        let second = try Self.updater(device, directory: directory, rateMax: 256 << 10) { path, version in
            install(path, version)
        }
        try await second.begin()
        let updating = Task { try await second.update() }
        try await fileUntil(part, has: kept + (128 << 10))
        let earlier = try Self.readBytes(cluster, nodes: [1, 3])
        #expect(try Self.readBytes(cluster, nodes: [2]) >= 256 << 10, "the device is at another node")
        let before = Self.size(part)
        #expect(try cluster.run("cluster", "kill", "2").status == 0)
        #expect(try await updating.value == Self.version("1.5.0"))
        #expect(installed.withLock { $0 == image })
        #expect(second.current == (try Self.version("1.5.0")) && Self.size(part) == 0)
        // The two nodes that are left have sent what was not there when the other one was killed, and no more than two
        // chunks twice.
        let sent = try Self.readBytes(cluster, nodes: [1, 3]) - earlier
        #expect(sent > 0 && sent <= image.count - before + 2 * FirmwareLeaf.chunkByteCount, "\(sent) after \(before)")

        let shown = try acme.ask("GET", acme.path("1.5.0"), node: 3)
        #expect(shown["installed"] as? String == "1" && shown["failed"] == nil, "\(shown)")
        let app = try cluster.session(node: 3, token: try acme.userToken())
        defer { app.close() }
        let cam = DeviceID(unchecked: "cam")
        let state = try await eventually { () throws(ApusError) in
            try await app.readProperty(of: cam, path: "ProReadonly._update.stVal").json
        }
        #expect(state == #"{"version":"1.5.0","state":"done","percent":100}"#)
        #expect(try await app.readProperty(of: cam, path: "ProReadonly._firmware.stVal").json == #""1.5.0""#)
        #expect(try await app.queryNewFirmware(of: cam) == nil)
    }

    @Test("A device drops a version that is stopped while it loads it, and says so (IV-E1)")
    func withdrawal() async throws {
        let cluster = try Self.cluster()
        let acme = try Customer(cluster, "withdrawal-acme", devices: ["withdrawal-cam"])
        try acme.add("1.5.0", [UInt8](repeating: 7, count: 1 << 20))
        try acme.rollOut("1.5.0")
        let directory = Self.directory()
        defer { try? FileManager.default.removeItem(atPath: directory) }
        let device = try await acme.device("withdrawal-cam", node: 2)
        defer { device.close() }
        let updater = try Self.updater(device, directory: directory, rateMax: 256 << 10) { _, _ in }
        let updating = Task { try await updater.update() }
        try await fileUntil("\(directory)/firmware.part", has: 128 << 10)
        try acme.ask("POST", "\(acme.path("1.5.0"))/roll-out", #"{"state":"ROLL_OUT_STATE_STOPPED"}"#)
        await #expect(throws: ApusError(.targetUnknown)) { try await updating.value }
        #expect(Self.size("\(directory)/firmware.part") == 0)
        let app = try cluster.session(node: 3, token: try acme.userToken())
        defer { app.close() }
        let cam = DeviceID(unchecked: "withdrawal-cam")
        let state = try await eventually { () throws(ApusError) in
            try await app.readProperty(of: cam, path: "ProReadonly._update.stVal.state").json
        }
        #expect(state == #""failed""#)
        #expect(try acme.ask("GET", acme.path("1.5.0"))["failed"] == nil, "it is no failure of the version")
    }

    @Test("A wrong signature is refused and reported, and a roll-out stops by itself after failures (IV-E1)")
    func failures() async throws {
        let cluster = try Self.cluster()
        let acme = try Customer(cluster, "failures-acme", devices: ["fail-1", "fail-2", "fail-3"])
        try acme.add("1.5.0", key: Curve25519.Signing.PrivateKey())
        // Not offered before it is rolled out, nor to a share of 0 %.
        var devices: [ClientSession] = []
        defer { for device in devices { device.close() } }
        for index in 1...3 { devices.append(try await acme.device("fail-\(index)", node: index)) }
        func offered(_ index: Int) async throws -> String {
            let device = devices[index - 1]
            return try await eventually { () throws(ApusError) in
                try await device.ask(ClientQueryFirmwareRequest()).version
            }
        }
        #expect(try await offered(1).isEmpty)
        try acme.rollOut("1.5.0", #""percentage":0,"stopFailures":1"#)
        for index in 1...3 { #expect(try await offered(index).isEmpty) }
        // A device that was offered nothing stops no roll-out.
        let report = ClientReportFirmwareRequest.with { ($0.version, $0.outcome) = ("1.5.0", .failed) }
        let first = devices[0]
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await first.ask(report) }
        #expect(try acme.ask("GET", acme.path("1.5.0"))["state"] as? String == "ROLL_OUT_STATE_ACTIVE")
        try acme.rollOut("1.5.0", #""percentage":100,"stopFailures":2,"stopFailurePercent":50"#)
        for index in 1...3 { #expect(try await offered(index) == "1.5.0") }

        let isInstalled = Mutex(false)
        for (index, device) in devices.prefix(2).enumerated() {
            let directory = Self.directory()
            defer { try? FileManager.default.removeItem(atPath: directory) }
            let updater = try Self.updater(device, directory: directory) { _, _ in isInstalled.withLock { $0 = true } }
            for attempt in 1...4 {
                do {
                    // The fourth attempt, and those after the stop, do nothing.
                    let installed = try await updater.update()
                    #expect(installed == nil && (attempt == 4 || index == 1), "attempt \(attempt)")
                } catch {
                    #expect(error.code == .badParameter, "\(error)")
                }
            }
            #expect(!FileManager.default.fileExists(atPath: "\(directory)/firmware.part"))
        }
        #expect(!isInstalled.withLock { $0 })
        // Each device has tried several times, and counts once.
        let shown = try acme.ask("GET", acme.path("1.5.0"), node: 2)
        #expect(shown["failed"] as? String == "2" && shown["installed"] == nil, "\(shown)")
        #expect(shown["state"] as? String == "ROLL_OUT_STATE_STOPPED", "\(shown)")
        let outcomes = try acme.ask("GET", "\(acme.path("1.5.0"))/outcomes?failed=true", node: 3)["outcomes"]
        let listed = try #require(outcomes as? [[String: String]])
        #expect(listed.map { $0["device"] } == ["fail-1", "fail-2"])
        #expect(listed.allSatisfy { $0["outcome"] == "FIRMWARE_OUTCOME_FAILED" && $0["reason"]?.isEmpty == false })
        try acme.ask("GET", "\(acme.path("9.9.9"))/outcomes", code: .targetUnknown)
        #expect(try await offered(3).isEmpty)
        let app = try cluster.session(node: 1, token: try acme.userToken())
        defer { app.close() }
        let state = try await eventually { () throws(ApusError) in
            try await app.readProperty(of: DeviceID(unchecked: "fail-1"), path: "ProReadonly._update.stVal.state").json
        }
        #expect(state == #""failed""#)
        // A stopped version cannot be read, and an active one again.
        let third = devices[2]
        let read = ClientReadFirmwareRequest.with { $0.version = "1.5.0" }
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await third.ask(read) }
        try acme.ask(
            "POST", "\(acme.path("1.5.0"))/roll-out",
            #"{"state":"ROLL_OUT_STATE_ACTIVE","percentage":100,"ifRevision":"1"}"#, code: .versionConflict)
        try acme.rollOut("1.5.0", #""percentage":100,"stopFailures":2"#)
        #expect(try await offered(3) == "1.5.0")
        #expect(try await third.ask(read).data == Data("image".utf8))
    }

    @Test("An app asks while the device is offline, in its language, for the version that it has (IV-E1)")
    func query() async throws {
        let cluster = try Self.cluster()
        let acme = try Customer(cluster, "acme", devices: ["cam", "mute"])
        let other = try Customer(cluster, "other", devices: ["theirs"])
        try acme.add("1.5.0", descriptions: ["de": "besser", "en": "better", "pt-BR": "melhor"])
        try acme.add("2.0.0", from: "1.5.0", Array("two".utf8))
        try acme.add("3.0.0", Array("three".utf8))
        for version in ["1.5.0", "2.0.0"] { try acme.rollOut(version) }
        try acme.ask(
            "POST", "/v1/customers/acme/products/bell/groups/beta", #"{"devices":["cam-9"]}"#)
        try acme.rollOut("3.0.0", #""percentage":100,"groups":["beta"]"#)
        // Groups that none can be are refused in any state.
        try acme.ask(
            "POST", "\(acme.path("3.0.0"))/roll-out", #"{"state":"ROLL_OUT_STATE_PAUSED","groups":[""]}"#,
            code: .badParameter)

        let device = try await acme.device("cam", node: 2)
        let app = try cluster.session(node: 3, token: try acme.userToken())
        let foreign = try cluster.session(node: 1, token: try other.userToken())
        defer { for session in [app, foreign] { session.close() } }
        let cam = DeviceID(unchecked: "cam")
        _ = try await eventually { () throws(ApusError) in try await app.readProperty(of: cam) }
        device.close()
        for _ in 0..<400 {
            if try await app.readProperty(of: cam, path: "ProReadonly._online.stVal").json == "0" { break }
            try await Task.sleep(for: .milliseconds(50))
        }
        #expect(try await app.readProperty(of: cam, path: "ProReadonly._online.stVal").json == "0")

        // The chain of versions, and the descriptions.
        let found = try #require(try await app.queryNewFirmware(of: cam))
        #expect(found.version == (try Self.version("1.5.0")) && found.description == "better" && found.size == 5)
        #expect(found.downloadURL == "/v1/devices/cam/firmware/1.5.0/bytes")
        let texts = [("de-AT", "besser"), ("pt", "melhor"), ("fr", "better")]
        for (language, text) in texts {
            #expect(try await app.queryNewFirmware(of: cam, language: language)?.description == text, "\(language)")
        }
        let two = try Self.version("1.5.0")
        #expect(
            try await app.queryNewFirmware(of: cam, currentVersion: two)?.version == (try Self.version("2.0.0")))
        #expect(try await app.queryNewFirmware(of: cam, currentVersion: try Self.version("2.0.0")) == nil)
        await fails(.badParameter) { () throws(ApusError) in
            _ = try await app.queryNewFirmware(of: cam, language: "d_e")
        }
        await fails(.propertyUnknown) { () throws(ApusError) in
            _ = try await app.queryNewFirmware(of: DeviceID(unchecked: "mute"))
        }
        // The names of the contract over REST.
        let rest = try Customer.ask(
            cluster, "GET", "/v1/devices/cam/firmware?current_version=1.0.0&language=de", try acme.userToken(), node: 2)
        #expect(rest["version"] as? String == "1.5.0" && rest["upgDescs"] as? String == "besser", "\(rest)")
        #expect((rest["downUrl"] as? String)?.isEmpty == false)
        // The questions of others are no offers to the device.
        let asked = try await acme.device("cam", node: 1)
        defer { asked.close() }
        let early = ClientReportFirmwareRequest.with { ($0.version, $0.outcome) = ("1.5.0", .failed) }
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await asked.ask(early) }

        try await rights(cluster, acme, other, foreign)
    }

    /// Who is not concerned learns nothing.
    private func rights(
        _ cluster: Cluster, _ acme: Customer, _ other: Customer, _ foreign: ClientSession
    ) async throws {
        let cam = DeviceID(unchecked: "cam")
        await fails(.illegalRelation) { () throws(ApusError) in _ = try await foreign.queryNewFirmware(of: cam) }
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await foreign.queryNewFirmware(of: DeviceID(unchecked: "nobody"))
        }
        try other.ask("GET", "/v1/devices/cam/firmware", code: .targetUnknown)
        try other.ask("GET", acme.path("1.5.0"), code: .notAllowed)
        try other.ask("GET", "/v1/customers/acme/firmware", code: .notAllowed)
        try other.ask("DELETE", acme.path("1.5.0"), code: .notAllowed)
        try other.ask("POST", "\(acme.path("1.5.0"))/roll-out", "{}", code: .notAllowed)
        try other.ask("GET", "/v1/customers/-/firmware", code: .notAllowed)
        try other.ask("GET", other.path("1.5.0"), code: .targetUnknown)
        // A device of another customer that says that it is the same product.
        let theirs = try await other.device("theirs", node: 3)
        defer { theirs.close() }
        #expect(try await theirs.ask(ClientQueryFirmwareRequest()).version.isEmpty)
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await theirs.ask(ClientReadFirmwareRequest.with { $0.version = "1.5.0" })
        }
        let report = ClientReportFirmwareRequest.with { ($0.version, $0.outcome) = ("1.5.0", .failed) }
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await theirs.ask(report) }
        await fails(.notAllowed) { () throws(ApusError) in
            var report = report
            report.device = "cam"
            _ = try await theirs.ask(report)
        }
        await fails(.notAllowed) { () throws(ApusError) in _ = try await foreign.ask(report) }
        let shown = try acme.ask("GET", acme.path("1.5.0"))
        #expect(shown["failed"] == nil, "\(shown)")
        // Deleted versions are gone at all nodes, and their bytes are given back.
        for version in ["1.5.0", "2.0.0", "3.0.0"] { try acme.ask("DELETE", acme.path(version), node: 2) }
        try acme.ask("GET", acme.path("1.5.0"), node: 3, code: .targetUnknown)
    }

    @Test("From the command line: a key, a signature, a roll-out, and a camera that updates itself (IV-E1)")
    func commandLine() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 30_540)
        defer { cluster.down() }
        let folder = Self.directory()
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: folder) }
        let image = "\(folder)/image.bin"
        try Data(repeating: 7, count: 100_000).write(to: URL(fileURLWithPath: image))
        func run(_ arguments: String...) throws -> String {
            let outcome = try Cluster.run(["firmware"] + arguments + ["--dir", cluster.directory])
            #expect(outcome.status == 0, "\(arguments): \(outcome.all)")
            return outcome.output
        }
        _ = try run("keygen", "\(folder)/maker.key")
        let mode = try FileManager.default.attributesOfItem(atPath: "\(folder)/maker.key")[.posixPermissions] as? Int
        #expect(mode == 0o600)
        _ = try run(
            "sign", image, "--key", "\(folder)/maker.key", "--product", "bell", "--version", "1.5.0")
        _ = try run("add", "\(image).manifest", "--description", "en=Better night vision")
        #expect(try run("upload", "\(image).manifest", image, "--json").contains(#""sealed":true"#))
        try cluster.start(
            "device", "--id", "cam", "--test-pattern", "160x120@5", "--product", "bell", "--firmware-key",
            "\(folder)/maker.key.pub", "--firmware-directory", "\(folder)/cam", "--firmware-interval", "0.5")
        var offer = ""
        for _ in 0..<100 where !offer.contains("1.5.0") {
            offer = try Cluster.run(["firmware", "query", "cam", "--dir", cluster.directory]).output
            if offer.contains("no new firmware") { break }
            try await Task.sleep(for: .milliseconds(100))
        }
        #expect(offer.contains("no new firmware"), "a draft is offered: \(offer)")
        _ = try run("roll-out", "bell", "1.5.0")
        try await fileUntil("\(folder)/cam/installed.version", has: 1)
        #expect(FileManager.default.contents(atPath: "\(folder)/cam/installed.bin")?.count == 100_000)
        var shown = ""
        for _ in 0..<100 where !shown.contains(#""installed":"1""#) {
            shown = try run("show", "bell", "1.5.0", "--json")
            try await Task.sleep(for: .milliseconds(50))
        }
        #expect(shown.contains(#""installed":"1""#), "\(shown)")
        let outcomes = try run("outcomes", "bell", "1.5.0").split(separator: "\n").map { $0.split(separator: " ") }
        #expect(outcomes == [["DEVICE", "OUTCOME", "REASON"], ["cam", "installed", "-"]])
        #expect(try !run("outcomes", "bell", "1.5.0", "--failed").contains("cam"))
        #expect(try run("stop", "bell", "1.5.0", "--json").contains("ROLL_OUT_STATE_STOPPED"))
        _ = try run("group", "bell", "beta", "cam", "cam-2")
        #expect(try run("list").contains("beta"))
        _ = try run("delete", "bell", "1.5.0")
        #expect(try !run("list", "bell").contains("1.5.0"))
    }
}
