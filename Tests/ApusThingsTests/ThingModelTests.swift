import ApusCore
import ApusSessions
import ApusThings
import SwiftProtobuf
import Testing

@Suite("The thing model of a device (IV-D1 to IV-D9)")
struct ThingModelTests {
    private static let online = ThingLeaf.with {
        ($0.root, $0.name, $0.value, $0.time) = (.readonly, "_online", "0", 1_609_229_681)
    }

    /// A model of a device that has reported a state, a setting and an action.
    private static func model() throws -> ThingState {
        var model = ThingState()
        _ = try model.report(ThingPath("ProReadonly.battery"), #"{"stVal":80}"#, received: 0, time: 100)
        _ = try model.report(ThingPath("ProWritable._logLevel"), #"{"setVal":3}"#, received: 0, time: 101)
        _ = try model.report(ThingPath("Action.cameraOn"), #"{"ctlVal":0}"#, received: 0, time: 102)
        return model
    }

    private static func read(_ model: ThingState, _ path: String) throws -> String {
        try model.read(ThingPath(path), online: online).json
    }

    private func fails(_ code: ErrorCode, _ body: () throws -> Void) {
        #expect(throws: ApusError(code)) { try body() }
    }

    @Test("The whole model has four roots, and each leaf the shape of its root, byte for byte (IV-D1, IV-D2, IV-D9)")
    func shapes() throws {
        var model = try Self.model()
        _ = try model.addUser("testProUser", #"{"testKey": "testValue"}"#, time: 1_600_048_390)
        #expect(
            try Self.read(model, "") == """
                {"ProReadonly":{"_online":{"stVal":0,"t":1609229681},"battery":{"stVal":80,"t":100}},\
                "ProWritable":{"_logLevel":{"setVal":3,"t":101}},"Action":{"cameraOn":{"ctlVal":0,"t":102}},\
                "ProUser":{"_buildIn":{"t":0,"val":{}},"testProUser":{"t":1600048390,"val":{"testKey":"testValue"}}}}
                """)
    }

    @Test("The whole model is the union of its subtrees (IV-D3)")
    func union() throws {
        let model = try Self.model()
        let parts = try ["ProReadonly", "ProWritable", "Action", "ProUser"].map { root in
            "\"\(root)\":\(try Self.read(model, root))"
        }
        #expect(try Self.read(model, "") == "{\(parts.joined(separator: ","))}")
        #expect(try Self.read(model, "ProReadonly.battery") == #"{"stVal":80,"t":100}"#)
        #expect(try Self.read(model, "ProReadonly.battery.stVal") == "80")
    }

    @Test("What the model does not have is 21003, and what is no path is 20101 (IV-D3)")
    func unknown() throws {
        let model = try Self.model()
        for path in ["ProReadonly.none", "ProWritable._logLevel.none", "ProUser.none", "ProReadonly.battery.stVal.x"] {
            fails(.propertyUnknown) { _ = try Self.read(model, path) }
        }
        for path in [
            "proReadonly.battery", "Prowritable.x", "None", "ProReadonly.", ".battery", "ProUser.a..b", "ProUser.a b",
            "ProUser.'; DROP TABLE things", "ProReadonly." + String(repeating: "a", count: 65), "../etc/passwd",
            "ProUser.x." + String(repeating: "y.", count: 300),
        ] {
            fails(.pathIllegal) { _ = try Self.read(model, path) }
        }
    }

    @Test("Both forms of a write have the same result (IV-D4)")
    func bothForms() throws {
        for value in ["0", "\"value\"", "null", "true", "[1,2]", #"{"a":{"b":1.50}}"#] {
            var (one, two) = (try Self.model(), try Self.model())
            _ = try one.write(ThingPath("ProWritable._logLevel"), "{\"setVal\":\(value)}", ifVersion: 0, time: 200)
            _ = try two.write(ThingPath("ProWritable._logLevel.setVal"), value, ifVersion: 0, time: 200)
            #expect(one == two)
            #expect(try Self.read(one, "ProWritable._logLevel") == "{\"setVal\":\(value),\"t\":200}")
        }
    }

    @Test("A wrong leaf is 20101, and wrong JSON is 20102; the model is unchanged (IV-D4)")
    func refusedWrites() throws {
        var model = try Self.model()
        let before = model
        for path in [
            "", "ProWritable", "ProWritable.none", "ProWritable._logLevel.t", "ProWritable._logLevel.stVal",
            "ProReadonly.battery", "Action.cameraOn", "ProWritable._logLevel.setVal.field",
        ] {
            fails(.pathIllegal) { _ = try model.write(ThingPath(path), "0", ifVersion: 0, time: 200) }
        }
        let path = try ThingPath("ProWritable._logLevel")
        for json in [
            "", "{", "0", #"{"setVal":}"#, #"{"stVal":1}"#, #"{"setVal":1,"other":2}"#, #"{"setVal":1,"setVal":2}"#,
            #"{"setVal":"\#u{1}"}"#, #"{"setVal":01}"#, #"{"setVal":1} x"#,
            "{\"setVal\":" + String(repeating: "[", count: 9) + String(repeating: "]", count: 9) + "}",
            "{\"setVal\":1" + String(repeating: "0", count: 40) + "}",
        ] {
            fails(.jsonInvalid) { _ = try model.write(path, json, ifVersion: 0, time: 200) }
        }
        #expect(model == before)
    }

    @Test("User properties are added, replaced, changed by field and deleted; names with _ are 8605 (IV-D6 to IV-D8)")
    func userProperties() throws {
        var model = ThingState()
        _ = try model.addUser("userPro1", #"{"a":1,"b":2}"#, time: 10)
        _ = try model.addUser("userPro1", #"{"c":3}"#, time: 11)
        #expect(try Self.read(model, "ProUser.userPro1") == #"{"t":11,"val":{"c":3}}"#)
        _ = try model.write(ThingPath("ProUser.userPro1.val.c"), "4", ifVersion: 0, time: 12)
        _ = try model.write(ThingPath("ProUser.userPro1.val.d"), #""x""#, ifVersion: 0, time: 13)
        #expect(try Self.read(model, "ProUser.userPro1") == #"{"t":13,"val":{"c":4,"d":"x"}}"#)
        _ = try model.write(ThingPath("ProUser._buildIn.val.nickName"), #""new""#, ifVersion: 0, time: 14)
        _ = try model.write(ThingPath("ProUser._buildIn.val.almEvtPushEna"), "0", ifVersion: 0, time: 15)
        #expect(try Self.read(model, "ProUser._buildIn.val") == #"{"nickName":"new","almEvtPushEna":0}"#)

        for name in ["_x", "_buildIn"] {
            fails(.userPropertyName) { _ = try model.addUser(name, "1", time: 20) }
            fails(.userPropertyName) { _ = try model.deleteUser(name) }
        }
        fails(.pathIllegal) { _ = try model.write(ThingPath("ProUser.userPro1"), "1", ifVersion: 0, time: 20) }
        fails(.pathIllegal) { _ = try model.write(ThingPath("ProUser.none.val"), "1", ifVersion: 0, time: 20) }
        fails(.pathIllegal) { _ = try model.addUser("a.b", "1", time: 20) }

        let deleted = try model.deleteUser("userPro1")
        #expect(deleted.path == "ProUser.userPro1" && deleted.json.isEmpty)
        fails(.propertyUnknown) { _ = try Self.read(model, "ProUser.userPro1") }
        fails(.propertyUnknown) { _ = try model.deleteUser("userPro1") }
    }

    @Test("Of two writers that know the same version, the second is refused, and the error names the version (10030)")
    func conflict() throws {
        var model = try Self.model()
        let path = try ThingPath("ProWritable._logLevel")
        let known = try model.read(path, online: Self.online).version
        let first = try model.write(path, #"{"setVal":4}"#, ifVersion: known, time: 200)
        do {
            _ = try model.write(path, #"{"setVal":5}"#, ifVersion: known, time: 201)
            Issue.record("the second write was accepted")
        } catch {
            #expect(error.code == .versionConflict && error.message.contains("version \(first.version)"))
        }
        #expect(try Self.read(model, "ProWritable._logLevel.setVal") == "4")
        // What the device reports of other leaves is no conflict.
        _ = try model.report(ThingPath("ProReadonly.battery"), #"{"stVal":79}"#, received: 0, time: 202)
        _ = try model.write(path, #"{"setVal":5}"#, ifVersion: first.version, time: 203)
    }

    @Test("A write remains until the device has received it, and the device's answer to it counts")
    func pending() throws {
        var model = try Self.model()
        let path = try ThingPath("ProWritable._logLevel")
        #expect(model.pending.isEmpty)
        let written = try model.write(path, #"{"setVal":9}"#, ifVersion: 0, time: 200)
        #expect(written.isPending && model.pending.map(\.path) == ["ProWritable._logLevel"])
        // A local change of a device that has not received the write.
        let local = try model.report(path, #"{"setVal":1}"#, received: written.version - 1, time: 201)
        #expect(local.isPending)
        #expect(try Self.read(model, "ProWritable._logLevel.setVal") == "9")
        // The device has received it, and can have at most 5.
        let applied = try model.report(path, #"{"setVal":5}"#, received: written.version, time: 202)
        #expect(!applied.isPending && model.pending.isEmpty)
        #expect(try Self.read(model, "ProWritable._logLevel") == #"{"setVal":5,"t":202}"#)
        // A local change while nothing is pending.
        _ = try model.report(path, #"{"setVal":2}"#, received: 0, time: 203)
        #expect(try Self.read(model, "ProWritable._logLevel.setVal") == "2")
    }

    @Test("A report that changes nothing has no version of its own; the presence and user properties are not reported")
    func reports() throws {
        var model = try Self.model()
        let path = try ThingPath("ProReadonly.battery")
        let same = try model.report(path, #"{"stVal":80,"t":5}"#, received: 0, time: 300)
        #expect(same.version == same.previousVersion)
        #expect(try Self.read(model, "ProReadonly.battery") == #"{"stVal":80,"t":100}"#)
        let next = try model.report(path, #"{"stVal":79}"#, received: 0, time: 300)
        #expect(next.version == next.previousVersion + 1 && next.previousVersion == same.version)
        for path in ["ProReadonly._online", "ProUser.x", "ProReadonly", ""] {
            fails(.pathIllegal) { _ = try model.report(ThingPath(path), #"{"stVal":1}"#, received: 0, time: 300) }
        }
    }

    @Test("A device names its product with a state; what is no product's name is 20102, whoever reports it")
    func product() throws {
        var model = try Self.model()
        #expect(model.product.isEmpty)
        let path = try ThingPath("ProReadonly._product")
        for json in [#"{"stVal":5}"#, #"{"stVal":null}"#, #"{"stVal":""}"#, #"{"stVal":"a b"}"#, #"{"stVal":["a"]}"#] {
            fails(.jsonInvalid) { _ = try model.report(path, json, received: 0, time: 200) }
        }
        fails(.jsonInvalid) {
            _ = try model.report(ThingPath("ProReadonly._product.stVal.x"), #""a""#, received: 0, time: 200)
        }
        _ = try model.report(path, #"{"stVal":"acme-doorbell-2"}"#, received: 0, time: 200)
        #expect(model.product == "acme-doorbell-2")
        _ = try model.report(ThingPath("ProReadonly._product.stVal"), #""bell.3""#, received: 0, time: 201)
        #expect(model.product == "bell.3")
        // A setting of this name means nothing.
        _ = try model.report(ThingPath("ProWritable._product"), #"{"setVal":5}"#, received: 0, time: 202)
        #expect(model.product == "bell.3")
    }

    @Test("What was checked against another product's schema is refused with the product, and changes nothing")
    func otherProduct() throws {
        var model = try Self.model()
        let (setting, product) = (try ThingPath("ProWritable._logLevel"), try ThingPath("ProReadonly._product"))
        #expect(model.refusal(of: setting, checked: "") == nil)
        #expect(model.refusal(of: setting, checked: "bell")?.product.isEmpty == true)
        _ = try model.report(product, #"{"stVal":"bell"}"#, received: 0, time: 200)
        for path in ["ProWritable._logLevel", "ProReadonly.battery.stVal", "Action.new", "ProWritable.new.setVal.x"] {
            let path = try ThingPath(path)
            #expect(model.refusal(of: path, checked: "bell") == nil)
            for other in ["", "horn"] {
                let refusal = try #require(model.refusal(of: path, checked: other))
                #expect(refusal.productDiffers && refusal.product == "bell" && refusal.version == 0)
            }
        }
        // Properties of the account have no schema, and a report of the product is checked against the new one.
        for path in ["ProUser.room.val", "ProReadonly._product", "ProReadonly._product.stVal"] {
            #expect(model.refusal(of: try ThingPath(path), checked: "horn") == nil)
        }
    }

    @Test("A model over 64 KiB is refused with the leaf and both sizes (10002), and smaller values are accepted again")
    func limit() throws {
        var model = ThingState()
        let text = "\"" + String(repeating: "x", count: 8000) + "\""
        var count = 0
        while (try? model.addUser("p\(count)", text, time: 1)) != nil { count += 1 }
        #expect(count == 8 && model.byteCount <= ThingState.byteCountMax)
        do {
            _ = try model.addUser("more", text, time: 1)
            Issue.record("the model has \(model.byteCount) bytes")
        } catch {
            #expect(error.code == .frameTooLarge)
            #expect(error.message.contains("ProUser.more") && error.message.contains("65536"), "\(error.message)")
        }
        fails(.frameTooLarge) {
            _ = try model.addUser("p0", "\"" + String(repeating: "x", count: 32 << 10) + "\"", time: 1)
        }
        _ = try model.addUser("p0", "1", time: 1)
        _ = try model.addUser("more", text, time: 1)
        #expect(model.leaves.map(\.name) == model.leaves.map(\.name).sorted())
    }

    /// A text in two Unicode normalizations, as JSON.
    private static let (composed, decomposed) = ("\"caf\u{e9}\"", "\"cafe\u{301}\"")

    private static func bytes(_ model: ThingState, _ path: String) throws -> [UInt8] {
        Array(try read(model, path).utf8)
    }

    @Test("The last write is what is read, also if it differs only in the normalization of its text (RFC 8259 §8.3)")
    func normalizations() throws {
        var model = ThingState()
        let (setting, state) = (try ThingPath("ProWritable.name"), try ThingPath("ProReadonly.v"))
        _ = try model.report(setting, "{\"setVal\":\(Self.composed)}", received: 0, time: 1)
        _ = try model.report(state, "{\"stVal\":\(Self.composed)}", received: 0, time: 1)
        _ = try model.addUser("room", "{\"n\":\(Self.composed)}", time: 1)
        let before = model
        let written = try model.write(
            ThingPath("ProWritable.name.setVal"), Self.decomposed, ifVersion: 0, time: 2)
        #expect(written.version == before.version + 1 && written.isPending)
        #expect(try Self.bytes(model, "ProWritable.name.setVal") == Array(Self.decomposed.utf8))
        #expect(model.pending.map(\.name) == ["name"])
        _ = try model.report(setting, "{\"setVal\":\(Self.decomposed)}", received: written.version, time: 2)
        #expect(model.pending.isEmpty)
        _ = try model.report(state, "{\"stVal\":\(Self.decomposed)}", received: 0, time: 2)
        #expect(try Self.bytes(model, "ProReadonly.v.stVal") == Array(Self.decomposed.utf8))
        _ = try model.addUser("room", "{\"n\":\(Self.decomposed)}", time: 2)
        #expect(try Self.bytes(model, "ProUser.room.val.n") == Array(Self.decomposed.utf8))
        #expect(try model.read(ThingPath("ProReadonly.v"), online: Self.online).version > 1)
    }

    @Test("Two names that differ by normalization are two members, each at its own path")
    func names() throws {
        var model = ThingState()
        _ = try model.addUser("both", "{\"\u{e9}\":1,\"e\u{301}\":2}", time: 1)
        #expect(try Self.read(model, "ProUser.both.val.\u{e9}") == "1")
        #expect(try Self.read(model, "ProUser.both.val.e\u{301}") == "2")
        _ = try model.write(ThingPath("ProUser.both.val.e\u{301}"), "3", ifVersion: 0, time: 2)
        #expect(try Self.read(model, "ProUser.both.val.\u{e9}") == "1")
        // A name that begins with a combining mark, after a dot.
        _ = try model.addUser("mark", "{\"\u{301}\":4}", time: 3)
        #expect(try Self.read(model, "ProUser.mark.val.\u{301}") == "4")
    }

    @Test("A value of eight levels is accepted in both forms of a write, and one of nine in neither (IV-D4)")
    func depth() throws {
        var model = try Self.model()
        func nested(_ depth: Int) -> String {
            String(repeating: "[", count: depth) + String(repeating: "]", count: depth)
        }
        let (leaf, value) = (try ThingPath("ProWritable._logLevel"), try ThingPath("ProWritable._logLevel.setVal"))
        let most = nested(JSONValue.depthMax)
        _ = try model.write(leaf, "{\"setVal\":\(most)}", ifVersion: 0, time: 1)
        #expect(try Self.read(model, "ProWritable._logLevel.setVal") == most)
        _ = try model.write(value, most, ifVersion: 0, time: 1)
        _ = try model.addUser("deep", most, time: 1)
        let more = nested(JSONValue.depthMax + 1)
        fails(.jsonInvalid) { _ = try model.write(leaf, "{\"setVal\":\(more)}", ifVersion: 0, time: 1) }
        fails(.jsonInvalid) { _ = try model.write(value, more, ifVersion: 0, time: 1) }
        fails(.jsonInvalid) { _ = try model.addUser("deep", more, time: 1) }
    }

    @Test("A number that many readers of JSON refuse is refused; one that is stored already can be read and replaced")
    func numbers() throws {
        var model = try Self.model()
        let path = try ThingPath("ProWritable._logLevel.setVal")
        for number in ["1e400", "[-1e400]", "1e-400"] {
            fails(.jsonInvalid) { _ = try model.write(path, number, ifVersion: 0, time: 1) }
            fails(.jsonInvalid) {
                _ = try model.report(ThingPath("ProReadonly.x"), "{\"stVal\":\(number)}", received: 0, time: 1)
            }
            fails(.jsonInvalid) { _ = try model.addUser("x", number, time: 1) }
        }
        let index = try #require(model.leaves.firstIndex { $0.name == "_logLevel" })
        model.leaves[index].value = #"{"far":1e400,"near":1}"#
        #expect(try Self.read(model, "ProWritable._logLevel.setVal.far") == "1e400")
        _ = try model.write(ThingPath("ProWritable._logLevel.setVal.near"), "2", ifVersion: 0, time: 2)
        #expect(try Self.read(model, "ProWritable._logLevel.setVal") == #"{"far":1e400,"near":2}"#)
        _ = try model.write(path, "4", ifVersion: 0, time: 3)
    }

    @Test(
        "JSON is written as it was read, without spaces",
        arguments: [
            #"{"b":1,"a":[true,false,null,-0.5e+10,""]}"#, #""é😀\"\\\n\r\t\u0001""#, "[]", "{}",
            "123456789012345678901",
        ])
    func canonical(text: String) throws {
        let value = try #require(JSONValue(ArraySlice(text.utf8)))
        #expect(value.text == text)
        #expect(JSONValue(ArraySlice(value.text.utf8)) == value)
    }
}
