import ApusClient
import ApusContract
import ApusCore
import ApusCrypto
import ApusDevice
import ApusTestKit
import Foundation
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Servers of integrators (IV-D10, IV-D12)", .serialized, .timeLimit(.minutes(3)))
struct HookTests {
    private static let cam = DeviceID(unchecked: "cam")
    /// Integrators may name hosts of this machine.
    private static let hosts = ["APUS_HOOKS_HOSTS": "127.0.0.1"]

    /// A cluster whose integrators may name hosts of this machine, the integrator `acme` with its key, and its user
    /// with the device `cam`.
    private struct Place {
        let cluster: Cluster
        /// Whether the cluster ends with the test.
        private let isOwn: Bool
        let api: CustomerAPI
        let admin: String
        let key: String
        let user: String
        let device: ClientSession
        let app: ClientSession

        /// In a cluster of its own.
        init(basePort: Int) throws {
            let cluster = try Cluster(nodes: 3, basePort: basePort, environment: HookTests.hosts)
            try self.init(cluster, isOwn: true, prefix: "")
        }

        /// In the cluster of the tests that end no node, with integrators and a device that have names of their own.
        init(sharedBy prefix: String) throws {
            let cluster = try SharedCluster.cluster(basePort: 24_080, environment: HookTests.hosts)
            try self.init(cluster, isOwn: false, prefix: prefix)
        }

        private init(_ cluster: Cluster, isOwn: Bool, prefix: String) throws {
            (self.cluster, self.isOwn) = (cluster, isOwn)
            api = CustomerAPI(cluster: cluster)
            admin = try cluster.token("--role", "admin")
            let acme = "\(prefix)acme"
            for name in [acme, "\(prefix)other"] {
                try api.ask("POST", "/v1/customers", admin, #"{"customer":"\#(name)"}"#)
            }
            key = try api.key(acme, admin).key
            user = try api.text("user", "POST", "/v1/customers/\(acme)/users", key, #"{"externalId":"anna"}"#)
            let path = "/v1/devices/\(prefix)cam"
            try api.ask("POST", "\(path)/customer", admin, #"{"customer":"\#(acme)"}"#)
            try api.ask("POST", "\(path)/binding", key, #"{"account":"\#(user)"}"#)
            device = try cluster.session(
                node: 2, token: try api.text("token", "POST", "\(path)/tokens", key, "{}"), role: .device)
            app = try cluster.session(
                node: 3, token: try api.text("token", "POST", "/v1/users/\(user)/tokens", key, "{}"))
        }

        func close() {
            device.close()
            app.close()
            if isOwn { cluster.down() }
        }
    }

    private static func events(_ requests: [HTTPReceiver.Request]) -> [[String: Any]] {
        requests.flatMap { request in
            let body = try? JSONSerialization.jsonObject(with: Data(request.body.utf8)) as? [String: Any]
            return body?["events"] as? [[String: Any]] ?? []
        }
    }

    /// Whether the request has a signature with the secret.
    private static func isSigned(_ request: HTTPReceiver.Request, _ secret: String) -> Bool {
        let parts = (request.headers["apus-signature"] ?? "").split(separator: ",").map(String.init)
        guard let time = parts.first(where: { $0.hasPrefix("t=") })?.dropFirst(2) else { return false }
        let code = HMAC<SHA256>.authenticationCode(
            for: Data("\(time).\(request.body)".utf8), using: Data(secret.utf8))
        return parts.contains("v1=" + code.map { String(format: "%02x", $0) }.joined())
    }

    @Test("An endpoint receives all events that were acknowledged, signed, in order, also while nodes die (IV-D10)")
    func events() async throws {
        let receiver = try await HTTPReceiver.start { _, count in count <= 2 ? 503 : 200 }
        let place = try Place(basePort: 32_540)
        defer { place.close() }
        let (api, path) = (place.api, "/v1/customers/acme/hooks/alarms")
        let url = "http://127.0.0.1:\(receiver.port)/events"
        let hook = try api.ask(
            "POST", path, place.key, #"{"url":"\#(url)","events":["alarm","share","property"]}"#, node: 1)
        let secret = try #require(hook["secret"] as? String)
        #expect(secret.utf8.count == 64)
        let other = try api.key("other", place.admin).key
        try api.ask(
            "POST", "/v1/customers/other/hooks/alarms", other, #"{"url":"\#(url)/other","events":["alarm"]}"#)
        for (body, code) in [
            (#"{"url":"http://10.0.0.1/","events":["alarm"]}"#, ErrorCode.notAllowed),
            (#"{"url":"ftp://127.0.0.1/"}"#, .badParameter), (#"{"url":"http://user:x@127.0.0.1/"}"#, .badParameter),
            (#"{"url":"\#(url)","events":["all"]}"#, .badParameter),
        ] {
            try api.fails(code, "POST", path, place.key, body)
        }
        try api.fails(.notAllowed, "GET", "/v1/customers/acme/hooks", other)
        try await Task.sleep(for: .seconds(2.5))

        var names: [String] = []
        for number in 0..<40 {
            if number == 10 { #expect(try place.cluster.run("cluster", "kill", "1").status == 0) }
            if number == 20 {
                let restart = ["cluster", "restart", "1", "--dir", place.cluster.directory]
                #expect(try Cluster.run(restart, environment: Self.hosts).status == 0)
            }
            if number == 25 { #expect(try place.cluster.run("cluster", "kill", "3").status == 0) }
            try await eventually { () throws(ApusError) in try await place.device.reportEvent("e\(number)") }
            names.append("e\(number)")
        }
        try await eventually { () throws(ApusError) in
            try await place.device.reportProperty(path: "ProReadonly.battery", json: #"{"stVal":80}"#)
        }
        names.append("ProReadonly.battery")
        // A change of a model is answered before its event is written (decision 54): others do not wait for it.
        try await eventually("the change has arrived") {
            Self.events(receiver.requests).contains { $0["name"] as? String == "ProReadonly.battery" }
        }
        let ben = try api.text("user", "POST", "/v1/customers/acme/users", place.key, #"{"externalId":"ben"}"#, node: 2)
        try await eventually { () throws(ApusError) in
            try await place.app.share(Self.cam, with: AccountID(unchecked: ben), control: true)
        }
        names.append("invited")

        try await eventually("everything that was acknowledged has arrived") {
            Set(names).isSubset(of: Self.events(receiver.requests).compactMap { $0["name"] as? String })
        }
        #expect(receiver.requests.allSatisfy { $0.path == "/events" }, "the other integrator has no such device")
        #expect(receiver.requests.allSatisfy { Self.isSigned($0, secret) })
        let events = Self.events(receiver.requests)
        #expect(events.allSatisfy { $0["device"] as? String == "cam" && $0["account"] as? String == place.user })
        // A repetition has the same id. Without repetitions the order is that of the reports.
        var seen: Set<String> = []
        let first = events.filter { seen.insert($0["id"] as? String ?? "").inserted }
        let arrived = first.compactMap { $0["name"] as? String }.filter { names.contains($0) }
        var unique: [String] = []
        for name in arrived where !unique.contains(name) { unique.append(name) }
        #expect(unique == names, "in order")
        try await eventually("the queue is empty, and says so at every node") {
            let list = try api.ask("GET", "/v1/customers/acme/hooks", place.key, node: 2)
            let hook = try #require((list["hooks"] as? [[String: Any]])?.first)
            // Zeros are left out.
            return hook["waiting"] == nil && hook["dropped"] == nil && hook["failure"] == nil
        }
        try await receiver.stop()
    }

    @Test("An endpoint that was away is shown with its failure; a hook that is put again has no older events (IV-D10)")
    func away() async throws {
        let isAway = Mutex(true)
        let receiver = try await HTTPReceiver.start { _, _ in isAway.withLock(\.self) ? 503 : 200 }
        let place = try Place(sharedBy: "away-")
        defer { place.close() }
        let (api, path) = (place.api, "/v1/customers/away-acme/hooks/alarms")
        let body = #"{"url":"http://127.0.0.1:\#(receiver.port)/","events":["alarm"]}"#
        try api.ask("POST", path, place.key, body, node: 2)
        func hook() throws -> [String: Any] {
            let list = try api.ask("GET", "/v1/customers/away-acme/hooks", place.key)
            return (list["hooks"] as? [[String: Any]])?.first ?? [:]
        }
        for name in ["old-1", "old-2"] {
            try await eventually { () throws(ApusError) in try await place.device.reportEvent(name) }
        }
        try await eventually("the operator sees why") {
            let hook = try hook()
            return "\(hook["failure"] ?? "")".contains("503") && "\(hook["waiting"] ?? "")" == "2"
        }
        try api.ask("DELETE", path, place.key, node: 2)
        try api.ask("POST", path, place.key, body, node: 2)
        isAway.withLock { $0 = false }
        try await place.device.reportEvent("new")
        try await eventually("the new event arrives, and the others are gone") {
            let waiting = try hook()["waiting"]
            return waiting == nil && Self.events(receiver.requests).contains { $0["name"] as? String == "new" }
        }
        let taken = Self.events([try #require(receiver.requests.last)]).compactMap { $0["name"] as? String }
        let dropped = "\(try hook()["dropped"] ?? "")"
        #expect(taken == ["new"] && dropped == "2")
        try await receiver.stop()
    }

    @Test("An event that the endpoint refuses is put aside, and no other one waits for it (IV-D10)")
    func refused() async throws {
        let isMended = Mutex(false)
        let receiver = try await HTTPReceiver.start { request, _ in
            request.body.contains("poison") && !isMended.withLock(\.self) ? 400 : 200
        }
        let place = try Place(sharedBy: "refused-")
        defer { place.close() }
        let (api, path) = (place.api, "/v1/customers/refused-acme/hooks/alarms")
        try api.ask(
            "POST", path, place.key, #"{"url":"http://127.0.0.1:\#(receiver.port)/","events":["alarm"]}"#)
        try await Task.sleep(for: .seconds(2.1))
        for name in ["a1", "poison-1", "a2", "poison-2", "a3"] {
            try await eventually { () throws(ApusError) in try await place.device.reportEvent(name) }
        }
        func taken() -> [String] {
            let requests = receiver.requests.filter { isMended.withLock(\.self) || !$0.body.contains("poison") }
            return Self.events(requests).compactMap { $0["name"] as? String }
        }
        func hook() throws -> [String: Any] {
            let list = try api.ask("GET", "/v1/customers/refused-acme/hooks", place.key, node: 2)
            return (list["hooks"] as? [[String: Any]])?.first ?? [:]
        }
        func failed() throws -> [[String: Any]] {
            try api.ask("GET", "\(path)/failed", place.key, node: 3)["events"] as? [[String: Any]] ?? []
        }
        try await eventually("the others have arrived, and two are aside") {
            let hook = try hook()
            return taken() == ["a1", "a2", "a3"] && "\(hook["failed"] ?? "")" == "2" && hook["waiting"] == nil
        }
        let events = try failed()
        #expect(events.map { $0["name"] as? String } == ["poison-1", "poison-2"])
        #expect(events.allSatisfy { "\($0["reason"] ?? "")".contains("400") })
        #expect(events.allSatisfy { $0["device"] as? String == "refused-cam" })
        let ids = events.compactMap { $0["id"] as? String }
        // Refused again, it is aside again; and what is dropped is gone.
        try api.ask("POST", "\(path)/failed/retry", place.key, "{}")
        try await eventually("they are aside again") { try failed().compactMap { $0["id"] as? String } == ids }
        try api.ask("POST", "\(path)/failed/drop", place.key, #"{"ids":["\#(ids[0])"]}"#, node: 2)
        try api.fails(.targetUnknown, "POST", "\(path)/failed/drop", place.key, #"{"ids":["\#(ids[0])"]}"#)
        try api.fails(.badParameter, "POST", "\(path)/failed/drop", place.key, #"{"ids":["x"]}"#)
        isMended.withLock { $0 = true }
        let listed = try place.cluster.run("hooks", "--customer", "refused-acme", "failed", "list", "alarms")
        #expect(listed.output.contains("poison-2") && !listed.output.contains("poison-1"), "\(listed.all)")
        let year = Date.now.ISO8601Format().prefix(5)
        #expect(listed.output.contains("FAILED") && listed.output.contains(" \(year)"), "\(listed.all)")
        let json = try place.cluster.run("hooks", "--customer", "refused-acme", "failed", "list", "alarms", "--json")
        #expect(json.output.contains(#""json":{"#) && json.output.contains(#""failedMs":1"#), "\(json.all)")
        let retried = try place.cluster.run("hooks", "--customer", "refused-acme", "failed", "retry", "alarms", ids[1])
        #expect(retried.status == 0 && retried.output.contains("1"), "\(retried.all)")
        try await eventually("the one that was not dropped arrives") {
            let hook = try hook()
            return Self.events(receiver.requests).last?["id"] as? String == ids[1] && hook["failed"] == nil
        }
        try await receiver.stop()
    }

    @Test("Events outlive the death of all nodes without another one, and a withdrawn host receives none (IV-D10)")
    func allNodesDie() async throws {
        let isAway = Mutex(true)
        let receiver = try await HTTPReceiver.start { _, _ in isAway.withLock(\.self) ? 503 : 200 }
        let place = try Place(basePort: 32_660)
        defer { place.close() }
        try place.api.ask(
            "POST", "/v1/customers/acme/hooks/alarms", place.key,
            #"{"url":"http://127.0.0.1:\#(receiver.port)/","events":["alarm"]}"#, node: 2)
        let names = (0..<40).map { "e\($0)" }
        for name in names {
            try await eventually { () throws(ApusError) in try await place.device.reportEvent(name) }
        }
        /// Kills all nodes, and starts them again.
        func restart(_ environment: [String: String]) throws {
            for node in 1...3 { #expect(try place.cluster.run("cluster", "kill", "\(node)").status == 0) }
            let up = try Cluster.run(["cluster", "up", "--dir", place.cluster.directory], environment: environment)
            #expect(up.status == 0, "\(up.all)")
        }
        try restart([:])
        isAway.withLock { $0 = false }
        let count = receiver.requests.count
        try await eventually("the operators see that the host is not allowed any more") {
            let list = try place.api.ask("GET", "/v1/customers/acme/hooks", place.key)
            return "\(list)".contains("hooks.hosts")
        }
        #expect(receiver.requests.count == count)
        try restart(Self.hosts)
        try await eventually("all events arrive, and none is reported") {
            Set(names).isSubset(of: Self.events(receiver.requests).compactMap { $0["name"] as? String })
        }
        try await receiver.stop()
    }

    @Test(
        "The end of each call reaches the hooks of its customer, with one id, also if its owner dies (IV-D10, CALL-3)")
    func calls() async throws {
        let receiver = try await HTTPReceiver.start { _, _ in 200 }
        let place = try Place(basePort: 29_650)
        defer { place.close() }
        let (api, url) = (place.api, "http://127.0.0.1:\(receiver.port)")
        try api.ask("POST", "/v1/customers/acme/hooks/calls", place.key, #"{"url":"\#(url)/acme","events":["call"]}"#)
        let other = try api.key("other", place.admin).key
        try api.ask("POST", "/v1/customers/other/hooks/calls", other, #"{"url":"\#(url)/other","events":["call"]}"#)
        let listening = [place.device, place.app].map { session in
            Task { do { for try await _ in session.calls() {} } catch {} }
        }
        defer { for task in listening { task.cancel() } }
        try await Task.sleep(for: .seconds(2.5))

        let why = try place.cluster.run("why", "cam", "--json")
        let owner = try #require((1...3).first { why.output.contains("\"owner\":\"n\($0)\"") }, "\(why.all)")
        var ended: Set<String> = []
        for number in 0..<5 {
            let call = try await eventually { () throws(ApusError) in
                try await place.app.startCall(to: [.device(Self.cam)])
            }
            try await place.app.hangUpCall(call.id)
            ended.insert(call.id)
            if number == 2 { #expect(try place.cluster.run("cluster", "kill", "\(owner)").status == 0) }
        }
        try await eventually("the endpoint knows of all calls") {
            let calls = Self.events(receiver.requests).compactMap { ($0["data"] as? [String: Any])?["call"] as? String }
            return Set(calls) == ended
        }
        let events = Self.events(receiver.requests)
        #expect(receiver.requests.allSatisfy { $0.path == "/acme" }, "the other integrator has no such party")
        #expect(events.allSatisfy { $0["topic"] as? String == "call" && $0["name"] as? String == "cancelled" })
        #expect(events.allSatisfy { $0["device"] as? String == "cam" && $0["account"] as? String == place.user })
        #expect(Set(events.compactMap { $0["id"] as? String }).count == ended.count, "a repetition has the same id")
        try await receiver.stop()
    }

    @Test("The skill of a home gets sentences and custom events, and its directives reach the device (VA-10 to VA-12)")
    func skill() async throws {
        let seen = Mutex<[String]>([])
        let receiver = try await HTTPReceiver.start(reply: { request in
            let body = try? JSONSerialization.jsonObject(with: Data(request.body.utf8)) as? [String: Any]
            guard let text = body?["data"] as? String, let data = Data(base64Encoded: text) else { return "?" }
            let sent = String(decoding: data, as: UTF8.self)
            seen.withLock { $0.append(sent) }
            if sent.contains("pizza") {
                return """
                    {"reply":"It comes at eight.","directives":[{"directive":
                    {"header":{"namespace":"Custom","name":"Custom"},"payload":{"at":8}}}]}
                    """
            }
            return sent.contains("silent") ? "" : "no JSON"
        }) { _, _ in 200 }
        let place = try Place(sharedBy: "skill-")
        defer { place.close() }
        let (cam, url) = (DeviceID(unchecked: "skill-cam"), "http://127.0.0.1:\(receiver.port)")
        try place.api.ask(
            "POST", "/v1/customers/skill-acme/hooks/chef", place.key, #"{"url":"\#(url)","messages":true}"#)
        // A change of the hooks applies at every node within two seconds.
        try await Task.sleep(for: .seconds(2.1))
        let directives = Mutex<[ClientDialogDirective]>([])
        let commands = DeviceCommands(
            session: place.device, log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        commands.onDirective { directive throws(ApusError) in directives.withLock { $0.append(directive) } }
        let working = Task { _ = try? await commands.run() }
        defer { working.cancel() }
        try await eventually { () throws(ApusError) in
            try await place.app.setVoiceHome(.with { $0.skill = "chef/kitchen" })
        }
        let said = try await eventually { () throws(ApusError) in
            try await place.app.say("order a pizza", to: cam, id: String(repeating: "0", count: 32))
        }
        #expect(said.reply == "It comes at eight." && said.outcome == .done && said.intent.isEmpty, "\(said)")
        let again = try await place.app.say("order a pizza", to: cam, id: String(repeating: "0", count: 32))
        #expect(again == said)
        let first = try #require(directives.withLock { $0.first })
        #expect(directives.withLock { $0.count } == 1 && first.namespace == "Custom", "\(first)")
        #expect(first.dialogRequestID == said.id && first.messageID.utf8.count == 32)
        #expect(first.payload == #"{"at":8}"#, "\(first.payload)")
        let event = try #require(seen.withLock { $0.last })
        #expect(event.contains(#""namespace":"Recognizer","name":"Text""#) && event.contains(said.id), "\(event)")
        #expect(try await place.app.say("be silent now", to: cam).reply == "OK.")
        #expect(try await place.app.say("what is a quark", to: cam).outcome == .notUnderstood)

        await fails(.notSynchronized) { () throws(ApusError) in try await place.device.sendCustomEvent("Custom") }
        try await place.device.synchronizeDialog()
        let context = #"[{"header":{"namespace":"Screen","name":"State"},"payload":{"shown":"recipe"}}]"#
        let count = try await place.device.sendCustomEvent(
            "Custom", dialogRequestID: said.id, payload: #"{"order":"pizza"}"#, context: context)
        #expect(count == 1)
        let second = try #require(directives.withLock { $0.last })
        #expect(second.dialogRequestID == said.id && second.messageID != first.messageID, "\(second)")
        let custom = try #require(seen.withLock { $0.last })
        #expect(custom.contains(#""shown":"recipe""#) && custom.contains(#""order":"pizza""#), "\(custom)")
        await fails(.passToServerFailed) { () throws(ApusError) in
            try await place.device.sendCustomEvent("Custom", payload: #"{"order":"soup"}"#)
        }
        for (payload, context) in [("[]", ""), ("", "{}"), ("", "[1]"), ("{", "")] {
            await fails(.badParameter) { () throws(ApusError) in
                try await place.device.sendCustomEvent("Custom", payload: payload, context: context)
            }
        }
        try await place.app.setVoiceHome(ClientVoiceHome())
        await fails(.targetUnknown) { () throws(ApusError) in try await place.device.sendCustomEvent("Custom") }
        try await receiver.stop()
    }

    @Test("Servers of the home see each sentence before it is read and each reply after it, and may change them")
    func interceptors() async throws {
        let seen = Mutex<[String]>([])
        let receiver = try await HTTPReceiver.start(reply: { request in
            let body = try? JSONSerialization.jsonObject(with: Data(request.body.utf8)) as? [String: Any]
            guard let text = body?["data"] as? String, let data = Data(base64Encoded: text) else { return "?" }
            let sent = String(decoding: data, as: UTF8.self)
            seen.withLock { $0.append(sent) }
            if sent.contains("\"After\"") {
                return sent.contains("It is") ? #"{"reply":"Half past never."}"# : sent.contains("broken") ? "?" : ""
            }
            if sent.contains("tell me") { return #"{"text":"what time is it"}"# }
            if sent.contains("sure thing") { return #"{"text":"yes"}"# }
            return sent.contains("secret") ? #"{"reply":"It is 42."}"# : "{}"
        }) { _, _ in 200 }
        let place = try Place(sharedBy: "seen-")
        defer { place.close() }
        let (cam, url) = (DeviceID(unchecked: "seen-cam"), "http://127.0.0.1:\(receiver.port)")
        try place.api.ask(
            "POST", "/v1/customers/seen-acme/hooks/ears", place.key, #"{"url":"\#(url)","messages":true}"#)
        // A change of the hooks applies at every node within two seconds.
        try await Task.sleep(for: .seconds(2.1))
        try await eventually { () throws(ApusError) in
            try await place.app.setVoiceHome(.with { ($0.before, $0.after) = ("ears/before", "ears/after") })
        }
        let time = try await eventually { () throws(ApusError) in try await place.app.say("tell me more", to: cam) }
        #expect(time.reply == "Half past never." && time.intent == "TimeGet" && time.text == "tell me more", "\(time)")
        #expect(try await place.app.say("the secret", to: cam).reply == "Half past never.")
        #expect(try await place.app.say("something broken", to: cam).outcome == .notUnderstood)
        let sent = seen.withLock { $0 }
        try #require(sent.count == 6, "\(sent)")
        #expect(sent[0].contains(#""namespace":"Recognizer","name":"Before""#) && sent[0].contains("tell me more"))
        #expect(sent[1].contains(#""namespace":"Speech","name":"After""#) && sent[1].contains(#""outcome":"DONE""#))
        // What a server says is no answer to a question.
        try await place.app.setVoiceHome(
            .with {
                $0.before = "ears/before"
                $0.devices = [
                    .with {
                        ($0.id, $0.device, $0.names, $0.kind) = ("door", "seen-cam", ["front door"], "lock")
                        $0.controls = [.with { ($0.what, $0.path) = ("lock", "Action.lock") }]
                    }
                ]
            })
        #expect(try await place.app.say("unlock the front door", to: cam).outcome == .asked)
        let yes = try await place.app.say("sure thing", to: cam)
        #expect(yes.outcome == .refused && yes.steps.isEmpty, "\(yes)")
        // A server that is gone changes nothing.
        try await receiver.stop()
        let began = MonotonicTime.now()
        #expect(try await place.app.say("help", to: cam).outcome == .done)
        #expect(MonotonicTime.now() - began < .seconds(4))
        await fails(.badParameter) { () throws(ApusError) in
            try await place.app.setVoiceHome(.with { $0.before = "e ars" })
        }
    }

    @Test("Raw data reaches a server and its answer the app, and each failure has its number (IV-D12)")
    func messages() async throws {
        let receiver = try await HTTPReceiver.start(reply: { request in
            let body = try? JSONSerialization.jsonObject(with: Data(request.body.utf8)) as? [String: Any]
            if request.path == "/long" { return String(repeating: "x", count: 30_001) }
            guard let text = body?["data"] as? String, let data = Data(base64Encoded: text) else { return "?" }
            return String(decoding: data, as: UTF8.self)
        }) { request, _ in
            switch request.path {
            case "/broken": 500
            case "/slow": nil
            default: 200
            }
        }
        let place = try Place(sharedBy: "")
        defer { place.close() }
        let (api, url) = (place.api, "http://127.0.0.1:\(receiver.port)")
        var secret = ""
        for name in ["echo", "broken", "slow", "long", "deaf"] {
            let answer = try api.ask(
                "POST", "/v1/customers/acme/hooks/\(name)", place.key,
                #"{"url":"\#(url)/\#(name)","messages":\#(name != "deaf")}"#)
            if name == "echo" { secret = try #require(answer["secret"] as? String) }
        }
        try await Task.sleep(for: .seconds(2.1))  // A change of the hooks applies at every node within two seconds.
        let data = Data((0..<30_000).map { UInt8(ascii: "a") + UInt8($0 % 26) })
        let echoed = try await eventually { () throws(ApusError) in
            try await place.app.sendData(data, toServer: "echo/orders/42")
        }
        #expect(echoed == data)
        let request = try #require(receiver.requests.last)
        #expect(Self.isSigned(request, secret) && request.body.contains(#""path":"orders/42""#))
        #expect(request.body.contains(#""account":"\#(place.user)""#) && request.body.contains(#""device":"""#))
        #expect(try await place.device.sendData(Data("ring".utf8), toServer: "echo") == Data("ring".utf8))
        #expect(try #require(receiver.requests.last).body.contains(#""device":"cam""#))

        let long = data + Data([0])
        await fails(.messageTooLarge) { () throws(ApusError) in
            _ = try await place.app.sendData(long, toServer: "echo")
        }
        // Without the library's own check.
        await fails(.messageTooLarge) { () throws(ApusError) in
            _ = try await place.app.ask(ClientSendToServerRequest.with { ($0.url, $0.data) = ("echo", long) })
        }
        for url in ["nobody", "broken", "deaf", "long"] {
            await fails(.passToServerFailed) { () throws(ApusError) in
                _ = try await place.app.sendData(Data(), toServer: url)
            }
        }
        try await refuseUnreachable(place, receiver)
        for url in ["", "/echo", "http://127.0.0.1", "echo?x=1"] {
            await fails(.badParameter) { () throws(ApusError) in
                _ = try await place.app.sendData(Data(), toServer: url)
            }
        }
        let began = ContinuousClock.now
        await fails(.answerTimedOut) { () throws(ApusError) in
            _ = try await place.app.sendData(Data(), toServer: "slow", timeout: .seconds(3))
        }
        #expect((.milliseconds(2900)...(.milliseconds(4000))).contains(ContinuousClock.now - began))
        // A user without this integrator does not reach its servers.
        let stranger = try place.cluster.session(node: 1, token: try place.cluster.token("--role", "app"))
        defer { stranger.close() }
        await fails(.passToServerFailed) { () throws(ApusError) in
            _ = try await stranger.sendData(Data(), toServer: "echo")
        }

        try await refuseGuest(place, receiver)
        try await replaceSecret(place, receiver, url, secret)
        try await receiver.stop()
    }

    /// What cannot be reached is reported at once, and not as a time-out.
    private func refuseUnreachable(_ place: Place, _ receiver: HTTPReceiver) async throws {
        let unreachable = ["closed": "http://127.0.0.1:1/", "untrusted": "https://127.0.0.1:\(receiver.port)/"]
        for (name, url) in unreachable {
            try place.api.ask(
                "POST", "/v1/customers/acme/hooks/\(name)", place.key, #"{"url":"\#(url)","messages":true}"#)
        }
        try await Task.sleep(for: .seconds(2.1))
        for name in unreachable.keys {
            let began = ContinuousClock.now
            await fails(.passToServerFailed) { () throws(ApusError) in
                _ = try await place.app.sendData(Data(), toServer: name)
            }
            #expect(ContinuousClock.now - began < .seconds(6), "\(name)")
        }
    }

    /// A guest with temporary access to a device of its user does not reach the servers as the user.
    private func refuseGuest(_ place: Place, _ receiver: HTTPReceiver) async throws {
        let grants = "/v1/users/\(place.user)/grants"
        let token = try place.api.text("token", "POST", grants, place.key, #"{"devices":["cam"]}"#)
        let guest = try place.cluster.session(node: 2, token: token)
        defer { guest.close() }
        let count = receiver.requests.count
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await guest.sendData(Data("as the user".utf8), toServer: "echo")
        }
        #expect(receiver.requests.count == count)
    }

    /// While the secret is replaced, a receiver may check either; a deleted hook takes nothing.
    private func replaceSecret(
        _ place: Place, _ receiver: HTTPReceiver, _ url: String, _ secret: String
    ) async throws {
        let renewed = try place.api.ask(
            "POST", "/v1/customers/acme/hooks/echo", place.key,
            #"{"url":"\#(url)/echo","messages":true,"newSecret":true}"#, node: 3)
        let next = try #require(renewed["secret"] as? String)
        #expect(next != secret)
        #expect(try await place.app.sendData(Data("both".utf8), toServer: "echo") == Data("both".utf8))
        let both = try #require(receiver.requests.last)
        #expect(Self.isSigned(both, secret) && Self.isSigned(both, next))
        try place.api.ask("DELETE", "/v1/customers/acme/hooks/echo", place.key, node: 3)
        await fails(.passToServerFailed) { () throws(ApusError) in
            _ = try await place.app.sendData(Data(), toServer: "echo")
        }
    }

    @Test("A service that the nodes carry takes raw data itself, at any node, of devices and apps (IV-D12)")
    func handlers() async throws {
        let binary = URL(fileURLWithPath: Cluster.apus).deletingLastPathComponent().path + "/apus-doors"
        let cluster = try Cluster(nodes: 3, basePort: 32_600, binary: binary)
        defer { cluster.down() }
        let app = try cluster.session(node: 1, token: try cluster.token("--role", "app"))
        let device = try cluster.session(
            node: 2, token: try cluster.token("--role", "device", "--device", "cam"), role: .device)
        defer {
            app.close()
            device.close()
        }
        for session in [app, device] {
            let answer = try await eventually { () throws(ApusError) in
                try await session.sendData(Data(), toServer: "doors/front")
            }
            #expect(answer == Data("0".utf8))
            // An error of the handler comes as it is.
            await fails(.badParameter) { () throws(ApusError) in
                _ = try await session.sendData(Data(), toServer: "doors/a/b")
            }
        }
    }
}
