import ApusCore
import ApusThings
import SwiftProtobuf
import Testing

@Suite("Settings whose writers lose their right to the device (IV-B10)")
struct ThingWriterTests {
    private static func writer(_ account: String, _ access: String = "app", issued: Int64 = 1) -> ThingWriter {
        .with { ($0.account, $0.access, $0.issuedS) = (account, access, issued) }
    }

    private static let path = "ProWritable.level"

    private static func model() throws -> ThingState {
        var model = ThingState()
        _ = try model.report(try ThingPath(path), #"{"setVal":0}"#, received: 0, time: 0)
        return model
    }

    private static func accounts(_ model: ThingState) -> [String] {
        model.pending.flatMap { ThingState.writers(of: $0).map(\.account) }
    }

    private func write(_ value: Int, by writer: ThingWriter?, _ model: inout ThingState) throws {
        _ = try model.write(try ThingPath(Self.path), "{\"setVal\":\(value)}", ifVersion: 0, by: writer, time: 1)
    }

    private func withdraw(_ model: inout ThingState) -> [ThingChanged] {
        let settings = model.pending.map { leaf in
            ThingWithdraw.Setting.with { ($0.path, $0.version) = (leaf.valuePath, leaf.version) }
        }
        return model.withdraw(settings, time: 2)
    }

    @Test("A pending setting has its writer until the device reports the value")
    func reported() throws {
        var model = try Self.model()
        try write(9, by: Self.writer("guest"), &model)
        #expect(Self.accounts(model) == ["guest"])
        let version = model.pending[0].version
        _ = try model.report(try ThingPath(Self.path), #"{"setVal":9}"#, received: version, time: 1)
        #expect(model.pending.isEmpty && model.leaves.allSatisfy(\.writers.isEmpty))
        #expect(withdraw(&model).isEmpty)
    }

    @Test("A setting that is withdrawn is again what the device has reported, and has an event")
    func withdrawn() throws {
        var model = try Self.model()
        try write(9, by: Self.writer("guest"), &model)
        let before = model.version
        let changes = withdraw(&model)
        try #require(changes.map(\.path) == [Self.path])
        #expect(changes[0].version == before + 1 && !changes[0].isPending)
        #expect(changes[0].json.contains("\"setVal\":0") && model.pending.isEmpty)
        // The device had received it, and reports it: the model does not take the withdrawn value for the wanted one.
        _ = try model.report(try ThingPath(Self.path), #"{"setVal":9}"#, received: before, time: 3)
        #expect(model.pending.map(\.value) == ["0"])
    }

    @Test("What was written again since stays: another value, or the same one by another account")
    func repeated() throws {
        var model = try Self.model()
        try write(9, by: Self.writer("guest"), &model)
        let old = ThingWithdraw.Setting.with {
            ($0.path, $0.version) = ("\(Self.path).setVal", model.pending[0].version)
        }
        try write(9, by: Self.writer("owner"), &model)
        #expect(Self.accounts(model) == ["guest", "owner"], "either may have it")
        try write(9, by: Self.writer("guest", issued: 2), &model)
        #expect(Self.accounts(model) == ["owner", "guest"], "a repetition with a newer token is no other writer")
        try write(5, by: Self.writer("owner"), &model)
        #expect(Self.accounts(model) == ["owner"])
        #expect(model.withdraw([old], time: 2).isEmpty && model.pending.map(\.value) == ["5"])
    }

    @Test("A value that a node of an earlier release wrote has no writer, also if the leaf had one")
    func earlier() throws {
        var model = try Self.model()
        try write(9, by: nil, &model)
        #expect(Self.accounts(model).isEmpty && model.pending.count == 1)
        try write(8, by: Self.writer("guest"), &model)
        // Such a node keeps the fields that it does not know.
        let index = try #require(model.leaves.firstIndex { $0.isPending })
        model.version += 1
        (model.leaves[index].value, model.leaves[index].version) = ("7", model.version)
        #expect(Self.accounts(model).isEmpty)
    }

    @Test("Writers are bounded, and count for the size of the model")
    func bounded() throws {
        var model = try Self.model()
        let before = model.byteCount
        for number in 0..<20 { try write(9, by: Self.writer("account-\(number)"), &model) }
        #expect(Self.accounts(model) == (16..<20).map { "account-\($0)" })
        #expect(model.byteCount >= before + ThingState.writersMax * ThingState.leafByteCount)
    }
}
