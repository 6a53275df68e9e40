import ApusContract
import ApusCore
import ApusDevice
import Foundation
import SwiftProtobuf
import Testing

@Suite("The set-up of a voice client, and its database (VA-1, VA-2)")
struct VoiceSetUpTests {
    private static func path() -> String {
        FileManager.default.temporaryDirectory.appendingPathComponent("voice-\(UUID().uuidString)").path
    }

    private typealias Step = VoiceSetUpStateMachine.Step

    @Test("A chain in any order that ends with the database and the initialization is accepted", arguments: 0..<100)
    func orders(seed: Int) throws {
        var machine = VoiceSetUpStateMachine()
        let first = Step.allCases.filter { $0 != .database && $0 != .initialization }.shuffled()
        for step in first + [.database, .initialization] {
            #expect(!machine.isInitialized)
            try machine.check(step)
            machine.take(step)
        }
        #expect(machine.isInitialized)
    }

    @Test("Any other order is refused, with what is missing or too early (VA-1)", arguments: 0..<300)
    func walk(seed: Int) {
        var machine = VoiceSetUpStateMachine()
        var done: Set<Step> = []
        for _ in 0..<30 {
            guard let step = Step.allCases.randomElement() else { continue }
            let required: Set<Step> = [.authorizationURL, .service, .authority, .deviceInfo]
            let mayFollow =
                switch step {
                case .initialization: !done.contains(.initialization) && done.contains(.database)
                case .database: !done.contains(.database) && required.isSubset(of: done)
                default: !done.contains(.database)
                }
            do throws(ApusError) {
                try machine.check(step)
                #expect(mayFollow, "\(step) after \(done)")
                machine.take(step)
                done.insert(step)
            } catch {
                #expect(!mayFollow && error.code == .badParameter, "\(step) after \(done)")
                #expect(error.message.contains(step.rawValue), "\(error.message)")
            }
        }
    }

    @Test("Each function of the chain returns the client, and refuses what is not valid (VA-1)")
    func chain() throws {
        let client = VoiceClient.create()
        func fails(_ code: ErrorCode = .badParameter, _ body: () throws(ApusError) -> Void) {
            do throws(ApusError) {
                try body()
                Issue.record("\(code) is expected")
            } catch {
                #expect(error.code == code, "\(error)")
            }
        }
        let urls = [
            "", "apus.example.org", "ftp://a", "http://apus.example.org/v1/oauth", "https://u:p@a/", "https:///x",
        ]
        for url in urls {
            fails { () throws(ApusError) in try client.setAuthorizationUrl(url) }
        }
        for service in ["", "host", "host:0x1", "a:1,,b"] {
            fails { () throws(ApusError) in try client.setIVSService(service) }
        }
        for local in ["", "e", "en_US", "en US"] { fails { () throws(ApusError) in try client.setLocal(local) } }
        fails { () throws(ApusError) in try client.setCA("ca", ofType: "der") }
        fails(.configurationInvalid) { () throws(ApusError) in try client.setCA("/none", ofType: "pem") }
        fails { () throws(ApusError) in try client.setLog("a", level: "LOUD") }
        for id in ["", "speaker", "a/b/c", "/b", "a/"] {
            fails { () throws(ApusError) in try client.setDeviceInfo(clientId: id, deviceId: "cam") }
        }
        fails { () throws(ApusError) in try client.setDeviceInfo(clientId: "-/speaker", deviceId: "no device") }
        fails { () throws(ApusError) in try client.setDataBase(Self.path()) }
        fails { () throws(ApusError) in try client.initialization() }
        let same = try client.setLocal("zh-CN").setAuthorizationUrl("https://apus.example.org:8080/v1/oauth/")
            .setDeviceInfo(clientId: "-/speaker", deviceId: "cam").setIVSService("a.example.org:7443, 192.0.2.1:7443")
            .setLog("curl-log", level: "DEBUG9")
        #expect(same === client && client.local == "zh-CN" && client.device?.rawValue == "cam")
        #expect(client.database == nil && client.authorizationState == .uninitialized)
    }

    @Test("What the database has is there after a restart, and nothing after a reset (VA-2, VA-5)")
    func database() throws {
        let path = Self.path()
        defer { unlink(path) }
        let token = VoiceToken(token: "t", refresh: "r", received: 1, expires: 2)
        do {
            let database = try VoiceDatabase(path: path)
            #expect(try database.token(of: "me") == nil && database.alarms().isEmpty)
            try database.store(token, of: "me")
            try database.setSetting("volume", "7")
            try database.setSetting("mute", "true")
            try database.setSetting("mute", nil)
            try database.setAlarms([.with { ($0.id, $0.label) = (3, "tea") }, .with { $0.id = 1 }])
            #expect(throws: ApusError(.stateForeign)) { _ = try VoiceDatabase(path: path) }
        }
        var information = stat()
        #expect(stat(path, &information) == 0 && information.st_mode & 0o077 == 0, "others can read the token")
        let database = try VoiceDatabase(path: path)
        #expect(try database.token(of: "me") == token)
        #expect(try database.token(of: "another device") == nil)
        #expect(try database.setting("volume") == "7" && database.setting("mute") == nil)
        #expect(try database.alarms().map(\.label) == ["", "tea"])
        try database.erase()
        #expect(try database.token(of: "me") == nil && database.setting("volume") == nil && database.alarms().isEmpty)
    }

    @Test("Settings and alarms have bounds (VA-2)")
    func bounds() throws {
        let path = Self.path()
        defer { unlink(path) }
        let database = try VoiceDatabase(path: path)
        for count in 0..<VoiceDatabase.settingsMax { try database.setSetting("s\(count)", "1") }
        try database.setSetting("s0", "2")
        #expect(throws: ApusError(.overloaded)) { try database.setSetting("one more", "1") }
        #expect(throws: ApusError(.badParameter)) { try database.setSetting("", "1") }
        let long = String(repeating: "a", count: VoiceDatabase.settingByteCountMax + 1)
        #expect(throws: ApusError(.frameTooLarge)) { try database.setSetting("s1", long) }
        try database.setAlarms((0..<100).map { number in .with { $0.id = UInt32(number) } })
        #expect(try database.alarms().count == VoiceDatabase.alarmsMax)
    }

    @Test("A file that is no database of a voice client, or of a newer release, is left as it is")
    func foreign() throws {
        let path = Self.path()
        defer { unlink(path) }
        try Data("not a database, but a text that is long enough".utf8).write(to: URL(fileURLWithPath: path))
        #expect(throws: ApusError(.storageFailed)) { _ = try VoiceDatabase(path: path) }
        #expect(throws: ApusError(.storageFailed)) { _ = try VoiceDatabase(path: "/none/voice") }
    }
}
