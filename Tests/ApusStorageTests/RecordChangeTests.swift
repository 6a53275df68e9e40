import ApusCore
import ApusStorage
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Changes of records that others change at the same time")
struct RecordChangeTests {
    private typealias Outcome = (value: Int32, versions: [UInt64])

    private let store = MemoryRecordStore()
    private let key = OrderedKey(.signed(1))

    /// A new value of the record, and the step that writes it if the record is still as it is now.
    private func change(
        epoch: Epoch = 0, _ change: (Int32) -> Int32
    ) async throws(ApusError) -> (Int32, RecordStep?) {
        let found = try await store.record(stamps, key)
        let nanos = change(found?.body.nanos ?? 0)
        let write = try stamps.put(
            .with { ($0.seconds, $0.nanos) = (1, nanos) }, fence: RecordFence(epoch: epoch, writer: "n1#1"),
            if: found.map { .version($0.version) } ?? .absent)
        return (nanos, RecordStep(write))
    }

    private func value() async throws -> Int32? { try await store.record(stamps, key)?.body.nanos }

    @Test("Of many that change a record at once, each takes effect once, and has its own value and version")
    func atOnce() async throws {
        let results = try await withThrowingTaskGroup(of: Outcome.self) { group in
            for _ in 0..<40 {
                group.addTask {
                    try await store.change(attempts: 1_000, otherwise: ApusError(.overloaded)) {
                        () async throws(ApusError) -> (Int32, RecordStep?) in
                        let changed = try await change { $0 + 1 }
                        await Task.yield()
                        return changed
                    }
                }
            }
            return try await group.reduce(into: [Outcome]()) { $0.append($1) }
        }
        #expect(results.map(\.value).sorted() == Array(1...40))
        #expect(results.allSatisfy { $0.versions == [UInt64($0.value)] })
        #expect(try await value() == 40)
    }

    @Test("After the last attempt the given error is thrown, and nothing has changed")
    func exhausted() async throws {
        let calls = Mutex(0)
        await #expect(throws: ApusError(.overloaded)) {
            try await store.change(attempts: 3, otherwise: ApusError(.overloaded)) {
                () async throws(ApusError) -> (Int32, RecordStep?) in
                calls.withLock { $0 += 1 }
                let changed = try await change { _ in -1 }
                // Somebody is faster.
                if let other = try await change({ $0 + 1 }).1 { try await store.commit(other) }
                return changed
            }
        }
        #expect(calls.withLock { $0 } == 3)
        #expect(try await value() == 3)
    }

    @Test("Without a step nothing is written, and the value is returned")
    func unchanged() async throws {
        let (value, versions) = try await store.change(attempts: 1, otherwise: ApusError(.overloaded)) {
            () async throws(ApusError) -> (String, RecordStep?) in ("same", nil)
        }
        #expect(value == "same" && versions.isEmpty)
        #expect(try await self.value() == nil)
    }

    @Test("Other failures are thrown at once: those of the store, and all that the change throws")
    func failures() async throws {
        try await store.commit(try #require(try await change(epoch: 7) { _ in 1 }.1))
        let calls = Mutex(0)
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.change(attempts: 5, otherwise: ApusError(.overloaded)) {
                () async throws(ApusError) -> (Int32, RecordStep?) in
                calls.withLock { $0 += 1 }
                return try await change(epoch: 6) { _ in 2 }
            }
        }
        await #expect(throws: ApusError(.versionConflict)) {
            try await store.change(attempts: 5, otherwise: ApusError(.overloaded)) {
                () async throws(ApusError) -> (Int32, RecordStep?) in
                calls.withLock { $0 += 1 }
                throw ApusError(.versionConflict)
            }
        }
        #expect(calls.withLock { $0 } == 2)
        #expect(try await value() == 1)
    }
}
