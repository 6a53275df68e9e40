import ApusCore
import ApusStorage
import Testing

/// One write of a test.
func write(
    _ key: String, _ body: [UInt8]?, epoch: Epoch = 1, writer: String = "n1#1", if condition: RecordCondition = .any,
    entries: [(String, String)] = [], in collection: String = "things"
) -> RecordWrite {
    let entries = entries.map { RecordEntry(index: $0.0, value: OrderedKey(.text($0.1))) }
    return RecordWrite(
        RecordID(collection, OrderedKey(.text(key))),
        body.map { .put(body: $0, layout: 1, entries: entries) } ?? .remove,
        fence: RecordFence(epoch: epoch, writer: writer), condition: condition)
}

func erase(_ key: String, epoch: Epoch = 1, if condition: RecordCondition = .any) -> RecordWrite {
    RecordWrite(
        RecordID("things", OrderedKey(.text(key))), .erase, fence: RecordFence(epoch: epoch, writer: "n1#1"),
        condition: condition)
}

/// Steps of one commit after the entries of the record "bad" were damaged: those that use it fail, and no others.
func expectOnlyDamagedRefused(_ store: any RecordStore) async throws {
    let outcomes = await store.commit([
        RecordStep(write("before", [1])), RecordStep(write("bad", [2])),
        RecordStep([write("part", [1]), write("bad", nil)]), RecordStep(write("after", [1])),
    ])
    try #require(outcomes.count == 4)
    for made in [outcomes[0], outcomes[3]] { #expect(try made.get() == [1]) }
    for refused in [outcomes[1], outcomes[2]] {
        #expect(throws: ApusError(.stateForeign)) { try refused.get() }
    }
    let names = ["before", "bad", "part", "after"]
    let found = try await store.records("things", names.map { OrderedKey(.text($0)) })
    #expect(found.map { $0?.body } == [[1], [1], nil, [1]])
}

@Suite("What one commit writes (D16)")
struct RecordBatchTests {
    @Test(
        "Random steps leave in the memory store what a plain model says",
        arguments: [UInt64](1...20))
    func model(seed: UInt64) async throws {
        var random = SeededRandom(seed: seed)
        let store = MemoryRecordStore()
        var model = Model()
        for _ in 0..<50 {
            var step: [RecordWrite] = []
            for _ in 0...Int.random(in: 0...2, using: &random) { step.append(Self.randomWrite(&random)) }
            let expected = model.apply(step)
            let outcome = await store.commit([RecordStep(step)])[0]
            switch outcome {
            case .success(let versions): #expect(versions == expected, "seed \(seed)")
            case .failure: #expect(expected == nil, "seed \(seed): \(outcome)")
            }
            try await model.expectEqual(store, seed)
        }
    }

    private static func randomWrite(_ random: inout SeededRandom) -> RecordWrite {
        let key = ["a", "b", "c"].randomElement(using: &random) ?? "a"
        let conditions: [RecordCondition] = [
            .any, .any, .absent, .version(UInt64.random(in: 1...4, using: &random)),
        ]
        let condition = conditions.randomElement(using: &random) ?? .any
        let epoch = Epoch.random(in: 1...3, using: &random)
        switch Int.random(in: 0..<7, using: &random) {
        case 6:
            var check = write(key, nil, epoch: epoch, if: condition)
            check.change = .check
            return check
        case 0: return erase(key, epoch: epoch, if: condition)
        case 1: return write(key, nil, epoch: epoch, if: condition)
        default:
            let entries = ["x", "y"].filter { _ in Bool.random(using: &random) }.map { ("by", $0) }
            let writer = Bool.random(using: &random) ? "n1#1" : "n2#1"
            return write(
                key, [UInt8.random(in: 0...255, using: &random)], epoch: epoch, writer: writer, if: condition,
                entries: entries)
        }
    }

    /// Rows by key, as one would write them down.
    private struct Model {
        struct Row {
            var version: UInt64
            var fence: RecordFence
            var body: [UInt8]?
            var entries: [RecordEntry]
        }

        var rows: [OrderedKey: Row] = [:]

        mutating func apply(_ step: [RecordWrite]) -> [UInt64]? {
            var (next, versions) = (rows, [UInt64]())
            for write in step {
                let row = next[write.id.key]
                if let row {
                    guard write.fence.epoch >= row.fence.epoch,
                        write.fence.epoch > row.fence.epoch || write.fence.writer == row.fence.writer
                    else { return nil }
                }
                switch write.condition {
                case .any: break
                case .absent: guard row?.body == nil else { return nil }
                case .version(let version): guard let row, row.body != nil, row.version == version else { return nil }
                }
                var new = Row(version: (row?.version ?? 0) + 1, fence: write.fence, body: nil, entries: [])
                switch write.change {
                case .put(let body, _, let entries): (new.body, new.entries) = (body, entries)
                case .remove: break
                case .check:
                    versions.append(row?.version ?? 0)
                    continue
                case .erase:
                    next[write.id.key] = nil
                    versions.append(0)
                    continue
                }
                next[write.id.key] = new
                versions.append(new.version)
            }
            rows = next
            return versions
        }

        func expectEqual(_ store: MemoryRecordStore, _ seed: UInt64) async throws {
            let page = try await store.page(RecordScan("things"))
            let expected = rows.filter { $0.value.body != nil }.sorted { $0.key < $1.key }
            #expect(page.records.map(\.key) == expected.map(\.key), "seed \(seed)")
            #expect(page.records.map(\.body) == expected.compactMap(\.value.body), "seed \(seed)")
            #expect(page.records.map(\.version) == expected.map(\.value.version), "seed \(seed)")
            let index = try await store.page(RecordScan("things", index: "by"))
            let entries = rows.flatMap { row in row.value.entries.map { ($0.value, row.key) } }.sorted { $0 < $1 }
            #expect(index.records.map(\.key) == entries.map(\.1), "seed \(seed)")
        }
    }
}
