import ApusCore
import ApusThings
import SwiftProtobuf
import Testing

@Suite("The model of a device that is handed over (IV-B10)")
struct ThingHandOverTests {
    private static func model() throws -> ThingState {
        var model = ThingState()
        for (path, json) in [
            ("ProReadonly.battery", #"{"stVal":80}"#), ("ProReadonly._product", #"{"stVal":"bell-2"}"#),
            ("ProWritable.level", #"{"setVal":3}"#), ("Action.unlock", #"{"ctlVal":0}"#),
        ] { _ = try model.report(try ThingPath(path), json, received: 0, time: 1) }
        _ = try model.write(try ThingPath("ProWritable.level"), #"{"setVal":9}"#, ifVersion: 0, time: 1)
        _ = try model.addUser("room", #""hall""#, time: 1)
        return model
    }

    @Test("What belonged to the former account is wiped, also what was pending; what the device can do and is remains")
    func wiped() throws {
        var model = try Self.model()
        let before = model.version
        try model.enter(5)
        #expect(model.leaves.map(\.path) == ["ProReadonly._product", "Action.unlock"])
        #expect(model.pending.isEmpty && model.dataSinceMs == 5)
        #expect(model.version > before, "whoever has the former version sees a gap")
        #expect(model.product == "bell-2")
        let after = model
        try model.enter(5)
        #expect(model == after, "once")
    }

    @Test("A message of the former account is refused with 8003; one that knows no time changes nothing")
    func late() throws {
        var model = try Self.model()
        let whole = model
        try model.enter(0)
        #expect(model == whole)
        try model.enter(7)
        let wiped = model
        #expect(throws: ApusError(.illegalRelation, "the device has another account since")) { try model.enter(6) }
        // Of a node of an earlier release.
        try model.enter(0)
        #expect(model == wiped)
    }
}
