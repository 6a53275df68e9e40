import ApusContract
import ApusCore
import ApusSessions
import Foundation
import Testing

/// Who may make which request: each request of the contract, with a token of each role, for a whole account, for
/// certain devices, expired and revoked (IV-A2, IV-A3, IV-A6).
@Suite("The authorization matrix", .serialized, .timeLimit(.minutes(3)))
struct AuthorizationTests {
    /// One line a request: the roles that may make it. `devices` stands where a token for certain devices may too.
    private static let matrix = """
        topics.subscribe device app admin devices
        topics.unsubscribe device app admin devices
        devices.sleep device
        relay.credentials device app devices
        topics.acknowledge device app admin devices
        devices.list app customer admin devices
        devices.get app customer admin devices
        presence.get app devices
        tokens.issue admin
        tokens.revoke admin
        nodes.list admin
        nodes.drain admin
        shards.list admin
        sessions.list admin
        sessions.end admin
        channels.list admin
        nodes.cordon admin
        nodes.uncordon admin
        nodes.weight admin
        shards.explain admin
        map.changes admin
        nodes.undrain admin
        properties.read device app devices
        properties.write app devices
        properties.add app devices
        properties.delete app devices
        properties.report device
        properties.pending device
        commands.send app devices
        commands.get app devices
        commands.list app devices
        commands.cancel app devices
        commands.order app devices
        commands.acknowledge device
        commands.answer device
        devices.bind customer admin
        devices.unbind app customer admin
        devices.transfer app customer admin
        devices.share app customer admin
        devices.accept app
        devices.invitations app
        devices.unshare app customer admin
        devices.shares app customer admin devices
        devices.disable customer admin
        customers.create admin
        customers.list admin
        keys.issue customer admin
        keys.revoke customer admin
        devices.assign admin
        devices.authorize customer admin
        users.register customer admin
        users.list customer admin
        users.authorize customer admin
        users.revoke customer admin
        grants.issue customer admin
        grants.revoke customer admin
        calls.start device app
        calls.report device app
        calls.list device app admin devices
        push.register app
        push.unregister app
        answering.get device app admin
        answering.set device app admin
        answering.greet device app admin
        messages.list device app admin
        messages.read device app admin
        messages.mark device app admin
        messages.delete device app admin
        events.report device
        events.notify admin
        servers.send device app
        hooks.put customer admin
        hooks.list customer admin
        hooks.delete customer admin
        hooks.failed customer admin
        hooks.retry customer admin
        hooks.drop customer admin
        products.put customer admin
        products.get customer admin
        products.list customer admin
        products.delete customer admin
        firmware.create customer admin
        firmware.upload customer admin
        firmware.seal customer admin
        firmware.roll-out customer admin
        firmware.get customer admin
        firmware.list customer admin
        firmware.delete customer admin
        firmware.group-set customer admin
        firmware.group-delete customer admin
        firmware.group-get customer admin
        firmware.query device app customer admin devices
        firmware.read device
        firmware.report device
        firmware.outcomes customer admin
        local.check device
        timers.set device app devices
        timers.list device app devices
        timers.cancel device app devices
        timers.change device app devices
        timers.stop device app devices
        dialogs.say device app
        dialogs.get device app
        dialogs.stop device app
        voice.home app
        voice.put app
        dialogs.event device
        speech.listen device
        dialogs.tap device app
        dialogs.spoken device app
        dialogs.wake device
        dialogs.synchronize device
        authorizations.get app
        authorizations.approve app
        authorizations.refuse app
        sign-in.code admin
        recordings.plan app admin devices
        recordings.record app admin devices
        recordings.stop app admin devices
        recordings.days app admin devices
        recordings.times app admin devices
        recordings.address app admin devices
        recordings.list app admin
        recordings.delete app admin devices
        recordings.protect app admin devices
        recordings.unprotect app admin devices
        devices.diagnose app customer admin devices
        plays.report app devices
        """

    private static let entries = Dictionary(
        uniqueKeysWithValues: matrix.split(separator: "\n").map { line in
            let words = line.split(separator: " ").map(String.init)
            return (words[0], Set(words.dropFirst()))
        })

    @Test("Every request of the contract has an entry, and no other does")
    func entries() {
        let contract = ClientRequests.all.map { info in
            ([info.name] + info.roles.names + (info.isForNamedDevices ? ["devices"] : [])).joined(separator: " ")
        }
        #expect(contract == Self.matrix.split(separator: "\n").map(String.init))
    }

    /// A bearer whose requests are judged.
    private struct Bearer {
        var role: Session.Role
        var token: String
        var isRestricted = false
    }

    /// What the requests need, and what tokens are made with.
    private struct Place {
        let cluster: Cluster
        let api: CustomerAPI
        let signer: TokenSigner
        let admin: String
        let key: (key: String, id: String)

        init() throws {
            cluster = try Cluster(nodes: 1, basePort: 22_650)
            api = CustomerAPI(cluster: cluster)
            signer = try TokenSigner(privateKeyPEM: Cluster.text(cluster.file("pki/token.key")))
            admin = try cluster.token("--role", "admin")
            try api.ask("POST", "/v1/customers", admin, #"{"customer":"acme"}"#)
            key = try api.key("acme", admin)
            for device in ["cam", "bell"] {
                try api.ask("POST", "/v1/devices/\(device)/binding", admin, #"{"account":"local"}"#)
            }
        }

        /// - Parameter age: in seconds; tokens last for an hour.
        func token(_ role: Session.Role, named: Bool = false, age: Int64 = 0, access: String? = nil) throws -> String {
            let isDevice = role == .device
            return try signer.sign(
                TokenClaims(
                    access: AccessID(unchecked: access ?? (isDevice ? "cam" : "\(role.rawValue)-\(UUID().uuidString)")),
                    account: AccountID(unchecked: "local"), role: role,
                    device: isDevice ? AuthorizationTests.cam : nil, devices: named ? [AuthorizationTests.cam] : nil,
                    issuedAt: Int64(Date().timeIntervalSince1970) - age, lifetime: .seconds(3600),
                    cluster: ClusterID(unchecked: "local"), id: UUID().uuidString))
        }
    }

    private static let cam = DeviceID(unchecked: "cam")

    @Test("A node allows and refuses as the matrix says: all requests, all roles, whole and restricted tokens (IV-A3)")
    func node() async throws {
        let place = try Place()
        defer { place.cluster.down() }
        // Before the others, which unbind the device.
        for role: Session.Role in [.app, .admin] {
            let bearer = Bearer(role: role, token: try place.token(role, named: true), isRestricted: true)
            try judge(bearer, place, device: "cam")
            try refusesOthers(bearer, place)
        }
        for role: Session.Role in [.device, .app, .admin] {
            try judge(
                Bearer(role: role, token: try place.token(role)), place, device: role == .device ? "cam" : "spare")
        }
        try judge(Bearer(role: .customer, token: place.key.key), place, device: "spare")
    }

    @Test("An expired token, and a revoked one, may make no request at all (IV-A2)")
    func ended() async throws {
        let place = try Place()
        defer { place.cluster.down() }
        var ended = try [Session.Role.device, .app, .admin].map { try place.token($0, age: 7200) }
        ended.append(try place.token(.app, named: true, age: 7200))
        for role: Session.Role in [.device, .app, .admin] {
            let token = try place.token(role, access: "gone-\(role.rawValue)")
            try place.api.ask(
                "POST", "/v1/tokens/revoke", place.admin, #"{"identity":"gone-\#(role.rawValue)","account":"local"}"#)
            ended.append(token)
            // Of the same access id, for one device.
            if role != .device { ended.append(try place.token(role, named: true, access: "gone-\(role.rawValue)")) }
        }
        try place.api.ask("DELETE", "/v1/customers/acme/keys/\(place.key.id)", place.admin)
        ended.append(place.key.key)
        try await Task.sleep(for: .seconds(1.5))
        for token in ended {
            for info in ClientRequests.all {
                guard let code = try rest(info, token, place, device: "cam") else { continue }
                #expect([.tokenExpired, .tokenInvalid].contains(code), "\(info.name): \(code)")
            }
            for role in ["ROLE_APP", "ROLE_DEVICE"] {
                let socket = try #require(PlainWebSocket(port: place.cluster.httpPort(1)))
                try #require(socket.send(#"{"hello":{"role":"\#(role)","token":"\#(token)"}}"#))
                #expect(socket.receive()?["welcome"] == nil)
            }
        }
    }

    @Test("A token for one device that never expires harms no node with a command that is kept (IV-A3, IV-D13)")
    func farExpiry() async throws {
        let place = try Place()
        defer { place.cluster.down() }
        let claims = TokenClaims(
            access: AccessID(unchecked: "guest"), account: AccountID(unchecked: "local"), role: .app,
            devices: [Self.cam], issuedAt: Int64(Date().timeIntervalSince1970),
            lifetime: .seconds(1_000_000_000_000_000_000), cluster: ClusterID(unchecked: "local"), id: "far")
        let answer = try place.api.ask(
            "POST", "/v1/devices/cam/commands", try place.signer.sign(claims),
            #"{"path":"Action.unlock.ctlVal","json":"1","ttlSeconds":60,"until":"COMMAND_STATUS_QUEUED"}"#, status: nil)
        #expect(answer["status"] as? String == "COMMAND_STATUS_QUEUED", "\(answer)")
        #expect(NodeView(1, of: place.cluster).status?.state == "up")
    }

    // MARK: - One bearer

    /// Makes each request once. Allowed is what is answered, or refused for another reason than who asks.
    private func judge(_ bearer: Bearer, _ place: Place, device: String) throws {
        // Operators and integrators have no sessions.
        let socket = [.device, .app].contains(bearer.role) ? try self.socket(bearer, place) : nil
        for info in ClientRequests.all {
            let code: ErrorCode?
            if info.path != nil {
                code = try rest(info, bearer.token, place, device: device)
            } else if let socket {
                code = try ask(socket, info, device: device)
            } else {
                continue
            }
            let entry = try #require(Self.entries[info.name])
            let isAllowed =
                entry.contains(bearer.role.rawValue) && (!bearer.isRestricted || entry.contains("devices"))
            let who = "\(bearer.role.rawValue)\(bearer.isRestricted ? " for cam" : "")"
            #expect((code != .notAllowed) == isAllowed, "\(info.name) of \(who): \(code.map { "\($0)" } ?? "done")")
            #expect(code != .tokenInvalid && code != .tokenExpired, "\(info.name) of \(who)")
        }
    }

    /// A restricted token reaches no other device of its account.
    private func refusesOthers(_ bearer: Bearer, _ place: Place) throws {
        for info in ClientRequests.all where Self.entries[info.name]?.contains("devices") ?? false {
            guard info.path != nil, Self.entries[info.name]?.contains(bearer.role.rawValue) ?? false else { continue }
            // They concern no device.
            if ["relay.credentials", "devices.list"].contains(info.name) { continue }
            let code = try rest(info, bearer.token, place, device: "bell")
            let refusals: [ErrorCode?] = [.notAllowed, .targetUnknown, .illegalRelation]
            #expect(refusals.contains(code), "\(info.name) of bell: \(code.map { "\($0)" } ?? "done")")
        }
        if bearer.role == .app {
            let socket = try self.socket(bearer, place)
            let topics = [
                "events/local", "things/bell", "timers/bell", "dialogs/bell", "commands/own", "calls/own",
            ]
            for topic in topics {
                let code = try ask(socket, "topics.subscribe", #"{"topic":"\#(topic)"}"#)
                #expect(code == .notAllowed, "\(topic): \(code.map { "\($0)" } ?? "done")")
            }
        }
        let listed = try place.api.ask("GET", "/v1/devices", bearer.token)["devices"] as? [[String: Any]]
        #expect(listed?.compactMap { $0["device"] as? String } == ["cam"])
    }

    // MARK: - Requests

    private func socket(_ bearer: Bearer, _ place: Place) throws -> PlainWebSocket {
        let role = bearer.role == .device ? "ROLE_DEVICE" : "ROLE_APP"
        let socket = try #require(PlainWebSocket(port: place.cluster.httpPort(1)))
        try #require(socket.send(#"{"hello":{"role":"\#(role)","token":"\#(bearer.token)"}}"#))
        let welcome = try #require(socket.receive())
        try #require(welcome["welcome"] != nil, "\(welcome)")
        return socket
    }

    /// Nil: it was carried out.
    private func ask(_ socket: PlainWebSocket, _ info: ClientRequestInfo, device: String) throws -> ErrorCode? {
        try ask(socket, info.name, info.name.hasPrefix("topics.") ? #"{"topic":"things/\#(device)"}"# : "{}")
    }

    private func ask(_ socket: PlainWebSocket, _ name: String, _ body: String) throws -> ErrorCode? {
        try #require(socket.send(#"{"id":1,"request":"\#(name)","body":\#(body)}"#))
        while true {
            let answer = try #require(socket.receive())
            guard answer["id"] != nil else { continue }
            guard let error = answer["error"] as? [String: Any] else { return nil }
            return ErrorCode(number: Int32(try #require(error["code"] as? Int)))
        }
    }

    /// Nil where it has no path, or was carried out.
    private func rest(
        _ info: ClientRequestInfo, _ token: String, _ place: Place, device: String
    ) throws -> ErrorCode? {
        guard let rule = info.path else { return nil }
        let fields = [
            "device": device, "customer": "acme", "account": "other", "shard": "1", "version": "1.0.0", "node": "none",
            "source": "0",
        ]
        let parts = rule.parts.map { part in
            switch part {
            case .literal(let text): text
            case .field("id") where info.name.hasPrefix("commands."): String(repeating: "0", count: 32)
            case .field("id") where info.name.hasPrefix("timers."): "1"
            case .field(let name): fields[name] ?? "none"
            }
        }
        var path = "/" + parts.joined(separator: "/")
        var body = "{}"
        if ["calls.list", "answering.get", "messages.list"].contains(info.name) { path += "?device=\(device)" }
        if info.name == "nodes.weight" { body = #"{"weight":100}"# }
        if info.name == "plays.report" {
            let session = String(repeating: "a", count: 32)
            body = #"{"plays":[{"session":"\#(session)","device":"\#(device)"}]}"#
        }
        if info.name.hasPrefix("answering.") { body = #"{"device":"\#(device)"}"# }
        let method = rule.method.rawValue
        let answer = try place.api.ask(
            method, path, token, ["POST", "PUT"].contains(method) ? body : nil, status: nil)
        return (answer["code"] as? Int).map { ErrorCode(number: Int32($0)) }
    }
}
