import ApusCore
import ApusSessions
import ApusThings
import SwiftProtobuf
import Testing

@Suite("Schemas of products (IV-D1 to IV-D5)")
struct ThingSchemaTests {
    private static let bell = """
        {"type":"object","additionalProperties":false,"properties":{
          "ProWritable":{"type":"object","additionalProperties":false,"required":["volume"],"properties":{
            "volume":{"type":"integer","minimum":0,"maximum":10},
            "wifi":{"type":"object","additionalProperties":false,"required":["ssid"],"properties":{
              "ssid":{"type":"string","maxLength":32},"channel":{"type":"integer"},
              "extra":{"additionalProperties":{"type":"boolean"}}}},
            "_logLevel":{"type":"integer","maximum":5}}},
          "ProReadonly":{"properties":{"battery":{"type":"number","maximum":100}}},
          "Action":{"additionalProperties":false,"properties":{"unlock":{"type":["integer","null"]}}}}}
        """

    private static func check(_ schema: ThingSchema, _ path: String, _ json: String) throws {
        try schema.check(try ThingPart(try ThingPath(path), json))
    }

    private func fails(_ code: ErrorCode, _ words: String = "", _ body: () throws -> Void) {
        do {
            try body()
            Issue.record("nothing is refused, \(code) is expected")
        } catch {
            let failure = error as? ApusError
            let isNamed = words.isEmpty || failure?.message.contains(words) == true
            #expect(failure?.code == code && isNamed, "\(error)")
        }
    }

    @Test("Values at a leaf, at its value and behind it are checked against the schema there (IV-D4, IV-D5)")
    func paths() throws {
        let schema = try ThingSchema(Self.bell)
        for (path, json) in [
            ("ProWritable.volume", #"{"setVal":3}"#), ("ProWritable.volume.setVal", "10.0"),
            ("ProWritable.volume", #"{"setVal":3,"t":99}"#), ("ProWritable.wifi.setVal", #"{"ssid":"a"}"#),
            ("ProWritable.wifi.setVal.ssid", #""b""#), ("ProWritable.wifi.setVal.channel", "6"),
            ("ProWritable.wifi.setVal.extra.any", "true"), ("ProReadonly.battery", #"{"stVal":99.5}"#),
            ("ProReadonly.unlisted", #"{"stVal":[1]}"#), ("Action.unlock", #"{"ctlVal":null}"#),
        ] {
            #expect(throws: Never.self) { try Self.check(schema, path, json) }
        }
        for (path, json, words) in [
            ("ProWritable.volume", #"{"setVal":11}"#, "ProWritable.volume.setVal does not fit"),
            ("ProWritable.volume.setVal", "1.5", "type: integer"), ("ProWritable.volume.setVal", "11", "maximum: 10"),
            ("ProWritable.wifi.setVal", #"{"channel":1}"#, "required: the member ssid"),
            ("ProWritable.wifi.setVal", #"{"ssid":"a","key":"b"}"#, "at key: additionalProperties"),
            ("ProWritable.wifi.setVal", "null", "type: object"),
            ("ProWritable.wifi.setVal.channel", #""a""#, "ProWritable.wifi.setVal.channel does not fit"),
            ("ProWritable.wifi.setVal.extra.any", "1", "type: boolean"),
            ("ProReadonly.battery", #"{"stVal":101}"#, "maximum"), ("Action.unlock", #"{"ctlVal":"now"}"#, "type"),
        ] {
            fails(.jsonInvalid, words) { try Self.check(schema, path, json) }
        }
    }

    @Test("A leaf, or a field, that the schema excludes is no legal path (20101)")
    func excluded() throws {
        let schema = try ThingSchema(Self.bell)
        for path in [
            "ProWritable.none.setVal", "ProWritable.wifi.setVal.key", "ProWritable.volume.setVal.field",
            "ProWritable.wifi.setVal.ssid.field", "Action.fly.ctlVal",
        ] {
            fails(.pathIllegal, "nothing at \(path)") { try Self.check(schema, path, "1") }
        }
        // Without the root, it has no leaves.
        let other = try ThingSchema(#"{"properties":{"ProWritable":{}},"additionalProperties":false}"#)
        #expect(throws: Never.self) { try Self.check(other, "ProWritable.any.setVal", "1") }
        fails(.pathIllegal) { try Self.check(other, "ProReadonly.any.stVal", "1") }
        let none = try ThingSchema(#"{"properties":{"Action":false}}"#)
        fails(.pathIllegal) { try Self.check(none, "Action.any.ctlVal", "1") }
    }

    @Test("Built-in leaves are checked only where the schema lists them, and properties of the account never")
    func builtIn() throws {
        let schema = try ThingSchema(Self.bell)
        #expect(throws: Never.self) { try Self.check(schema, "ProWritable._zone.setVal", #""Asia""#) }
        #expect(throws: Never.self) { try Self.check(schema, "ProUser.room.val", #"{"a":1}"#) }
        #expect(throws: Never.self) { try Self.check(schema, "ProWritable._logLevel.setVal", "5") }
        fails(.jsonInvalid) { try Self.check(schema, "ProWritable._logLevel.setVal", "6") }
        let closed = try ThingSchema(#"{"additionalProperties":false}"#)
        #expect(throws: Never.self) { try Self.check(closed, "ProReadonly._product.stVal", #""bell""#) }
        #expect(throws: Never.self) { try Self.check(closed, "ProUser.x.val", "1") }
        fails(.pathIllegal) { try Self.check(closed, "ProReadonly.product.stVal", #""bell""#) }
    }

    @Test(
        "What is no schema of a model is refused, and the message has the place (21031)",
        arguments: [
            ("", ""), ("{", ""), ("[]", ""), ("true", ""), (#"{"type":"string"}"#, ""), (#"{"const":1}"#, ""),
            (#"{"properties":{"ProUser":{}}}"#, "/properties/ProUser"),
            (#"{"properties":{"ProWriteable":{}}}"#, "/properties/ProWriteable"),
            (#"{"properties":{"Action":{"properties":{"a.b":{}}}}}"#, "/properties/Action/properties/a.b"),
            (#"{"properties":{"Action":{"properties":{"a":{"pattern":"x"}}}}}"#, "/Action/properties/a/pattern"),
            ("{\"default\":" + String(repeating: "[", count: 32) + String(repeating: "]", count: 32) + "}", ""),
        ])
    func documents(text: String, place: String) throws {
        fails(.badParameter, place) { _ = try ThingSchema(text) }
    }

    @Test("A document may be nested 32 deep, and have 16 KiB; a longer one is refused with both sizes (10002)")
    func bounds() throws {
        #expect(throws: Never.self) {
            _ = try ThingSchema(
                "{\"default\":" + String(repeating: "[", count: 31) + String(repeating: "]", count: 31) + "}")
        }
        let most = "{\"title\":\"\(String(repeating: "x", count: ThingSchema.byteCountMax - 12))\"}"
        #expect(most.utf8.count == ThingSchema.byteCountMax)
        #expect(throws: Never.self) { _ = try ThingSchema(most) }
        fails(.frameTooLarge, "16385 bytes, and at most 16384") { _ = try ThingSchema(most + " ") }
    }

    @Test("A message has nothing of a long value, and only the beginning of a long name")
    func messages() throws {
        let schema = try ThingSchema(
            #"{"properties":{"ProWritable":{"properties":{"a":{"additionalProperties":false}}}}}"#)
        let name = String(repeating: #"n\u001b"#, count: 5000)
        do {
            try Self.check(schema, "ProWritable.a.setVal", "{\"\(name)\":\"secret\"}")
            Issue.record("the value is accepted")
        } catch {
            let failure = try #require(error as? ApusError)
            #expect(failure.message.count < 1000 && !failure.message.contains("secret"))
            #expect(!failure.message.contains("\u{1b}"))
        }
    }

    // MARK: - Property tests

    @Test("The compiled schema agrees with the standard, read plainly", arguments: 0..<200)
    func oracle(seed: Int) throws {
        var oracle = SchemaOracle(random: SeededRandom(seed: UInt64(seed)))
        for _ in 0..<5 {
            let text = oracle.schema(depth: 3)
            let document = try JSONSchemaTests.value(text)
            let schema = try JSONSchema(document)
            for _ in 0..<20 {
                let written = oracle.value(depth: 3)
                let value = try JSONSchemaTests.value(written)
                let failure = schema.failure(of: value)
                #expect(
                    SchemaOracle.fits(value, document) == (failure == nil),
                    "\(written) and \(text): \(failure?.keyword ?? "fits")")
            }
        }
    }

    /// A schema of a model, and the same one without `required` of the model and of its roots.
    private static func model(_ oracle: inout SchemaOracle) -> (schema: String, relaxed: String) {
        let roots = ["ProReadonly", "ProWritable", "Action"].map { root in
            let properties = oracle.properties(SchemaOracle.names + ["_b"], depth: 2)
            let isOpen = UInt8.random(in: 0..<3, using: &oracle.random) == 0
            return (name: root, rules: "\"properties\":\(properties)\(isOpen ? "" : #","additionalProperties":false"#)")
        }
        let document: (String) -> String = { more in
            let all = roots.map { "\"\($0.name)\":{\(more)\($0.rules)}" }.joined(separator: ",")
            return "{\(more)\"properties\":{\(all)},\"additionalProperties\":false}"
        }
        return (document(#""required":["a","ProWritable"],"#), document(""))
    }

    /// The model with values at the leaves, without built-in leaves that the schema does not list.
    private static func values(_ model: ThingState, in schema: JSONValue, reported: Bool) throws -> JSONValue {
        var roots: [JSONValue.Member] = []
        for root in [ThingRoot.readonly, .writable, .action] {
            let listed = schema["properties"]?[root.name]?["properties"]
            let leaves = try model.leaves.filter { leaf in
                leaf.root == root && (!leaf.name.hasPrefix("_") || listed?[leaf.name] != nil)
            }.map { leaf in
                let text = reported && !leaf.reported.isEmpty ? leaf.reported : leaf.value
                return JSONValue.Member(name: leaf.name, value: try JSONSchemaTests.value(text))
            }
            roots.append(JSONValue.Member(name: root.name, value: .object(leaves)))
        }
        return .object(roots)
    }

    /// Random writes and reports that a random schema allows. After each the whole model is compared with the standard.
    ///
    /// - Returns: the number that were accepted, and of those the ones that set a field of a value.
    private static func run(seed: Int) throws -> (accepted: Int, fields: Int) {
        var oracle = SchemaOracle(random: SeededRandom(seed: UInt64(seed)))
        let texts = model(&oracle)
        let (schema, relaxed) = (try ThingSchema(texts.schema), try JSONSchemaTests.value(texts.relaxed))
        var (state, accepted, fieldCount) = (ThingState(), 0, 0)
        for _ in 0..<80 {
            let root = [ThingRoot.readonly, .writable, .action][Int.random(in: 0..<3, using: &oracle.random)]
            let name = (SchemaOracle.names + ["_b", "_c"])[Int.random(in: 0..<5, using: &oracle.random)]
            let depth = Int.random(in: 0...2, using: &oracle.random)
            let fields = (0..<depth).map { _ in SchemaOracle.names[Int.random(in: 0..<3, using: &oracle.random)] }
            let path = try ThingPath(([root.name, name, root.valueName] + fields).joined(separator: "."))
            let json = oracle.value(depth: 3 - depth)
            guard (try? schema.check(try ThingPart(path, json))) != nil else { continue }
            // What the model itself refuses changes nothing.
            let isWrite = root == .writable && UInt8.random(in: 0..<2, using: &oracle.random) == 0
            let changed =
                isWrite
                ? try? state.write(path, json, ifVersion: 0, time: 1)
                : try? state.report(path, json, received: state.version, time: 1)
            guard changed != nil else { continue }
            (accepted, fieldCount) = (accepted + 1, fieldCount + (depth > 0 ? 1 : 0))
            for reported in [false, true] {
                let values = try values(state, in: relaxed, reported: reported)
                #expect(SchemaOracle.fits(values, relaxed), "\(path) \(json) left \(values.text) for \(texts.relaxed)")
            }
        }
        return (accepted, fieldCount)
    }

    @Test(
        "Accepted writes and reports of parts leave a model that fits the whole schema, but for `required` leaves",
        arguments: 0..<150)
    func parts(seed: Int) throws {
        _ = try Self.run(seed: seed)
    }

    @Test("Enough of the random changes are accepted, also of fields, for the test above to mean something")
    func sequences() throws {
        let counts = try (0..<40).map { try Self.run(seed: $0) }
        let (accepted, fields) = (counts.map(\.accepted).reduce(0, +), counts.map(\.fields).reduce(0, +))
        #expect(accepted > 400 && fields > 40, "\(accepted) accepted, \(fields) of fields")
    }
}
