import ApusCore
import ApusTraversal
import Testing

@Suite("Users with a key in a file (RFC 8489 §9.2.2, D8)")
struct StaticUsersTests {
    // As `turnadmin -k -u camera7 -r apus -p north` of coturn prints it.
    private let line =
        "camera7:apus:0xbc2a1434cb0e3acf7bdf7b5beee2f503"
        + ":0x38b4bdd5568fc7cf49e71eac9b252050e181f0dc4b21298305c5b2345b361ee5"

    private func driver(_ text: String) throws -> TurnDriver {
        let users = try StaticUsers(text, source: "users", realm: "apus")
        return TurnDriver { $0.users = users }
    }

    private func allocate(
        _ driver: inout TurnDriver, _ name: String, _ password: String, _ algorithm: StunPasswordAlgorithm? = nil
    ) throws -> UInt16? {
        let actions = try driver.ask(.allocate, as: (name, password), algorithm: algorithm) {
            $0.add(requestedTransport: 17)
        }
        return actions.contains { if case .openRelay = $0 { true } else { false } } ? 0 : try driver.code(actions)
    }

    @Test("The line of a user has the keys that coturn computes")
    func keys() { #expect(StaticUsers.line(name: "camera7", realm: "apus", password: "north") == line) }

    @Test("A user of the file allocates with either algorithm; another password or name is refused with 401")
    func authenticates() throws {
        for algorithm in [nil, .md5, .sha256] as [StunPasswordAlgorithm?] {
            var driver = try driver("# cameras\n\n\(line)\n")
            #expect(try allocate(&driver, "camera7", "south", algorithm) == 401)
            #expect(try allocate(&driver, "camera8", "north", algorithm) == 401)
            #expect(try allocate(&driver, "camera7", "north", algorithm) == 0)
        }
    }

    @Test("A user with a key of one algorithm alone is refused with the other")
    func oneKey() throws {
        let md5 = line.split(separator: ":").prefix(3).joined(separator: ":")
        var driver = try driver(md5)
        #expect(try allocate(&driver, "camera7", "north", .sha256) == 401)
        #expect(try allocate(&driver, "camera7", "north", .md5) == 0)
    }

    @Test("A name and a password are what the OpaqueString profile makes of them, however a client writes them")
    func prepared() throws {
        let line = try #require(StaticUsers.line(name: "café", realm: "apus", password: "no\u{a0}rth"))
        #expect(line == StaticUsers.line(name: "café", realm: "apus", password: "no rth"))
        #expect(StaticUsers.line(name: "café", realm: "apus", password: "") == nil)
        var driver = try driver(line)
        #expect(try allocate(&driver, "café", "no rth") == 0)
    }

    @Test("Time-limited credentials go on beside the file")
    func beside() throws {
        var driver = try driver(line)
        let issued = TurnDriver.user()
        #expect(try allocate(&driver, issued.username, issued.password) == 0)
    }

    @Test(
        "A line that cannot be meant is refused with its number (10022)",
        arguments: [
            "camera7", "camera7:apus", "camera7:apus:", "camera7:apus:0x00", "camera7:apus:north", ":apus:@KEY@",
            "camera7:other:@KEY@", "camera7:apus:@KEY@:@KEY@", "camera7:apus:@KEY@:@KEY@:@KEY@", "cam era:apus:@KEY@",
            "a:apus:@KEY@", "cafe\u{301}:apus:@KEY@", "a\u{200e}b:apus:@KEY@", "a\u{1b}[2J:apus:@KEY@",
        ])
    func malformed(text: String) throws {
        let key = "0x" + String(repeating: "ab", count: 16)
        let text =
            "a:apus:\(key)\n" + text.split(separator: "@KEY@", omittingEmptySubsequences: false).joined(separator: key)
        let error = #expect(throws: ApusError.self) {
            try StaticUsers(text, source: "users", realm: "apus")
        }
        #expect(error?.code == .configurationInvalid)
        #expect(error?.message.hasPrefix("users:2: ") == true, "\(error?.message ?? "")")
        #expect(error?.message.contains(key) != true, "a key is not logged")
    }
}
