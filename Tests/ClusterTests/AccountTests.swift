import ApusClient
import ApusContract
import ApusCore
import Foundation
import Synchronization
import Testing

@Suite("Integrators, their users and access to devices (IV-A1 to IV-A3, IV-B8)", .serialized, .timeLimit(.minutes(3)))
struct AccountTests {
    private static let cam = DeviceID(unchecked: "cam")

    /// The cluster of the tests that end no node. Each of them has customers and a device of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_000) }

    @Test(
        "A user is registered once, signs in until its token expires or is revoked, and uses its devices (IV-A1, IV-A2)"
    )
    func users() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "users-cam")
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        try api.ask("POST", "/v1/customers", admin, #"{"customer":"users-acme"}"#)
        let key = try api.key("users-acme", admin).key
        let anna = try api.text(
            "user", "POST", "/v1/customers/users-acme/users", key, #"{"externalId":"anna@example.org"}"#)
        let again = try api.text(
            "user", "POST", "/v1/customers/users-acme/users", key, #"{"externalId":"anna@example.org"}"#, node: 2)
        let ben = try api.text(
            "user", "POST", "/v1/customers/users-acme/users", key, #"{"externalId":"ben@example.org"}"#, node: 3)
        #expect(anna == again && anna != ben && !anna.contains("anna"))
        // The device is the customer's, then the user's, then it signs in.
        try api.fails(.otherCustomer, "POST", "/v1/devices/users-cam/binding", admin, #"{"account":"\#(anna)"}"#)
        try api.ask("POST", "/v1/devices/users-cam/customer", admin, #"{"customer":"users-acme"}"#)
        let bound = try api.ask("POST", "/v1/devices/users-cam/binding", key, #"{"account":"\#(anna)"}"#, node: 2)
        try api.fails(.boundToThisUser, "POST", "/v1/devices/users-cam/binding", key, #"{"account":"\#(anna)"}"#)
        try api.fails(.boundToOtherUser, "POST", "/v1/devices/users-cam/binding", key, #"{"account":"\#(ben)"}"#)
        let deviceToken = try api.text("token", "POST", "/v1/devices/users-cam/tokens", key, "{}")
        let device = try cluster.session(node: 1, token: deviceToken, role: .device)
        let token = try api.text("token", "POST", "/v1/users/\(anna)/tokens", key, "{}", node: 3)
        let ends = SessionEnds()
        let owner = try cluster.session(node: 2, token: token, ends: ends)
        let foreign = try cluster.session(
            node: 3, token: try api.text("token", "POST", "/v1/users/\(ben)/tokens", key, "{}"))
        // The answer to the binding has a token that is for this device (IV-B8).
        let subscriber = try cluster.session(node: 1, token: try #require(bound["token"] as? String))
        defer { for session in [device, owner, foreign, subscriber] { session.close() } }
        for session in [owner, subscriber] {
            _ = try await eventually { () throws(ApusError) in try await session.readProperty(of: cam) }
        }
        await fails(.illegalRelation) { () throws(ApusError) in
            _ = try await foreign.readProperty(of: cam)
        }
        await fails(.notAllowed) { () throws(ApusError) in
            try await subscriber.share(cam, with: AccountID(unchecked: ben), control: true)
        }
        // Several apps of a user do not end each other.
        let phone = try api.text("token", "POST", "/v1/users/\(anna)/tokens", key, #"{"client":"phone"}"#)
        let second = try cluster.session(node: 3, token: phone)
        defer { second.close() }
        _ = try await eventually { () throws(ApusError) in try await second.readProperty(of: cam) }
        #expect(ends.error.withLock { $0 } == nil)
    }

    @Test(
        "A user's token is accepted until it expires or the user's tokens are revoked, and then the next one (IV-A2)"
    )
    func tokens() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "tokens-cam")
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        try api.ask("POST", "/v1/customers", admin, #"{"customer":"tokens-acme"}"#)
        let key = try api.key("tokens-acme", admin).key
        let anna = try api.text("user", "POST", "/v1/customers/tokens-acme/users", key, #"{"externalId":"anna"}"#)
        try api.ask("POST", "/v1/devices/tokens-cam/customer", admin, #"{"customer":"tokens-acme"}"#)
        try api.ask("POST", "/v1/devices/tokens-cam/binding", key, #"{"account":"\#(anna)"}"#)
        let token = try api.text("token", "POST", "/v1/users/\(anna)/tokens", key, "{}", node: 3)
        let ends = SessionEnds()
        let owner = try cluster.session(node: 2, token: token, ends: ends)
        defer { owner.close() }
        _ = try await eventually { () throws(ApusError) in try await owner.readProperty(of: cam) }

        // A short token is refused when it has expired.
        let short = try api.text(
            "token", "POST", "/v1/users/\(anna)/tokens", key, #"{"client":"tv","lifetimeSeconds":"2"}"#)
        let shortEnds = SessionEnds()
        let expiring = try cluster.session(node: 1, token: short, ends: shortEnds)
        defer { expiring.close() }
        #expect(try await shortEnds.isEnded(by: .tokenExpired))

        try api.ask("DELETE", "/v1/users/\(anna)/tokens", key, node: 3)
        #expect(try await ends.isEnded(by: .tokenInvalid))
        // The user signs in again at once.
        let next = try api.text("token", "POST", "/v1/users/\(anna)/tokens", key, "{}")
        let back = try cluster.session(node: 2, token: next)
        defer { back.close() }
        _ = try await eventually { () throws(ApusError) in try await back.readProperty(of: cam) }
        let old = SessionEnds()
        let refused = try cluster.session(node: 3, token: token, ends: old)
        defer { refused.close() }
        #expect(try await old.isEnded(by: .tokenInvalid))
        #expect(try api.text("user", "POST", "/v1/customers/tokens-acme/users", key, #"{"externalId":"anna"}"#) == anna)
    }

    @Test("Temporary access is for the named devices, for a time, and once where asked, also while a node dies (IV-A3)")
    func grants() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_360)
        defer { cluster.down() }
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        try api.ask("POST", "/v1/customers", admin, #"{"customer":"acme"}"#)
        let key = try api.key("acme", admin).key
        let anna = try api.text("user", "POST", "/v1/customers/acme/users", key, #"{"externalId":"anna"}"#)
        let ben = try api.text("user", "POST", "/v1/customers/acme/users", key, #"{"externalId":"ben"}"#)
        for device in ["cam", "bell"] {
            try api.ask("POST", "/v1/devices/\(device)/customer", admin, #"{"customer":"acme"}"#)
            try api.ask("POST", "/v1/devices/\(device)/binding", key, #"{"account":"\#(anna)"}"#)
        }
        let grants = "/v1/users/\(anna)/grants"
        try api.fails(.illegalRelation, "POST", "/v1/users/\(ben)/grants", key, #"{"devices":["cam"]}"#)
        let once = try api.ask("POST", grants, key, #"{"devices":["cam"],"once":true}"#)
        let token = try #require(once["token"] as? String)
        // Over REST there is no client that could be the one.
        try api.fails(.notAllowed, "GET", "/v1/devices", token)
        let courier = try cluster.session(node: 1, token: token)
        defer { courier.close() }
        _ = try await eventually { () throws(ApusError) in try await courier.readProperty(of: Self.cam) }
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await courier.readProperty(of: DeviceID(unchecked: "bell"))
        }
        for change in ["transfer", "unbind", "share"] {
            await fails(.notAllowed) { () throws(ApusError) in
                switch change {
                case "transfer": try await courier.transfer(Self.cam, to: AccountID(unchecked: ben))
                case "unbind": try await courier.unbind(Self.cam)
                default: try await courier.share(Self.cam, with: AccountID(unchecked: ben), control: true)
                }
            }
        }
        func second(_ node: Int) async throws {
            let ends = SessionEnds()
            let session = try cluster.session(node: node, token: token, ends: ends)
            defer { session.close() }
            #expect(try await ends.isEnded(by: .tokenInvalid), "a token for one use was used twice at node \(node)")
        }
        for node in 1...3 { try await second(node) }
        // Its node dies: the client that used the token goes on, and nobody else gets in.
        #expect(try cluster.run("cluster", "kill", "1").status == 0)
        try await second(2)
        _ = try await eventually { () throws(ApusError) in try await courier.readProperty(of: Self.cam) }
        #expect(try cluster.run("cluster", "restart", "1").status == 0)
        try await second(1)
    }

    @Test(
        "Of many clients with a token for one use one gets in; access ends with its time, or when it is ended (IV-A3)")
    func endOfGrants() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "grants-cam")
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        try api.ask("POST", "/v1/customers", admin, #"{"customer":"grants-acme"}"#)
        let key = try api.key("grants-acme", admin).key
        let anna = try api.text("user", "POST", "/v1/customers/grants-acme/users", key, #"{"externalId":"anna"}"#)
        try api.ask("POST", "/v1/devices/grants-cam/customer", admin, #"{"customer":"grants-acme"}"#)
        try api.ask("POST", "/v1/devices/grants-cam/binding", key, #"{"account":"\#(anna)"}"#)
        let grants = "/v1/users/\(anna)/grants"
        let raced = try api.text("token", "POST", grants, key, #"{"devices":["grants-cam"],"once":true}"#, node: 2)
        let racers = try (0..<6).map { number in
            let ends = SessionEnds()
            return (try cluster.session(node: number % 3 + 1, token: raced, ends: ends), ends)
        }
        defer { for racer in racers { racer.0.close() } }
        try await Task.sleep(for: .seconds(3))
        let refused = racers.count { $0.1.error.withLock { $0?.code == .tokenInvalid } }
        #expect(refused == 5, "\(6 - refused) of 6 clients used a token for one use")

        let short = try api.text("token", "POST", grants, key, #"{"devices":["grants-cam"],"lifetimeSeconds":"2"}"#)
        let shortEnds = SessionEnds()
        let guest = try cluster.session(node: 3, token: short, ends: shortEnds)
        defer { guest.close() }
        #expect(try await shortEnds.isEnded(by: .tokenExpired))
        try await endsCommands(cluster, cam, grants, anna: anna, key)
        let ended = try api.ask("POST", grants, key, #"{"devices":["grants-cam"]}"#)
        let ends = SessionEnds()
        let friend = try cluster.session(node: 2, token: try #require(ended["token"] as? String), ends: ends)
        defer { friend.close() }
        _ = try await eventually { () throws(ApusError) in try await friend.readProperty(of: cam) }
        let start = ContinuousClock.now
        try api.ask("DELETE", "\(grants)/\(try #require(ended["access"] as? String))", key, node: 3)
        #expect(try await ends.isEnded(by: .tokenInvalid))
        #expect(ContinuousClock.now - start < .seconds(1.2))
    }

    /// A command is not kept for longer than the temporary access with which it was sent.
    private func endsCommands(
        _ cluster: Cluster, _ cam: DeviceID, _ grants: String, anna: String, _ key: String
    ) async throws {
        let api = CustomerAPI(cluster: cluster)
        let brief = try api.text("token", "POST", grants, key, #"{"devices":["\#(cam)"],"lifetimeSeconds":"4"}"#)
        let guest = try cluster.session(node: 2, token: brief)
        let owner = try cluster.session(
            node: 3, token: try api.text("token", "POST", "/v1/users/\(anna)/tokens", key, "{}"))
        defer { for session in [guest, owner] { session.close() } }
        let kept = try await eventually { () throws(ApusError) in
            try await guest.sendCommand(
                .action(path: "Action.unlock.ctlVal", json: "1"), to: cam, keptFor: .seconds(600), until: .queued)
        }
        #expect(try await owner.command(kept.id, of: cam).status == .queued)
        try await eventually { () throws(ApusError) in
            let command = try await owner.command(kept.id, of: cam)
            guard command.status == .expired else { throw ApusError(.internalFailure, "\(command)") }
        }
    }

    @Test("A customer reaches nothing of another; keys change without a pause, and a revoked one ends within a second")
    func customers() async throws {
        let cluster = try Self.cluster()
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        for customer in ["acme", "evil"] {
            try api.ask("POST", "/v1/customers", admin, #"{"customer":"\#(customer)"}"#)
        }
        let (acme, evil) = (try api.key("acme", admin), try api.key("evil", admin))
        let anna = try api.text("user", "POST", "/v1/customers/acme/users", acme.key, #"{"externalId":"anna"}"#)
        let eve = try api.text("user", "POST", "/v1/customers/evil/users", evil.key, #"{"externalId":"anna"}"#)
        #expect(anna != eve)
        try api.ask("POST", "/v1/devices/cam/customer", admin, #"{"customer":"acme"}"#)
        try api.ask("POST", "/v1/devices/cam/binding", acme.key, #"{"account":"\#(anna)"}"#)
        for (code, method, path, body) in Self.foreignRequests(anna: anna, eve: eve, key: acme.id) {
            let connection = try #require(PlainHTTP(port: cluster.httpPort(Int.random(in: 1...3))))
            let answer = try #require(connection.exchange(method, path, token: evil.key, body: body))
            let isExpected =
                path.contains("%2F")
                ? answer.status >= 400 && answer.status < 500 : answer.body.contains("\(code.number)")
            #expect(isExpected && answer.status != 200, "\(method) \(path): \(answer.status) \(answer.body)")
        }
        // An account that has a customer's name is none.
        let namesake = try cluster.token("--role", "app", "--account", "acme")
        try api.fails(.targetUnknown, "GET", "/v1/devices/cam", namesake)
        try api.fails(.notAllowed, "POST", "/v1/customers/acme/users", namesake, #"{"externalId":"x"}"#)
        // A customer's key opens no session.
        let property = try cluster.run("property", "get", "cam", "--token", evil.key)
        #expect(property.status != 0 && property.errors.contains("12004"), "\(property.all)")
        try api.fails(.otherCustomer, "POST", "/v1/devices/cam/shares", acme.key, #"{"account":"\#(eve)"}"#)
    }

    @Test("Keys of a customer change without a pause; a revoked one ends within a second, and the records have none")
    func keys() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_440)
        defer { cluster.down() }
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        try api.ask("POST", "/v1/customers", admin, #"{"customer":"acme"}"#)
        let acme = try api.key("acme", admin)
        let anna = try api.text("user", "POST", "/v1/customers/acme/users", acme.key, #"{"externalId":"anna"}"#)
        try api.ask("POST", "/v1/devices/cam/customer", admin, #"{"customer":"acme"}"#)
        try api.ask("POST", "/v1/devices/cam/binding", acme.key, #"{"account":"\#(anna)"}"#)
        let next = try api.key("acme", acme.key)
        try api.fails(.overloaded, "POST", "/v1/customers/acme/keys", acme.key, "{}")
        for key in [acme.key, next.key] { try api.ask("GET", "/v1/customers/acme/users", key, node: 2) }
        try api.ask("DELETE", "/v1/customers/acme/keys/\(acme.id)", next.key, node: 2)
        try await Task.sleep(for: .seconds(1))
        for node in 1...3 {
            try api.fails(.tokenInvalid, "GET", "/v1/customers/acme/users", acme.key, node: node)
            try api.ask("GET", "/v1/customers/acme/users", next.key, node: node)
        }
        // It stays revoked after every node has started again, and the records have no key.
        for node in 1...3 { #expect(try cluster.run("cluster", "restart", "\(node)").status == 0) }
        try api.fails(.tokenInvalid, "GET", "/v1/customers/acme/users", acme.key, node: 3)
        let devices = try api.ask("GET", "/v1/devices?account=\(anna)", next.key)["devices"] as? [[String: Any]]
        #expect(devices?.compactMap { $0["device"] as? String } == ["cam"])
        // Without PostgreSQL, whose files are its own.
        let isSQLite = ProcessInfo.processInfo.environment["APUS_TEST_POSTGRESQL"] == nil
        for file in isSQLite ? ["records.sqlite", "records.sqlite-wal"] : [] {
            let records = (try? Data(contentsOf: URL(fileURLWithPath: cluster.file("shared/\(file)")))) ?? Data()
            #expect(records.count > 1000 && records.range(of: Data(next.key.suffix(40).utf8)) == nil, "\(file)")
        }
        for node in 1...3 { #expect(!Cluster.text(cluster.file("n\(node)/log")).contains(next.key.suffix(40))) }
    }

    /// What a customer's server may not ask: of another customer's user, of its device, and of operators.
    private static func foreignRequests(
        anna: String, eve: String, key: String
    ) -> [(ErrorCode, String, String, String?)] {
        let bare = "{}"
        return [
            (ErrorCode.targetUnknown, "POST", "/v1/users/\(anna)/tokens", bare),
            (.targetUnknown, "DELETE", "/v1/users/\(anna)/tokens", nil),
            (.targetUnknown, "POST", "/v1/users/\(anna)/grants", #"{"devices":["cam"]}"#),
            (.targetUnknown, "DELETE", "/v1/users/\(anna)/grants/grant-1", nil),
            (.illegalRelation, "POST", "/v1/users/\(eve)/grants", #"{"devices":["cam"]}"#),
            (.targetUnknown, "POST", "/v1/devices/cam/tokens", bare),
            (.targetUnknown, "GET", "/v1/devices/cam", nil),
            (.targetUnknown, "GET", "/v1/devices?account=\(anna)", nil),
            (.targetUnknown, "GET", "/v1/devices/cam/shares", nil),
            (.otherCustomer, "POST", "/v1/devices/cam/binding", #"{"account":"\#(eve)"}"#),
            (.illegalRelation, "DELETE", "/v1/devices/cam/binding", nil),
            (.illegalRelation, "POST", "/v1/devices/cam/transfer", #"{"account":"\#(eve)"}"#),
            (.illegalRelation, "POST", "/v1/devices/cam/shares", #"{"account":"\#(eve)","control":true}"#),
            (.notAllowed, "POST", "/v1/devices/cam/customer", #"{"customer":"evil"}"#),
            (.notAllowed, "POST", "/v1/customers", #"{"customer":"more"}"#),
            (.notAllowed, "GET", "/v1/customers", nil), (.notAllowed, "GET", "/v1/customers/acme/users", nil),
            (.notAllowed, "POST", "/v1/customers/acme/users", #"{"externalId":"x"}"#),
            (.notAllowed, "POST", "/v1/customers/acme/keys", bare),
            (.notAllowed, "DELETE", "/v1/customers/acme/keys/\(key)", nil),
            (.notAllowed, "POST", "/v1/tokens", #"{"role":"app","account":"\#(anna)"}"#),
            (.notAllowed, "GET", "/v1/nodes", nil),
            (.targetUnknown, "POST", "/v1/users/..%2F\(anna)/tokens", bare),
            (.badParameter, "POST", "/v1/customers/evil/users", #"{"externalId":""}"#),
            (.badParameter, "POST", "/v1/customers/evil/users", #"{"externalId":"a\u0000b"}"#),
        ]
    }
}
