import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// A device that asks for a token, as RFC 8628 has it, with requests of its own.
struct CodeDevice {
    let cluster: Cluster
    let device: String
    var client = "-/speaker"

    /// A form to a node, without a token.
    func post(_ path: String, _ form: String, node: Int) throws -> (status: Int, json: [String: Any], head: String) {
        let connection = try #require(PlainHTTP(port: cluster.httpPort(node)))
        let sent = connection.send(
            "POST \(path) HTTP/1.1\r\nHost: 127.0.0.1:\(cluster.httpPort(node))\r\n"
                + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: \(form.utf8.count)\r\n"
                + "Connection: close\r\n\r\n\(form)")
        try #require(sent, "\(connection.failure)")
        let head = try #require(connection.readHead(), "\(connection.failure)")
        let status = try #require(head.split(separator: " ").dropFirst().first.flatMap { Int($0) })
        var body: [UInt8] = []
        while let byte = connection.read(1) { body += byte }
        return (status, (try? JSONSerialization.jsonObject(with: Data(body)) as? [String: Any]) ?? [:], head)
    }

    /// Its codes, of a node.
    func codes(node: Int = 1) throws -> (device: String, user: String) {
        let answer = try post(
            "/v1/oauth/device_authorization", "client_id=\(client)&device_id=\(device)", node: node)
        try #require(answer.status == 200, "\(answer)")
        return (
            try #require(answer.json["device_code"] as? String), try #require(answer.json["user_code"] as? String)
        )
    }

    /// What it hears when it asks for its token: the token and the refresh token, or the error.
    func ask(_ deviceCode: String, node: Int = 1) throws -> (token: String?, refresh: String?, error: String?) {
        try token(
            "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Adevice_code&device_code=\(deviceCode)", node: node)
    }

    func refresh(_ text: String, node: Int = 1) throws -> (token: String?, refresh: String?, error: String?) {
        try token("grant_type=refresh_token&refresh_token=\(text)", node: node)
    }

    private func token(_ form: String, node: Int) throws -> (token: String?, refresh: String?, error: String?) {
        let answer = try post("/v1/oauth/token", "\(form)&client_id=\(client)", node: node)
        #expect(answer.head.lowercased().contains("cache-control: no-store"))
        return (
            answer.json["access_token"] as? String, answer.json["refresh_token"] as? String,
            answer.json["error"] as? String
        )
    }
}

extension Cluster {
    /// A product of the operator, whose devices may ask for tokens.
    func putSpeaker(_ product: String = "speaker") throws {
        try CustomerAPI(cluster: self).ask(
            "PUT", "/v1/customers/-/products/\(product)", try token("--role", "admin"), #"{"schema":"{}"}"#)
    }
}

@Suite("Devices that are authorized with a code (VA-3, VA-4, RFC 8628)", .serialized, .timeLimit(.minutes(4)))
struct DeviceAuthorizationTests {
    private static let environment = [
        "APUS_AUTHORIZATION_POLL_INTERVAL": "1s", "APUS_AUTHORIZATION_CODES_PER_MINUTE_EACH": "1000",
    ]

    private static func shared() throws -> Cluster {
        let cluster = try SharedCluster.cluster(basePort: 24_600, environment: environment)
        try cluster.putSpeaker()
        return cluster
    }

    private static func appToken(_ cluster: Cluster, _ account: String) throws -> String {
        try cluster.token("--role", "app", "--account", account)
    }

    private static func form(_ cluster: Cluster, _ form: String, node: Int = 2) throws -> (status: Int, head: String) {
        let answer = try CodeDevice(cluster: cluster, device: "").post("/v1/oauth/device", form, node: node)
        return (answer.status, answer.head)
    }

    @Test("The page ends at close://success, the device gets a token once, and signs in with it (VA-3)")
    func success() async throws {
        let cluster = try Self.shared()
        let device = CodeDevice(cluster: cluster, device: "page-cam")
        let answer = try device.post(
            "/v1/oauth/device_authorization", "client_id=-%2Fspeaker&device_id=page-cam", node: 1)
        let complete = try #require(answer.json["verification_uri_complete"] as? String)
        let user = try #require(answer.json["user_code"] as? String)
        let code = try #require(answer.json["device_code"] as? String)
        #expect(complete == "http://127.0.0.1:\(cluster.httpPort(1))/v1/oauth/device?user_code=\(user)")
        #expect(answer.json["verification_uri"] as? String == String(complete.prefix { $0 != "?" }))
        #expect(answer.json["expires_in"] as? Int == 600 && answer.json["interval"] as? Int == 1)
        #expect(try device.ask(code, node: 2).error == "authorization_pending")
        #expect(try device.ask(code, node: 2).error == "slow_down")

        // The page of any node, without a token: it shows no device.
        let page = try #require(PlainHTTP(port: cluster.httpPort(3)))
        try #require(page.send("GET /v1/oauth/device?user_code=\(user) HTTP/1.1\r\nHost: a\r\n\r\n"))
        let head = try #require(page.readHead()).lowercased()
        #expect(head.hasPrefix("http/1.1 200"))
        for rule in ["default-src 'none'", "form-action 'self' close:", "frame-ancestors 'none'"] {
            #expect(head.contains(rule), "\(head)")
        }
        #expect(!head.contains("script"))
        // With one it does, and asks.
        let token = try Self.appToken(cluster, "page")
        let shown = try #require(
            PlainHTTP(port: cluster.httpPort(3))?.exchange(
                "GET", "/v1/oauth/device?user_code=\(user)", token: token))
        #expect(shown.status == 200 && shown.body.contains("page-cam") && !shown.body.contains("<script"))
        #expect(try device.ask(code, node: 3).error == "authorization_pending", "a GET decides nothing")

        let wrong = try Self.form(cluster, "user_code=\(user)&token=x&decision=approve")
        #expect(
            wrong.status == 401 && !wrong.head.lowercased().contains("location:"), "it can be tried again: \(wrong)")
        let done = try Self.form(cluster, "user_code=\(user.lowercased())&token=\(token)&decision=approve")
        #expect(done.status == 303 && done.head.lowercased().contains("location: close://success"), "\(done)")

        let tokens = try device.ask(code, node: 3)
        let session = try cluster.session(node: 1, token: try #require(tokens.token), role: .device)
        defer { session.close() }
        try await eventually { () throws(ApusError) in
            try await session.reportProperty(path: "ProReadonly.a.stVal", json: "1")
        }
        #expect(try device.ask(code).error == "invalid_grant", "a code is used once")
        let listed = try CustomerAPI(cluster: cluster).ask("GET", "/v1/devices", token)["devices"] as? [[String: Any]]
        #expect(listed?.compactMap { $0["device"] as? String } == ["page-cam"])
        // A refresh token opens no session, and gives the next token.
        let refresh = try #require(tokens.refresh)
        try CustomerAPI(cluster: cluster).fails(.tokenInvalid, "GET", "/v1/relay/credentials", refresh)
        #expect(try device.refresh(refresh, node: 2).token != nil)
    }

    @Test("The page ends at close://failed for who refuses, and for a device of another account (VA-3)")
    func failed() throws {
        let cluster = try Self.shared()
        let device = CodeDevice(cluster: cluster, device: "refused-cam")
        let (code, user) = try device.codes()
        let (anna, ben) = (try Self.appToken(cluster, "anna"), try Self.appToken(cluster, "ben"))
        let refused = try Self.form(cluster, "user_code=\(user)&token=\(anna)&decision=refuse")
        #expect(refused.status == 303 && refused.head.lowercased().contains("location: close://failed"), "\(refused)")
        #expect(try device.ask(code, node: 2).error == "access_denied")
        // Only the account that has decided may decide otherwise.
        let other = try Self.form(cluster, "user_code=\(user)&token=\(ben)&decision=approve")
        #expect(other.status == 303 && other.head.lowercased().contains("location: close://failed"), "\(other)")
        #expect(try device.ask(code, node: 2).error == "access_denied")
        let changed = try Self.form(cluster, "user_code=\(user)&token=\(anna)&decision=approve")
        #expect(changed.status == 303 && changed.head.lowercased().contains("location: close://success"))
        #expect(try device.ask(code, node: 3).token != nil)

        let again = try device.codes(node: 2)
        let taken = try Self.form(cluster, "user_code=\(again.user)&token=\(ben)&decision=approve")
        #expect(taken.status == 303 && taken.head.lowercased().contains("location: close://failed"))
        let api = CustomerAPI(cluster: cluster)
        try api.fails(.boundToOtherUser, "POST", "/v1/authorizations/\(again.user)/approval", ben, "{}")
        #expect(try device.ask(again.device, node: 1).error == "authorization_pending")
        // Its own account lets it have another token.
        try api.ask("POST", "/v1/authorizations/\(again.user)/approval", anna, "{}", node: 3)
        #expect(try device.ask(again.device, node: 3).token != nil)
    }

    @Test("An account approves over the native protocol, WebSocket, REST and the command line (VA-3)")
    func protocols() async throws {
        let cluster = try Self.shared()
        let token = try Self.appToken(cluster, "all")
        let api = CustomerAPI(cluster: cluster)
        let app = try cluster.session(node: 2, token: token)
        defer { app.close() }
        let native = CodeDevice(cluster: cluster, device: "native-cam")
        var (code, user) = try native.codes()
        let shown = try await eventually { [user] () throws(ApusError) in try await app.authorization(of: user) }
        #expect(shown.device == "native-cam" && shown.client == "-/speaker" && shown.state == .pending)
        #expect(try await app.refuse(user).state == .refused)
        #expect(try await app.approve(user).state == .approved)
        #expect(try native.ask(code).token != nil)
        await fails(.targetUnknown) { [user] () throws(ApusError) in _ = try await app.approve(user) }

        (code, user) = try native.codes()
        let socket = try #require(PlainWebSocket(port: cluster.httpPort(3)))
        try #require(socket.send(#"{"hello":{"role":"ROLE_APP","token":"\#(token)"}}"#))
        #expect(socket.receive()?["welcome"] != nil)
        try #require(
            socket.send(#"{"id":1,"request":"authorizations.approve","body":{"userCode":"\#(user)"}}"#))
        let answer = try #require(socket.receive()?["response"] as? [String: Any])
        #expect(answer["state"] as? String == "AUTHORIZATION_STATE_APPROVED", "\(answer)")
        #expect(try native.ask(code, node: 2).token != nil)

        (code, user) = try native.codes()
        #expect(try api.text("device", "GET", "/v1/authorizations/\(user)", token, node: 3) == "native-cam")
        let verb = try cluster.run("authorize", user, "--approve", "--token", token)
        #expect(verb.status == 0 && verb.output.contains("native-cam may fetch its token."), "\(verb.all)")
        #expect(try native.ask(code, node: 3).token != nil)
        // Who may not: a device, a token for certain devices, and a client that is no product.
        let deviceToken = try cluster.token("--role", "device", "--device", "x", "--account", "all")
        try api.fails(.notAllowed, "GET", "/v1/authorizations/\(user)", deviceToken)
        let unknown = try CodeDevice(cluster: cluster, device: "a", client: "-/none").post(
            "/v1/oauth/device_authorization", "client_id=-/none&device_id=a", node: 1)
        #expect(unknown.status == 400 && unknown.json["error"] as? String == "invalid_client")
        for (path, form) in [
            ("token", "grant_type=password&client_id=a"), ("token", "client_id=a"), ("token", "%zz"),
            ("device_authorization", "client_id=-/speaker"),
            ("device_authorization", "client_id=-/speaker&device_id=a%20b"),
            ("device_authorization", "client_id=a&client_id=b"),
        ] {
            let answer = try native.post("/v1/oauth/\(path)", form, node: 1)
            #expect(answer.status == 400 && answer.json["error"] != nil, "\(path) \(form): \(answer)")
        }
    }

    @Test("A code that is guessed is refused like one that there never was, and ten attempts a minute are all (VA-3)")
    func guesses() throws {
        let cluster = try Self.shared()
        let device = CodeDevice(cluster: cluster, device: "guess-cam")
        let (code, user) = try device.codes()
        let api = CustomerAPI(cluster: cluster)
        let token = try Self.appToken(cluster, "guesser")
        try api.fails(.badParameter, "GET", "/v1/authorizations/AAAA-AAAA", token)
        for _ in 0..<9 { try api.fails(.targetUnknown, "POST", "/v1/authorizations/BBBB-BBBB/approval", token, "{}") }
        try api.fails(.overloaded, "POST", "/v1/authorizations/\(user)/approval", token, "{}")
        // Another account is not affected.
        let owner = try Self.appToken(cluster, "owner")
        try api.ask("POST", "/v1/authorizations/\(user)/approval", owner, "{}")
        // A device code with the right user code and another secret.
        let forged = String(code.dropLast()) + (code.hasSuffix("0") ? "1" : "0")
        #expect(try device.ask(forged).error == "invalid_grant")
        let other = CodeDevice(cluster: cluster, device: "guess-cam", client: "-/other")
        #expect(try other.ask(code).error == "invalid_grant")
        #expect(try device.ask(code).token != nil)
    }

    /// The time of issue in a token (RFC 7519 §4.1.6).
    private static func issued(_ token: String) throws -> Int {
        let text = try #require(token.split(separator: ".").dropFirst().first)
            .replacingOccurrences(of: "-", with: "+").replacingOccurrences(of: "_", with: "/")
        let padded = text + String(repeating: "=", count: (4 - text.count % 4) % 4)
        let claims = try JSONSerialization.jsonObject(with: try #require(Data(base64Encoded: padded)))
        return try #require((claims as? [String: Any])?["iat"] as? Int)
    }

    @Test("A copied refresh token ends the grant, and unbinding the device does too (VA-4, RFC 9700)")
    func refreshes() async throws {
        let cluster = try Self.shared()
        let api = CustomerAPI(cluster: cluster)
        let device = CodeDevice(cluster: cluster, device: "rotating-cam")
        let owner = try Self.appToken(cluster, "rotating")
        func grant() throws -> (token: String, refresh: String) {
            let (code, user) = try device.codes()
            try api.ask("POST", "/v1/authorizations/\(user)/approval", owner, "{}")
            let tokens = try device.ask(code)
            return (try #require(tokens.token), try #require(tokens.refresh))
        }
        let first = try grant()
        let second = try #require(try device.refresh(first.refresh, node: 2).refresh)
        // A revocation ends what was issued before it, so no refresh may come after it.
        #expect(try Self.issued(second) == Self.issued(first.refresh))
        #expect(try Self.issued(second) == Self.issued(first.token))
        let repeated = try #require(try device.refresh(first.refresh, node: 3).refresh)
        #expect(try device.refresh(repeated, node: 1).token != nil, "an answer that was lost is repeated")
        #expect(try device.refresh(second, node: 1).token != nil, "and so is that")
        #expect(try device.refresh(first.refresh, node: 2).error == "invalid_grant", "it was copied")
        #expect(try device.refresh(second, node: 3).error == "invalid_grant", "for its owner too")
        try await eventually("every token of the grant is revoked") {
            let answer = try api.ask("GET", "/v1/relay/credentials", first.token, node: 3, status: nil)
            return answer["code"] as? Int == 12_001
        }
        let third = try grant()
        try api.ask("DELETE", "/v1/devices/rotating-cam/binding", owner)
        #expect(try device.refresh(third.refresh, node: 2).error == "invalid_grant")
        // A new approval binds it again.
        try await Task.sleep(for: .seconds(1))
        #expect(try device.refresh(try grant().refresh, node: 3).token != nil)
    }

    @Test("A node is killed between the request and the approval, and another before the token is fetched (VA-3)")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 24_640, environment: Self.environment)
        defer { cluster.down() }
        try cluster.putSpeaker()
        let api = CustomerAPI(cluster: cluster)
        let owner = try Self.appToken(cluster, "kills")
        for round in 1...3 {
            let device = CodeDevice(cluster: cluster, device: "kill-cam-\(round)")
            let nodes = [round, round % 3 + 1, (round + 1) % 3 + 1]
            let (code, user) = try device.codes(node: nodes[0])
            #expect(try device.ask(code, node: nodes[0]).error == "authorization_pending")
            Glibc.kill(try cluster.pid(nodes[0]), SIGKILL)
            try await eventually("the approval is durable") {
                let answer = try api.ask(
                    "POST", "/v1/authorizations/\(user)/approval", owner, "{}", node: nodes[1], status: nil)
                return answer["state"] as? String == "AUTHORIZATION_STATE_APPROVED"
            }
            let tokens = try device.ask(code, node: nodes[2])
            let refresh = try #require(tokens.refresh)
            #expect(try device.ask(code, node: nodes[1]).error == "invalid_grant")
            let up = try cluster.run("cluster", "up")
            try #require(up.status == 0, "\(up.all)")
            Glibc.kill(try cluster.pid(nodes[2]), SIGKILL)
            #expect(try device.refresh(refresh, node: nodes[0]).token != nil)
            let again = try cluster.run("cluster", "up")
            try #require(again.status == 0, "\(again.all)")
        }
    }

    @Test("A code that was not approved in time has expired for the device, and does not exist for people (VA-3)")
    func expired() async throws {
        let cluster = try Cluster(
            nodes: 1, basePort: 24_680,
            environment: Self.environment.merging(
                ["APUS_AUTHORIZATION_CODE_LIFETIME": "10s", "APUS_AUTHORIZATION_CODES_PER_MINUTE_EACH": "5"]) { $1 })
        defer { cluster.down() }
        try cluster.putSpeaker()
        let device = CodeDevice(cluster: cluster, device: "late-cam")
        let (code, user) = try device.codes()
        let approved = try device.codes()
        let owner = try Self.appToken(cluster, "late")
        let api = CustomerAPI(cluster: cluster)
        try api.ask("POST", "/v1/authorizations/\(approved.user)/approval", owner, "{}")
        // More codes than an address may have.
        for _ in 0..<3 { _ = try device.codes() }
        let limited = try device.post(
            "/v1/oauth/device_authorization", "client_id=-/speaker&device_id=late-cam", node: 1)
        #expect(limited.status == 429 && limited.head.lowercased().contains("retry-after"), "\(limited)")
        try await Task.sleep(for: .seconds(10.2))
        #expect(try device.ask(code).error == "expired_token")
        #expect(try device.ask(approved.device).error == "expired_token", "it came for its token too late")
        try api.fails(.targetUnknown, "POST", "/v1/authorizations/\(user)/approval", owner, "{}")
        let page = try Self.form(cluster, "user_code=\(user)&token=\(owner)&decision=approve", node: 1)
        #expect(page.status == 303 && page.head.lowercased().contains("location: close://failed"), "\(page)")
    }

    @Test("An approval ends with its token: a device fetches nothing on the word of who was revoked (VA-4)")
    func revokedApprover() async throws {
        let cluster = try Self.shared()
        let device = CodeDevice(cluster: cluster, device: "revoked-cam")
        let (code, user) = try device.codes()
        let api = CustomerAPI(cluster: cluster)
        let admin = try cluster.token("--role", "admin")
        let owner = try Self.appToken(cluster, "revoked")
        try api.ask("POST", "/v1/authorizations/\(user)/approval", owner, "{}")
        try api.ask("POST", "/v1/tokens/revoke", admin, #"{"all":true,"account":"revoked"}"#)
        try await Task.sleep(for: .seconds(1.5))
        #expect(try device.ask(code, node: 2).error == "access_denied")
    }
}
