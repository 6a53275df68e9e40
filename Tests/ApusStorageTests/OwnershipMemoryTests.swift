import ApusCore
import ApusStorage
import Foundation
import Logging
import Testing

@Suite("What a node remembers of the ownership store (D4)")
struct OwnershipMemoryTests {
    private let store = StoreID(high: 1, low: 2)

    private func memory(_ files: SimulatedFiles, interval: Duration = .milliseconds(1)) -> OwnershipMemory {
        OwnershipMemory(
            directory: "/n1", cluster: testCluster, interval: interval, files: files,
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
    }

    private func load(_ files: SimulatedFiles) throws(ApusError) -> RevisionFile? {
        try OwnershipMemory.load(directory: "/n1", cluster: testCluster, files: files)
    }

    @Test("A node that was never a member remembers nothing; the newest map that it noted is there after a restart")
    func newest() async throws {
        let files = SimulatedFiles()
        try files.makeDirectory("/n1")
        #expect(try load(files) == nil)
        let memory = memory(files)
        for revision in [1, 3, 2] as [UInt64] {
            memory.note(OwnershipMark(store: store, revision: revision)) { [UInt8(revision)] }
        }
        await memory.flush(store: store)
        #expect(
            try load(files) == RevisionFile(cluster: testCluster, store: store, revision: 3, value: [3]))
    }

    @Test("However many maps are adopted, writes keep their distance, and the last one is written")
    func bounded() async throws {
        let files = SimulatedFiles()
        try files.makeDirectory("/n1")
        let memory = memory(files, interval: .seconds(3600))
        for revision in 1...1000 as ClosedRange<UInt64> {
            memory.note(OwnershipMark(store: store, revision: revision)) { [7] }
        }
        await memory.flush(store: store)
        #expect(files.callCount("rename") <= 2)
        #expect(try load(files)?.revision == 1000)
    }

    @Test("A power cut at any moment leaves the earlier map or the next one, whole")
    func powerCut() async throws {
        for cut in 0..<8 {
            for seed in 0..<UInt64(8) {
                var random = SeededRandom(seed: seed)
                let files = SimulatedFiles()
                try files.makeDirectory("/n1")
                try files.syncDirectory("/")
                let memory = memory(files)
                memory.note(OwnershipMark(store: store, revision: 1)) { [1] }
                await memory.flush(store: store)
                files.cut(after: cut)
                memory.note(OwnershipMark(store: store, revision: 2)) { [2] }
                await memory.flush(store: store)
                files.restart(random: &random)
                let found = try #require(try load(files))
                #expect(found.revision == 1 || found.revision == 2)
                #expect(found.value == [UInt8(found.revision)])
            }
        }
    }

    @Test("A damaged memory is refused with 10020 and its path")
    func damaged() async throws {
        let files = SimulatedFiles()
        try files.makeDirectory("/n1")
        let memory = memory(files)
        memory.note(OwnershipMark(store: store, revision: 1)) { [1, 2, 3] }
        await memory.flush(store: store)
        try files.damage("/n1/ownership.map")
        let error = #expect(throws: ApusError(.stateForeign)) { try load(files) }
        #expect(error?.message.contains("/n1/ownership.map") == true)
    }
}
