import ApusConfiguration
import ApusCore
import Testing

@Suite("Reading settings")
struct ConfigurationReaderTests {
    private func reader(_ yaml: String, _ environment: [String: String] = [:]) throws -> ConfigurationReader {
        try ConfigurationReader(yaml: yaml, source: "node.yaml", environment: environment)
    }

    @Test("A relative path starts at the configuration's folder, and a required one is not empty")
    func paths() throws {
        var reader = try ConfigurationReader(
            yaml: "tls: {key: a.pem, authority: /b.pem, revoked: '', certificate: ''}", source: "node.yaml",
            folder: "/etc/apus", environment: [:])
        #expect(try reader.path("tls.key") == "/etc/apus/a.pem")
        #expect(try reader.path("tls.authority", default: "") == "/b.pem")
        #expect(try reader.path("tls.revoked", default: "") == "")
        #expect(try reader.path("records.file", default: "r.sqlite") == "/etc/apus/r.sqlite")
        #expect(throws: ApusError(.configurationInvalid, "node.yaml:1: tls.certificate: a path is expected")) {
            try reader.path("tls.certificate")
        }
        #expect(throws: ApusError.self) { try reader.path("data_directory") }
    }

    @Test("A value comes from the file, and the environment goes before it")
    func environment() throws {
        let yaml = "gateway:\n  handshake_timeout: 5s\n"
        var plain = try reader(yaml)
        #expect(try plain.duration("gateway.handshake_timeout", default: .zero) == .seconds(5))
        var overridden = try reader(yaml, ["APUS_GATEWAY_HANDSHAKE_TIMEOUT": "200ms"])
        #expect(try overridden.duration("gateway.handshake_timeout", default: .zero) == .milliseconds(200))
    }

    @Test("What a key takes, and its default, are kept once for the reference, whatever the file has")
    func knownKeys() throws {
        var reader = try reader("a: 7s\nb: 1MiB\n")
        _ = try reader.duration("a", default: .seconds(90))
        _ = try reader.duration("hour", default: .seconds(3600))
        _ = try reader.duration("never", default: .zero)
        _ = try reader.bytes("b", default: 2048)
        _ = try reader.bytes("odd", default: 1500)
        _ = try reader.int("n", default: 3, in: 1...9)
        _ = try reader.flag("f", default: true)
        _ = try reader.hostPort("h", default: HostPort(host: "::1", port: 5))
        _ = try reader.string("b", default: "other")
        #expect(throws: ApusError.self) { try reader.string("s") }
        let keys = reader.knownKeys
        #expect(keys.map(\.name) == ["a", "hour", "never", "b", "odd", "n", "f", "h", "s"])
        #expect(keys.map(\.fallback) == ["90s", "1h", "0ms", "2KiB", "1500", "3", "true", "[::1]:5", nil])
        #expect(
            keys.map(\.kind) == [
                .duration, .duration, .duration, .bytes, .bytes, .number(1...9), .choice(["true", "false"]), .hostPort,
                .text,
            ])
    }

    @Test("An unknown key is named with file, line and the nearest key that exists (10022)")
    func unknownKey() throws {
        var reader = try reader("weight: 3\ngateway:\n  handshake_timeuot: 5s\n")
        _ = try reader.int("weight", default: 1, in: 1...9)
        _ = try reader.duration("gateway.handshake_timeout", default: .zero)
        let error = #expect(throws: ApusError.self) { try reader.finish() }
        #expect(error?.code == .configurationInvalid)
        #expect(error?.message.hasPrefix("node.yaml:3: gateway.handshake_timeuot: ") == true)
        #expect(error?.message.hasSuffix("did you mean gateway.handshake_timeout?") == true)
    }

    @Test("A key of an earlier release is taken from the file and from the environment, and listed nowhere else")
    func ignored() throws {
        var reader = try reader("old:\n  a: anything\nweight: 3\n", ["APUS_OLD_B": "1"])
        _ = try reader.int("weight", default: 1, in: 1...9)
        reader.ignore(["old.a", "old.b", "old.c"])
        try reader.finish()
        #expect(reader.ignoredKeys == ["old.a", "old.b"])
        #expect(reader.knownKeys.map(\.name) == ["weight"])
        var other = try self.reader("old:\n  d: 1\n")
        other.ignore(["old.a"])
        #expect(throws: ApusError(.configurationInvalid)) { try other.finish() }
    }

    @Test(
        "A value of the wrong form says what was expected",
        arguments: ["5", "5 s", "-5s", "s", "1.5s", "99999999999999999999s"])
    func badDurations(text: String) throws {
        var reader = try reader("d: \(text)\n")
        let error = #expect(throws: ApusError.self) { try reader.duration("d", default: .zero) }
        #expect(error?.message.contains("200ms, 5s or 1h is expected, not '\(text)'") == true)
    }

    @Test(
        "Sizes are read with their units",
        arguments: [("512", 512), ("64KiB", 65_536), ("8MiB", 8 << 20), ("1GiB", 1 << 30)])
    func sizes(text: String, bytes: Int) throws {
        var reader = try reader("size: \(text)\n")
        #expect(try reader.bytes("size", default: 0) == bytes)
    }

    @Test("A size that cannot be is refused", arguments: ["8MB", "-1", "x", "9223372036854775807GiB"])
    func badSizes(text: String) throws {
        var reader = try reader("size: \(text)\n")
        #expect(throws: ApusError(.configurationInvalid)) { try reader.bytes("size", default: 0) }
    }

    @Test("A ratio is 0 to 1", arguments: [("0", 0.0), ("0.25", 0.25), ("1", 1.0)])
    func ratios(text: String, value: Double) throws {
        var reader = try reader("r: \(text)\n")
        #expect(try reader.ratio("r", default: 0.5) == value)
    }

    @Test("What is no ratio is refused", arguments: ["1.01", "-0.1", "1%", "nan", "half"])
    func badRatios(text: String) throws {
        var reader = try reader("r: \(text)\n")
        #expect(throws: ApusError(.configurationInvalid)) { try reader.ratio("r", default: 0.5) }
    }

    @Test("Numbers outside their range, words outside their list and broken addresses are refused")
    func ranges() throws {
        var reader = try reader("n: 10\nw: loud\na: nowhere\nid: 'two words'\n")
        #expect(throws: ApusError(.configurationInvalid)) { try reader.int("n", default: 1, in: 1...9) }
        #expect(throws: ApusError(.configurationInvalid)) { try reader.choice("w", of: ["info"], default: "info") }
        #expect(throws: ApusError(.configurationInvalid)) { try reader.hostPort("a") }
        #expect(throws: ApusError(.configurationInvalid)) { try reader.identifier("id", as: NodeName.self) }
    }

    @Test("A missing key that has no default is named")
    func missing() throws {
        var reader = try reader("")
        let error = #expect(throws: ApusError.self) { try reader.string("data_directory") }
        #expect(error?.message == "node.yaml: the key data_directory is missing")
    }

    @Test("Text that is not YAML, or holds lists, is refused", arguments: ["a: [1, 2]\n", "a: {b\n", "- a\n"])
    func notMaps(yaml: String) {
        #expect(throws: ApusError(.configurationInvalid)) { _ = try reader(yaml) }
    }
}
