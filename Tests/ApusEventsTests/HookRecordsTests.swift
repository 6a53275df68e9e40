import ApusCore
import ApusEvents
import ApusStorage
import Foundation
import SwiftProtobuf
import Testing

@Suite("The records of hooks, and of the events that were put aside")
struct HookRecordsTests {
    private let records = HookRecords(store: MemoryRecordStore())

    private func event(_ number: UInt64) -> HookStoredEvent {
        .with {
            ($0.customer, $0.hook, $0.timeMs, $0.number) = ("acme", "alarms", 1000, number)
            $0.json = Data("{}".utf8)
        }
    }

    private func putHook() async throws {
        _ = try await records.put("alarms", of: "acme", countMax: 8) { $0.url = "http://example.org/" }
    }

    private func putAside() async throws -> [UInt64] {
        try await records.failedEvents(of: "alarms", of: "acme", after: nil, limit: 10).map(\.event.number)
    }

    private func waiting() async throws -> [UInt64] {
        try await records.events(of: "alarms", of: "acme", limit: 10).map(\.number)
    }

    @Test("A refused event of a hook is put aside")
    func aside() async throws {
        try await putHook()
        for number in 1...2 as ClosedRange<UInt64> { try await records.write(event(number)) }
        #expect(try await records.putAside(event(1), reason: "400", at: 2000))
        #expect(try await putAside() == [1])
        #expect(try await waiting() == [2])
        // A change of the hook in the meantime is no end of it.
        try await putHook()
        #expect(try await records.putAside(event(2), reason: "400", at: 2000))
        #expect(try await putAside() == [1, 2])
    }

    @Test("A refused event of a hook that was deleted while it was sent is dropped: nobody could drop it later")
    func deleted() async throws {
        try await putHook()
        try await records.write(event(1))
        try await records.erase("alarms", of: "acme")
        #expect(try await !records.putAside(event(1), reason: "400", at: 2000))
        #expect(try await putAside().isEmpty)
        #expect(try await waiting().isEmpty)
    }
}
