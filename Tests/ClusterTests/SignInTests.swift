import ApusContract
import ApusCore
import Foundation
import Testing

/// The sign-in of browsers (docs/sign-in.md), at real nodes.
@Suite("The sign-in of browsers", .serialized, .timeLimit(.minutes(4)))
struct SignInTests {
    private static let basePort = 26_210

    /// A browser of a test: keeps its cookie, and sends what a page says.
    private final class Browser {
        let cluster: Cluster
        var cookie = ""
        private(set) var head = ""

        init(_ cluster: Cluster) { self.cluster = cluster }

        /// - Parameters:
        ///   - origin: of the page; nil: the request says nothing. `own` is that of the node.
        ///   - isMarked: with the header of the pages.
        func ask(
            _ method: String, _ path: String, node: Int = 1, origin: String? = "own", isMarked: Bool = true,
            type: String = "application/json", body: String? = nil
        ) throws -> (status: Int, body: String) {
            let port = cluster.httpPort(node)
            let http = try #require(PlainHTTP(port: port))
            var text = "\(method) \(path) HTTP/1.1\r\nHost: 127.0.0.1:\(port)\r\nConnection: close\r\n"
            if !cookie.isEmpty { text += "Cookie: other=1; apus-session=\(cookie)\r\n" }
            if let origin { text += "Origin: \(origin == "own" ? "http://127.0.0.1:\(port)" : origin)\r\n" }
            if isMarked { text += "X-Apus: 1\r\n" }
            if let body { text += "Content-Type: \(type)\r\nContent-Length: \(body.utf8.count)\r\n" }
            try #require(http.send(text + "\r\n" + (body ?? "")))
            head = try #require(http.readHead())
            let status = try #require(head.split(separator: " ").dropFirst().first.flatMap { Int($0) })
            let length = value(of: "content-length").flatMap { Int($0) } ?? 0
            let content = String(decoding: http.read(length) ?? [], as: UTF8.self)
            if let set = value(of: "set-cookie"),
                let value = set.split(separator: ";").first?.split(separator: "=").dropFirst().first
            {
                cookie = String(value)
            } else if value(of: "set-cookie") != nil {
                cookie = ""
            }
            return (status, content)
        }

        func value(of name: String) -> String? {
            head.split(separator: "\r\n").lazy.compactMap { line -> String? in
                let parts = line.split(separator: ":", maxSplits: 1)
                guard parts.count == 2, parts[0].lowercased() == name else { return nil }
                return parts[1].trimmingCharacters(in: .whitespaces)
            }.first
        }

        func signIn(code: String, node: Int = 1) throws -> Int {
            try ask("POST", "/v1/sign-in", node: node, body: "{\"code\":\"\(code)\"}").status
        }

        /// A WebSocket with the cookie.
        func socket(node: Int = 1, origin: String? = "own") throws -> MediaWebSocket {
            let port = cluster.httpPort(node)
            var headers = ["Cookie: apus-session=\(cookie)"]
            if let origin { headers.append("Origin: \(origin == "own" ? "http://127.0.0.1:\(port)" : origin)") }
            return try #require(MediaWebSocket(port: port, headers: headers))
        }
    }

    private static func code(_ cluster: Cluster, _ arguments: String...) throws -> String {
        let made = try Cluster.run(["admin", "sign-in", "--dir", cluster.directory] + arguments)
        try #require(made.status == 0, "\(made.all)")
        let link = try #require(made.output.split(separator: " ").last { $0.contains("#code=") })
        return String(link.split(separator: "=").last ?? "").trimmingCharacters(in: .whitespacesAndNewlines)
    }

    @Test("A code signs one browser in, once, at any node, and its cookie is valid at every node")
    func codes() async throws {
        let cluster = try SharedCluster.cluster(basePort: Self.basePort)
        let code = try Self.code(cluster)
        let browser = Browser(cluster)
        #expect(try browser.ask("GET", "/v1/sign-in").status == 401)
        #expect(try browser.signIn(code: code, node: 3) == 200)
        let set = try #require(browser.value(of: "set-cookie"))
        for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] { #expect(set.contains(part), "\(set)") }
        #expect(!set.contains("Secure"))
        for node in 1...3 {
            let standing = try browser.ask("GET", "/v1/sign-in", node: node)
            #expect(standing.status == 200 && standing.body.contains("ROLE_ADMIN"), "\(standing)")
            #expect(try browser.ask("GET", "/v1/nodes", node: node).status == 200)
            // An operator's browser is an app of its account as well.
            #expect(try browser.ask("GET", "/v1/calls", node: node).status == 200)
        }
        for node in 1...3 { #expect(try Browser(cluster).signIn(code: code, node: node) == 401) }
        #expect(try Browser(cluster).signIn(code: String(repeating: "0", count: 40)) == 401)

        let app = Browser(cluster)
        #expect(try app.signIn(code: try Self.code(cluster, "--role", "app", "--account", "flat")) == 200)
        #expect(try app.ask("GET", "/v1/devices").status == 200)
        #expect(try app.ask("GET", "/v1/nodes").status == 403)
        let token = try cluster.token("--role", "app", "--account", "flat", "--device", "hall")
        let guest = Browser(cluster)
        let signedIn = try guest.ask("POST", "/v1/sign-in", body: "{\"token\":\"\(token)\"}")
        #expect(signedIn.status == 200 && signedIn.body.contains("\"devices\":[\"hall\"]"), "\(signedIn)")
        let device = try cluster.token("--role", "device", "--device", "hall")
        #expect(try Browser(cluster).ask("POST", "/v1/sign-in", body: "{\"token\":\"\(device)\"}").status == 403)
    }

    @Test("A code ends with its time")
    func late() async throws {
        let cluster = try Cluster(
            nodes: 1, basePort: 26_240,
            environment: ["APUS_SIGN_IN_CODE_LIFETIME": "1s", "APUS_SIGN_IN_LIFETIME": "10s"])
        defer { cluster.down() }
        let code = try Self.code(cluster)
        try await Task.sleep(for: .milliseconds(1300))
        #expect(try Browser(cluster).signIn(code: code) == 401)
        let browser = Browser(cluster)
        #expect(try browser.signIn(code: try Self.code(cluster)) == 200)
        let socket = try browser.socket()
        #expect(socket.hello("\"instance\":\"1\"") == nil)
        // The cookie ends, and with it the session.
        socket.read(seconds: 13)
        let goodbye = (socket.texts.last?["goodbye"] as? [String: Any])?["code"] as? Int
        #expect(goodbye == Int(ErrorCode.tokenExpired.number), "\(socket.texts)")
        #expect(try browser.ask("GET", "/v1/sign-in").status == 401)
    }

    @Test("A page of another origin, a form and a request without the pages' header change nothing with the cookie")
    func otherOrigins() async throws {
        let cluster = try SharedCluster.cluster(basePort: Self.basePort)
        let browser = Browser(cluster)
        #expect(try browser.signIn(code: try Self.code(cluster)) == 200)
        let foreign = ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:\(cluster.httpPort(2))"]
        let weight = "{\"weight\":100}"
        for origin in foreign {
            #expect(try browser.ask("GET", "/v1/nodes", origin: origin).status == 403)
            #expect(try browser.ask("POST", "/v1/nodes/n1/weight", origin: origin, body: weight).status == 403)
            #expect(try browser.ask("POST", "/v1/sign-out", origin: origin).status == 403)
            // To be signed in as somebody else is an attack too.
            #expect(
                try browser.ask(
                    "POST", "/v1/sign-in", origin: origin, body: "{\"code\":\"\(try Self.code(cluster))\"}"
                ).status == 403)
            let socket = try browser.socket(origin: origin)
            #expect(socket.hello("\"instance\":\"1\"") == Int(ErrorCode.notAllowed.number))
        }
        let without = try browser.socket(origin: nil)
        #expect(without.hello("\"instance\":\"1\"") == Int(ErrorCode.notAllowed.number))
        // A form cannot send the header, nor JSON as what it is.
        #expect(try browser.ask("POST", "/v1/nodes/n1/weight", isMarked: false, body: weight).status == 403)
        #expect(
            try browser.ask(
                "POST", "/v1/nodes/n1/weight", origin: nil, isMarked: false, type: "text/plain", body: weight
            ).status == 403)
        #expect(try browser.ask("POST", "/v1/sign-out", isMarked: false).status == 403)
        #expect(
            try browser.ask(
                "POST", "/v1/sign-in", origin: nil, type: "application/x-www-form-urlencoded", body: "code=1"
            ).status == 400)
        // The pages themselves may.
        #expect(try browser.ask("POST", "/v1/nodes/n1/weight", body: weight).status == 200)
        #expect(try browser.ask("GET", "/v1/nodes", origin: nil, isMarked: false).status == 200)
    }

    @Test("Tabs of one browser do not end each other, and signing out ends all of them, at every node, for good")
    func signOut() async throws {
        let cluster = try SharedCluster.cluster(basePort: Self.basePort)
        let token = try cluster.token("--role", "app", "--access", "browser", "--id", "sign-out-token")
        func signedIn() throws -> Browser {
            let browser = Browser(cluster)
            #expect(try browser.ask("POST", "/v1/sign-in", body: "{\"token\":\"\(token)\"}").status == 200)
            return browser
        }
        let (browser, other) = (try signedIn(), try signedIn())
        let tabs = try [1, 2, 3].map { node -> MediaWebSocket in
            let socket = try browser.socket(node: node)
            #expect(socket.hello("\"instance\":\"\(node)\"") == nil)
            return socket
        }
        let otherTab = try other.socket()
        #expect(otherTab.hello("\"instance\":\"9\"") == nil)
        for tab in tabs { #expect(tab.ask("devices.list", "{}").response != nil) }
        let ticket = try #require(tabs[0].welcome["ticket"] as? String)
        let cookie = browser.cookie
        #expect(try browser.ask("POST", "/v1/sign-out", node: 2).status == 204)
        #expect(browser.cookie.isEmpty)
        for tab in tabs {
            tab.read(seconds: 2)
            let goodbye = (tab.texts.last?["goodbye"] as? [String: Any])?["code"] as? Int
            #expect(goodbye == Int(ErrorCode.tokenInvalid.number), "\(tab.texts)")
        }
        let thief = Browser(cluster)
        thief.cookie = cookie
        for node in 1...3 {
            #expect(try thief.ask("GET", "/v1/sign-in", node: node).status == 401)
            #expect(try thief.ask("GET", "/v1/devices", node: node).status == 401)
            #expect(try thief.socket(node: node).hello("\"instance\":\"1\"") == Int(ErrorCode.tokenInvalid.number))
            let resumed = try #require(MediaWebSocket(port: cluster.httpPort(node)))
            #expect(resumed.hello("\"ticket\":\"\(ticket)\"") == Int(ErrorCode.tokenInvalid.number))
        }
        // Another browser with the same token stays, until the token is revoked.
        #expect(otherTab.ask("devices.list", "{}").response != nil)
        #expect(try other.ask("GET", "/v1/sign-in").status == 200)
        #expect(try cluster.run("admin", "revoke", "--token-id", "sign-out-token").status == 0)
        otherTab.read(seconds: 2)
        #expect(
            (otherTab.texts.last?["goodbye"] as? [String: Any])?["code"] as? Int == Int(ErrorCode.tokenInvalid.number))
        #expect(try other.ask("GET", "/v1/sign-in").status == 401)
    }

    @Test("The code of an operator whose token was revoked signs nobody in")
    func revokedMaker() async throws {
        let cluster = try SharedCluster.cluster(basePort: Self.basePort)
        let operatorToken = try cluster.token("--role", "admin", "--access", "boss", "--id", "sign-in-maker")
        let http = try #require(PlainHTTP(port: cluster.httpPort(1)))
        func make(_ token: String, _ body: String) throws -> PlainHTTP.Answer {
            try #require(http.exchange("POST", "/v1/sign-in/codes", token: token, body: body))
        }
        let made = try make(operatorToken, "{\"role\":\"app\",\"account\":\"home\"}")
        let fields = try JSONSerialization.jsonObject(with: Data(made.body.utf8)) as? [String: Any]
        let code = try #require(fields?["code"] as? String)
        #expect(code.count == 40 && fields?["expiresInSeconds"] as? Int == 600)
        #expect(try make(operatorToken, "{\"role\":\"device\",\"account\":\"home\"}").status == 400)
        #expect(try make(operatorToken, "{\"role\":\"admin\",\"account\":\"home\",\"devices\":[\"a\"]}").status == 400)
        #expect(try make(operatorToken, "{\"role\":\"app\",\"account\":\"a b\"}").status == 400)
        let app = try cluster.token("--role", "app")
        #expect(try make(app, "{\"role\":\"app\",\"account\":\"home\"}").status == 403)
        #expect(try cluster.run("admin", "revoke", "--token-id", "sign-in-maker").status == 0)
        try await Task.sleep(for: .seconds(1))
        #expect(try Browser(cluster).signIn(code: code) == 401)
    }

    @Test("Guesses are limited for an address, no log has a code, a cookie or a token, and pages have strict headers")
    func guesses() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 26_250)
        defer { cluster.down() }
        let code = try Self.code(cluster)
        let browser = Browser(cluster)
        let token = try cluster.token("--role", "app")
        #expect(try browser.signIn(code: code) == 200)
        let cookie = browser.cookie
        #expect(try browser.ask("POST", "/v1/sign-in", body: "{\"token\":\"\(token)\"}").status == 200)
        let second = browser.cookie
        let statuses = try (0..<40).map { _ in
            try Browser(cluster).signIn(
                code: (0..<40).map { _ in "0123456789abcdef".randomElement().map(String.init) ?? "" }.joined())
        }
        #expect(statuses.filter { $0 == 401 }.count <= 20 && statuses.last == 429, "\(statuses)")
        _ = try browser.ask("POST", "/v1/sign-out")
        let log = Cluster.text(cluster.file("n1/log"))
        #expect(log.contains("sign-in") && log.contains("sign-out"), "the audit log has both")
        for secret in [code, cookie, second, token] { #expect(!log.contains(secret)) }

        let page = try browser.ask("GET", "/", origin: nil, isMarked: false)
        #expect(page.status == 200 && page.body.contains("<html"))
        let tag = try #require(browser.value(of: "etag"))
        for (name, part) in [
            ("content-security-policy", "default-src 'none'"), ("content-security-policy", "frame-ancestors 'none'"),
            ("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("cache-control", "no-cache"),
            ("cross-origin-opener-policy", "same-origin"), ("content-type", "text/html"),
        ] { #expect(browser.value(of: name)?.contains(part) == true, "\(name)") }
        // Pages of any origin load the player's module, without credentials, and nothing else of the console.
        for (path, isOpen) in [
            ("/apus.js", true), ("/apus/player.js", true), ("/", false), ("/console/app.js", false),
        ] {
            #expect(try browser.ask("GET", path, origin: "https://other.example", isMarked: false).status == 200)
            #expect(browser.value(of: "access-control-allow-origin") == (isOpen ? "*" : nil), "\(path)")
            #expect(browser.value(of: "cross-origin-resource-policy") == (isOpen ? "cross-origin" : nil), "\(path)")
            #expect(browser.value(of: "access-control-allow-credentials") == nil, "\(path)")
        }
        let http = try #require(PlainHTTP(port: cluster.httpPort(1)))
        try #require(http.send("GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: W/\"x\", \(tag)\r\n\r\n"))
        #expect(http.readHead()?.hasPrefix("HTTP/1.1 304") == true)
        #expect(try browser.ask("GET", "/no-such-page").status == 404)
        #expect(try browser.ask("GET", "/../Package.swift").status == 404)
    }
}
