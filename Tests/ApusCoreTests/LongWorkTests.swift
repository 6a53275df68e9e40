import ApusCore
import Dispatch
import Foundation
import Synchronization
import Testing

@Suite("Work that needs the processor for long")
struct LongWorkTests {
    /// The executor of one thread, as an event loop is one.
    private final class Loop: TaskExecutor {
        static let key = DispatchSpecificKey<Bool>()
        private let queue = DispatchQueue(label: "loop")

        init() { queue.setSpecific(key: Self.key, value: true) }

        func enqueue(_ job: consuming ExecutorJob) {
            let job = UnownedJob(job)
            queue.async { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
        }

        static var isCurrent: Bool { DispatchQueue.getSpecific(key: key) ?? false }
    }

    private final class Running: Sendable {
        let count = Atomic(0)
    }

    @Test("A task of an event loop does it elsewhere, goes on at its loop, and receives its error")
    func elsewhere() async throws {
        let task = Task(executorPreference: Loop()) { () throws -> [Bool] in
            let before = Loop.isCurrent
            let within = try await offEventLoop { () throws(ApusError) in Loop.isCurrent }
            return [before, within, Loop.isCurrent]
        }
        #expect(try await task.value == [true, false, true])
        // One at a time, so that the threads of other tasks stay free.
        let running = Running()
        let most = await withTaskGroup(of: Int.self) { group in
            for _ in 0..<8 {
                group.addTask {
                    (try? await offEventLoop { () throws(ApusError) in
                        let count = running.count.add(1, ordering: .relaxed).newValue
                        usleep(2000)
                        running.count.subtract(1, ordering: .relaxed)
                        return count
                    }) ?? 0
                }
            }
            return await group.reduce(0) { max($0, $1) }
        }
        #expect(most == 1)
        await #expect(throws: ApusError(.badParameter, "long")) {
            _ = try await offEventLoop { () throws(ApusError) -> Int in throw ApusError(.badParameter, "long") }
        }
    }
}
