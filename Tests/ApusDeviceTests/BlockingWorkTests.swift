import ApusClient
import ApusCore
import ApusDevice
import Foundation
import Testing

@Suite("Work that blocks")
struct BlockingWorkTests {
    @Test("The end of a command is in the journal, though its task was cancelled while the command was carried out")
    func cancelled() async throws {
        let path = FileManager.default.temporaryDirectory.appendingPathComponent("journal-\(UUID().uuidString)").path
        defer { unlink(path) }
        let id = String(repeating: "a", count: 32)
        let answer = CommandLedger.Answer(code: 0, message: "", content: [], isAction: true)
        let journal = try CommandJournal(path: path)
        let (started, start) = AsyncStream.makeStream(of: Void.self)
        let running = Task {
            try await BlockingWork.run { () throws(ApusError) in try journal.append(.begun(id), isSynced: true) }
            start.finish()
            // An action that ignores the end of its task.
            while !Task.isCancelled { await Task.yield() }
            try await BlockingWork.run { () throws(ApusError) in
                try journal.append(.ended(id, answer), isSynced: true)
            }
        }
        for await _ in started {}
        running.cancel()
        try await running.value
        let ledger = journal.ledger
        #expect(ledger[id] == .ended(answer) && ledger.interrupted.isEmpty)
    }

    @Test("The error of the work is that of its task, cancelled or not")
    func errors() async {
        let failing = Task {
            _ = await #expect(throws: ApusError(.storageFailed)) {
                try await BlockingWork.run { () throws(ApusError) -> Void in throw ApusError(.storageFailed) }
            }
        }
        failing.cancel()
        await failing.value
    }
}
