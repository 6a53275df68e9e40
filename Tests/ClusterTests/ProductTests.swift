import ApusClient
import ApusContract
import ApusCore
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

@Suite("Products and their schemas in a cluster (IV-D1 to IV-D5)", .serialized, .timeLimit(.minutes(4)))
struct ProductTests {
    private static let cam = DeviceID(unchecked: "cam")
    private static let volume = "ProWritable.volume.setVal"

    private static func schema(maximum: Int) -> String {
        """
        {"properties":{"ProWritable":{"additionalProperties":false,"properties":{"volume":{"type":"integer",\
        "minimum":0,"maximum":\(maximum)}}},"Action":{"properties":{"unlock":{"type":"integer"}}}}}
        """
    }

    private static func json(_ fields: [String: String]) throws -> String {
        String(decoding: try JSONEncoder().encode(fields), as: UTF8.self)
    }

    /// A customer `acme` with the device `cam`, its user's app, and a customer `other`.
    private struct World {
        let cluster: Cluster
        let api: CustomerAPI
        let admin: String
        let key: String
        let otherKey: String
        let appToken: String
        let device: ClientSession
        let app: ClientSession

        init(_ cluster: Cluster) throws {
            self.cluster = cluster
            api = CustomerAPI(cluster: cluster)
            admin = try cluster.token("--role", "admin")
            var keys: [String] = []
            for customer in ["acme", "other"] {
                try api.ask("POST", "/v1/customers", admin, ProductTests.json(["customer": customer]))
                let answer = try api.ask("POST", "/v1/customers/\(customer)/keys", admin, "{}")
                keys.append(try #require(answer["key"] as? String))
            }
            (key, otherKey) = (keys[0], keys[1])
            let user = try #require(
                try api.ask("POST", "/v1/customers/acme/users", key, ProductTests.json(["externalId": "anna"]))["user"]
                    as? String)
            try api.ask("POST", "/v1/devices/cam/customer", admin, ProductTests.json(["customer": "acme"]))
            try api.ask("POST", "/v1/devices/cam/binding", key, ProductTests.json(["account": user]))
            let deviceToken = try api.ask("POST", "/v1/devices/cam/tokens", key, "{}")["token"] as? String
            device = try cluster.session(node: 2, token: try #require(deviceToken), role: .device)
            appToken = try #require(
                try api.ask("POST", "/v1/users/\(user)/tokens", key, "{}")["token"] as? String)
            app = try cluster.session(node: 3, token: appToken)
        }

        func close() {
            device.close()
            app.close()
        }

        func put(_ product: String, of customer: String = "acme", _ schema: String, node: Int = 1) throws {
            try api.ask(
                "PUT", "/v1/customers/\(customer)/products/\(product)", customer == "acme" ? key : otherKey,
                ProductTests.json(["schema": schema]), node: node)
        }

        func report(_ path: String, _ json: String) async throws {
            try await eventually { () throws(ApusError) in try await device.reportProperty(path: path, json: json) }
        }
    }

    @Test("What a product's schema excludes is refused at every node: values with 20102, leaves with 20101 (IV-D4)")
    func writes() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 23_310)
        defer { cluster.down() }
        let world = try World(cluster)
        defer { world.close() }
        let (device, app, api) = (world.device, world.app, world.api)
        try world.put("bell", Self.schema(maximum: 10))
        // A product of the same name of another customer, which excludes all settings.
        try world.put("bell", of: "other", #"{"properties":{"ProWritable":false}}"#)
        try await world.report("ProReadonly._product", #"{"stVal":"bell"}"#)
        await fails(.jsonInvalid) { () throws(ApusError) in
            try await device.reportProperty(path: "ProReadonly._product", json: #"{"stVal":"no product's name"}"#)
        }
        await fails(.jsonInvalid) { () throws(ApusError) in
            try await device.reportProperty(path: Self.volume, json: "11")
        }
        await fails(.pathIllegal) { () throws(ApusError) in
            try await device.reportProperty(path: "ProWritable.bass", json: #"{"setVal":1}"#)
        }
        try await world.report(Self.volume, "3")
        try await world.report("ProReadonly.battery", #"{"stVal":80}"#)
        for (json, isGood) in [("7", true), ("11", false), ("7.5", false), ("8.0", true), (#""8""#, false)] {
            guard isGood else {
                await fails(.jsonInvalid) { () throws(ApusError) in
                    try await app.writeProperty(of: Self.cam, path: Self.volume, json: json)
                }
                continue
            }
            try await eventually { () throws(ApusError) in
                try await app.writeProperty(of: Self.cam, path: Self.volume, json: json)
            }
        }
        await fails(.pathIllegal) { () throws(ApusError) in
            try await app.writeProperty(of: Self.cam, path: "ProWritable.bass.setVal", json: "1")
        }
        try await app.addUserProperty("bass", json: "1", to: Self.cam)
        #expect(try await app.readProperty(of: Self.cam, path: Self.volume).json == "8.0")

        // Node 1 has seen nothing of the device yet, so it sends the request twice. It is still carried out once.
        let properties = "/v1/devices/cam/properties"
        let write = try ProductTests.json(["path": Self.volume, "json": "4"])
        let first = try api.ask("POST", properties, world.appToken, write, node: 1, id: "k1")
        try api.fails(
            .jsonInvalid, "POST", properties, world.appToken, ProductTests.json(["path": Self.volume, "json": "11"]),
            saying: "maximum: 10")
        try await eventually { () throws(ApusError) in
            try await app.writeProperty(of: Self.cam, path: Self.volume, json: "5")
        }
        let second = try api.ask("POST", properties, world.appToken, write, node: 2, id: "k1")
        #expect(first["version"] as? String == second["version"] as? String && first["version"] != nil)
        #expect(try await app.readProperty(of: Self.cam, path: Self.volume).json == "5")
    }

    @Test("The argument of an action is checked before the command is accepted (IV-D5)")
    func actions() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 23_350)
        defer { cluster.down() }
        let world = try World(cluster)
        defer { world.close() }
        let app = world.app
        try await world.report("ProReadonly._product", #"{"stVal":"bell"}"#)
        let send: @Sendable (String, String) async throws(ApusError) -> Void = { json, digit throws(ApusError) in
            _ = try await app.sendCommand(
                .action(path: "Action.unlock.ctlVal", json: json), to: Self.cam,
                id: String(repeating: digit, count: 32), keptFor: .seconds(60), until: .queued)
        }
        // There are no products yet.
        try await eventually { () throws(ApusError) in try await send(#""now""#, "1") }
        try world.put("bell", Self.schema(maximum: 10))
        try await Task.sleep(for: .milliseconds(5200))
        await fails(.jsonInvalid) { () throws(ApusError) in try await send(#""now""#, "2") }
        try await eventually { () throws(ApusError) in try await send("1", "3") }
        let commands = try await app.commands(of: Self.cam).commands
        #expect(commands.count == 2, "\(commands)")
    }

    @Test("A changed schema applies at every node within 6 s, a deleted one no more; customers reach their own only")
    func changes() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 23_390)
        defer { cluster.down() }
        let world = try World(cluster)
        defer { world.close() }
        let (app, api) = (world.app, world.api)
        let path = "/v1/customers/acme/products/bell"
        try world.put("bell", Self.schema(maximum: 10))
        try await world.report("ProReadonly._product", #"{"stVal":"bell"}"#)
        try await world.report(Self.volume, "3")
        await fails(.jsonInvalid) { () throws(ApusError) in
            try await app.writeProperty(of: Self.cam, path: Self.volume, json: "15")
        }
        try api.fails(.notAllowed, "GET", path, world.otherKey)
        try api.fails(.notAllowed, "PUT", path, world.otherKey, ProductTests.json(["schema": "true"]))
        try api.fails(.notAllowed, "GET", "/v1/customers/-/products", world.key)
        try api.fails(.targetUnknown, "GET", "/v1/customers/nobody/products", world.admin)
        try api.fails(
            .badParameter, "PUT", path, world.key,
            ProductTests.json(["schema": #"{"properties":{"Action":{"pattern":"a"}}}"#]),
            saying: "/properties/Action/pattern")
        try api.fails(
            .versionConflict, "PUT", path, world.key,
            ProductTests.json(["schema": Self.schema(maximum: 20), "ifRevision": "7"]),
            saying: "revision 1")
        let put = try api.ask(
            "PUT", path, world.key, ProductTests.json(["schema": Self.schema(maximum: 20), "ifRevision": "1"]), node: 2)
        #expect(put["revision"] as? String == "2")
        try await Task.sleep(for: .seconds(6))
        try await eventually { () throws(ApusError) in
            try await app.writeProperty(of: Self.cam, path: Self.volume, json: "15")
        }
        for node in 1...3 {
            let json = "\(15 + node)"
            try api.ask(
                "POST", "/v1/devices/cam/properties", world.appToken,
                ProductTests.json(["path": Self.volume, "json": json]), node: node)
        }
        let got = try api.ask("GET", path, world.key, node: 3)
        #expect(got["schema"] as? String == Self.schema(maximum: 20) && got["revision"] as? String == "2")
        let list = try api.ask("GET", "/v1/customers/acme/products", world.key)["products"] as? [[String: Any]]
        #expect(list?.count == 1 && list?[0]["product"] as? String == "bell" && list?[0]["schema"] == nil)
        try api.ask("DELETE", path, world.key, node: 3)
        try api.fails(.targetUnknown, "GET", path, world.key)
        try await Task.sleep(for: .seconds(6))
        try await eventually { () throws(ApusError) in
            try await app.writeProperty(of: Self.cam, path: Self.volume, json: #""any""#)
        }
    }

    @Test("A schema holds while nodes are killed in turn, and no accepted write is lost")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 23_430)
        defer { cluster.down() }
        let world = try World(cluster)
        defer { world.close() }
        let app = world.app
        try world.put("bell", Self.schema(maximum: 10))
        try await world.report("ProReadonly._product", #"{"stVal":"bell"}"#)
        try await world.report(Self.volume, "0")
        for node in 1...3 {
            Glibc.kill(try cluster.pid(node), SIGKILL)
            for value in 1...3 {
                try await Self.refused(app, "\(10 + value)")
                try await eventually { () throws(ApusError) in
                    try await app.writeProperty(of: Self.cam, path: Self.volume, json: "\(value)")
                }
                let read = try await eventually { () throws(ApusError) in
                    try await app.readProperty(of: Self.cam, path: Self.volume)
                }
                #expect(read.json == "\(value)")
            }
            let up = try cluster.run("cluster", "up")
            try #require(up.status == 0, "\(up.all)")
        }
    }

    /// Writes until it is refused with 20102. What fails because a node is dead is repeated, and nothing is accepted.
    private static func refused(_ app: ClientSession, _ json: String) async throws {
        for _ in 0..<200 {
            do throws(ApusError) {
                try await app.writeProperty(of: cam, path: volume, json: json)
                Issue.record("\(json) is accepted")
                return
            } catch {
                if error.code == .jsonInvalid { return }
            }
            try await Task.sleep(for: .milliseconds(50))
        }
        Issue.record("the write is not answered")
    }

    @Test("`apus products` and `apus device --product`, in a cluster without customers")
    func verbs() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 23_470)
        defer { cluster.down() }
        let file = cluster.file("bell.json")
        try Self.schema(maximum: 10).write(toFile: file, atomically: true, encoding: .utf8)
        let checked = try Cluster.run(["products", "check", file])
        #expect(checked.status == 0 && checked.output.contains("valid"), "\(checked.all)")
        let good = try Cluster.run(["products", "check", file, "--value", "ProWritable.volume", #"{"setVal":3}"#])
        #expect(good.status == 0 && good.output.contains("fits"), "\(good.all)")
        let bad = try Cluster.run(["products", "check", file, "--value", Self.volume, "11", "--json"])
        #expect(bad.status == 1 && bad.errors.contains("20102") && bad.errors.contains("maximum"), "\(bad.all)")
        let put = try cluster.run("products", "put", "bell", "--schema", file)
        #expect(put.status == 0 && put.output.contains("revision 1"), "\(put.all)")
        let stale = try cluster.run("products", "put", "bell", "--schema", file, "--if-revision", "1")
        #expect(stale.status == 0, "the same schema again is no change: \(stale.all)")
        let got = try cluster.run("products", "get", "bell")
        #expect(got.output.contains(Self.schema(maximum: 10)), "\(got.all)")
        let object = try cluster.run("products", "get", "bell", "--json")
        #expect(object.output.contains(#""schema":{"#) && object.output.contains(#""revision":1"#), "\(object.all)")
        let list = try cluster.run("products", "list", "--json")
        #expect(list.output.contains(#""product":"bell""#) && !list.output.contains("schema"), "\(list.all)")

        try cluster.start([
            "device", "--id", "cam", "--test-pattern", "160x120@5", "--product", "bell", "--setting", "volume=3",
        ])
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        defer { app.close() }
        let product = try await eventually { () throws(ApusError) in
            try await app.readProperty(of: Self.cam, path: "ProReadonly._product.stVal")
        }
        #expect(product.json == #""bell""#)
        _ = try await eventually { () throws(ApusError) in
            try await app.readProperty(of: Self.cam, path: Self.volume)
        }
        let refused = try cluster.run("property", "set", "cam", Self.volume, "11")
        #expect(refused.status == 1 && refused.errors.contains("20102"), "\(refused.all)")
        #expect(try cluster.run("property", "set", "cam", Self.volume, "9").status == 0)
        let gone = try cluster.run("products", "delete", "bell")
        #expect(gone.status == 0, "\(gone.all)")
        #expect(try cluster.run("products", "delete", "bell").errors.contains("8002"))
    }
}
